"""Retention: histogram of the accepted length, survival, conditional rate, and the length at every cut-off."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acceptlab.figures import style
from acceptlab.figures.lines import draw_lines, whole_numbers

_PANELS = {
    "length_share": ("Accepted length", "share of drafted steps with exactly k", "k (tokens)"),
    "S_k": ("Survival", "S_k (share of drafted steps with at least k)", "k (tokens)"),
    "alpha_k": ("Conditional acceptance", "alpha_k = S_k / S_(k-1)", "k (tokens)"),
    "J_k": (
        "Mean accepted length at a cut-off",
        "J_K (tokens per drafted step, no bonus)",
        "cut-off K (tokens)",
    ),
}
_DODGE = 0.06


def draw_retention(frame: pd.DataFrame, axes: Axes, quantity: str = "S_k") -> None:
    """Draw one quantity of the retention table against k, with intervals.

    Args:
        frame: The table; its first column holds the group.
        axes: The panel.
        quantity: length_share, S_k, alpha_k or J_k.
    """
    title, label, x_label = _PANELS[quantity]
    axes.set_title(title)
    draw_lines(frame, axes, "k", quantity, _DODGE, bottom=-0.02)  # a marker at 0 stays whole
    if axes.lines:
        axes.set_xlabel(x_label)
        axes.set_ylabel(label)
        whole_numbers(axes)


def figure_retention(frame: pd.DataFrame, caption: str = "") -> Figure:
    """The retention table as four panels with one legend and a caption."""
    return style.panel_figure(
        frame,
        draw_retention,
        _PANELS,
        f"{caption} {style.BARS}",
        n_rows=2,
        width=9.0,
        height=7.2,
        legend=style.shared_legend,
    )
