"""Covariances by position: C_k, the diagnostic of neighbours beside it, contributions, and the gap they make."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acceptlab.figures import style
from acceptlab.figures.lines import draw_lines, whole_numbers

_PANELS = {
    "C_k": ("Covariance of path and next overlap", "C_k = S_k - S_(k-1) mean a_k"),
    "adjacent_covariance": ("Neighbours only (REAL), not the gap", "Cov(b_(k-1), a_k)"),
    "contribution": ("Share in the gap J - W", "contribution of C_k (tokens)"),
    "gap_k": ("Gap of a window of k tokens", "J_k - W_k (tokens)"),
}
_DODGE = 0.06


def draw_covariance(frame: pd.DataFrame, axes: Axes, quantity: str = "C_k") -> None:
    """Draw one quantity of the covariance table against the position, with intervals.

    Args:
        frame: The table; its first column holds the group. Several temperatures have lines of their own.
        axes: The panel.
        quantity: C_k, adjacent_covariance, contribution or gap_k.
    """
    title, label = _PANELS[quantity]
    axes.set_title(title)
    draw_lines(_by_temperature(frame), axes, "k", quantity, _DODGE, bottom=None)
    if axes.lines:
        axes.axhline(0.0, color=style.GREY, linewidth=0.8)
        axes.set_xlabel("k, position in the window (tokens)")
        axes.set_ylabel(label)
        whole_numbers(axes)


def figure_covariance(frame: pd.DataFrame, caption: str = "") -> Figure:
    """The covariance table as four panels with one legend and a caption."""
    return style.panel_figure(
        frame,
        draw_covariance,
        _PANELS,
        f"{caption} {style.BARS}",
        n_rows=2,
        width=9.0,
        height=7.2,
        legend=style.shared_legend,
    )


def _by_temperature(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with the temperature in the group's name where there are several."""
    if frame["temperature"].nunique(dropna=False) < 2:
        return frame
    named = [f"{group}, T={t:g}" for group, t in zip(frame.iloc[:, 0], frame["temperature"], strict=True)]
    return frame.assign(**{str(frame.columns[0]): named})
