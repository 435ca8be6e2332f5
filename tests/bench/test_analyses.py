"""Timing the analyses of a large run: the run is a sound one, limits bind, failures show."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from acceptlab import cli
from acceptlab.bench import analyses
from acceptlab.bench.analyses import LIMIT_S, SLOW_LIMIT_S, time_analyses, time_one
from acceptlab.bench.toy_run import make_toy_run
from acceptlab.errors import UsageError
from acceptlab.store import open_run
from acceptlab.store.check import check_run

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def toy_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench") / "toy"
    told: list[int] = []
    make_toy_run(folder, 8_000, on_nodes=told.append)
    assert told[-1] == open_run(folder).n_rows("nodes") >= 8_000
    return folder


def test_a_toy_run_is_sound_and_its_copies_differ(toy_run: Path) -> None:
    run = open_run(toy_run)
    assert check_run(toy_run) == []
    assert run.n_rows("contexts") == run.n_rows("nodes") // 2
    nodes = run.read("nodes").to_pandas()
    assert set(nodes["domain"]) == {"code", "math", "logic", "chat"}
    copy = nodes["prompt_id"].astype(str).str.rpartition("-")[2]
    n_copies = copy.nunique()
    assert n_copies > 1
    first = nodes["draft_entropy"].groupby(copy).nunique().iloc[0]
    assert nodes["draft_entropy"].nunique() > 0.9 * n_copies * first
    assert np.isfinite(nodes["target_entropy"]).all()


def test_time_and_memory_are_those_of_the_command(toy_run: Path) -> None:
    timed = time_one("domains", toy_run)
    assert (timed.exit_code, timed.said, timed.limit_s, timed.within) == (0, "", LIMIT_S, True)
    # an interpreter with pandas and duckdb takes a quarter of a second and a tenth of a gigabyte at least
    assert timed.seconds > 0.25
    assert timed.cpu_s > 0.25
    assert 0.1 < timed.peak_gib < 2.0


def test_what_fails_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toy_run: Path) -> None:
    timed = time_one("predictors", tmp_path / "none")
    assert timed.exit_code == 2
    assert "error:" in timed.said
    assert not timed.within
    assert timed.limit_s == SLOW_LIMIT_S
    with pytest.raises(UsageError, match="unknown analysis 'domain'"):
        time_analyses(toy_run, ["domain"])


def test_the_command_prints_one_line_an_analysis(
    toy_run: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["bench", "analyze", "--run", str(toy_run), "--only", "retention", "--format", "json"]
    assert cli.run(words) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["command"] == "analyze retention"
    monkeypatch.setattr(analyses, "LIMIT_GIB", 0.01)
    assert cli.run(words) == 1
    assert json.loads(capsys.readouterr().out)[0]["within"] is False
    assert toy_run.is_dir()
