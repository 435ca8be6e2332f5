"""Figures of replays, budgets, retention, streaks, calibration, predictors, covariances: by what they draw."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acceptlab import figures
from acceptlab.analysis import ANALYSES, AnalysisTable
from acceptlab.figures import style
from acceptlab.resampling import Resampling
from acceptlab.store import open_run
from tests.handmade import Step, write_run
from tests.synthetic import make_run

OPTIONS = {
    "replay": {"rules": ["additive:0.1", "top:2"], "tree_texts": ["branches:2,1"]},
    "budget": {"nodes": 5},
}
NAMES = ("replay", "budget", "retention", "streaks", "calibration", "predictors", "covariance")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, AnalysisTable]:
    folder = make_run(tmp_path_factory.mktemp("figures") / "run", domains=("code", "chat"), n_prompts=11)
    run, few = open_run(folder), Resampling(n_resamples=100)
    return {name: ANALYSES[name]([run], resampling=few, **OPTIONS.get(name, {})) for name in NAMES}


def drawn(axes: Axes, gid: str) -> tuple[np.ndarray, np.ndarray]:
    line = next(line for line in axes.lines if line.get_gid() == gid)
    return np.asarray(line.get_xdata(), dtype=float), np.asarray(line.get_ydata(), dtype=float)


def panel() -> Axes:
    return Figure().subplots()


def test_lines_are_the_rows_of_the_tables(tables: dict[str, AnalysisTable]) -> None:
    frame, axes = tables["retention"].frame, panel()
    figures.draw_retention(frame, axes, "J_k")
    np.testing.assert_array_equal(drawn(axes, "chat")[1], frame[frame.domain == "chat"]["J_k"])
    frame, axes = tables["covariance"].frame, panel()
    figures.draw_covariance(frame.assign(C_k=-frame["C_k"]), axes, "C_k")
    np.testing.assert_array_equal(drawn(axes, "chat")[1], -frame[frame.domain == "chat"]["C_k"])
    assert axes.get_ylim()[0] < 0  # covariances may be negative
    both = pd.concat([frame, frame.assign(temperature=0.5, gap_k=9.0)])
    axes = panel()
    figures.draw_covariance(both, axes, "gap_k")
    assert set(drawn(axes, "code, T=0.5")[1]) == {9.0}
    frame, axes = tables["budget"].frame, panel()
    figures.draw_budget(frame, axes, "tokens_per_s")
    for shape in ("tree", "chain"):
        rows = frame[(frame.domain == "code") & (frame["shape"] == shape)]
        found = drawn(axes, f"code, {shape}s")
        np.testing.assert_array_equal(found[0], rows["budget"])
        np.testing.assert_array_equal(found[1], rows["tokens_per_s"])
    best = frame[(frame.domain == "all") & (frame.choice == "best")]
    assert drawn(axes, "all, best")[1].tolist() == best["tokens_per_s"].tolist()
    frame, axes = tables["calibration"].frame, panel()
    figures.draw_calibration(frame, axes, "argmax")
    rows = frame[(frame.domain == "all") & (frame.outcome == "argmax") & frame["bin"].notna()]
    found = drawn(axes, "all")
    np.testing.assert_array_equal(found[0], rows["confidence"])
    np.testing.assert_array_equal(found[1], rows["rate"])


def test_points_are_the_rows_of_the_tables(tables: dict[str, AnalysisTable]) -> None:
    frame, axes = tables["replay"].frame, panel()
    figures.draw_replay(frame, axes, "length")
    rows = frame[frame.rule == "top:2"]
    np.testing.assert_array_equal(drawn(axes, "top:2 on branches:2,1")[0], rows["replay_len"])
    np.testing.assert_array_equal(drawn(axes, "stored")[0], rows["stored_len"])
    axes = panel()
    figures.draw_replay(frame, axes, "difference")
    np.testing.assert_array_equal(drawn(axes, "top:2 on branches:2,1")[0], rows["len_difference"])
    frame, axes = tables["streaks"].frame, panel()
    figures.draw_streaks(frame, axes, "variance")
    np.testing.assert_array_equal(drawn(axes, "between texts")[0], frame["variance_between"])
    frame, axes = tables["predictors"].frame, panel()
    figures.draw_predictors(frame, axes, "deviance_share")
    rows = frame[(frame.predictor == "domain") & frame.outcome.isin(["accepted", "argmax"])]
    np.testing.assert_array_equal(drawn(axes, "domain")[0], rows["deviance_share_excess"])


def test_what_lists_leave_open_is_a_broad_bar(tables: dict[str, AnalysisTable]) -> None:
    frame = tables["replay"].frame.copy()
    axes = panel()
    figures.draw_replay(frame, axes, "length")
    closed = sum(len(lines.get_segments()) for lines in axes.collections)
    frame.loc[0, "replay_len_most"] += 0.3
    axes = panel()
    figures.draw_replay(frame, axes, "length")
    assert sum(len(lines.get_segments()) for lines in axes.collections) == closed + 1


@pytest.mark.parametrize("name", NAMES)
def test_whole_figures_are_saved_and_empty_ones_say_so(
    tables: dict[str, AnalysisTable], name: str, tmp_path: Path
) -> None:
    figure = figures.draw(name, tables[name].frame, tables[name].caption)
    assert all(axes.lines for axes in figure.axes)
    figures.save(figure, tmp_path / "whole.svg")
    assert (tmp_path / "whole.svg").stat().st_size > 5000
    steps = [Step(emitted=1)]
    undrafted = open_run(
        write_run(tmp_path / "none", {"code/x": steps}, config={"rule": "greedy", "tree": "chain:2"})
    )
    table = ANALYSES[name]([undrafted], resampling=Resampling(n_resamples=100))
    assert isinstance(table.frame, pd.DataFrame)
    empty = figures.draw(name, table.frame, table.caption)
    words = [text.get_text() for axes in empty.axes for text in axes.texts]
    assert any(word.startswith("no data") for word in words)
    style.save(empty, tmp_path / "empty.png")
