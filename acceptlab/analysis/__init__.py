"""From runs to tables: one module an analysis, each a function from runs to an `AnalysisTable`.

An analysis asks `queries` for sums per prompt and `stats` for estimates; it draws nothing and prints nothing.
`ANALYSES` names them all, so that the command line, studies and the report need no list of their own.
"""

from __future__ import annotations

from collections.abc import Callable

from acceptlab.analysis.base import ALL, AnalysisTable
from acceptlab.analysis.budget import budget
from acceptlab.analysis.budget_check import budget_check
from acceptlab.analysis.calibration import calibration
from acceptlab.analysis.certificates import certificates
from acceptlab.analysis.covariance import covariance
from acceptlab.analysis.depth_profile import depth_profile
from acceptlab.analysis.domains import domains
from acceptlab.analysis.entropy import entropy
from acceptlab.analysis.metrics import metrics
from acceptlab.analysis.predictors import predictors
from acceptlab.analysis.replay import replay
from acceptlab.analysis.retention import retention
from acceptlab.analysis.streaks import streaks

ANALYSES: dict[str, Callable[..., AnalysisTable]] = {
    "depth-profile": depth_profile,
    "domains": domains,
    "entropy": entropy,
    "metrics": metrics,
    "replay": replay,
    "budget": budget,
    "budget-check": budget_check,
    "retention": retention,
    "streaks": streaks,
    "calibration": calibration,
    "predictors": predictors,
    "certificates": certificates,
    "covariance": covariance,
}
"""Analyses by the name of their command; each takes runs, `by=` and `resampling=`."""

__all__ = [
    "ALL",
    "ANALYSES",
    "AnalysisTable",
    "budget",
    "budget_check",
    "calibration",
    "certificates",
    "covariance",
    "depth_profile",
    "domains",
    "entropy",
    "metrics",
    "predictors",
    "replay",
    "retention",
    "streaks",
]
