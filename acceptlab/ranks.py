"""Rank correlation from per-prompt sums, with cluster-bootstrap intervals. No database, no files.

Ranks (mid-ranks for ties) are taken once, over all nodes of a scope; a prompt then contributes six sums, and
a resample of prompts re-weights them. The ranks are not taken anew in every resample. To first order this is
the exact bootstrap of Spearman's coefficient where the mean rank of one variable is linear in the rank of
the other, and close to it elsewhere; the exact version would cost a sort of all nodes in every resample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Int32, Num, Shaped

from acceptlab.resampling import DEFAULT, Resampling, Totals
from acceptlab.stats import Estimate, bootstrap

MIN_PAIRS = 3
"""Fewest pairs for which a correlation is given."""

RANK_SUMS = ("n", "sum_x", "sum_y", "sum_xx", "sum_yy", "sum_xy")
"""Columns of the per-prompt sums, over centred ranks divided by the number of pairs."""

# ranks are scaled to (-0.5, 0.5), so a variance below this is rounding: the variable is constant
_CONSTANT = 1e-12

# sorting a part this many times smaller than the number of codes is cheaper than counting all codes
_SMALL = 16


def scaled_ranks(values: Num[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Mid-ranks, centred and divided by n; correlations do not change by this, and sums stay small."""
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mid_ranks = (last - counts + 1 + last) / 2
    return np.asarray((mid_ranks[index] - (len(values) + 1) / 2) / max(len(values), 1))


@dataclass(frozen=True, eq=False)
class Codes:
    """Values by their order: equal values have equal codes, larger values larger ones, from 0 without a gap.

    Ranks within any part of the values then need no sort, only counts.
    """

    codes: Int32[np.ndarray, " n"]
    n_codes: int

    @classmethod
    def of(cls, values: Num[np.ndarray, " n"]) -> Codes:
        """Sort the values once."""
        order = np.argsort(values)
        ordered = values[order]
        first = np.empty(len(values), dtype=np.int32)
        first[:1], first[1:] = 0, ordered[1:] != ordered[:-1]
        codes = np.empty(len(values), dtype=np.int32)
        codes[order] = np.cumsum(first, dtype=np.int32)
        return cls(codes, int(codes.max(initial=-1)) + 1)

    def scaled_ranks(self, part: slice | Int[np.ndarray, " part"]) -> Float[np.ndarray, " part"]:
        """The function of that name on a part of the values."""
        codes = self.codes[part]
        if _SMALL * len(codes) < self.n_codes:
            return scaled_ranks(codes)
        counts = np.bincount(codes, minlength=self.n_codes)
        last = np.cumsum(counts)
        mid_ranks = (last - counts + 1 + last) / 2
        return np.asarray(((mid_ranks - (len(codes) + 1) / 2) / max(len(codes), 1))[codes])


def rank_sums(
    x: Num[np.ndarray, " n"], y: Num[np.ndarray, " n"], prompts: Shaped[np.ndarray, " n"]
) -> Float[np.ndarray, "prompts 6"]:
    """Per-prompt sums (RANK_SUMS) of the pairs in which both values are defined; prompts in sorted order."""
    labels, index = np.unique(prompts, return_inverse=True)
    keep = ~(np.isnan(np.asarray(x, dtype=np.float64)) | np.isnan(np.asarray(y, dtype=np.float64)))
    rank_x, rank_y, index = scaled_ranks(x[keep]), scaled_ranks(y[keep]), index[keep]
    columns = (np.ones_like(rank_x), rank_x, rank_y, rank_x**2, rank_y**2, rank_x * rank_y)
    return np.stack([np.bincount(index, weights=c, minlength=len(labels)) for c in columns], axis=1)


def correlation(totals: Totals) -> Float[np.ndarray, "rows pairs"]:
    """Pearson correlations from totals of RANK_SUMS, six columns a pair of variables; NaN where a variance is 0."""
    n, sum_x, sum_y, sum_xx, sum_yy, sum_xy = np.moveaxis(
        totals.reshape(len(totals), -1, len(RANK_SUMS)), 2, 0
    )
    n = np.where(n == 0, np.nan, n)
    mean_x, mean_y = sum_x / n, sum_y / n
    variance_x, variance_y = sum_xx / n - mean_x**2, sum_yy / n - mean_y**2
    flat = ~((variance_x > _CONSTANT) & (variance_y > _CONSTANT))
    scale = np.sqrt(np.where(flat, np.nan, variance_x) * np.where(flat, np.nan, variance_y))
    return np.asarray(np.clip((sum_xy / n - mean_x * mean_y) / scale, -1.0, 1.0))


def spearman_of_each(
    sums: Float[np.ndarray, "prompts pairs 6"],
    resampling: Resampling = DEFAULT,
    *,
    names: Sequence[tuple[str, str]],
) -> list[Estimate]:
    """Spearman's coefficients of several pairs of variables, from per-prompt RANK_SUMS, resampled at one go.

    Null with a reason for constant or tiny input. `names` says how to call the variables of every pair.
    """
    counts = sums[:, :, 0].astype(np.int64)
    reasons = [_why_none(total, *pair) for total, pair in zip(sums.sum(axis=0), names, strict=True)]
    found: list[Estimate] = [
        Estimate(None, None, None, int(n.sum()), int((n > 0).sum()), str(resampling), reason)
        for n, reason in zip(counts.T, reasons, strict=True)
    ]
    known = [i for i, reason in enumerate(reasons) if not reason]
    if known:
        rows = sums[:, known].reshape(len(sums), -1)
        for i, estimate in zip(
            known, bootstrap(rows, correlation, counts[:, known], resampling), strict=True
        ):
            found[i] = estimate
    return found


def _why_none(totals: Float[np.ndarray, " 6"], name_x: str, name_y: str) -> str:
    """Why there is no coefficient; empty where there is one."""
    n = totals[0]
    if n < MIN_PAIRS:
        return f"fewer than {MIN_PAIRS} pairs"
    for name, total, squares in zip((name_x, name_y), totals[1:3], totals[3:5], strict=True):
        if squares / n - (total / n) ** 2 <= _CONSTANT:
            return f"{name} is constant"
    return ""


def spearman_from_sums(
    sums: Float[np.ndarray, "prompts 6"],
    resampling: Resampling = DEFAULT,
    *,
    names: tuple[str, str] = ("first variable", "second variable"),
) -> Estimate:
    """Spearman's coefficient from per-prompt RANK_SUMS; null with a reason for constant or tiny input."""
    return spearman_of_each(sums[:, None], resampling, names=[names])[0]


def spearman(
    x: Num[np.ndarray, " n"],
    y: Num[np.ndarray, " n"],
    prompts: Shaped[np.ndarray, " n"],
    resampling: Resampling = DEFAULT,
    *,
    names: tuple[str, str] = ("first variable", "second variable"),
) -> Estimate:
    """Spearman's coefficient of pairs, clustered by prompt; pairs with an undefined value are left out."""
    return spearman_from_sums(rank_sums(x, y, prompts), resampling, names=names)
