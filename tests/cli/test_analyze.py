"""The analyze commands: which run they take, formats, figures, and how they fail."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from acceptlab import cli
from acceptlab.store import provenance
from tests.handmade import Step, chain, write_run
from tests.synthetic import make_run

COMMANDS = ("depth-profile", "domains", "entropy", "metrics")
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("analyze") / "run", n_prompts=3, n_steps=3)


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without runs, outside any checkout."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(provenance, "CHECKOUT", tmp_path / "no-checkout")
    return tmp_path


def _small(folder: Path, created: str, complete: bool = True) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    prompts = {"code/x": [Step(chain("a", "r"))]}
    write_run(folder, prompts, run_id=folder.name, complete=complete)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "created": created}))
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_prints_a_table(command: str, run_folder: Path, capsys: Capture) -> None:
    assert cli.run(["analyze", command, str(run_folder), "--resamples", "100"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) > 4
    assert "note: " in err
    assert "Traceback" not in err


@pytest.mark.parametrize("command", COMMANDS)
def test_formats_hold_the_same_numbers(
    command: str, run_folder: Path, capsys: Capture, tmp_path: Path
) -> None:
    arguments = ["analyze", command, str(run_folder), "--resamples", "100"]
    assert cli.run([*arguments, "--format", "csv"]) == 0
    csv = pd.read_csv(io.StringIO(capsys.readouterr().out))
    assert cli.run([*arguments, "--format", "json"]) == 0
    rows = pd.DataFrame(json.loads(capsys.readouterr().out))
    assert cli.run([*arguments, "--output", str(tmp_path / "t.parquet")]) == 0
    assert capsys.readouterr().out == ""
    parquet = pd.read_parquet(tmp_path / "t.parquet")
    assert list(csv) == list(rows) == list(parquet)
    numbers = [str(name) for name in csv.select_dtypes("number")]
    assert len(numbers) > 2
    for name in numbers:
        expected = pytest.approx(csv[name].to_numpy(dtype=float), nan_ok=True)
        assert pd.to_numeric(rows[name]).to_numpy(dtype=float) == expected
        assert parquet[name].to_numpy(dtype=float, na_value=float("nan")) == expected


@pytest.mark.parametrize("command", COMMANDS)
def test_plots_are_drawn(command: str, run_folder: Path, capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "figure.svg"
    assert cli.run(["analyze", command, str(run_folder), "--resamples", "100", "--plot", str(path)]) == 0
    assert f"drew {path}" in capsys.readouterr().err
    assert "<svg" in path.read_text()


def test_without_a_run_the_newest_complete_one_is_taken(nowhere: Path, capsys: Capture) -> None:
    _small(nowhere / "data/runs/older", "2026-01-01T00:00:00+00:00")
    _small(nowhere / "data/runs/newer", "2026-02-01T00:00:00+00:00")
    _small(nowhere / "data/runs/broken-off", "2026-03-01T00:00:00+00:00", complete=False)
    assert cli.run(["analyze", "domains"]) == 0
    assert capsys.readouterr().err.startswith("run: data/runs/newer\n")


def test_without_a_complete_run_the_sample_is_taken(nowhere: Path, capsys: Capture) -> None:
    _small(nowhere / "data/sample/one", "2026-01-01T00:00:00+00:00")
    assert cli.run(["analyze", "domains"]) == 0
    assert capsys.readouterr().err.startswith("run: data/sample/one\n")
    _small(nowhere / "data/runs/broken-off", "2026-03-01T00:00:00+00:00", complete=False)
    assert cli.run(["analyze", "domains"]) == 0
    err = capsys.readouterr().err
    assert "broken-off is incomplete" in err
    assert "run: data/sample/one\n" in err


def test_without_any_run_the_remedy_is_named(nowhere: Path, capsys: Capture) -> None:
    assert cli.run(["analyze", "domains"]) == 2
    assert "acceptlab collect" in capsys.readouterr().err


def test_an_incomplete_run_is_analysed_with_a_warning(nowhere: Path, capsys: Capture) -> None:
    folder = _small(nowhere / "half", "2026-01-01T00:00:00+00:00", complete=False)
    assert cli.run(["analyze", "depth-profile", str(folder), "--format", "csv"]) == 0
    out, err = capsys.readouterr()
    assert f"warning: {folder} is incomplete" in err
    assert out.startswith("domain,depth,S_d")


def test_several_runs_are_pooled(nowhere: Path, capsys: Capture) -> None:
    folders = [str(_small(nowhere / name, "2026-01-01T00:00:00+00:00")) for name in ("a", "b")]
    assert cli.run(["analyze", "domains", *folders, "--by", "run", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["run"], row["n_steps"]) for row in rows] == [("a", 1), ("b", 1), ("all", 2)]


def test_what_cannot_be_done_is_refused_in_one_sentence(
    run_folder: Path, nowhere: Path, capsys: Capture
) -> None:
    cases = {
        "no manifest": ["domains", str(nowhere / "missing")],
        "x.gif": ["domains", str(run_folder), "--plot", "x.gif"],
        "--output": ["domains", str(run_folder), "--format", "parquet"],
        "same run": ["domains", str(run_folder), str(run_folder)],
        "colour": ["domains", str(run_folder), "--by", "colour"],
    }
    for words, arguments in cases.items():
        assert cli.run(["analyze", *arguments]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert words in err
        assert "Traceback" not in err


def test_a_damaged_part_is_named(nowhere: Path, capsys: Capture) -> None:
    folder = make_run(nowhere / "run", n_prompts=2, n_steps=2)
    (part,) = (folder / "nodes").iterdir()
    part.write_bytes(part.read_bytes()[:-100])
    assert cli.run(["analyze", "depth-profile", str(folder)]) == 1
    err = capsys.readouterr().err
    assert part.name in err
    assert err.count("\n") == 1


def test_nothing_drafted_is_null_and_exit_0(nowhere: Path, capsys: Capture) -> None:
    folder = write_run(nowhere / "run", {"code/x": [Step(stop="length", emitted=1)]})
    for command in COMMANDS:
        assert cli.run(["analyze", command, str(folder), "--format", "json"]) == 0
        assert capsys.readouterr().out.startswith("[\n{")


def test_a_failure_is_seen_from_outside(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "acceptlab", "analyze", "domains", str(tmp_path / "missing")],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
