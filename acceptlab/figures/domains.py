"""Acceptance by domain: rates, accepted lengths and entropies as points with intervals."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acceptlab.figures import style
from acceptlab.figures.points import draw_quantities

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


def draw_domains(frame: pd.DataFrame, axes: Axes, panel: str = "rates") -> None:
    """Draw some quantities of the domains table, one row a group, with intervals.

    Args:
        frame: The table; its first column holds the group.
        axes: The panel.
        panel: rates, lengths, gap or entropies.
    """
    title, unit, quantities = PANELS[panel]
    axes.set_title(title)
    draw_quantities(frame, axes, quantities, unit, line_at=0.0 if panel == "gap" else None)


def figure_domains(frame: pd.DataFrame, caption: str = "") -> Figure:
    """The domains table as four panels and a caption."""
    return style.panel_figure(
        frame,
        draw_domains,
        PANELS,
        f"{caption} {style.BARS}",
        n_rows=2,
        width=9.0,
        height=6.6,
    )
