"""`acceptlab prompts` as its users run it: exit codes, what goes to stdout, one line of complaint."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from acceptlab.cli import run
from acceptlab.prompts import load_prompts


def test_a_missing_prompt_file_as_a_subprocess_fails_with_one_line(tmp_path: Path) -> None:
    for arguments in (["prompts", "check"], ["prompts", "show"]):
        command = [sys.executable, "-m", "acceptlab", *arguments, str(tmp_path / "none.jsonl")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2, done.stderr
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1
        assert "none.jsonl" in done.stderr


def test_an_empty_file_and_an_empty_prompt_as_subprocesses_fail(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "one.jsonl").write_text('{"id": 1, "prompt": "One"}\n{"id": 2, "prompt": ""}\n')
    for name, words in (("empty.jsonl", "the file is empty"), ("one.jsonl", "the prompt is empty")):
        command = [sys.executable, "-m", "acceptlab", "prompts", "check", str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1, done.stderr
        assert words in done.stdout
        assert "1 unusable rows" in done.stderr


def test_list_counts_the_shipped_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prompts", "list", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["set"], row["domain"], row["n_prompts"]) for row in rows] == [
        ("acceptlab", domain, 50) for domain in ("code", "math", "logic", "chat")
    ]


def test_list_of_formats_names_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prompts", "list", "--formats", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    names = ["HumanEval", "MBPP", "GSM8K", "MATH", "BBH", "LogiQA", "MT-Bench", "Spec-Bench", "AlpacaEval"]
    assert [row["benchmark"] for row in rows] == names


def test_show_prints_a_prompt_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    prompt = next(prompt for prompt in load_prompts() if prompt.id == "code/02")
    assert run(["prompts", "show", "code/02"]) == 0
    captured = capsys.readouterr()
    assert captured.out == prompt.prompt + "\n"
    assert prompt.sha256 in captured.err


def test_show_prints_every_turn_and_json_holds_them(capsys: pytest.CaptureFixture[str]) -> None:
    prompt = next(prompt for prompt in load_prompts() if prompt.turns)
    assert prompt.turns
    assert run(["prompts", "show", prompt.id]) == 0
    assert capsys.readouterr().out == "".join(turn + "\n" for turn in prompt.turns)
    assert run(["prompts", "show", prompt.id, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["turns"] == list(prompt.turns)


def test_show_of_an_unknown_id_offers_close_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prompts", "show", "codee/07"]) == 2
    assert "code/07" in capsys.readouterr().err


def test_show_of_a_file_is_a_table_and_an_id_can_be_looked_up_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.csv"
    path.write_text("key,text\na,One\nb,Two\n")
    options = ["--prompt-column", "text", "--id-column", "key"]
    assert run(["prompts", "show", str(path), *options, "--format", "json"]) == 0
    assert [row["id"] for row in json.loads(capsys.readouterr().out)] == ["a", "b"]
    assert run(["prompts", "show", "b", "--prompts", str(path), *options]) == 0
    assert capsys.readouterr().out == "Two\n"


def test_check_of_the_shipped_set_is_good(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prompts", "check", "--max-frame", "3"]) == 0
    captured = capsys.readouterr()
    assert [line.split()[:2] for line in captured.out.splitlines()[1:]] == [
        [domain, "50"] for domain in ("code", "math", "logic", "chat")
    ]


def test_check_lists_every_problem_with_its_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"id": 1, "prompt": "One"}\n{"id": 1, "prompt": "Two"}\n{"id": 3, "prompt": ""}\n{\n')
    assert run(["prompts", "check", str(path), "--format", "json"]) == 1
    captured = capsys.readouterr()
    rows = json.loads(captured.out)
    assert [(row["finding"], row["row"], row["line"], row["prompt_id"]) for row in rows] == [
        ("problem", 2, 2, "1"),
        ("problem", 3, 3, "3"),
        ("problem", 4, 4, None),
    ]
    assert "has 3 unusable rows" in captured.err


def test_check_reports_frames_and_fails_on_them_only_when_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.txt"
    path.write_text("".join(f"Boil {n} cups of {tea} now\n" for n, tea in enumerate(("a", "b", "c", "d"))))
    assert run(["prompts", "check", str(path)]) == 0
    assert run(["prompts", "check", str(path), "--max-frame", "4"]) == 0
    path.write_text(
        "".join(f"Boil {n} cups for {name} now\n" for n, name in enumerate(("Al", "Bo", "Cy", "Di")))
    )
    capsys.readouterr()
    assert run(["prompts", "check", str(path)]) == 0
    assert "boil # cups for @ now" in capsys.readouterr().out
    assert run(["prompts", "check", str(path), "--max-frame", "4"]) == 0
    assert run(["prompts", "check", str(path), "--max-frame", "3"]) == 1
    assert "1 frames in more than 3 prompts" in capsys.readouterr().err


def test_text_modes_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.txt"
    path.write_text("One\n\nTwo\n")
    assert run(["prompts", "check", str(path), "--text", "blocks"]) == 0
    assert run(["prompts", "check", str(path), "--text", "pages"]) == 2
    assert "--text is 'pages': choose lines or blocks" in capsys.readouterr().err
