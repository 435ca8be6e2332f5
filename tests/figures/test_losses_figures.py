"""Figures of the study of losses: which rows, in which order, on which axes. Frames are made by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from acceptlab import figures

# conditional rates by arm, position 1 to 6; accepted lengths order the arms real, ce, start
RATES = {"start": 0.2, "ce": 0.3, "real": 0.4}


def retention(last: int = 6) -> pd.DataFrame:
    rows = [
        {
            "arm": arm,
            "k": k,
            "S_k": rate**k,
            "alpha_k": rate + 0.01 * k,
            "alpha_k_lo": rate - 0.02 * k,
            "alpha_k_hi": rate + 0.05 * k,
        }
        for arm, rate in RATES.items()
        for k in range(1, last + 1)
    ]
    return pd.DataFrame(rows)


def names(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


def x_of(axes: Axes, gid: str) -> list[float]:
    (line,) = [line for line in axes.lines if line.get_gid() == gid]
    return [float(x) for x in np.asarray(line.get_xdata())]


def test_retention_has_a_panel_a_position_and_a_row_an_arm() -> None:
    drawn = figures.draw("losses-retention", retention())
    assert len(drawn.axes) == 4
    assert names(drawn.axes[0]) == ["real", "ce", "start"]
    for k, axes in enumerate(drawn.axes, 1):
        assert f"k = {k}" in axes.get_title()
        assert axes.get_xlabel()
        assert x_of(axes, "alpha_k") == pytest.approx([rate + 0.01 * k for rate in (0.4, 0.3, 0.2)])
        (bars,) = [c for c in axes.collections if isinstance(c, LineCollection)]
        ends = np.array([segment[:, 0] for segment in bars.get_segments()])
        assert ends[:, 0] == pytest.approx([rate - 0.02 * k for rate in (0.4, 0.3, 0.2)])
        assert ends[:, 1] == pytest.approx([rate + 0.05 * k for rate in (0.4, 0.3, 0.2)])
        assert x_of(axes, "baseline") == pytest.approx([0.3 + 0.01 * k] * 2)
    assert len({axes.get_xlim() for axes in drawn.axes}) == 1


def test_retention_says_what_is_left_to_the_table() -> None:
    words = " ".join(figures.draw("losses-retention", retention(), "12 prompts.").get_supxlabel().split())
    assert words.startswith("12 prompts. ")
    assert "Dashed: ce, the baseline" in words
    # the largest S_4 is 0.4^4 = 0.0256
    assert "At most 2.6% of the windows keep 4 tokens" in words
    short = figures.draw("losses-retention", retention(last=2))
    assert len(short.axes) == 2
    assert "table" not in short.get_supxlabel()


def test_variance_is_on_a_log_axis_with_positions_named() -> None:
    found = {"ratio": 0.1, "ratio_lo": 0.05, "ratio_hi": 5.0, "n_windows": 1400, "n_prompts": 105}
    frame = pd.DataFrame(
        [{"checkpoint": c, "position": p, **found} for c in "ab" for p in ("1", "2", "whole window")]
    )
    drawn = figures.draw("losses-variance", frame)
    (axes,) = drawn.axes
    assert axes.get_xscale() == "log"
    assert axes.get_ylabel() == "position in the window"
    assert names(axes) == ["1", "2", "whole window"]
    assert [1.0, 1.0] in [list(line.get_xdata()) for line in axes.lines]
    assert {"0.1", "0.2", "0.5", "1", "2"} <= {label.get_text() for label in axes.get_xticklabels()}
    assert "1,400 windows of 105 prompts" in " ".join(drawn.get_supxlabel().split())


def test_marks_of_domains_keep_apart() -> None:
    kept = {"length": 1.0, "difference": 0.1, "seed_low": 0.1, "seed_high": 0.1}
    domains = ("all", "code", "math", "logic", "chat")
    frame = pd.DataFrame(
        [{"arm": arm, "domain": d, **kept} for d in domains for arm in ("one", "two", "three", "four")]
    )
    drawn = figures.draw("losses", frame)
    drawn.draw_without_rendering()
    axes = drawn.axes[2]
    marks = [line for line in axes.lines if line.get_gid()]
    assert len(marks) == 4
    heights = sorted(y for line in marks for y in axes.transData.transform(line.get_xydata())[:, 1])
    points = np.diff(heights) * 72 / drawn.dpi
    assert points.min() >= marks[0].get_markersize()
    # rows are parted by lines between them
    assert axes.get_yticks(minor=True).tolist() == [0.5, 1.5, 2.5]


@pytest.mark.parametrize("name", ["losses", "losses-retention", "losses-variance", "losses-decoding"])
def test_tables_without_rows_are_drawn(name: str) -> None:
    columns = ["arm", "k", "S_k", "domain", "seed_low", "checkpoint", "position", "serving"]
    drawn = figures.draw(name, pd.DataFrame(columns=columns))
    assert not any(axes.lines and axes.get_yticklabels() for axes in drawn.axes)
