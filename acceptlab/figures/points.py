"""Points with intervals, one row a group: the panel that several figures share. Draws what it is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acceptlab.figures import style

_SPREAD = 0.6


@dataclass(frozen=True, eq=False)
class Points:
    """One series: a value and an interval a group, NaN where undefined."""

    label: str
    values: Float[np.ndarray, " groups"]
    low: Float[np.ndarray, " groups"]
    high: Float[np.ndarray, " groups"]


def points_of(frame: pd.DataFrame, quantity: str, label: str, groups: Sequence[str], column: str) -> Points:
    """A quantity of a table by group; groups that the frame lacks are undefined."""
    rows = frame.set_index(column).reindex(list(groups))
    names = (quantity, f"{quantity}_lo", f"{quantity}_hi")
    return Points(label, *(style.column(rows, name) for name in names))


def draw_points(
    axes: Axes, groups: Sequence[str], series: Sequence[Points], unit: str, first: int = 0
) -> None:
    """Draw series side by side, groups from the top; says inside the panel where there is nothing.

    Args:
        axes: the panel.
        groups: names of the rows.
        series: what to draw.
        unit: label of the value axis.
        first: number of the first look, so that a series looks the same in every panel.
    """
    if not any(np.isfinite(one.values).any() for one in series):
        style.empty_panel(axes, "no data")
        return
    for i, one in enumerate(series):
        look = style.series(first + i)
        y = np.arange(len(groups)) + _SPREAD * ((i + 0.5) / len(series) - 0.5)
        axes.plot(
            one.values,
            y,
            color=look.colour,
            marker=look.marker,
            linestyle="none",
            label=one.label,
            gid=one.label,
        )
        known = np.isfinite(one.low) & np.isfinite(one.high)
        axes.hlines(y[known], one.low[known], one.high[known], color=look.colour, linewidth=1.4)
    missing = ~np.isfinite(np.stack([one.values for one in series])).any(axis=0)
    names = [
        f"{group}\n(no data)" if gone else str(group) for group, gone in zip(groups, missing, strict=True)
    ]
    axes.set_yticks(np.arange(len(groups)), names)
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.set_xlabel(unit)


def legend_above(figure: Figure, axes: Axes) -> None:
    """Put a panel's legend above all panels, in as many columns as fit."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        widest = max(len(str(label)) for label in labels) + 6
        columns = max(1, int(figure.get_figwidth() * 13) // widest)
        figure.legend(handles, labels, loc="outside upper center", ncols=min(columns, len(labels)))
