"""Tokens a second on every backend, with and without speculation. Draws a bench's table."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acceptlab.figures import style
from acceptlab.figures.points import draw_points, points_of

_HEIGHT = 0.8


def draw_backend_speeds(frame: pd.DataFrame, axes: Axes) -> None:
    """Draw tokens a second by backend, one bar a chain length; hatched where speculation is not faster.

    Args:
        frame: the table of `bench backends`.
        axes: the panel.
    """
    axes.set_title("Speed")
    if not style.has_values(frame, ["tokens_per_s"]):
        style.empty_panel(axes, "no data")
        return
    backends = list(dict.fromkeys(frame["backend"]))
    lengths = sorted(set(frame["K"]))
    height = _HEIGHT / len(lengths)
    for place, length in enumerate(lengths):
        rows = frame[frame["K"] == length].set_index("backend").reindex(backends)
        y = np.arange(len(backends)) + height * (place - (len(lengths) - 1) / 2)
        label = f"chain of {length}" if length else "target alone"
        look = style.series(place)
        axes.barh(
            y, style.column(rows, "tokens_per_s"), height, color=look.colour, label=label, gid=label,
            hatch=("", "//", "..", "xx")[place % 4], edgecolor="white", linewidth=0.5,
        )  # fmt: skip
    axes.set_yticks(np.arange(len(backends)), backends)
    axes.invert_yaxis()
    axes.set_xlabel("new tokens a second, prefill left out")


def draw_backend_gains(frame: pd.DataFrame, axes: Axes) -> None:
    """Draw the speed-up over the target alone on the same backend, with intervals and the line of no gain."""
    axes.set_title("Speed-up on the same backend")
    backends = list(dict.fromkeys(frame["backend"]))
    lengths = [length for length in sorted(set(frame["K"])) if length]
    series = [
        points_of(frame[frame["K"] == length], "speed_up", f"chain of {length}", backends, "backend")
        for length in lengths
    ]
    # looks go on after that of the target alone
    draw_points(axes, backends, series, "tokens/s over those of the target alone", first=1)
    if axes.get_xticks().size:
        axes.axvline(1.0, color=style.GREY, linewidth=0.8)


def figure_backends(frame: pd.DataFrame, caption: str = "") -> Figure:
    """The table of `bench backends` as two panels with one legend and a caption."""
    with style.look():
        figure, panels = style.new_figure(1, 2, width=11.0, height=4.6)
        draw_backend_speeds(frame, panels[0])
        draw_backend_gains(frame, panels[1])
        style.legend_above(figure, panels)
        style.add_caption(figure, caption)
        return figure
