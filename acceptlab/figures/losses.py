"""Drafters trained on different losses: lengths against the baseline, retention, gradient variance, decoding."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from acceptlab.figures import style
from acceptlab.figures.points import Points, draw_points, points_of

_ALL = "all"
_START = "start"
_BARS = "Bars are 95% intervals."
_LAST_DRAWN = 4
"""Last position of the retention figure: conditional rates of later ones rest on too few windows."""


def figure_losses(frame: pd.DataFrame, caption: str = "") -> Figure:
    """The table of lengths: every arm's length, and its difference from the baseline over all and by domain."""
    pooled = frame[frame["domain"] == _ALL]
    arms = [str(arm) for arm in pooled["arm"]]
    others = [str(arm) for arm in pooled.loc[pooled["seed_low"].notna(), "arm"]]
    with style.look():
        figure, panels = style.new_figure(1, 3, width=11.0, height=1.8 + 0.48 * len(arms))
        panels[0].set_title("Accepted length")
        draw_points(
            panels[0],
            arms,
            [points_of(pooled, "length", "mean over seeds", arms, "arm")],
            "tokens per window",
        )
        panels[1].set_title("Difference from the baseline")
        series = [
            points_of(pooled, "difference", "interval over prompts", others, "arm"),
            _seeds(pooled, others),
        ]
        draw_points(panels[1], others, series, "tokens per window")
        panels[2].set_title("Difference by domain")
        domains = [name for name in dict.fromkeys(frame["domain"]) if name != _ALL]
        by_domain = [
            points_of(frame[frame["domain"] == name], "difference", str(name), others, "arm")
            for name in domains
        ]
        draw_points(panels[2], others, by_domain, "tokens per window", first=2)
        for axes in panels[1:]:
            axes.axvline(0.0, color=style.GREY, linewidth=0.8)
            style.legend_below(axes, 2)
            axes.locator_params(axis="x", nbins=6)  # long numbers keep apart
        style.add_caption(figure, f"{caption} {_BARS} Bars of seeds go from the lowest to the highest one.")
        return figure


def _seeds(pooled: pd.DataFrame, arms: list[str]) -> Points:
    """Lowest to highest difference over seeds, marked in the middle."""
    rows = pooled.set_index("arm").reindex(arms)
    low, high = style.column(rows, "seed_low"), style.column(rows, "seed_high")
    return Points("range of seeds", (low + high) / 2, low, high)


def figure_losses_retention(frame: pd.DataFrame, caption: str = "") -> Figure:
    """Conditional acceptance at the first positions: a panel a position, a row an arm, the longest first."""
    positions = [k for k in sorted(set(frame["k"])) if k <= _LAST_DRAWN]
    # the accepted length is the sum of the survivals
    lengths = frame.groupby("arm", sort=False)["S_k"].sum().sort_values(ascending=False, kind="stable")
    arms = [str(arm) for arm in lengths.index]
    baseline = next((arm for arm in dict.fromkeys(frame["arm"]) if arm != _START), None)
    with style.look():
        figure, panels = style.new_figure(
            1, max(len(positions), 1), width=11.0, height=1.7 + 0.27 * len(arms)
        )
        for axes, k in zip(panels, positions, strict=False):
            rows = frame[frame["k"] == k]
            axes.set_title(f"k = {k}: {'S_1, at least one token' if k == 1 else f'S_{k} / S_{k - 1}'}")
            kept = [points_of(rows, "alpha_k", "alpha_k", arms, "arm")]
            draw_points(axes, arms, kept, "share that keeps one more")
            for value in style.column(rows[rows["arm"] == baseline], "alpha_k"):
                axes.axvline(value, color=style.GREY, linewidth=0.8, linestyle="--", gid="baseline")
            axes.label_outer()
        style.share_range(panels)
        words = f"{caption} {_BARS} Dashed: {baseline}, the baseline. {_left_out(frame)}"
        style.add_caption(figure, words.strip())
        return figure


def _left_out(frame: pd.DataFrame) -> str:
    """Why later positions are not drawn, in the table's own numbers; empty where all are."""
    last = style.column(frame[frame["k"] == _LAST_DRAWN], "S_k")
    if not (frame["k"] > _LAST_DRAWN).any() or not np.isfinite(last).any():
        return ""
    most = f"At most {100 * np.nanmax(last):.1f}% of the windows keep {_LAST_DRAWN} tokens"
    return f"{most}: later positions, with ever wider intervals, are in the table only."


def figure_losses_variance(frame: pd.DataFrame, caption: str = "") -> Figure:
    """Ratio of the gradient variances, branch to path, by position, on a logarithmic axis."""
    positions = [str(name) for name in dict.fromkeys(frame["position"])]
    with style.look():
        figure, panels = style.new_figure(1, 1, width=7.0, height=2.0 + 0.4 * len(positions))
        axes = panels[0]
        _draw_by(
            axes, frame, "ratio", "checkpoint", "position", "branch variance / path variance (log scale)"
        )
        if axes.has_data():
            axes.set_ylabel("position in the window")
            axes.axvline(1.0, color=style.GREY, linewidth=0.8)
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_locator(NullLocator())
        style.legend_above(figure, panels)
        style.add_caption(
            figure, f"{caption} {_BARS} The vertical line marks equal variances.{_windows(frame)}"
        )
        return figure


def _windows(frame: pd.DataFrame) -> str:
    """How many windows and prompts stand behind a table, where it says so."""
    if not style.has_values(frame, ["n_windows"]):
        return ""
    windows, prompts = (int(style.column(frame, name).max()) for name in ("n_windows", "n_prompts"))
    return f" {windows:,} windows of {prompts:,} prompts."


def figure_losses_decoding(frame: pd.DataFrame, caption: str = "") -> Figure:
    """Accepted length in real decoding, a panel a serving, with all domains."""
    servings = list(dict.fromkeys(frame["serving"]))
    arms = list(dict.fromkeys(frame["arm"]))
    with style.look():
        n_panels = max(len(servings), 1)
        figure, panels = style.new_figure(1, n_panels, width=3.7 * n_panels, height=2.2 + 0.6 * len(arms))
        for axes, serving in zip(panels, servings, strict=False):
            axes.set_title(str(serving))
            _draw_by(
                axes,
                frame[frame["serving"] == serving],
                "expected_len",
                "domain",
                "arm",
                "expected accepted length (tokens per step)",
            )
        style.share_range(panels)
        style.shared_legend(figure, panels)
        style.add_caption(figure, f"{caption} {_BARS}")
        return figure


def _draw_by(axes: Axes, frame: pd.DataFrame, quantity: str, series: str, group: str, unit: str) -> None:
    """A series for every value of one column, a row for every value of another."""
    groups = [str(name) for name in dict.fromkeys(frame[group])]
    names = [str(name) for name in dict.fromkeys(frame[series])]
    drawn = [points_of(frame[frame[series] == name], quantity, name, groups, group) for name in names]
    draw_points(axes, groups, drawn, unit)
