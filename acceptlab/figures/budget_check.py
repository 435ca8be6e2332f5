"""Trees run again: predicted and realised accepted length, and the difference, one row a group and tree."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acceptlab.figures import style
from acceptlab.figures.points import Points, draw_points

_PANELS = {
    "length": "Accepted length, without the bonus token",
    "difference": "Realised less predicted",
}
_UNIT = "tokens per drafted step"
_SERIES = {"length": {"predicted_len": "predicted", "realised_len": "realised"}}


def draw_budget_check(frame: pd.DataFrame, axes: Axes, panel: str = "length") -> None:
    """Draw the predicted and the realised length of every group and tree, or their differences, with intervals.

    Args:
        frame: The table; its first column holds the group.
        axes: The panel.
        panel: length or difference.
    """
    axes.set_title(_PANELS[panel])
    names = [
        f"{group}, {_short(str(tree))}" for group, tree in zip(frame.iloc[:, 0], frame["tree"], strict=True)
    ]
    quantities = _SERIES.get(panel, {"len_difference": "difference"})
    series = [
        Points(label, *(style.column(frame, f"{quantity}{end}") for end in ("", "_lo", "_hi")))
        for quantity, label in quantities.items()
    ]
    draw_points(axes, names, series, _UNIT, first=2 * int(panel == "difference"))
    if panel == "difference":
        axes.axvline(0.0, color=style.GREY, linewidth=0.8)


def _short(tree: str) -> str:
    """A dp tree without the run that it came from."""
    return re.sub(r",(domain|from)=.*$", "", tree)


def figure_budget_check(frame: pd.DataFrame, caption: str = "") -> Figure:
    """The table as two panels and a caption."""
    return style.panel_figure(
        frame,
        draw_budget_check,
        _PANELS,
        f"{caption} Bars are 95% intervals.",
        width=11.0,
        height=float(np.clip(0.4 * len(frame) + 2.0, 4.0, 12.0)),
        legend=style.legend_above,
    )
