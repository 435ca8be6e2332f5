"""Predictors: what domain and depth explain beyond chance, one panel a measure, one row an outcome."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acceptlab.figures import style
from acceptlab.figures.points import draw_points, points_of

_MEASURES = {
    "explained_variance": ("Explained variance", "share of variance beyond chance"),
    "mutual_information": ("Mutual information", "nats a node beyond chance"),
    "deviance_share": ("Nested logistic models", "share of deviance beyond chance"),
}
_OUTCOMES = {
    "accepted": "accepted,\ntested nodes",
    "argmax": "target's argmax,\nall nodes",
    "ratio": "accept_ratio,\nall nodes",
}


def draw_predictors(frame: pd.DataFrame, axes: Axes, measure: str = "explained_variance") -> None:
    """Draw the excess of one measure: the two predictors alone and each given the other, with intervals.

    Args:
        frame: The predictors table.
        axes: The panel.
        measure: explained_variance, mutual_information or deviance_share.
    """
    title, unit = _MEASURES[measure]
    axes.set_title(title)
    quantity = f"{measure}_excess"
    rows = frame[frame["predictor"].ne("both") & ~frame["predictor"].str.contains(" less ")]
    outcomes = [name for name in _OUTCOMES if style.has_values(rows[rows["outcome"] == name], [quantity])]
    if not outcomes:
        style.empty_panel(axes, style.why_empty(rows, [quantity]))
        return
    series = [
        points_of(part, quantity, str(predictor), outcomes, "outcome")
        for predictor, part in rows.groupby("predictor", sort=False)
    ]
    draw_points(axes, [_OUTCOMES[name] for name in outcomes], series, unit)
    axes.axvline(0.0, color=style.GREY, linewidth=0.8)
    axes.locator_params(axis="x", nbins=6)  # long numbers keep apart


def figure_predictors(frame: pd.DataFrame, caption: str = "") -> Figure:
    """The predictors table as three panels and a caption."""
    return style.panel_figure(
        frame,
        draw_predictors,
        _MEASURES,
        f"{caption} Bars are 95% intervals. Among tested nodes depth has no chance to compare with: which depths "
        "a step tests depends on what it accepted.",
        width=13.0,
        height=4.6,
        legend=style.legend_above,
    )
