"""Arrays -> estimates with interval, n and method. No database, no files, no frames.

Nodes of one prompt are not independent, so every interval resamples whole prompts (cluster bootstrap). Input
is one row of sums per prompt; a statistic is a function from totals to values, so that several statistics
(S_d by depth, the joint and the product E[L], their gap) are resampled jointly and have intervals of their
own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int, Num

from acceptlab.resampling import DEFAULT, MIN_PROMPTS, Resampling, Statistic, bounds, replicates

# with more undefined resamples than this, quantiles of the defined ones would describe another quantity
_MAX_UNDEFINED = 0.05
_NOTHING = "nothing to divide by"


@dataclass(frozen=True)
class Estimate:
    """A value with its interval. `value` is None where undefined, `lo` and `hi` where no interval is given.

    `n` counts the units of the denominator, `n_prompts` the prompts that have any; `reason` says why the
    value or the interval is missing.
    """

    value: float | None
    lo: float | None
    hi: float | None
    n: int
    n_prompts: int
    method: str
    reason: str = ""


def bootstrap(
    sums: Num[np.ndarray, "prompts columns"],
    statistic: Statistic,
    counts: Num[np.ndarray, "prompts statistics"],
    resampling: Resampling = DEFAULT,
    *,
    undefined: str | Sequence[str] = _NOTHING,
) -> list[Estimate]:
    """Estimates of several statistics of the same prompts, resampled jointly.

    Args:
        sums: Per-prompt sums, one row a prompt.
        statistic: From totals to the statistics; see `Statistic`.
        counts: Units that each prompt gives to each statistic's denominator, for n and n_prompts.
        resampling: Method, level, number and seed.
        undefined: Reason given where a statistic is undefined, one for all or one each.

    Returns:
        One estimate a statistic, in order.
    """
    rows, counts = np.asarray(sums, dtype=np.float64), np.asarray(counts)
    values = statistic(rows.sum(axis=0, keepdims=True))[0]
    n_prompts = (counts > 0).sum(axis=0)
    draws = np.empty((0, len(values)))
    if (np.isfinite(values) & (n_prompts >= MIN_PROMPTS)).any():
        draws = replicates(rows, statistic, resampling)
    left_out = statistic(rows.sum(axis=0) - rows) if resampling.kind == "bca" and len(draws) else None
    ends = bounds(draws, values, n_prompts, resampling, left_out)
    reasons = [undefined] * len(values) if isinstance(undefined, str) else list(undefined)
    return _estimates(
        values=values,
        draws=draws,
        ends=ends,
        n=counts.sum(axis=0),
        n_prompts=n_prompts,
        resampling=resampling,
        undefined=reasons,
    )


def _estimates(
    *,
    values: Float[np.ndarray, " statistics"],
    draws: Float[np.ndarray, "resamples statistics"],
    ends: Float[np.ndarray, "statistics 2"],
    n: Num[np.ndarray, " statistics"],
    n_prompts: Int[np.ndarray, " statistics"],
    resampling: Resampling,
    undefined: Sequence[str],
) -> list[Estimate]:
    """Put values, bounds and reasons together."""
    lost = np.isnan(draws).mean(axis=0) if len(draws) else np.zeros(len(values))
    estimates = []
    for i, value in enumerate(values):
        blank = Estimate(None, None, None, int(n[i]), int(n_prompts[i]), str(resampling))
        if not np.isfinite(value):
            estimates.append(replace(blank, reason=undefined[i]))
        elif n_prompts[i] < MIN_PROMPTS:
            estimates.append(replace(blank, value=float(value), reason=f"fewer than {MIN_PROMPTS} prompts"))
        elif lost[i] > _MAX_UNDEFINED or np.isnan(ends[i]).any():
            reason = f"undefined in {100 * lost[i]:.0f}% of the resamples"
            estimates.append(replace(blank, value=float(value), reason=reason))
        else:
            lo, hi = map(float, ends[i])
            estimates.append(replace(blank, value=float(value), lo=lo, hi=hi))
    return estimates


def ratio(
    numerators: Num[np.ndarray, "..."], denominators: Num[np.ndarray, "..."]
) -> Float[np.ndarray, "..."]:
    """Elementwise ratio; NaN where the denominator is 0."""
    return np.asarray(numerators / np.where(denominators == 0, np.nan, denominators))


def ratio_of_sums(
    numerators: Num[np.ndarray, "prompts k"],
    denominators: Num[np.ndarray, "prompts k"],
    resampling: Resampling = DEFAULT,
    *,
    undefined: str | Sequence[str] = _NOTHING,
) -> list[Estimate]:
    """Pooled rates or means: the sum of the numerators over the sum of the denominators, which are counts."""
    k = np.shape(numerators)[1]

    def statistic(totals: Float[np.ndarray, "rows columns"]) -> Float[np.ndarray, "rows k"]:
        return ratio(totals[:, :k], totals[:, k:])

    sums = np.hstack([numerators, denominators])
    return bootstrap(sums, statistic, denominators, resampling, undefined=undefined)


def mean_of_prompt_means(
    numerators: Num[np.ndarray, "prompts k"],
    denominators: Num[np.ndarray, "prompts k"],
    resampling: Resampling = DEFAULT,
    *,
    undefined: str | Sequence[str] = _NOTHING,
) -> list[Estimate]:
    """Unweighted means of per-prompt ratios, over the prompts that have one; `n` counts prompts."""
    means = ratio(np.asarray(numerators, dtype=np.float64), np.asarray(denominators, dtype=np.float64))
    has_mean = (~np.isnan(means)).astype(np.int64)
    return ratio_of_sums(np.nan_to_num(means), has_mean, resampling, undefined=undefined)


def paired_difference(
    first: Num[np.ndarray, "prompts columns"],
    second: Num[np.ndarray, "prompts columns"],
    statistic: Statistic,
    resampling: Resampling = DEFAULT,
) -> list[Estimate]:
    """Estimates of statistic(first) - statistic(second) where row i of both is the same prompt.

    Both are resampled by the same prompts, so that what a prompt does to both cancels. `n` counts prompts.
    """
    k = np.shape(first)[1]

    def gap(totals: Float[np.ndarray, "rows columns"]) -> Float[np.ndarray, "rows statistics"]:
        return statistic(totals[:, :k]) - statistic(totals[:, k:])

    both = np.hstack([first, second]).astype(np.float64)
    n_statistics = gap(both.sum(axis=0, keepdims=True)).shape[1]
    return bootstrap(both, gap, np.ones((len(both), n_statistics), dtype=np.int64), resampling)


def independent_difference(
    first: Num[np.ndarray, "prompts columns"],
    second: Num[np.ndarray, "others columns"],
    statistic: Statistic,
    resampling: Resampling = DEFAULT,
) -> list[Estimate]:
    """Estimates of statistic(first) - statistic(second) for samples of different prompts.

    Each sample is resampled by its own prompts, so that both variances count; percentile intervals only. `n`
    counts prompts of both samples, `n_prompts` those of the smaller one, which sets the widening.
    """
    resampling = replace(resampling, kind="percentile")
    samples = [np.asarray(sums, dtype=np.float64) for sums in (first, second)]
    values = [statistic(sums.sum(axis=0, keepdims=True))[0] for sums in samples]
    drawn = [replicates(sums, statistic, resampling, stream) for stream, sums in enumerate(samples)]
    value, draws = values[0] - values[1], drawn[0] - drawn[1]
    n_prompts = np.full(len(value), min(len(first), len(second)))
    n = np.full(len(value), len(first) + len(second))
    ends = bounds(draws, value, n_prompts, resampling)
    return _estimates(
        values=value,
        draws=draws,
        ends=ends,
        n=n,
        n_prompts=n_prompts,
        resampling=resampling,
        undefined=[_NOTHING] * len(value),
    )


def conditional_rates(survival: Float[np.ndarray, "rows depths"]) -> Float[np.ndarray, "rows depths"]:
    """alpha_d = S_d / S_(d-1) with S_0 = 1; NaN where nothing survives to depth d - 1."""
    before = np.concatenate([np.ones_like(survival[:, :1]), survival[:, :-1]], axis=1)
    return ratio(survival, before)


def product_length(rates: Float[np.ndarray, "rows depths"]) -> Float[np.ndarray, " rows"]:
    """Sum over d of the product of the first d rates; it ends at the first undefined (NaN) rate.

    With the mean accept_ratio by depth this is the E[L] of arXiv 2604.14682, which treats depths as
    independent.
    """
    return np.asarray(np.cumprod(np.nan_to_num(rates), axis=1).sum(axis=1))
