"""Points with intervals, one row a group: the panel that several figures share. Draws what it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.axes import Axes

from acceptlab.figures import style

_SPREAD = 0.6
_SPREAD_OF_MANY = 0.84
_MANY = 3
"""From so many series on, they fill more of a row's height, and fine lines part the rows."""
_MANY_ROWS = 8
_SMALL = 4.5
"""Size of markers where there are many (points): short intervals show on both sides."""


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
    is_crowded = len(series) >= _MANY and len(groups) > 1
    spread = _SPREAD_OF_MANY if is_crowded else _SPREAD
    for i, one in enumerate(series):
        look = style.series(first + i, pooled=one.label == "all")
        y = np.arange(len(groups)) + spread * ((i + 0.5) / len(series) - 0.5)
        axes.plot(
            one.values,
            y,
            color=look.colour,
            marker=look.marker,
            markersize=_SMALL if is_crowded or len(groups) >= _MANY_ROWS else None,
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
    if is_crowded:
        axes.grid(visible=False, axis="y", which="major")
        axes.set_yticks(np.arange(len(groups) - 1) + 0.5, minor=True)
        axes.grid(visible=True, axis="y", which="minor")
        axes.tick_params(axis="y", which="minor", length=0)
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.set_xlabel(unit)


def draw_quantities(
    frame: pd.DataFrame, axes: Axes, quantities: Mapping[str, str], unit: str, line_at: float | None = None
) -> None:
    """Draw quantities of a table side by side, a row a group (the first column), their legend below.

    Args:
        frame: the table.
        axes: the panel.
        quantities: columns with their labels.
        unit: label of the value axis.
        line_at: where a grey line stands that values are compared with.
    """
    if not style.has_values(frame, list(quantities)):
        style.empty_panel(axes, style.why_empty(frame, list(quantities)))
        return
    column = str(frame.columns[0])
    groups = [str(name) for name in frame[column]]
    draw_points(
        axes,
        groups,
        [points_of(frame, name, label, groups, column) for name, label in quantities.items()],
        unit,
    )
    if line_at is not None:
        axes.axvline(line_at, color=style.GREY, linewidth=0.8)
    if len(quantities) > 1:
        style.legend_below(axes, len(quantities))
