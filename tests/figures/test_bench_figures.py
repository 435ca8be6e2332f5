"""Figures of the benches, by what they draw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from acceptlab.figures import save
from acceptlab.figures.backends import draw_backend_gains, draw_backend_speeds, figure_backends
from acceptlab.figures.speedup import draw_lengths, draw_speedup, draw_time_split, figure_speedup
from acceptlab.figures.verify_cost import draw_verify_cost, figure_verify_cost


def arm(name: str, speed: float, **values: Any) -> dict[str, Any]:
    row = {
        "arm": name, "tokens_per_s": 20.0 * speed, "speed_up": speed, "speed_up_lo": speed - 0.1,
        "speed_up_hi": speed + 0.2, "predicted": None, "emitted_len": 1.0, "break_even_len": None,
        "draft_share": 0.0, "verify_share": 0.9, "other_share": 0.1,
    }  # fmt: skip
    return {**row, **values}


SPEEDS = pd.DataFrame(
    [
        arm("plain", 1.0),
        arm("chain:10", 0.8, predicted=0.85, emitted_len=3.0, break_even_len=3.75, draft_share=0.5, verify_share=0.3,
            other_share=0.2),
        arm("chain:2", 1.4, predicted=1.5, emitted_len=2.1, break_even_len=1.5),
        arm("chain:2+records", 1.3),
        arm("assisted:5", 0.9),
    ]
)  # fmt: skip
COSTS = pd.DataFrame(
    {
        "backend": ["float32"] * 3 + ["int8"] * 3,
        "n": [1, 4, 16] * 2,
        "ms": [50.0, 70.0, 120.0, 20.0, 21.0, 25.0],
        "over_one": [1.0, 1.4, 2.4, 1.0, 1.05, 1.25],
        "over_one_lo": [1.0, 1.3, 2.3, 1.0, 1.0, 1.2],
        "over_one_hi": [1.0, 1.5, 2.5, 1.0, 1.1, 1.3],
    }
)
BACKENDS = pd.DataFrame(
    {
        "backend": ["float32", "float32", "int8", "int8"],
        "K": [0, 5, 0, 5],
        "tokens_per_s": [20.0, 15.0, 40.0, 50.0],
        "speed_up": [1.0, 0.75, 1.0, 1.25],
        "speed_up_lo": [1.0, 0.7, 1.0, 1.2],
        "speed_up_hi": [1.0, 0.8, 1.0, 1.3],
    }
)


def panel() -> Axes:
    return Figure().subplots()


def drawn(axes: Axes, gid: str) -> tuple[list[float], list[float]]:
    (line,) = [line for line in axes.lines if line.get_gid() == gid]
    return [float(x) for x in line.get_xdata()], [float(y) for y in line.get_ydata()]


def intervals(axes: Axes) -> list[tuple[float, ...]]:
    bars = [bar for bar in axes.collections if isinstance(bar, LineCollection)]
    return [tuple(np.round(segment.reshape(-1), 6)) for bar in bars for segment in bar.get_segments()]


def widths(axes: Axes, label: str) -> list[float]:
    (bars,) = [bars for bars in axes.containers if bars.get_label() == label]
    return [float(bar.get_width()) for bar in bars]


def test_speed_ups_are_drawn_against_chain_length() -> None:
    axes = panel()
    draw_speedup(SPEEDS, axes)
    assert drawn(axes, "chains, measured") == ([2, 10], [1.4, 0.8])
    assert drawn(axes, "chains, predicted") == ([2, 10], [1.5, 0.85])
    assert intervals(axes)[:2] == [(2, 1.3, 2, 1.6), (10, 0.7, 10, 1.0)]
    # every other arm but the baseline is a line across
    assert drawn(axes, "assisted:5")[1] == [0.9, 0.9]
    assert drawn(axes, "chain:2+records")[1] == [1.3, 1.3]
    axes = panel()
    draw_lengths(SPEEDS, axes)
    assert drawn(axes, "emitted_len") == ([2, 10], [2.1, 3.0])
    assert drawn(axes, "break_even_len") == ([2, 10], [1.5, 3.75])


def test_the_parts_of_a_tokens_time_add_up() -> None:
    axes = panel()
    draw_time_split(SPEEDS, axes)
    parts = np.array([widths(axes, name) for name in ("drafting", "target pass and verdict", "the rest")])
    assert parts.sum(axis=0) == pytest.approx(1000 / SPEEDS["tokens_per_s"])
    assert parts[:, 1] == pytest.approx(1000 / 16 * np.array([0.5, 0.3, 0.2]))
    assert [text.get_text() for text in axes.get_yticklabels()] == list(SPEEDS["arm"])


def test_cost_of_passes_with_the_line_of_stepping() -> None:
    axes = panel()
    draw_verify_cost(COSTS, axes, "over_one")
    assert drawn(axes, "int8") == ([1, 4, 16], [1.0, 1.05, 1.25])
    assert drawn(axes, "stepping") == ([1, 4, 16], [1, 4, 16])
    assert (16, 1.2, 16, 1.3) in intervals(axes)
    axes = panel()
    draw_verify_cost(COSTS, axes, "ms")
    assert drawn(axes, "float32") == ([1, 4, 16], [50.0, 70.0, 120.0])


def test_backends_are_bars_and_points() -> None:
    axes = panel()
    draw_backend_speeds(BACKENDS, axes)
    assert widths(axes, "target alone") == [20.0, 40.0]
    assert widths(axes, "chain of 5") == [15.0, 50.0]
    axes = panel()
    draw_backend_gains(BACKENDS, axes)
    assert drawn(axes, "chain of 5")[0] == [0.75, 1.25]
    assert [(x0, x1) for x0, _, x1, _ in intervals(axes)] == [(0.7, 0.8), (1.2, 1.3)]


@pytest.mark.parametrize(
    ("figure", "frame"),
    [(figure_speedup, SPEEDS), (figure_verify_cost, COSTS), (figure_backends, BACKENDS)],
    ids=["speedup", "verify-cost", "backends"],
)
def test_figures_are_saved_and_survive_empty_tables(figure: Any, frame: pd.DataFrame, tmp_path: Path) -> None:
    for suffix in ("png", "svg"):
        save(figure(frame, "A caption."), tmp_path / f"x.{suffix}")
        assert (tmp_path / f"x.{suffix}").stat().st_size > 1000
    empty = figure(frame.iloc[:0].astype(frame.dtypes), "A caption.")
    said = [text.get_text() for axes in empty.axes for text in axes.texts]
    assert any("no" in text for text in said)


def test_emitted_lengths_and_other_arms_have_intervals() -> None:
    axes = Figure().subplots()
    draw_lengths(SPEEDS.assign(emitted_len_lo=0.9, emitted_len_hi=3.5), axes)
    bars = [
        segment for c in axes.collections if isinstance(c, LineCollection) for segment in c.get_segments()
    ]
    assert [segment[:, 1].tolist() for segment in bars] == [[0.9, 3.5]] * 2
    axes = Figure().subplots()
    draw_speedup(SPEEDS, axes)
    ends = [s for c in axes.collections if isinstance(c, LineCollection) for s in c.get_segments()]
    # two chains, then the other arms, right of the longest chain
    assert [segment[0, 0] for segment in ends] == [2.0, 10.0, 10.5, 11.0]
    assert ends[3][:, 1] == pytest.approx([0.8, 1.1])
