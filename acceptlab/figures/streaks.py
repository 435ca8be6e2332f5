"""Streaks: variance within and between texts, and runs of low steps, one row a group."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acceptlab.figures import style
from acceptlab.figures.points import draw_quantities

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
    draw_quantities(frame, axes, quantities, unit, line_at=1.0 if panel == "excess" else None)


def figure_streaks(frame: pd.DataFrame, caption: str = "") -> Figure:
    """The streaks table as three panels and a caption."""
    return style.panel_figure(
        frame,
        draw_streaks,
        _PANELS,
        f"{caption} {style.BARS}",
        width=12.0,
        height=4.2,
    )
