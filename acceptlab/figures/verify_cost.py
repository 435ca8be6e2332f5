"""Cost of a pass by the number of tokens in it, one line a backend. Draws a bench's table."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acceptlab.figures import style

_PANELS = {
    "ms": ("Time of a pass", "ms"),
    "over_one": ("Against a pass of one token", "T(n) / T(1)"),
}


def draw_verify_cost(frame: pd.DataFrame, axes: Axes, quantity: str = "over_one") -> None:
    """Draw times of passes against their length.

    Args:
        frame: the curve of `bench verify-cost`.
        axes: the panel.
        quantity: ms, or over_one with its intervals and the line of stepping.
    """
    title, label = _PANELS[quantity]
    axes.set_title(title)
    if not style.has_values(frame, [quantity]):
        style.empty_panel(axes, "no data")
        return
    for place, name in enumerate(dict.fromkeys(frame["backend"])):
        rows = frame[frame["backend"] == name]
        look = style.series(place)
        n, values = style.column(rows, "n"), style.column(rows, quantity)
        axes.plot(
            n,
            values,
            color=look.colour,
            marker=look.marker,
            markersize=4,
            linestyle=look.line,
            label=name,
            gid=str(name),
        )
        style.draw_intervals(axes, rows, quantity, n, look.colour, linewidth=1.2, alpha=0.8)
    if quantity == "over_one":
        n = np.unique(style.column(frame, "n"))
        axes.plot(n, n, color=style.GREY, linewidth=0.8, label="stepping, n passes", gid="stepping")
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("tokens in the pass, n")
    axes.set_ylabel(label)


def figure_verify_cost(frame: pd.DataFrame, caption: str = "") -> Figure:
    """The curve of `bench verify-cost` as two panels with one legend and a caption."""
    return style.panel_figure(
        frame,
        draw_verify_cost,
        _PANELS,
        caption,
        width=10.0,
        height=4.8,
        legend=lambda figure, panels: style.shared_legend(figure, panels[::-1]),
    )
