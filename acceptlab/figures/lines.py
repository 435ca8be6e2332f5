"""Lines with intervals, one line a group: the panel that several figures share. Draws what it is given."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from acceptlab.figures import style


def draw_lines(
    frame: pd.DataFrame, axes: Axes, x: str, quantity: str, dodge: float = 0.0, *, bottom: float | None = 0.0
) -> None:
    """Draw a quantity against a column, a line a group (the first column), with intervals.

    Args:
        frame: the table.
        axes: the panel.
        x: column of the horizontal axis.
        quantity: what to draw; its interval is in the columns `_lo` and `_hi`.
        dodge: how far the groups stand apart, so that intervals do not hide each other.
        bottom: where the vertical axis begins; None for a quantity that can be negative.
    """
    if not style.has_values(frame, [quantity]):
        style.empty_panel(axes, style.why_empty(frame, [quantity]))
        return
    groups = list(dict.fromkeys(frame.iloc[:, 0]))
    for i, group in enumerate(groups):
        rows = frame[frame.iloc[:, 0] == group]
        look = style.series(i, pooled=group == "all")
        values = style.column(rows, quantity)
        name = str(group) if np.isfinite(values).any() else f"{group} (no data)"
        at = style.column(rows, x) + dodge * (i - (len(groups) - 1) / 2)
        axes.plot(
            at, values, color=look.colour, marker=look.marker, linestyle=look.line, label=name, gid=str(group)
        )
        style.draw_intervals(axes, rows, quantity, at, look.colour, linewidth=1.2, alpha=0.8)
    if bottom is not None:
        axes.set_ylim(bottom=bottom)


def whole_numbers(axes: Axes) -> None:
    """Ticks of the horizontal axis at whole numbers only."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
