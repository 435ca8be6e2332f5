"""Published definitions side by side: one row a definition, lengths and shares in panels of their own."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acceptlab.figures import style

_UNITS = {"tokens": "Lengths", "share": "Rates"}


def draw_metrics(frame: pd.DataFrame, axes: Axes, unit: str = "tokens") -> None:
    """Draw the pooled values of all definitions with that unit, with intervals.

    Args:
        frame: The metrics table.
        axes: The panel.
        unit: tokens or share.
    """
    axes.set_title(_UNITS[unit])
    rows = frame[frame["unit"] == unit]
    group = frame.columns[0]
    if group != "metric":
        rows = rows[rows[group] == "all"]
    if not style.has_values(rows, ["value"]):
        style.empty_panel(axes, style.why_empty(rows, ["value"]))
        return
    y = np.arange(len(rows))
    names = [f"{source}: {metric}" for source, metric in zip(rows["source"], rows["metric"], strict=True)]
    with_bonus = (rows["bonus"] == "yes").to_numpy()
    for i, (chosen, label) in enumerate(((~with_bonus, "no bonus token"), (with_bonus, "bonus counted"))):
        look = style.series(i)
        values = np.where(chosen, style.column(rows, "value"), np.nan)
        axes.plot(values, y, color=look.colour, marker=look.marker, linestyle="none", label=label, gid=label)
        low, high = style.column(rows, "value_lo"), style.column(rows, "value_hi")
        known = np.isfinite(low) & np.isfinite(high) & chosen
        axes.hlines(y[known], low[known], high[known], color=look.colour, linewidth=1.4)
    axes.set_yticks(y, names, fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("tokens per step" if unit == "tokens" else "share (0 to 1)")


def figure_metrics(frame: pd.DataFrame, caption: str = "") -> Figure:
    """The metrics table as two panels and a caption."""
    rows = int(frame["unit"].eq("share").sum()) if len(frame) else 0
    return style.panel_figure(
        frame,
        draw_metrics,
        _UNITS,
        f"{caption} {style.BARS}",
        width=13.0,
        height=min(max(5.0, 0.22 * rows + 2.0), 12.0),
        legend=style.shared_legend,
    )
