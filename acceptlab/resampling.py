"""Resampling of whole prompts: weights, replicates and interval bounds. No database, no files.

A resample draws prompts with replacement, which is a vector of multinomial counts, and its totals are
`weights @ sums`, with one row of sums per prompt. So a bootstrap never touches nodes: its cost depends on the
number of prompts, not on the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int, Num, UInt8
from scipy.special import ndtr, ndtri, stdtrit

MIN_PROMPTS = 10
"""Fewest prompts for which an interval is given."""

_BLOCK_CELLS = 2_000_000
_KEPT_CELLS = 128_000_000
"""Weights of up to so many resamples times prompts are kept, a byte each: drawing them is what takes the time."""

Totals = Float[np.ndarray, "rows columns"]
Statistic = Callable[[Totals], Float[np.ndarray, "rows statistics"]]
"""Maps totals (one row a resample) to statistics; undefined values are NaN. Must be vectorised over rows."""


@dataclass(frozen=True)
class Resampling:
    """How intervals are made.

    `widen` replaces the normal levels of a percentile interval by those of Student's t with n_prompts - 1
    degrees of freedom, stretched by sqrt(n / (n - 1)) (Hesterberg 2015, "expanded percentile"): with 10 to
    20 prompts the plain percentile interval covers only about 90%. `simultaneous` makes the intervals of one
    call cover jointly: max-t, symmetric around the value.
    """

    n_resamples: int = 2000
    level: float = 0.95
    kind: Literal["percentile", "bca"] = "percentile"
    seed: int = 0
    widen: bool = True
    simultaneous: bool = False

    def __str__(self) -> str:
        """The method in words, as tables print it."""
        name = "simultaneous max-t" if self.simultaneous else {"bca": "BCa"}.get(self.kind, self.kind)
        levels = ", levels widened for few prompts" if self.widen else ""
        return (
            f"cluster bootstrap over prompts, {name} {100 * self.level:g}%{levels}, "
            f"{self.n_resamples} resamples, seed {self.seed}"
        )


DEFAULT = Resampling()


def resample_weights(
    n_prompts: int, resampling: Resampling, stream: int = 0
) -> Iterator[Float[np.ndarray, "resamples prompts"]]:
    """Yield blocks of weights: how often a resample draws each prompt; every row sums to `n_prompts`."""
    if resampling.n_resamples * n_prompts <= _KEPT_CELLS:
        counts = _kept_counts(n_prompts, resampling.n_resamples, resampling.seed, stream)
        for start in range(0, resampling.n_resamples, block := max(1, _BLOCK_CELLS // n_prompts)):
            yield counts[start : start + block].astype(np.float64)
        return
    generator = np.random.default_rng([resampling.seed, stream])
    for start in range(0, resampling.n_resamples, block := max(1, _BLOCK_CELLS // n_prompts)):
        yield _draw(generator, n_prompts, min(block, resampling.n_resamples - start)).astype(np.float64)


# a table asks for the same resamples dozens of times, once a quantity
@lru_cache(maxsize=8)
def _kept_counts(
    n_prompts: int, n_resamples: int, seed: int, stream: int
) -> UInt8[np.ndarray, "resamples prompts"]:
    return _draw(np.random.default_rng([seed, stream]), n_prompts, n_resamples)


def _draw(generator: np.random.Generator, n_prompts: int, size: int) -> UInt8[np.ndarray, "size prompts"]:
    # one prompt is drawn Poisson(1) times in good approximation: never 256 times
    counts = generator.multinomial(n_prompts, np.full(n_prompts, 1.0 / n_prompts), size=size)
    return np.minimum(counts, 255).astype(np.uint8)


def replicates(
    sums: Num[np.ndarray, "prompts columns"],
    statistic: Statistic,
    resampling: Resampling = DEFAULT,
    stream: int = 0,
) -> Float[np.ndarray, "resamples statistics"]:
    """The statistics of every resample; equal seed, stream and number of prompts draw the same prompts."""
    rows = np.asarray(sums, dtype=np.float64)
    weights = resample_weights(len(rows), resampling, stream)
    return np.concatenate([statistic(block @ rows) for block in weights])


def bounds(
    draws: Float[np.ndarray, "resamples statistics"],
    values: Float[np.ndarray, " statistics"],
    n_prompts: Int[np.ndarray, " statistics"],
    resampling: Resampling,
    left_out: Float[np.ndarray, "prompts statistics"] | None = None,
) -> Float[np.ndarray, "statistics 2"]:
    """Lower and upper bound of every statistic; NaN where there are too few prompts or the value is
    undefined.

    Args:
        draws: Replicates; NaN where a resample leaves the statistic undefined.
        values: The statistics of the sample itself.
        n_prompts: Prompts that each statistic rests on.
        resampling: Kind, level and widening.
        left_out: Statistics with one prompt left out each, which BCa needs.
    """
    wanted = np.isfinite(values) & (n_prompts >= MIN_PROMPTS)
    clusters = np.maximum(n_prompts, MIN_PROMPTS).astype(np.float64)
    tail = np.full(len(values), (1.0 - resampling.level) / 2.0)
    if resampling.widen:
        tail = ndtr(np.sqrt(clusters / (clusters - 1.0)) * stdtrit(clusters - 1.0, tail))
    if resampling.simultaneous:
        half = (
            _half_widths(draws, values, wanted, resampling)
            * ndtri(tail)
            / ndtri((1.0 - resampling.level) / 2.0)
        )
        return np.stack([values - half, values + half], axis=1)
    levels = np.stack([tail, 1.0 - tail], axis=1)
    if resampling.kind == "bca" and left_out is not None:
        levels = _bca_levels(draws, values, left_out, levels)
    ends = np.full((len(values), 2), np.nan)
    for i in np.flatnonzero(wanted):
        defined = draws[~np.isnan(draws[:, i]), i]
        if defined.size:
            ends[i] = np.quantile(defined, levels[i])
    return ends


def _bca_levels(
    draws: Float[np.ndarray, "resamples statistics"],
    values: Float[np.ndarray, " statistics"],
    left_out: Float[np.ndarray, "prompts statistics"],
    levels: Float[np.ndarray, "statistics 2"],
) -> Float[np.ndarray, "statistics 2"]:
    """Levels corrected for bias and acceleration (Efron 1987, BCa); the jackknife leaves out prompts."""
    defined = np.maximum((~np.isnan(draws)).sum(axis=0), 1)
    below = ((draws < values) + 0.5 * (draws == values)).sum(axis=0) / defined
    bias = ndtri(np.clip(below, 0.5 / len(draws), 1.0 - 0.5 / len(draws)))
    known = np.where(np.isnan(left_out), values, left_out)
    spread = np.nan_to_num(known.mean(axis=0) - known)
    squares = np.maximum((spread**2).sum(axis=0), 1e-300)
    acceleration = (spread**3).sum(axis=0) / (6.0 * squares**1.5)
    shifted = bias[:, None] + ndtri(levels)
    return np.asarray(ndtr(bias[:, None] + shifted / (1.0 - acceleration[:, None] * shifted)))


def _half_widths(
    draws: Float[np.ndarray, "resamples statistics"],
    values: Float[np.ndarray, " statistics"],
    wanted: Bool[np.ndarray, " statistics"],
    resampling: Resampling,
) -> Float[np.ndarray, " statistics"]:
    """Half widths that cover all wanted statistics jointly: standard error times a quantile of max |t|."""
    deviations = np.where(np.isnan(draws), values, draws)[:, wanted] - values[wanted]
    error = deviations.std(axis=0)
    moving = error > 0
    largest = np.abs(deviations[:, moving] / error[moving]).max(axis=1, initial=0.0)
    half = np.full(len(values), np.nan)
    half[wanted] = np.quantile(largest, resampling.level) * error
    return half
