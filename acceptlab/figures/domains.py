"""Acceptance by domain: rates, accepted lengths and entropies as points with intervals."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acceptlab.figures import style

PANELS: dict[str, tuple[str, str, dict[str, str]]] = {
    "rates": (
        "Acceptance rates",
        "share",
        {"acceptance": "accepted / tested nodes", "mean_accept_ratio": "mean accept_ratio, all nodes"},
    ),
    "lengths": (
        "Accepted length, without the bonus token",
        "tokens per drafted step",
        {
            "EL_joint": "E[L] joint (realised)",
            "EL_product": "E[L] product",
            "expected_accepted_len": "expected under the rule",
        },
    ),
    "gap": ("E[L] joint less product", "tokens per drafted step", {"EL_gap": "joint - product"}),
    "entropies": (
        "Entropy where the draft proposed",
        "nats",
        {"draft_entropy": "draft", "target_entropy": "target"},
    ),
}
_SPREAD = 0.5


def draw_domains(frame: pd.DataFrame, axes: Axes, panel: str = "rates") -> None:
    """Draw some quantities of the domains table, one row a group, with intervals.

    Args:
        frame: The table; its first column holds the group.
        axes: The panel.
        panel: rates, lengths, gap or entropies.
    """
    title, unit, quantities = PANELS[panel]
    axes.set_title(title)
    if not style.has_values(frame, list(quantities)):
        style.empty_panel(axes, style.why_empty(frame, list(quantities)))
        return
    _draw_points(frame, axes, quantities)
    if panel == "gap":
        axes.axvline(0.0, color=style.GREY, linewidth=0.8)
    axes.set_xlabel(unit)
    if len(quantities) > 1:
        style.legend_below(axes, len(quantities))


def _draw_points(frame: pd.DataFrame, axes: Axes, quantities: Mapping[str, str]) -> None:
    groups = [str(group) for group in frame.iloc[:, 0]]
    for i, (quantity, label) in enumerate(quantities.items()):
        look = style.series(i)
        y = np.arange(len(groups)) + _SPREAD * ((i + 0.5) / len(quantities) - 0.5)
        axes.plot(
            style.column(frame, quantity),
            y,
            color=look.colour,
            marker=look.marker,
            linestyle="none",
            label=label,
            gid=quantity,
        )
        low, high = style.column(frame, f"{quantity}_lo"), style.column(frame, f"{quantity}_hi")
        known = np.isfinite(low) & np.isfinite(high)
        axes.hlines(y[known], low[known], high[known], color=look.colour, linewidth=1.4)
    missing = ~np.isfinite(np.stack([style.column(frame, name) for name in quantities])).any(axis=0)
    names = [f"{group}\n(no data)" if gone else group for group, gone in zip(groups, missing, strict=True)]
    axes.set_yticks(np.arange(len(groups)), names)
    axes.set_ylim(len(groups) - 0.5, -0.5)


def figure_domains(frame: pd.DataFrame, caption: str = "") -> Figure:
    """The domains table as four panels and a caption."""
    with style.look():
        figure, panels = style.new_figure(2, 2, width=9.0, height=6.6)
        for axes, panel in zip(panels, PANELS, strict=True):
            draw_domains(frame, axes, panel)
        style.add_caption(figure, f"{caption} Bars are 95% intervals; a missing bar means too few prompts.")
        return figure
