"""Rank correlation of entropy with acceptance: one panel an entropy and outcome, one row a group."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acceptlab.figures import style

_OUTCOMES = {
    "accepted": "accepted (tested nodes)",
    "is_target_argmax": "is_target_argmax (all nodes)",
    "accept_ratio": "accept_ratio (all nodes)",
}
_ENTROPIES = ("draft", "target")
_SPREAD = 0.7


def draw_entropy(frame: pd.DataFrame, axes: Axes, entropy: str = "draft", outcome: str = "accepted") -> None:
    """Draw Spearman's rho of one entropy with one outcome: pooled depths and every depth, with intervals.

    Args:
        frame: The entropy table; its first column holds the group.
        axes: The panel.
        entropy: draft or target.
        outcome: accepted, is_target_argmax or accept_ratio.
    """
    axes.set_title(f"{entropy} entropy with {_OUTCOMES[outcome]}", fontsize=9)
    rows = frame[(frame["entropy"] == entropy) & (frame["outcome"] == outcome)]
    if not style.has_values(rows, ["rho"]):
        style.empty_panel(axes, style.why_empty(rows, ["rho"]))
        return
    groups = list(dict.fromkeys(rows.iloc[:, 0]))
    depths = sorted(int(depth) for depth in rows["depth"].dropna().unique())
    for i, depth in enumerate([None, *depths]):
        of_depth = rows[rows["depth"].isna()] if depth is None else rows[rows["depth"] == depth]
        look = style.series(i - 1, pooled=depth is None)
        offset = _SPREAD * ((i + 0.5) / (len(depths) + 1) - 0.5)
        y = np.array([groups.index(group) for group in of_depth.iloc[:, 0]]) + offset
        label = "all depths" if depth is None else f"depth {depth}"
        rho = style.column(of_depth, "rho")
        axes.plot(rho, y, color=look.colour, marker=look.marker, linestyle="none", label=label, gid=label)
        style.draw_intervals(axes, of_depth, "rho", y, look.colour, is_vertical=False, linewidth=1.2)
    axes.axvline(0.0, color=style.GREY, linewidth=0.8)
    axes.set_yticks(np.arange(len(groups)), [str(group) for group in groups])
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.set_xlabel("Spearman's rho (-1 to 1)")


def figure_entropy(frame: pd.DataFrame, caption: str = "") -> Figure:
    """The entropy table as six panels over one range of rho, with one legend and a caption."""
    figure = style.panel_figure(
        frame,
        lambda table, axes, pair: draw_entropy(table, axes, *pair),
        [(entropy, outcome) for entropy in _ENTROPIES for outcome in _OUTCOMES],
        f"{caption} {style.BARS}",
        n_rows=len(_ENTROPIES),
        width=11.0,
        height=7.4,
        legend=style.shared_legend,
    )
    style.share_range(figure.axes)
    return figure
