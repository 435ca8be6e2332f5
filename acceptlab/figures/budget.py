"""Budgets: predicted accepted length and speed against the number of drafted nodes, trees and chains by group."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from acceptlab.figures import style

_PANELS = {
    "expected_len": ("Predicted accepted length", "tokens per step, without the bonus token"),
    "tokens_per_s": ("Predicted speed", "emitted tokens per second"),
}
_LINES = {"tree": "-", "chain": ":"}


def draw_budget(frame: pd.DataFrame, axes: Axes, quantity: str = "expected_len") -> None:
    """Draw one quantity of the budget table against the node budget: trees solid, chains dotted.

    Args:
        frame: The table; its first column holds the group.
        axes: The panel.
        quantity: expected_len, or tokens_per_s with the best choice ringed.
    """
    title, label = _PANELS[quantity]
    axes.set_title(title)
    if not style.has_values(frame, [quantity]):
        style.empty_panel(axes, style.why_empty(frame, [quantity]))
        return
    groups = list(dict.fromkeys(frame.iloc[:, 0]))
    for i, group in enumerate(groups):
        of_group = frame[frame.iloc[:, 0] == group]
        look = style.series(i, pooled=group == "all")
        for shape, line in _LINES.items():
            rows = of_group[of_group["shape"] == shape]
            name = f"{group}, {shape}s"
            x, y = style.column(rows, "budget"), style.column(rows, quantity)
            axes.plot(
                x,
                y,
                color=look.colour,
                marker=look.marker,
                markersize=4,
                linestyle=line,
                label=name,
                gid=name,
            )
            if shape == "tree" and group == groups[-1]:  # those of all groups would hide each other
                style.draw_intervals(axes, rows, quantity, x, look.colour, linewidth=1.2)
        if quantity == "tokens_per_s":
            best = of_group[of_group["choice"] == "best"]
            axes.plot(
                style.column(best, "budget"),
                style.column(best, quantity),
                linestyle="none",
                marker="o",
                markersize=13,
                fillstyle="none",
                color=look.colour,
                gid=f"{group}, best",
            )
    axes.set_xlabel("drafted nodes a step")
    axes.set_ylabel(label)
    axes.margins(y=0.1)  # rings at the top stay whole
    axes.set_ylim(bottom=0.0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def figure_budget(frame: pd.DataFrame, caption: str = "") -> Figure:
    """The budget table as two panels and a caption."""
    return style.panel_figure(
        frame,
        draw_budget,
        _PANELS,
        f"{caption} Solid: best tree of that many nodes; dotted: chain; ring: the fastest choice of a group, "
        "no speculation and shallower trees included. Bars: 95% intervals of the last group's trees; those of the "
        "others are in the table.",
        width=11.0,
        height=5.2,
        legend=style.legend_above,
    )
