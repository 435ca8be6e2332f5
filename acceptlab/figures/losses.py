"""Drafters trained on different losses: lengths against the baseline, retention, gradient variance, decoding."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acceptlab.figures import style
from acceptlab.figures.lines import draw_lines, whole_numbers
from acceptlab.figures.points import Points, draw_points, points_of

_ALL = "all"
_BARS = "Bars are 95% intervals."


def figure_losses(frame: pd.DataFrame, caption: str = "") -> Figure:
    """The table of lengths: every arm's length, and its difference from the baseline over all and by domain."""
    pooled = frame[frame["domain"] == _ALL]
    arms = [str(arm) for arm in pooled["arm"]]
    others = [str(arm) for arm in pooled.loc[pooled["seed_low"].notna(), "arm"]]
    with style.look():
        figure, panels = style.new_figure(1, 3, width=11.0, height=1.8 + 0.36 * len(arms))
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
        style.add_caption(figure, f"{caption} {_BARS} Bars of seeds go from the lowest to the highest one.")
        return figure


def _seeds(pooled: pd.DataFrame, arms: list[str]) -> Points:
    """Lowest to highest difference over seeds, marked in the middle."""
    rows = pooled.set_index("arm").reindex(arms)
    low, high = style.column(rows, "seed_low"), style.column(rows, "seed_high")
    return Points("range of seeds", (low + high) / 2, low, high)


def figure_losses_retention(frame: pd.DataFrame, caption: str = "") -> Figure:
    """Survival and conditional acceptance by position, a line an arm."""
    with style.look():
        figure, panels = style.new_figure(1, 2, width=11.0, height=4.6)
        for axes, (quantity, title) in zip(
            panels,
            (("S_k", "Survival S_k"), ("alpha_k", "Conditional acceptance S_k / S_(k-1)")),
            strict=True,
        ):
            axes.set_title(title)
            draw_lines(frame, axes, "k", quantity, 0.04)
            axes.set_xlabel("k (tokens)")
            axes.set_ylabel("share of windows")
            whole_numbers(axes)
        style.shared_legend(figure, panels)
        style.add_caption(figure, f"{caption} {_BARS}")
        return figure


def figure_losses_variance(frame: pd.DataFrame, caption: str = "") -> Figure:
    """Ratio of the gradient variances, branch to path, by position."""
    positions = [str(name) for name in dict.fromkeys(frame["position"])]
    with style.look():
        figure, panels = style.new_figure(1, 1, width=7.0, height=1.8 + 0.4 * len(positions))
        _draw_by(panels[0], frame, "ratio", "checkpoint", "position", "branch variance / path variance")
        panels[0].axvline(1.0, color=style.GREY, linewidth=0.8)
        style.legend_above(figure, panels)
        style.add_caption(figure, f"{caption} {_BARS}")
        return figure


def figure_losses_decoding(frame: pd.DataFrame, caption: str = "") -> Figure:
    """Accepted length in real decoding, a panel a serving, with all domains."""
    servings = list(dict.fromkeys(frame["serving"]))
    arms = list(dict.fromkeys(frame["arm"]))
    with style.look():
        figure, panels = style.new_figure(
            1, len(servings), width=3.7 * len(servings), height=2.2 + 0.5 * len(arms)
        )
        for axes, serving in zip(panels, servings, strict=True):
            axes.set_title(str(serving))
            _draw_by(
                axes,
                frame[frame["serving"] == serving],
                "expected_len",
                "domain",
                "arm",
                "expected accepted length (tokens per step)",
            )
        style.shared_legend(figure, panels)
        style.add_caption(figure, f"{caption} {_BARS}")
        return figure


def _draw_by(axes: Axes, frame: pd.DataFrame, quantity: str, series: str, group: str, unit: str) -> None:
    """A series for every value of one column, a row for every value of another."""
    groups = [str(name) for name in dict.fromkeys(frame[group])]
    names = [str(name) for name in dict.fromkeys(frame[series])]
    drawn = [points_of(frame[frame[series] == name], quantity, name, groups, group) for name in names]
    draw_points(axes, groups, drawn, unit)
