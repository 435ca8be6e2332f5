"""Replays: accepted length as stored and as replayed, and their difference, one row a group."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acceptlab.figures import style
from acceptlab.figures.points import Points, draw_points, points_of

_PANELS = {
    "length": "Accepted length, without the bonus token",
    "difference": "Replayed less stored, paired",
}
_UNIT = "tokens per drafted step"


def draw_replay(frame: pd.DataFrame, axes: Axes, panel: str = "length") -> None:
    """Draw the stored and every replayed accepted length, or their differences, with intervals.

    Args:
        frame: The replay table.
        axes: The panel.
        panel: length or difference.
    """
    axes.set_title(_PANELS[panel])
    group = frame.columns[0]
    groups = list(dict.fromkeys(frame[group]))
    parts = list(frame.groupby(["rule", "tree"], sort=False))
    series: list[Points] = []
    if panel == "length" and parts:
        series.append(points_of(parts[0][1], "stored_len", "stored", groups, group))
    for (rule, tree), part in parts:
        quantity = "replay_len" if panel == "length" else "len_difference"
        series.append(points_of(part, quantity, f"{rule} on {tree}", groups, group))
    draw_points(axes, groups, series, _UNIT, first=int(panel == "difference"))
    if panel == "difference":
        axes.axvline(0.0, color=style.GREY, linewidth=0.8)
        return
    _draw_open(axes, [part.set_index(group).reindex(groups) for _, part in parts])


def _draw_open(axes: Axes, parts: list[pd.DataFrame]) -> None:
    """A broad grey bar where the stored numbers leave the length open; line 0 of the panel is the stored one."""
    for line, rows in zip(list(axes.lines)[1:], parts, strict=False):
        low, high = style.column(rows, "replay_len_least"), style.column(rows, "replay_len_most")
        wide = high > low
        y = np.asarray(line.get_ydata(), dtype=np.float64)
        axes.hlines(y[wide], low[wide], high[wide], color=style.GREY, linewidth=4.0, alpha=0.3)


def figure_replay(frame: pd.DataFrame, caption: str = "") -> Figure:
    """The replay table as two panels and a caption."""
    n_lines = len(frame) + frame.iloc[:, 0].nunique()
    return style.panel_figure(
        frame,
        draw_replay,
        _PANELS,
        f"{caption} Bars are 95% intervals; a broad grey bar is what the stored numbers leave open.",
        width=11.0,
        height=min(max(4.0, 0.22 * n_lines + 2.0), 12.0),
        legend=style.legend_above,
    )
