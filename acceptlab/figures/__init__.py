"""From frames to figures: `draw_x(frame, axes)` draws one panel, `figure_x(frame, caption)` a whole figure.

A figure takes the frame of an `AnalysisTable` and nothing else: it queries nothing and computes no statistic.
"""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
from matplotlib.figure import Figure

from acceptlab.errors import UsageError
from acceptlab.figures.budget import draw_budget, figure_budget
from acceptlab.figures.budget_check import draw_budget_check, figure_budget_check
from acceptlab.figures.calibration import draw_calibration, figure_calibration
from acceptlab.figures.certificates import draw_coverage, draw_shares, draw_thresholds, figure_certificates
from acceptlab.figures.covariance import draw_covariance, figure_covariance
from acceptlab.figures.depth_profile import draw_depth_profile, figure_depth_profile
from acceptlab.figures.domains import draw_domains, figure_domains
from acceptlab.figures.entropy import draw_entropy, figure_entropy
from acceptlab.figures.losses import (
    figure_losses,
    figure_losses_decoding,
    figure_losses_retention,
    figure_losses_variance,
)
from acceptlab.figures.metrics import draw_metrics, figure_metrics
from acceptlab.figures.predictors import draw_predictors, figure_predictors
from acceptlab.figures.replay import draw_replay, figure_replay
from acceptlab.figures.retention import draw_retention, figure_retention
from acceptlab.figures.streaks import draw_streaks, figure_streaks
from acceptlab.figures.style import SUFFIXES, save

FIGURES: dict[str, Callable[[pd.DataFrame, str], Figure]] = {
    "depth-profile": figure_depth_profile,
    "domains": figure_domains,
    "entropy": figure_entropy,
    "metrics": figure_metrics,
    "replay": figure_replay,
    "budget": figure_budget,
    "budget-check": figure_budget_check,
    "retention": figure_retention,
    "streaks": figure_streaks,
    "calibration": figure_calibration,
    "certificates": figure_certificates,
    "predictors": figure_predictors,
    "losses": figure_losses,
    "losses-retention": figure_losses_retention,
    "losses-variance": figure_losses_variance,
    "losses-decoding": figure_losses_decoding,
    "covariance": figure_covariance,
}
"""Figures by the name of their analysis."""


def draw(name: str, frame: pd.DataFrame, caption: str = "") -> Figure:
    """The figure of an analysis.

    Raises:
        UsageError: the analysis has no figure.
    """
    if name not in FIGURES:
        raise UsageError(f"analysis '{name}' has no figure: those with one are {', '.join(FIGURES)}")
    return FIGURES[name](frame, caption)


__all__ = [
    "FIGURES",
    "SUFFIXES",
    "draw",
    "draw_budget",
    "draw_budget_check",
    "draw_calibration",
    "draw_covariance",
    "draw_coverage",
    "draw_depth_profile",
    "draw_domains",
    "draw_entropy",
    "draw_metrics",
    "draw_predictors",
    "draw_replay",
    "draw_retention",
    "draw_shares",
    "draw_streaks",
    "draw_thresholds",
    "figure_budget",
    "figure_budget_check",
    "figure_calibration",
    "figure_certificates",
    "figure_covariance",
    "figure_depth_profile",
    "figure_domains",
    "figure_entropy",
    "figure_losses",
    "figure_losses_decoding",
    "figure_losses_retention",
    "figure_losses_variance",
    "figure_metrics",
    "figure_predictors",
    "figure_replay",
    "figure_retention",
    "figure_streaks",
    "save",
]
