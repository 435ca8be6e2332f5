"""Depth profiles: one line a group, one panel a quantity."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acceptlab.figures import style
from acceptlab.figures.lines import draw_lines, whole_numbers

_LABELS = {
    "S_d": ("Survival", "S_d (share of drafted steps)"),
    "alpha_d": ("Conditional acceptance", "alpha_d = S_d / S_(d-1)"),
    "node_rate_d": ("Acceptance per tested node", "node_rate_d (accepted / tested)"),
    "mean_ratio_d": ("Mean accept ratio, all nodes", "mean_ratio_d (tested or not)"),
}
_DODGE = 0.08


def draw_depth_profile(frame: pd.DataFrame, axes: Axes, quantity: str = "S_d") -> None:
    """Draw one quantity of the depth-profile table against depth, with intervals.

    Args:
        frame: The table; its first column holds the group.
        axes: The panel.
        quantity: S_d, alpha_d, node_rate_d or mean_ratio_d.
    """
    title, label = _LABELS[quantity]
    axes.set_title(title)
    draw_lines(frame, axes, "depth", quantity, _DODGE, bottom=-0.02)  # a marker at 0 stays whole
    if axes.lines:
        axes.set_xlabel("depth d (tokens below the root)")
        axes.set_ylabel(label)
        whole_numbers(axes)


def figure_depth_profile(frame: pd.DataFrame, caption: str = "") -> Figure:
    """The depth-profile table as four panels with one legend and a caption."""
    return style.panel_figure(
        frame,
        draw_depth_profile,
        _LABELS,
        f"{caption} {style.BARS}",
        n_rows=2,
        width=9.0,
        height=7.2,
        legend=style.shared_legend,
    )
