"""Streaks: variance within and between texts, and runs of low steps, one row a group."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acceptlab.figures import style
from acceptlab.figures.points import draw_points, points_of

_PANELS: dict[str, tuple[str, str, dict[str, str]]] = {
    "variance": (
        "Variance of the accepted length",
        "tokens^2",
        {"variance_within": "within a text", "variance_between": "between texts"},
    ),
    "streaks": (
        "Runs of consecutive low steps",
        "steps",
        {"longest_low": "longest of a text, mean", "mean_streak": "mean length"},
    ),
    "excess": ("Do low steps cluster?", "mean run / its length if independent", {"streak_excess": "excess"}),
}


def draw_streaks(frame: pd.DataFrame, axes: Axes, panel: str = "variance") -> None:
    """Draw some quantities of the streaks table, one row a group, with intervals.

    Args:
        frame: The table; its first column holds the group.
        axes: The panel.
        panel: variance, streaks or excess.
    """
    title, unit, quantities = _PANELS[panel]
    axes.set_title(title)
    group = str(frame.columns[0])
    groups = [str(name) for name in frame[group]]
    series = [points_of(frame, name, label, groups, group) for name, label in quantities.items()]
    draw_points(axes, groups, series, unit)
    if panel == "excess":
        axes.axvline(1.0, color=style.GREY, linewidth=0.8)
    if len(series) > 1 and axes.lines:
        style.legend_below(axes, len(series))


def figure_streaks(frame: pd.DataFrame, caption: str = "") -> Figure:
    """The streaks table as three panels and a caption."""
    with style.look():
        figure, panels = style.new_figure(1, 3, width=12.0, height=4.2)
        for axes, panel in zip(panels, _PANELS, strict=True):
            draw_streaks(frame, axes, panel)
        style.add_caption(figure, f"{caption} Bars are 95% intervals; a missing bar means too few prompts.")
        return figure
