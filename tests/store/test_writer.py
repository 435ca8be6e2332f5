"""Writing runs: create, resume, refuse to write twice, join parts, stay true when something fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from acceptlab.errors import RunError, UsageError
from acceptlab.records import TABLES
from acceptlab.store import RunWriter, open_run, writer
from tests.store.helpers import FIELDS, frames, prompt_tables, snapshot, write_run


def test_a_new_run_has_an_incomplete_manifest_before_any_row(tmp_path: Path) -> None:
    RunWriter.create(tmp_path / "run", FIELDS)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["complete"] is False
    assert manifest["ended"] is None
    assert manifest["config"] == FIELDS["config"]
    assert manifest["parts"] == {table.name: [] for table in TABLES}
    assert manifest["packages"]["pyarrow"]
    assert set(manifest["machine"]) == {"cpu", "cores", "memory_gib", "platform", "accelerator"}
    assert manifest["machine"]["cores"] >= 1


def test_run_ids_differ_and_a_named_accelerator_is_kept(tmp_path: Path) -> None:
    fields = {"config": {}, "machine": {"accelerator": "one of them"}}
    runs = [RunWriter.create(tmp_path / name, fields) for name in "ab"]
    assert runs[0].run_id != runs[1].run_id
    assert runs[0].manifest["machine"]["accelerator"] == "one of them"
    assert runs[0].manifest["machine"]["cores"] >= 1


def test_the_same_command_twice_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    for finish, state in ((False, "an incomplete run"), (True, "a complete run")):
        folder = tmp_path / state
        write_run(folder, 2, finish=finish)
        before = snapshot(folder)
        with pytest.raises(UsageError, match=rf"{state}.*--resume.*--run"):
            RunWriter.create(folder, FIELDS)
        assert snapshot(folder) == before


def test_resuming_a_complete_run_changes_nothing(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 2)
    before = snapshot(tmp_path / "run")
    resumed = RunWriter.resume(tmp_path / "run", FIELDS)
    assert resumed.is_complete
    assert resumed.done_prompt_ids == {"code/000", "code/001"}
    with pytest.raises(RunError, match="complete"):
        resumed.write(prompt_tables(5))
    with pytest.raises(RunError, match="complete"):
        resumed.finish()
    assert snapshot(tmp_path / "run") == before


def test_resuming_starts_where_there_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "missing/deep"):
        started = RunWriter.resume(tmp_path / name, FIELDS)
        assert not started.is_complete
        assert started.done_prompt_ids == frozenset()


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for start in (RunWriter.create, RunWriter.resume):
        with pytest.raises(UsageError, match="not empty and holds no run"):
            start(tmp_path, FIELDS)
    with pytest.raises(RunError, match="cannot make the run folder"):
        RunWriter.create(tmp_path / "notes.txt" / "run", FIELDS)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"config": {**FIELDS["config"], "seed": 1, "tree": "chain:3"}}, 'tree was "chain:2", not "chain:3"'),
        ({"config": {**FIELDS["config"], "zeal": 1}}, "zeal was null, not 1"),
        ({"models": {"target": {"id": "toy", "sha256": "bb"}}}, '"aa"'),
    ],
)
def test_resuming_under_other_settings_names_the_first_difference(
    tmp_path: Path, change: dict[str, object], says: str
) -> None:
    write_run(tmp_path / "run", 1, finish=False)
    before = snapshot(tmp_path / "run")
    with pytest.raises(UsageError, match="cannot resume") as caught:
        RunWriter.resume(tmp_path / "run", {**FIELDS, **change})
    assert says in str(caught.value)
    assert snapshot(tmp_path / "run") == before


def test_another_schema_version_cannot_be_resumed(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 1, finish=False)
    path = tmp_path / "run" / "manifest.json"
    path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 0'))
    with pytest.raises(UsageError, match="schema version 0, not 1"):
        RunWriter.resume(tmp_path / "run", FIELDS)


def test_a_resumed_run_holds_the_rows_of_an_uninterrupted_one(tmp_path: Path) -> None:
    write_run(tmp_path / "whole", 4)
    write_run(tmp_path / "halves", 2, finish=False)
    resumed = RunWriter.resume(tmp_path / "halves", FIELDS)
    assert resumed.done_prompt_ids == {"code/000", "code/001"}
    for number in (2, 3):
        resumed.write(prompt_tables(number))
    resumed.finish()
    whole, halves = frames(tmp_path / "whole"), frames(tmp_path / "halves")
    for table in TABLES:
        assert whole[table.name].equals(halves[table.name])


def test_a_prompt_is_stored_once(tmp_path: Path) -> None:
    started = write_run(tmp_path / "run", 1, finish=False)
    with pytest.raises(RunError, match="'code/000' would be stored twice"):
        started.write(prompt_tables(0))
    twice = {
        name: {key: [*values, *values] for key, values in columns.items()}
        for name, columns in prompt_tables(1).items()
    }
    with pytest.raises(RunError, match="'code/001' would be stored twice"):
        started.write(twice)
    assert open_run(tmp_path / "run").n_rows("prompts") == 1


def test_rows_without_their_prompt_are_refused(tmp_path: Path) -> None:
    started = write_run(tmp_path / "run", 0, finish=False)
    tables = prompt_tables(0)
    with pytest.raises(RunError, match="table 'nodes' has rows of prompt 'code/000'"):
        started.write({"nodes": tables["nodes"]})
    with pytest.raises(RunError, match="unknown table 'node'"):
        started.write({"node": tables["nodes"]})


def test_tables_without_rows_may_be_left_out_or_empty(tmp_path: Path) -> None:
    started = write_run(tmp_path / "run", 0, finish=False)
    prompts = prompt_tables(0)["prompts"]
    started.write({"prompts": prompts, "nodes": {"domain": [], "prompt_id": []}, "steps": {}})
    started.finish()
    run = open_run(tmp_path / "run")
    assert [run.n_rows(table.name) for table in TABLES] == [0, 0, 0, 1]
    assert run.read("nodes").num_rows == 0
    assert all(len(run.files(table.name)) == 1 for table in TABLES)  # so that every table can be queried


def test_small_parts_are_joined_while_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "MAX_SMALL_PARTS", 2)
    write_run(tmp_path / "rolled", 12, finish=False)
    rolled = open_run(tmp_path / "rolled")
    for table in TABLES:
        levels = [part["level"] for part in rolled.parts(table.name)]
        assert max(levels) >= 2
        assert all(levels.count(level) <= 2 for level in levels)
        assert len(list((tmp_path / "rolled" / table.name).iterdir())) == len(levels)
    ids = rolled.read("prompts", ["prompt_id"])["prompt_id"].to_pylist()
    assert ids == [f"code/{number:03d}" for number in range(12)]  # the order of writing
    monkeypatch.undo()
    write_run(tmp_path / "plain", 12, finish=False)
    plain, again = frames(tmp_path / "plain"), frames(tmp_path / "rolled")
    assert all(plain[table.name].equals(again[table.name]) for table in TABLES)


def test_finishing_leaves_one_part_a_table_and_what_was_added(tmp_path: Path) -> None:
    started = write_run(tmp_path / "run", 3, finish=False)
    assert len(open_run(tmp_path / "run").files("nodes")) == 3
    started.finish({"note": "a remark"})
    run = open_run(tmp_path / "run")
    assert run.is_complete
    assert run.manifest["note"] == "a remark"
    assert run.manifest["ended"] >= run.manifest["created"]
    assert run.manifest["wall_s"] > 0
    for table in TABLES:
        assert [path.name for path in (tmp_path / "run" / table.name).iterdir()] == [
            run.files(table.name)[0].name
        ]


def test_a_manifest_that_cannot_be_written_is_as_if_nothing_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = write_run(tmp_path / "run", 1, finish=False)

    def fail(*arguments: object) -> None:
        raise RunError("no space")

    monkeypatch.setattr(writer, "write_manifest", fail)
    with pytest.raises(RunError, match="no space"):
        started.write(prompt_tables(1))
    monkeypatch.undo()
    assert started.done_prompt_ids == {"code/000"}
    started.write(prompt_tables(1))  # not "stored twice", and not stored twice
    started.finish()
    assert open_run(tmp_path / "run").n_rows("prompts") == 2


def test_a_second_process_cannot_write_the_same_run(tmp_path: Path) -> None:
    started = write_run(tmp_path / "run", 1, finish=False)
    code = f"""
from tests.store.helpers import FIELDS
from acceptlab.store import RunWriter
RunWriter.resume({str(tmp_path / "run")!r}, FIELDS)
"""
    command = [sys.executable, "-c", code]
    root = Path(__file__).parents[2]
    refused = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    assert "another process is writing run" in refused.stderr
    started.close()
    assert subprocess.run(command, capture_output=True, check=False, cwd=root).returncode == 0
