"""Are numbers uniform and independent? Two tests, a correction for many tests, and the power of the first.

Boundary: arrays in, statistics and p-values out. What the numbers are is the caller's business (`transform`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64
from scipy import optimize, stats

from acceptlab.errors import UsageError

N_BINS = 20
ALPHA = 0.05
POWER = 0.9


@dataclass(frozen=True)
class Outcome:
    """One test: how many numbers it saw, its statistic, degrees of freedom where it has any, and p-value."""

    name: str
    n: int
    statistic: float
    dof: int | None
    p_value: float


def bin_counts(values: Float64[np.ndarray, " n"], n_bins: int = N_BINS) -> Int64[np.ndarray, " bins"]:
    """How many values lie in each of the equal bins of [0, 1]."""
    if len(values) and not ((values >= 0) & (values <= 1)).all():
        raise UsageError("a transform lies outside 0 to 1: the distributions must sum to 1")
    # 1 itself can come from rounding only and belongs to the last bin
    places = np.minimum((values * n_bins).astype(np.int64), n_bins - 1)
    return np.bincount(places, minlength=n_bins).astype(np.int64)


def chi_square_uniform(values: Float64[np.ndarray, " n"], n_bins: int = N_BINS) -> Outcome:
    """Pearson's chi-square of the values against the uniform distribution on equal bins.

    Raises:
        UsageError: fewer than five values a bin are expected, where the law of the statistic is not known.
    """
    n = len(values)
    if n < 5 * n_bins:
        raise UsageError(f"{n} tokens are too few for {n_bins} bins: ask for at least {5 * n_bins}")
    statistic = float(((bin_counts(values, n_bins) - n / n_bins) ** 2).sum() * n_bins / n)
    return Outcome("chi-square", n, statistic, n_bins - 1, float(stats.chi2.sf(statistic, n_bins - 1)))


def lag_one(texts: Sequence[Float64[np.ndarray, " n"]]) -> Outcome:
    """Correlation of each value with the next one of the same text, against independence.

    Mean 1/2 and variance 1/12 are known, so nothing is estimated: under independence the products have mean 0
    and are uncorrelated, and their mean times the root of their number is standard normal.
    """
    pairs = [12.0 * (text[:-1] - 0.5) * (text[1:] - 0.5) for text in texts if len(text) > 1]
    products = np.concatenate(pairs) if pairs else np.empty(0)
    n = len(products)
    if n < 2:
        raise UsageError("no text has two tokens: a lag-1 correlation needs longer texts")
    correlation = float(products.mean())
    return Outcome("lag-1 correlation", n, correlation, None, two_sided(correlation * math.sqrt(n)))


def two_sided(z: float) -> float:
    """The two-sided p-value of a standard normal statistic."""
    return float(2.0 * stats.norm.sf(abs(z)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p-values, in the order given: reject those at most alpha.

    The chance that any right hypothesis is rejected stays at most alpha, however the tests depend on each other.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for place, i in enumerate(order):
        running = max(running, min(1.0, (len(order) - place) * p_values[i]))
        adjusted[i] = running
    return adjusted


def detectable_tv(n: int, n_bins: int = N_BINS, alpha: float = ALPHA, power: float = POWER) -> float:
    """Smallest total-variation fault that the chi-square test catches with this power, whatever its shape.

    A fault of total variation d shifts the masses of the bins by 2d in sum of absolute values. The noncentrality
    n * n_bins * (sum of squared shifts) is smallest where the shifts are equal, 2d/n_bins each: 4 n d^2.
    The fault is the one of the transform over the bins; ordering the vocabulary by target/draft loses little of it.
    """
    dof = n_bins - 1
    critical = stats.chi2.isf(alpha, dof)

    def missing(noncentrality: float) -> float:
        return float(stats.ncx2.sf(critical, dof, noncentrality)) - power

    noncentrality = float(optimize.brentq(missing, 1e-9, 10_000.0))
    return min(1.0, math.sqrt(noncentrality / (4.0 * n)))
