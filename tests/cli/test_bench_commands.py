"""`acceptlab bench` from the outside, on a user's own tiny models."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from acceptlab.cli import run
from tests.engine.helpers import save_pair

PROMPTS = [{"id": f"p{i}", "domain": "code", "prompt": "word1 word2 " * (1 + i)} for i in range(2)]


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options that name a tiny pair; the shipped prompts are replaced by two of the tiny vocabulary."""
    from acceptlab.prompts import Prompt

    save_pair(tmp_path)
    prompts = [Prompt(row["id"], row["domain"], row["prompt"]) for row in PROMPTS]
    monkeypatch.setattr("acceptlab.run.load_prompts", lambda *words, **options: prompts)
    monkeypatch.setattr("acceptlab.prompts.load_prompts", lambda *words, **options: prompts)
    return ["--target", str(tmp_path / "target"), "--draft", str(tmp_path / "draft")]


def test_speedup_prints_every_arm_and_fills_the_folder(
    models: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "kept"
    words = ["--chains", "1,3", "--assisted", "3", "--repeats", "1", "--max-new-tokens", "8"]
    assert run(["bench", "speedup", *models, *words, "--folder", str(folder), "--format", "json"]) == 0
    captured = capsys.readouterr()
    rows = {row["arm"]: row for row in json.loads(captured.out)}
    assert list(rows) == [
        "plain", "chain:1", "chain:3", "kary:depth=3,branch=2", "chain:3+records", "generate", "assisted:3",
    ]  # fmt: skip
    assert rows["plain"]["speed_up"] == 1.0
    assert {row["same_text"] for row in rows.values()} == {1.0}
    assert rows["chain:3"]["over_assisted_3"] == pytest.approx(
        rows["chain:3"]["speed_up"] / rows["assisted:3"]["speed_up"]
    )
    assert rows["chain:3"]["predicted"] > 0
    assert "cost model" in captured.err
    assert f"chain:3+records makes {rows['chain:3+records']['over_assisted_3']:.3f} times" in captured.err
    assert sorted(path.name for path in folder.iterdir()) == [
        "figure.png", "figure.svg", "samples.parquet", "table.csv", "table.md",
    ]  # fmt: skip
    assert len(pd.read_parquet(folder / "samples.parquet")) == 7 * 2
    assert "| chain:3 |" in (folder / "table.md").read_text()


def test_verify_cost_splits_passes_and_compares_the_tree(
    models: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--backends", "float32,int8,llama.cpp", "--sizes", "2,8", "--repeats", "2", "--context", "20"]
    output = tmp_path / "fits.csv"
    assert run(["bench", "verify-cost", *models, *words, "--output", str(output)]) == 0
    captured = capsys.readouterr()
    fits = pd.read_csv(output)
    assert fits["backend"].tolist() == ["float32", "int8"]
    assert fits["serial_index"].between(0, 1).all()
    assert "left out llama.cpp" in captured.err
    assert "15 tokens with the root" in captured.err
    # the curve is printed beside: two backends at 1, 2 and 8 tokens
    assert (
        len([line for line in captured.out.splitlines() if line.strip().startswith(("float32", "int8"))]) == 6
    )


def test_backends_gives_a_verdict_on_each(models: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--backend",
        "float32,bfloat16,float32",
        "--chains",
        "2",
        "--repeats",
        "1",
        "--max-new-tokens",
        "6",
    ]
    assert run(["bench", "backends", *models, *words, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["backend"], row["K"]) for row in rows] == [
        ("float32", 0), ("float32", 2), ("bfloat16", 0), ("bfloat16", 2),
    ]  # fmt: skip
    assert all((row["verdict"] is None) == (row["K"] == 0) for row in rows)


def test_batches_prints_a_row_a_size(models: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--sizes", "1,2,4", "--repeats", "1", "--max-new-tokens", "6", "--format", "json"]
    assert run(["bench", "batches", *models, *words]) == 0
    captured = capsys.readouterr()
    rows = json.loads(captured.out)
    assert [row["batch_size"] for row in rows] == [1, 2, 4]
    assert [row["same_text"] for row in rows] == [1.0, 1.0, 1.0]
    assert "only 2 prompts: batches of 4 are never full" in captured.err


def test_collector_says_how_far_it_is_from_its_passes(
    models: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "collector", *models, "--repeats", "1", "--max-new-tokens", "6"]) == 0
    assert "times its bare model passes (2 prompts, 1 repeats in turn)" in capsys.readouterr().err


@pytest.mark.parametrize(("allowed", "code", "word"), [("1000000", 0, "within"), ("0", 1, "over")])
def test_memory_passes_or_fails(
    allowed: str, code: int, word: str, models: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "memory", *models, "--allowed", allowed, "--max-new-tokens", "3"]) == code
    captured = capsys.readouterr()
    assert f"{word} the" in captured.err
    assert captured.out.split()[:2] == ["n_prompts", "resident_mb"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["speedup", "--chains", "x"], "no list of chain lengths"),
        (["speedup", "--plot", "x.gif"], "ends in .png"),
        (["verify-cost", "--sizes", "0"], "from 1 to 512"),
        (["verify-cost", "--sizes", "1"], "needs a size beside 1"),
        (["verify-cost", "--backends", "fast"], "unknown backend 'fast'"),
        (["backends", "--backend", "fast"], "unknown backend 'fast'"),
        (["backends", "--backends", " , "], "--backends is empty: name some of float32"),
        (["verify-cost", "--backends", ""], "--backends is empty"),
        (
            ["verify-cost", "--context", "300"],
            "float32: it has 256 positions, not 364: lower --context or --sizes",
        ),
        (["backends", "--chains", ""], "at least one chain length"),
        (["batches", "--sizes", "0"], "from 1 to 256"),
    ],
)
def test_bad_words_are_refused_in_a_sentence(
    words: list[str], said: str, models: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", *words[:1], *models, *words[1:]]) == 2
    assert said in capsys.readouterr().err


def test_an_interrupt_prints_what_there_is(
    models: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C after two decodes: their rows stand in the table, and the exit code tells."""
    from acceptlab.cli.bench_options import BenchBar

    def stop(self: BenchBar, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(BenchBar, "__call__", stop)
    words = ["--chains", "1", "--tree", "chain:2", "--no-library", "--repeats", "1", "--max-new-tokens", "4"]
    assert run(["bench", "speedup", *models, *words, "--format", "csv"]) == 130
    captured = capsys.readouterr()
    assert [line.split(",")[0] for line in captured.out.splitlines()] == ["arm", "plain", "chain:1"]
    assert "interrupted: only what was measured" in captured.err
