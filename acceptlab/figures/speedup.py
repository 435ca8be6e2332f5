"""Speed-up by chain length, measured and predicted, and where the time of a token goes. Draws a bench's table."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acceptlab.figures import style

_PARTS = {"draft_share": "drafting", "verify_share": "target pass and verdict", "other_share": "the rest"}
_HATCHES = ("", "//", "..")


def _chain_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Plain chains with their lengths in the column `length`, in order."""
    rows = frame[frame["arm"].astype(str).str.fullmatch(r"chain:\d+")]
    lengths = rows["arm"].astype(str).str.removeprefix("chain:").astype(int)
    return rows.assign(length=lengths).sort_values("length")


def draw_speedup(frame: pd.DataFrame, axes: Axes) -> None:
    """Draw measured and predicted speed-up against chain length; the other arms as lines across, bars on the right.

    Args:
        frame: the table of `bench speedup`.
        axes: the panel.
    """
    axes.set_title("Speed-up over plain decoding")
    chains = _chain_rows(frame)
    if not style.has_values(frame, ["speed_up"]):
        style.empty_panel(axes, "no data")
        return
    look, x = style.series(0), style.column(chains, "length")
    values = style.column(chains, "speed_up")
    axes.plot(
        x, values, color=look.colour, marker=look.marker, label="chains, measured", gid="chains, measured"
    )
    style.draw_intervals(axes, chains, "speed_up", x, look.colour, linewidth=1.4)
    if style.has_values(chains, ["predicted"]):
        look = style.series(1)
        predicted = style.column(chains, "predicted")
        axes.plot(
            x,
            predicted,
            color=look.colour,
            linestyle="--",
            label="chains, predicted",
            gid="chains, predicted",
        )
    others = frame[~frame["arm"].isin([*chains["arm"], "plain"])]
    right = float(x.max(initial=0.0))
    for place, (name, value) in enumerate(zip(others["arm"], style.column(others, "speed_up"), strict=True)):
        look = style.series(2 + place)
        axes.axhline(value, color=look.colour, linestyle=look.line, linewidth=1.2, label=name, gid=str(name))
        # their intervals stand beside the chains, right of the longest
        at = np.array([right + 0.5 * (place + 1)])
        rows = others.iloc[[place]]
        style.draw_intervals(axes, rows, "speed_up", at, look.colour, linewidth=1.4)
    axes.axhline(1.0, color=style.GREY, linewidth=0.8)
    axes.set_xlabel("chain length K")
    axes.set_ylabel("tokens/s over those of plain decoding")
    axes.set_ylim(bottom=0.0)
    axes.set_xticks(x)
    style.legend_below(axes, 2)


def draw_lengths(frame: pd.DataFrame, axes: Axes) -> None:
    """Draw emitted and break-even length against chain length: speculation pays where the first is above."""
    axes.set_title("Tokens that a step emits, and has to")
    chains = _chain_rows(frame)
    if not style.has_values(chains, ["emitted_len"]):
        style.empty_panel(axes, "no chains")
        return
    x = style.column(chains, "length")
    for place, (name, label) in enumerate(
        {"emitted_len": "emitted, bonus token included", "break_even_len": "needed to break even"}.items()
    ):
        look = style.series(place)
        axes.plot(
            x, style.column(chains, name), color=look.colour, marker=look.marker, linestyle=look.line, label=label,
            gid=name,
        )  # fmt: skip
        style.draw_intervals(axes, chains, name, x, look.colour, linewidth=1.4)
    axes.set_xlabel("chain length K")
    axes.set_ylabel("tokens a step")
    axes.set_ylim(bottom=0.0)
    axes.set_xticks(x)
    style.legend_below(axes, 2)


def draw_time_split(frame: pd.DataFrame, axes: Axes) -> None:
    """Draw what the time of one token is spent on, one bar an arm."""
    axes.set_title("Time of one token")
    if not style.has_values(frame, ["tokens_per_s"]):
        style.empty_panel(axes, "no data")
        return
    ms = 1000.0 / style.column(frame, "tokens_per_s")
    y, left = np.arange(len(frame)), np.zeros(len(frame))
    for place, (name, label) in enumerate(_PARTS.items()):
        width = ms * style.column(frame, name)
        axes.barh(
            y, width, left=left, color=style.series(place).colour, hatch=_HATCHES[place], edgecolor="white",
            linewidth=0.5, label=label, gid=name,
        )  # fmt: skip
        left = left + width
    axes.set_yticks(y, list(frame["arm"]), fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("ms a token, prefill left out")
    style.legend_below(axes, 3)


def figure_speedup(frame: pd.DataFrame, caption: str = "") -> Figure:
    """The table of `bench speedup` as three panels and a caption."""
    with style.look():
        figure, panels = style.new_figure(1, 3, width=13.0, height=5.8)
        for draw, axes in zip((draw_speedup, draw_lengths, draw_time_split), panels, strict=True):
            draw(frame, axes)
        style.add_caption(figure, caption)
        return figure
