"""Studies: what a file may say, what is done once, what goes on after an interruption."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from acceptlab import collect as collecting
from acceptlab import run as running
from acceptlab.cli import run as run_cli
from acceptlab.errors import UsageError
from acceptlab.report import PAGE
from acceptlab.run import Finished, Request
from acceptlab.store import RunWriter, open_run
from acceptlab.study import Done, execute, find_studies, load_study, run_folder, run_study, state_of
from tests.engine.helpers import save_pair

STUDIES = Path(__file__).resolve().parents[1] / "studies"

HEAD = """
name = "tiny"
question = "Is it?"
prediction = "It is."
"""

STUDY = f"""{HEAD}
[[collect]]
name = "wide"
target = "target"
draft = "draft"
prompts = "prompts.jsonl"
max_new_tokens = 6

[[collect]]
name = "chain"
target = "target"
draft = "draft"
prompts = "prompts.jsonl"
tree = "chain:2"
max_new_tokens = 6

[[analyze]]
analysis = "domains"
runs = ["wide"]
resamples = 100

[[analyze]]
analysis = "depth-profile"
by = "run"
plot = false
resamples = 100
"""


class Silent:
    """Progress that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, message: str) -> None:
        self.lines.append(message)

    def start(self, n_prompts: int, n_done: int) -> None:
        self.lines.append(f"start {n_done} of {n_prompts}")

    def update(self, progress: collecting.Progress) -> None: ...

    def stop(self) -> None: ...


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_pair(folder)
    return folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, models: Path) -> Path:
    """A working directory with two models, a prompt file and a study."""
    furnish(tmp_path, models)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("acceptlab.study.execute._code_digest", lambda: "code")
    return tmp_path


@pytest.fixture(scope="module")
def finished_once(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same directory with the study done."""
    folder = tmp_path_factory.mktemp("finished")
    furnish(folder, models)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("acceptlab.study.execute._code_digest", lambda: "code")
        done = do()
    assert len(done.made) == 5
    assert not done.skipped
    return folder


@pytest.fixture
def finished(place: Path, finished_once: Path) -> Path:
    """A copy of it of one's own."""
    shutil.copytree(
        finished_once, place, ignore=shutil.ignore_patterns("target", "draft"), dirs_exist_ok=True
    )
    return place


def furnish(tmp_path: Path, models: Path) -> None:
    for name in ("target", "draft"):
        (tmp_path / name).symlink_to(models / name)
    prompts = [
        {"id": f"{domain}-{i}", "domain": domain, "prompt": f"word{i} word{i + 1} word{i + 2}"}
        for domain in ("code", "chat")
        for i in range(2)
    ]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)) + "\n")
    (tmp_path / "tiny.toml").write_text(STUDY)


def do(show: Silent | None = None) -> Done:
    return run_study(load_study(Path("tiny.toml")), runs_folder=Path("runs"), show=show or Silent())


def no_models(*_: object, **__: object) -> Any:
    raise AssertionError("a model was loaded")


def test_study_runs_once_and_then_is_skipped(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = finished
    page = (place / "reports" / "tiny" / PAGE).read_text(encoding="utf-8")
    for text in ("Is it?", "It is.", "Runs, pooled: wide, chain", "acceptlab study run tiny.toml"):
        assert text in page, text
    written = {path: path.stat().st_mtime_ns for path in place.rglob("*") if path.is_file()}
    assert {path.name for path in written} >= {
        "domains.csv",
        "domains.json",
        "domains.svg",
        "domains.png",
        "depth-profile-by-run.csv",
    }
    assert not (place / "reports" / "tiny" / "figures" / "depth-profile-by-run.png").exists()

    monkeypatch.setattr(running, "prepare", no_models)
    show = Silent()
    again = do(show)
    assert not again.made
    assert len(again.skipped) == 5
    assert sum("skipped:" in line for line in show.lines) == 5
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*") if path.is_file()} == written

    for entry in load_study(Path("tiny.toml")).collections:
        assert state_of(run_folder(entry, Path("runs"))) == "complete"


def test_groups_by_run_have_the_names_of_the_study(finished: Path) -> None:
    frame = pd.read_csv(finished / "reports" / "tiny" / "tables" / "depth-profile-by-run.csv")
    assert set(frame["run"]) == {"wide", "chain", "all"}
    assert list(frame[frame["run"] == "chain"]["depth"]) == [1, 2]  # not the tree of depth 3


def test_only_what_changed_is_done_again(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = finished / "reports" / "tiny"
    text = STUDY.replace("plot = false\nresamples = 100", "plot = false\nresamples = 200")
    assert text != STUDY
    (finished / "tiny.toml").write_text(text)
    assert do().made == ("analyze depth-profile-by-run", "figures and page")
    (finished / "tiny.md").write_text("# Verdict\n\nIt was <not>.\n")
    assert do().made == ("figures and page",)
    assert "It was &lt;not&gt;." in (report / PAGE).read_text(encoding="utf-8")

    (report / "tables" / "domains.csv").unlink()
    assert do().made == ("analyze domains",)
    path = report / "tables" / "domains.json"
    path.write_text(path.read_text()[:50])
    assert do().made == ("analyze domains",)
    (report / "figures" / "domains.svg").unlink()
    assert do().made == ("figures and page",)
    monkeypatch.setattr("acceptlab.study.execute._code_digest", lambda: "other code")
    assert do().made == ("analyze domains", "analyze depth-profile-by-run", "figures and page")


def test_code_digest_follows_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "PACKAGE", tmp_path)
    (tmp_path / "a.py").write_text("x = 1")
    before = execute._code_digest()
    (tmp_path / "notes.txt").write_text("x")
    assert execute._code_digest() == before
    (tmp_path / "q.sql").write_text("SELECT 1")
    assert execute._code_digest() != before


def test_interrupted_study_goes_on_where_it_was(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, calls = RunWriter.write, []

    def interrupted(self: RunWriter, tables: Any) -> None:
        if len(calls) == 1:
            raise KeyboardInterrupt
        calls.append(None)
        write(self, tables)

    monkeypatch.setattr(RunWriter, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        do()
    folder = run_folder(load_study(Path("tiny.toml")).collections[0], Path("runs"))
    assert state_of(folder) == "interrupted"
    assert open_run(folder).n_rows("prompts") == 1

    monkeypatch.setattr(RunWriter, "write", write)
    show = Silent()
    done = do(show)
    assert len(done.made) == 5
    assert "start 1 of 4" in show.lines
    assert state_of(folder) == "complete"
    assert open_run(folder).n_rows("prompts") == 4


def test_progress_says_which_part_of_how_many(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acceptlab.study.execute.run_collection", fake_collection)
    show = Silent()
    with pytest.raises(UsageError, match="is not a run"):
        do(show)
    assert show.lines[0] == "[1/5, 0:00 elapsed] collect wide"


def fake_collection(request: Request, *, folder: Path, **_: Any) -> Finished:
    assert request.max_new_tokens == 6
    return Finished(folder, "nothing")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "tiny"', 'name = "tiny"\nquestoin = "x"', "unknown key 'questoin': did you mean 'question'"),
        ('prediction = "It is."', "", "no text for 'prediction'"),
        ('prediction = "It is."', 'prediction = " "', "no text for 'prediction'"),
        ('name = "tiny"', 'name = "../tiny"', "is named '../tiny'"),
        (
            "max_new_tokens",
            "max_tokens",
            "collect 1: unknown key 'max_tokens': did you mean 'max_new_tokens'",
        ),
        ("max_new_tokens = 6", 'max_new_tokens = "6"', "max_new_tokens is '6': write a value of type int"),
        ("max_new_tokens = 6", "max_new_tokens = 0", "max_new_tokens is 0"),
        ("max_new_tokens = 6", "limit = true", "limit is True"),
        ("max_new_tokens = 6", "domains = [1]", r"domains is \[1\]"),
        ('analysis = "domains"', 'analysis = "domain"', "unknown analysis 'domain': did you mean 'domains'"),
        ('runs = ["wide"]', 'runs = ["wild"]', "unknown run 'wild': did you mean 'wide'"),
        ('runs = ["wide"]', "runs = []", r"runs is \[\]"),
        ('by = "run"', 'by = "runs"', "cannot group by 'runs': did you mean 'run'"),
        ("plot = false", "plot = 0", "plot is 0"),
        ("resamples = 100", "resamples = 0", "resamples is 0"),
        ("resamples = 100", "level = 95", "level is 95"),
        ("resamples = 100", 'interval = "bcca"', "interval is 'bcca'"),
        ('name = "chain"', 'name = "wide"', "collection 'wide' stands there twice"),
        ('by = "run"\n', "", None),
        (
            'analysis = "depth-profile"\nby = "run"',
            'analysis = "domains"',
            "analysis 'domains' stands there twice",
        ),
        ("[[analyze]]", "[analyze]", "not a TOML file"),
    ],
)
def test_mistakes_in_the_file_are_named(tmp_path: Path, old: str, new: str, message: str | None) -> None:
    assert old in STUDY
    path = tmp_path / "tiny.toml"
    path.write_text(STUDY.replace(old, new))
    if message is None:
        assert load_study(path).analyses[1].name == "depth-profile"
        return
    with pytest.raises(UsageError, match=message):
        load_study(path)


def test_report_table_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text(STUDY + '\n[report]\ntitel = "x"\n')
    with pytest.raises(UsageError, match="report: unknown key 'titel': did you mean 'title'"):
        load_study(path)
    path.write_text(STUDY + '\n[report]\ntitle = "x"\nfolder = "elsewhere"\n')
    loaded = load_study(path)
    assert (loaded.title, loaded.folder) == ("x", Path("elsewhere"))


def test_missing_study_names_those_that_are_there(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "studies").mkdir()
    (place / "studies" / "other.toml").write_text(STUDY)
    assert run_cli(["study", "run", "tinny"]) == 2
    assert "there is no study 'tinny'" in (error := capsys.readouterr().err)
    assert "other" in error
    assert load_study(Path("other")).name == "tiny"


def test_all_words_of_the_command_line_reach_the_request(tmp_path: Path) -> None:
    words = 'domains = "code, chat"\nlimit = 3\nseed = 7\ntemperature = 1\ntop_p = 0.9\nrule = "onehot"\nfolder = "x"\n'
    path = tmp_path / "s.toml"
    path.write_text(f'{HEAD}[[collect]]\nname = "a"\n{words}[[analyze]]\nanalysis = "metrics"\n')
    entry = load_study(path).collections[0]
    assert entry.request == Request(
        domains=("code", "chat"), limit=3, seed=7, temperature=1.0, top_p=0.9, rule="onehot"
    )
    assert entry.folder == Path("x")
    assert run_folder(entry, Path("runs")) == Path("x")


def test_list_and_show(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "studies").mkdir()
    (place / "studies" / "tiny.toml").write_text(STUDY)
    assert run_cli(["study", "list", "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["study"], row["collections"], row["analyses"], row["report"]) == ("tiny", 2, 2, None)
    assert run_cli(["study", "show", "tiny", "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert [(part["name"], part["state"]) for part in json.loads(out)] == [
        ("wide", "missing"),
        ("chain", "missing"),
        ("domains", "missing"),
        ("depth-profile-by-run", "missing"),
    ]
    assert "prediction: It is." in err


def test_shipped_studies_are_sound() -> None:
    studies = {study.name: study for study in map(load_study, find_studies(STUDIES))}
    assert {"quick", "sample"} <= set(studies)
    for path in find_studies(STUDIES):
        assert load_study(path).name == path.stem
    quick = studies["quick"]
    assert quick.folder == Path("reports/quick")
    (entry,) = quick.collections
    assert sorted(entry.request.domains) == ["chat", "code", "logic", "math"]
    assert entry.request.limit is not None
    assert entry.request.limit >= 12  # below ten prompts there would be no interval
    assert [wanted.analysis for wanted in quick.analyses] == [
        "domains",
        "depth-profile",
        "entropy",
        "metrics",
    ]


def test_study_modules_do_not_import_torch() -> None:
    code = "import sys, acceptlab.study; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
