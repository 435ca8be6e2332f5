"""`acceptlab pairs` from the outside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from acceptlab.cli import run
from tests.pairs.helpers import model_folder, word_tokenizer


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ACCEPTLAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_list_names_the_shipped_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pairs", "list", "--format", "json"]) == 0
    captured = capsys.readouterr()
    rows = json.loads(captured.out)
    assert [row["name"] for row in rows] == ["smollm2-135m", "smollm2-135m-cross"]
    assert [row["draft"] for row in rows] == ["drafter:smollm2-135m", "drafter:smollm2-135m-cross"]
    assert not any(row["fetched"] for row in rows)
    assert "ngram:n=3" in captured.err


def test_show_prints_both_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(model_folder(tmp_path / "m", tokenizer=word_tokenizer(58), vocab_size=60))
    assert run(["pairs", "show", "--target", folder, "--draft", "self:skip=1", "--format", "json"]) == 0
    captured = capsys.readouterr()
    target, draft = json.loads(captured.out)
    assert (target["role"], target["id"], draft["id"]) == ("target", folder, "self:skip=1")
    assert target["files"].startswith("model.safetensors ")
    assert "slow stand-in" in captured.err
    assert "2 ids of the target's 60 logits have no token" in captured.err
    assert "positions: 256" in captured.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["show", "nothing"], 2, "unknown pair 'nothing'"),
        (["fetch", "nothing"], 2, "unknown pair 'nothing'"),
        (["show", "--target", "/no/such/folder", "--draft", "ngram:n=2"], 2, "no model at '/no/such/folder'"),
    ],
)
def test_errors_are_one_sentence(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["pairs", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.startswith("error: ")


def test_fetch_prints_the_folder(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("acceptlab.pairs.default.default_target_folder", lambda: Path("/made/here"))
    assert run(["pairs", "fetch"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "/made/here\n"
    assert captured.err == "smollm2-135m is ready\n"
