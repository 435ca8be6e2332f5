"""How figures look and are saved: colours, markers, empty panels, captions, files. Draws no data.

Colours are Okabe and Ito's, which colour-blind readers tell apart; every series has a marker and a line
style of its own as well, so that figures survive grey printing. Figures are made without pyplot: no window,
no global state.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import matplotlib as mpl
import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from acceptlab.errors import UsageError
from acceptlab.files import replacing

SUFFIXES = (".png", ".svg", ".pdf")
GREY = "#4d4d4d"
BARS = "Bars are 95% intervals; a missing bar means too few prompts."
"""What most captions say of the intervals."""

_BELOW_AXIS = 0.42
"""Where a panel's own legend begins (inches): under the numbers and the label of its axis."""

Panel = TypeVar("Panel")

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5C00")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
_PARAMETERS: Any = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "svg.hashsalt": "acceptlab",
    "svg.fonttype": "path",
    "pdf.compression": 6,
}
_NO_DATES: dict[str, dict[str, str | None]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": "acceptlab"},
    ".pdf": {"CreationDate": None, "Producer": None, "Creator": "acceptlab"},
}


@dataclass(frozen=True)
class Series:
    """Look of one series."""

    colour: str
    marker: str
    line: str | tuple[int, tuple[int, ...]]


def series(index: int, *, pooled: bool = False) -> Series:
    """Look of the series with that index; the pooled series is black."""
    if pooled:
        return Series("black", "*", "-")
    i = index % len(_COLOURS)
    return Series(_COLOURS[i], _MARKERS[i], _LINES[i])


@contextmanager
def look() -> Iterator[None]:
    """Settings under which a whole figure is drawn; the caller's own are back afterwards."""
    with mpl.rc_context(_PARAMETERS):
        yield


def new_figure(n_rows: int, n_columns: int, *, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with a grid of panels, in inches; the panels row by row."""
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(n_rows, n_columns, squeeze=False)
    return figure, [axes for row in grid for axes in row]


def panel_figure(
    frame: pd.DataFrame,
    draw: Callable[[pd.DataFrame, Axes, Panel], None],
    panels: Collection[Panel],
    caption: str,
    *,
    width: float,
    height: float,
    n_rows: int = 1,
    legend: Callable[[Figure, Sequence[Axes]], None] | None = None,
) -> Figure:
    """A whole figure of a table: panels of one kind, a legend above them, a caption below.

    Args:
        frame: the table.
        draw: draws one panel; called with the table, the panel and what it shows.
        panels: what each panel shows, row by row.
        caption: text below.
        width: of the figure (inches).
        height: of the figure (inches).
        n_rows: rows of panels.
        legend: `shared_legend` or `legend_above`; None where the panels have legends of their own.
    """
    with look():
        figure, places = new_figure(n_rows, len(panels) // n_rows, width=width, height=height)
        for axes, panel in zip(places, panels, strict=True):
            draw(frame, axes, panel)
        if legend is not None:
            legend(figure, places)
        add_caption(figure, caption)
        return figure


def draw_intervals(
    axes: Axes,
    rows: pd.DataFrame,
    quantity: str,
    at: Float[np.ndarray, " rows"],
    colour: str,
    *,
    linewidth: float,
    alpha: float | None = None,
    is_vertical: bool = True,
) -> None:
    """Draw the intervals of a quantity, from its columns `_lo` and `_hi`, where both ends are known.

    Args:
        axes: the panel.
        rows: rows of the table.
        quantity: name of the quantity.
        at: where the bars stand on the other axis.
        colour: of the bars.
        linewidth: of the bars (points).
        alpha: their opacity; None for solid ones.
        is_vertical: the quantity is on the vertical axis.
    """
    low, high = column(rows, f"{quantity}_lo"), column(rows, f"{quantity}_hi")
    known = np.isfinite(low) & np.isfinite(high)
    bars = axes.vlines if is_vertical else axes.hlines
    bars(at[known], low[known], high[known], color=colour, linewidth=linewidth, alpha=alpha)


def empty_panel(axes: Axes, message: str) -> None:
    """Say inside a panel why it shows nothing."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
    axes.text(0.5, 0.5, message, ha="center", va="center", transform=axes.transAxes, color=GREY, wrap=True)


def add_caption(figure: Figure, caption: str) -> None:
    """Put a caption below the panels, wrapped to the figure's width."""
    columns = int(figure.get_figwidth() * 15)
    figure.supxlabel("\n".join(textwrap.wrap(caption, columns)), fontsize=8, color=GREY, x=0.01, ha="left")


def share_range(panels: Sequence[Axes]) -> None:
    """Give panels of one quantity one horizontal range, so that they can be compared; empty ones keep theirs."""
    drawn = [axes for axes in panels if axes.has_data()]
    if drawn:
        ranges = [axes.get_xlim() for axes in drawn]
        for axes in drawn:
            axes.set_xlim(min(low for low, _ in ranges), max(high for _, high in ranges))


def shared_legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """Put the legend of the first panel that has one above all panels."""
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside upper center", ncols=8)
            return


def legend_above(figure: Figure, panels: Sequence[Axes]) -> None:
    """Put the legend of the first panel above all panels, in as many columns as fit."""
    handles, labels = panels[0].get_legend_handles_labels()
    if handles:
        widest = max(len(str(label)) for label in labels) + 6
        columns = max(1, int(figure.get_figwidth() * 13) // widest)
        n_rows = math.ceil(len(labels) / columns)
        # as long a last row as the others: pairs that follow each other then stand in one column
        n_columns = math.ceil(len(labels) / n_rows)
        figure.legend(handles, labels, loc="outside upper center", ncols=n_columns)


def legend_below(axes: Axes, n_columns: int) -> None:
    """Put a panel's legend, if it has one, under its axis and the axis' label, where it hides no data."""
    if not axes.get_legend_handles_labels()[0]:
        return
    figure = axes.get_figure(root=True)
    assert figure is not None
    below = axes.transAxes + ScaledTranslation(0.0, -_BELOW_AXIS, figure.dpi_scale_trans)
    axes.legend(
        loc="upper center", bbox_to_anchor=(0.5, 0.0), bbox_transform=below, ncols=n_columns, fontsize=8
    )


def column(frame: pd.DataFrame, name: str) -> Float[np.ndarray, " rows"]:
    """A column as floats, NaN where undefined or absent."""
    if name not in frame:
        return np.full(len(frame), np.nan)
    return np.asarray(pd.to_numeric(frame[name], errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan))


def has_values(frame: pd.DataFrame, names: Sequence[str]) -> bool:
    """Whether any of the columns holds a number."""
    return any(np.isfinite(column(frame, name)).any() for name in names)


def why_empty(frame: pd.DataFrame, names: Sequence[str]) -> str:
    """What to write into a panel of these quantities: the reason that the rows give for their being null."""
    for reason in frame.get("reason", pd.Series(dtype=object)).dropna():
        for part in str(reason).split("; "):
            concerned, _, why = part.rpartition(": ")
            if not concerned or set(names) & set(concerned.split(", ")):
                return f"no data: {why}"
    return "no data"


def save(figure: Figure, path: Path) -> None:
    """Write a figure as .png, .svg or .pdf; equal figures give equal bytes.

    Raises:
        UsageError: another suffix.
        RunError: the file cannot be written.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(f"cannot draw to '{path}': use a file that ends in {', '.join(SUFFIXES)}")
    with look(), replacing(path) as temporary:
        figure.savefig(temporary, dpi=150, metadata=_NO_DATES[suffix])
