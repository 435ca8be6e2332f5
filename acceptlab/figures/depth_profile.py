"""Depth profiles: one line a group, one panel a quantity."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from acceptlab.figures import style

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
    if not style.has_values(frame, [quantity]):
        style.empty_panel(axes, style.why_empty(frame, [quantity]))
        return
    groups = list(dict.fromkeys(frame.iloc[:, 0]))
    for i, group in enumerate(groups):
        rows = frame[frame.iloc[:, 0] == group]
        look = style.series(i, pooled=group == "all")
        values = style.column(rows, quantity)
        name = str(group) if np.isfinite(values).any() else f"{group} (no data)"
        x = style.column(rows, "depth") + _DODGE * (i - (len(groups) - 1) / 2)
        axes.plot(
            x, values, color=look.colour, marker=look.marker, linestyle=look.line, label=name, gid=str(group)
        )
        low, high = style.column(rows, f"{quantity}_lo"), style.column(rows, f"{quantity}_hi")
        known = np.isfinite(low) & np.isfinite(high)
        axes.vlines(x[known], low[known], high[known], color=look.colour, linewidth=1.2, alpha=0.8)
    axes.set_xlabel("depth d (tokens below the root)")
    axes.set_ylabel(label)
    axes.set_ylim(bottom=-0.02)  # a marker at 0 stays whole
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def figure_depth_profile(frame: pd.DataFrame, caption: str = "") -> Figure:
    """The depth-profile table as four panels with one legend and a caption."""
    with style.look():
        figure, panels = style.new_figure(2, 2, width=9.0, height=7.2)
        for axes, quantity in zip(panels, _LABELS, strict=True):
            draw_depth_profile(frame, axes, quantity)
        style.shared_legend(figure, panels)
        style.add_caption(figure, f"{caption} Bars are 95% intervals; a missing bar means too few prompts.")
        return figure
