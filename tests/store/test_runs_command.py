"""`acceptlab runs` as its users run it: exit codes, data on stdout, one line a fault."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from acceptlab.cli import run
from acceptlab.store import RunWriter
from tests.store.helpers import FIELDS, prompt_tables, rewrite_part, write_run


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a complete and an unfinished run under data/runs."""
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "data/runs/whole", 2, fields={**FIELDS, "created": "2026-01-02T03:04:05+00:00"})
    write_run(tmp_path / "data/runs/half", 1, finish=False)
    return tmp_path


def test_list_has_a_row_a_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["runs", "list", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["run"], row["prompts"], row["complete"]) for row in rows] == [
        ("data/runs/whole", 2, True),
        ("data/runs/half", 1, False),
    ]
    assert rows[0]["created"] == "2026-01-02T03:04:05+00:00"
    assert (rows[0]["pair"], rows[0]["rule"], rows[0]["tree"]) == ("toy", "greedy", "chain:2")
    assert rows[0]["nodes"] > 0


def test_list_without_runs_says_how_to_get_one(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["runs", "list", "--folder", "elsewhere"]) == 0
    captured = capsys.readouterr()
    assert "no runs under 'elsewhere': collect one with acceptlab collect" in captured.err


def test_list_names_damaged_folders_and_parts(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "data/runs/bad").mkdir()
    (home / "data/runs/bad/manifest.json").write_text("{")
    next((home / "data/runs/half/nodes").iterdir()).write_bytes(b"gone")
    assert run(["runs", "list"]) == 0
    err = capsys.readouterr().err
    assert "'data/runs/bad/manifest.json' is damaged" in err
    assert "data/runs/half: 1 parts cannot be read" in err


def test_show_tells_the_configuration_and_the_sizes(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["runs", "show", "data/runs/whole", "--format", "csv"]) == 0
    rows = {row["field"]: row["value"] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    assert rows["config.tree"] == "chain:2"
    assert rows["config.temperature"] == "1.0"
    assert rows["complete"] == "true"
    assert rows["table.prompts"].startswith("2 rows in 1 parts, ")
    assert json.loads(rows["models.target"]) == FIELDS["models"]["target"]
    assert rows["machine.accelerator"] == "null"


def test_check_of_sound_runs(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["runs", "check", "data/runs/whole", "data/runs/half"]) == 0
    assert capsys.readouterr().out.splitlines() == ["data/runs/whole: sound", "data/runs/half: sound"]


def test_check_as_a_subprocess_fails_with_one_line_a_fault(home: Path) -> None:
    rewrite_part(home / "data/runs/half", "nodes", lambda rows: rows.slice(1))
    (home / "data/runs/whole/manifest.json").write_text("{")
    command = [sys.executable, "-m", "acceptlab", "runs", "check", "data/runs/whole", "data/runs/half"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0].startswith("data/runs/whole: 'data/runs/whole/manifest.json' is damaged")
    assert any(
        "n_nodes is not the number of nodes in 1 rows, one is prompt_id 'code/000'" in line for line in lines
    )
    assert all(line.startswith("data/runs/") for line in lines)
    assert done.stderr == f"error: {len(lines)} faults in 2 runs: restore the files or collect again\n"


def test_a_missing_run_is_bad_usage(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["check", "nowhere"],
        ["show", "nowhere"],
        ["merge", "nowhere", "data/runs/half", "--output", "x"],
    ):
        assert run(["runs", *arguments]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("error: 'nowhere' is not a run")
        assert len(captured.err.splitlines()) == 1


def test_merge_writes_a_run_and_says_what_it_holds(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = RunWriter.create(home / "more", {**FIELDS, "run_id": "run-2"})
    writer.write(prompt_tables(7))
    writer.finish(compression=3)
    assert run(["runs", "merge", "data/runs/whole", "more", "--output", "data/runs/both"]) == 0
    assert "merged 2 runs into data/runs/both: 3 prompts" in capsys.readouterr().err
    assert run(["runs", "check", "data/runs/both"]) == 0
    assert run(["runs", "merge", "data/runs/whole", "more", "--output", "data/runs/both"]) == 2
    assert "already holds a complete run" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["list", "show", "check", "merge"])
def test_every_command_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["runs", name, "--help"]) == 0
    assert f"acceptlab runs {name}" in capsys.readouterr().out.split("Example:")[1]
