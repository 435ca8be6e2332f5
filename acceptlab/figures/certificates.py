"""Certificates: coverage against the target's margin, the thresholds, and what becomes of proposals."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acceptlab.figures import style

N_BINS = 10
DIRECTIONS = {"forward": "KL(target || draft)", "reverse": "KL(draft || target)"}
_HATCHED = {
    "certified": ("#0072B2", ""),
    "accepted": ("#56B4E9", "//"),
    "undecided": ("white", ""),
    "rejected": ("#D55E00", "xx"),
}
_LABELS = {
    "certified": "certified",
    "accepted": "accepted, not certified",
    "undecided": "undecided",
    "rejected": "rejected",
}
_INFINITE = 30.0
"""Where infinite thresholds are drawn."""


def draw_coverage(frame: pd.DataFrame, axes: Axes, direction: str) -> None:
    """Draw exact coverage by bin of the target's margin, a line a rule, all groups pooled.

    Args:
        frame: the certificates table.
        axes: the panel.
        direction: forward or reverse.
    """
    axes.set_title(f"Coverage by {DIRECTIONS[direction]}")
    rows = frame[
        (frame.iloc[:, 0] == "all") & (frame["direction"] == direction) & frame["margin_bin"].notna()
    ]
    if not style.has_values(rows, ["coverage"]):
        style.empty_panel(axes, style.why_empty(rows, ["coverage"]))
        return
    for i, rule in enumerate(dict.fromkeys(rows["rule"])):
        of_rule = rows[rows["rule"] == rule]
        look = _look(i)
        x = (style.column(of_rule, "margin_bin") + 0.5) / N_BINS
        axes.plot(
            x,
            style.column(of_rule, "coverage"),
            color=look.colour,
            marker=look.marker,
            # greedy often lies under the others: a large open mark shows around theirs
            markersize=9 if i == 0 else 4,
            markerfacecolor="none" if i == 0 else look.colour,
            linestyle=look.line,
            linewidth=1.0 if i == 0 else 1.5,
            label=rule,
            gid=rule,
        )
        style.draw_intervals(axes, of_rule, "coverage", x, look.colour, linewidth=1.0, alpha=0.6)
    axes.set_xlabel("target's margin (middle of the bin)")
    axes.set_ylabel("share of contexts certified")
    axes.set_xlim(0.0, 1.0)
    axes.set_ylim(-0.02, 1.02)  # a marker at 0 stays whole


def draw_thresholds(frame: pd.DataFrame, axes: Axes) -> None:
    """Draw quantiles of the thresholds, a row a rule: thin 5% to 95%, thick 25% to 75%, a mark at the median."""
    axes.set_title("Exact thresholds")
    rows = _pooled(frame)
    if not style.has_values(rows, ["threshold_median"]):
        style.empty_panel(axes, style.why_empty(rows, ["threshold_median"]))
        return
    rules = list(dict.fromkeys(rows["rule"]))
    for d, direction in enumerate(DIRECTIONS):
        of_direction = rows[rows["direction"] == direction]
        look = style.series(d)
        y = np.arange(len(of_direction)) + 0.36 * (d - 0.5)
        at = {
            name: _drawn(style.column(of_direction, f"threshold_{name}"))
            for name in ("p5", "p25", "median", "p75", "p95")
        }
        axes.hlines(y, at["p5"], at["p95"], color=look.colour, linewidth=1.0)
        axes.hlines(y, at["p25"], at["p75"], color=look.colour, linewidth=3.5, alpha=0.6)
        axes.plot(
            at["median"],
            y,
            color=look.colour,
            marker=look.marker,
            linestyle="none",
            markersize=5,
            label=direction,
            gid=direction,
        )
        if direction == "forward":
            _draw_paper(of_direction, axes, y)
    axes.set_xscale("log")
    axes.set_yticks(np.arange(len(rules)), [_short(rule) for rule in rules])
    axes.set_ylim(len(rules) - 0.5, -0.5)
    axes.set_xlabel("nats")
    if np.isinf(style.column(rows, "threshold_p95")).any():
        axes.axvline(_INFINITE, color=style.GREY, linewidth=0.8, linestyle=":")
        axes.text(_INFINITE, -0.45, "inf", ha="right", va="top", fontsize=8, color=style.GREY)


def _draw_paper(rows: pd.DataFrame, axes: Axes, y: np.ndarray) -> None:
    """The paper's 5% quantiles and medians, open marks in grey."""
    for name, marker, label in (("paper_p5", "<", "paper, 5%"), ("paper_median", "d", "paper, median")):
        values = style.column(rows, name)
        known = np.isfinite(values)
        if known.any():
            axes.plot(
                values[known],
                y[known] - 0.14,
                color=style.GREY,
                marker=marker,
                markerfacecolor="none",
                linestyle="none",
                markersize=5,
                label=label,
                gid=name,
            )


def draw_shares(frame: pd.DataFrame, axes: Axes) -> None:
    """Draw what becomes of proposals, two bars a rule: the upper certifies by the forward divergence."""
    axes.set_title("What becomes of proposals")
    rows = _pooled(frame)
    if not style.has_values(rows, ["n_contexts"]) or not style.column(rows, "n_contexts").sum():
        style.empty_panel(axes, "no data: no context")
        return
    rules = list(dict.fromkeys(rows["rule"]))
    for d, direction in enumerate(DIRECTIONS):
        of_direction = rows[rows["direction"] == direction]
        y = np.arange(len(of_direction)) + 0.4 * (d - 0.5)
        left = np.zeros(len(of_direction))
        for name, share in _shares(of_direction).items():
            colour, hatch = _HATCHED[name]
            axes.barh(
                y,
                share,
                left=left,
                height=0.34,
                color=colour,
                hatch=hatch,
                edgecolor="white" if colour != "white" else style.GREY,
                linewidth=0.5,
                label=_LABELS[name] if d == 0 else None,
                gid=f"{direction}-{name}",
            )
            left = left + share
    axes.set_yticks(np.arange(len(rules)), [_short(rule) for rule in rules])
    axes.set_ylim(len(rules) - 0.5, -0.5)
    axes.set_xlim(0.0, 1.0)
    axes.set_xlabel("share of contexts")


def _shares(rows: pd.DataFrame) -> dict[str, np.ndarray]:
    """Shares that add up to 1. A certified proposal that is undecided counts as certified, which it is."""
    n = style.column(rows, "n_contexts")
    certified, accepted = style.column(rows, "n_certified"), style.column(rows, "n_accepted")
    rejected = style.column(rows, "n_rejected")
    shares = {
        "certified": certified / n,
        "accepted": np.maximum(accepted - certified, 0.0) / n,
        "rejected": rejected / n,
    }
    undecided = np.maximum(1.0 - sum(shares.values()), 0.0)
    return {
        "certified": shares["certified"],
        "accepted": shares["accepted"],
        "undecided": undecided,
        "rejected": shares["rejected"],
    }


def _pooled(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[(frame.iloc[:, 0] == "all") & frame["margin_bin"].isna()]


def _drawn(values: np.ndarray) -> np.ndarray:
    """Infinite thresholds at the edge; zeros, which a log axis lacks, left out."""
    return np.where(np.isinf(values), _INFINITE, np.where(values > 0, values, np.nan))


def _look(index: int) -> style.Series:
    """Greedy, the first rule, is black; every other has a look of its own."""
    return style.series(0, pooled=True) if index == 0 else style.series(index - 1)


def _short(rule: str) -> str:
    """A rule where its name alone is unmistakable: the legend has the parameters of typical."""
    return rule.partition(":")[0] if rule.startswith("typical") else rule


def figure_certificates(frame: pd.DataFrame, caption: str = "") -> Figure:
    """The certificates table as coverage in both directions, thresholds, shares of proposals, and a caption."""
    with style.look():
        figure, panels = style.new_figure(2, 2, width=10.0, height=8.6)
        for axes, direction in zip(panels, DIRECTIONS, strict=False):
            draw_coverage(frame, axes, direction)
        draw_thresholds(frame, panels[2])
        draw_shares(frame, panels[3])
        for axes in panels[2:]:
            if axes.get_legend_handles_labels()[0]:
                style.legend_below(axes, 2)
        style.shared_legend(figure, panels)
        style.add_caption(
            figure,
            f"{caption} Bars of coverage are 95% intervals. Thresholds: thin lines 5% to 95%, thick 25% to 75%, marks "
            "the median. Shares: upper bars certify by KL(target || draft), lower ones by KL(draft || target).",
        )
        return figure
