"""Calibration: reliability curves, one panel an outcome, and the three scores, one row a group."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acceptlab.figures import style
from acceptlab.figures.points import draw_points, points_of

_OUTCOMES = {
    "accepted": ("Accepted, tested nodes", "acceptance rate"),
    "argmax": ("Target's argmax, all nodes", "share that is the argmax"),
    "ratio": ("Accept ratio, all nodes", "mean accept_ratio"),
}
_SCORES = {"ece": "ECE", "brier": "Brier", "auroc": "AUROC"}


def draw_calibration(frame: pd.DataFrame, axes: Axes, outcome: str = "accepted") -> None:
    """Draw the reliability curve of one outcome, a line a group; the diagonal is perfect calibration.

    Args:
        frame: The calibration table; its first column holds the group.
        axes: The panel.
        outcome: accepted, argmax or ratio.
    """
    title, label = _OUTCOMES[outcome]
    axes.set_title(title)
    rows = frame[(frame["outcome"] == outcome) & frame["bin"].notna()]
    if not style.has_values(rows, ["rate"]):
        style.empty_panel(axes, style.why_empty(rows, ["rate"]))
        return
    axes.plot([0, 1], [0, 1], color=style.GREY, linewidth=0.8, gid="diagonal")
    for i, group in enumerate(dict.fromkeys(frame.iloc[:, 0])):
        of_group = rows[rows.iloc[:, 0] == group]
        look = style.series(i, pooled=group == "all")
        x, y = style.column(of_group, "confidence"), style.column(of_group, "rate")
        axes.plot(
            x,
            y,
            color=look.colour,
            marker=look.marker,
            markersize=4,
            linestyle=look.line,
            label=group,
            gid=group,
        )
        style.draw_intervals(axes, of_group, "rate", x, look.colour, linewidth=1.0, alpha=0.7)
    axes.set_xlabel("draft's probability of the drafted token")
    axes.set_ylabel(label)
    axes.set_xlim(0.0, 1.0)
    axes.set_ylim(0.0, 1.02)


def figure_calibration(frame: pd.DataFrame, caption: str = "") -> Figure:
    """The calibration table as three reliability curves, the scores, one legend and a caption."""
    with style.look():
        figure, panels = style.new_figure(2, 2, width=9.0, height=7.6)
        for axes, outcome in zip(panels, _OUTCOMES, strict=False):
            draw_calibration(frame, axes, outcome)
        group = str(frame.columns[0])
        rows = frame[(frame["outcome"] == "accepted") & frame["bin"].isna()]
        groups = [str(name) for name in rows[group]]
        panels[3].set_title("Scores, tested nodes")
        series = [points_of(rows, name, label, groups, group) for name, label in _SCORES.items()]
        draw_points(panels[3], groups, series, "score")
        if panels[3].lines:
            style.legend_below(panels[3], len(series))
        style.shared_legend(figure, panels)
        style.add_caption(figure, f"{caption} Bars are 95% intervals; the grey line is perfect calibration.")
        return figure
