"""Gradient variance of the branch against the path estimate by position, with intervals over prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from acceptlab.resampling import DEFAULT, Resampling, Totals
from acceptlab.stats import bootstrap

AGGREGATE = 0
"""Stands for the whole window where positions are numbered from 1."""


def variance_rows(
    gradients: Sequence[Float[np.ndarray, "windows 2 gamma size"]], resampling: Resampling = DEFAULT
) -> list[dict[str, Any]]:
    """Variance over windows, summed over the gradient's entries, of both estimates and their ratio.

    Args:
        gradients: of the path terms and the branch terms, one array a prompt.
        resampling: how intervals are made; they resample prompts.

    Returns:
        One row a position, and one with position `AGGREGATE` for the gradient of the whole window. The
        ratio of expected variances is at most 1 at each position; the aggregate has no such bound.
    """
    gamma = gradients[0].shape[2]
    sums = np.stack([_sums(found) for found in gradients])
    n_terms = 2 * (gamma + 1)

    def statistic(totals: Totals) -> Totals:
        n = totals[:, :1]
        squares = totals[:, 1 : 1 + n_terms]
        means = totals[:, 1 + n_terms :].reshape(len(totals), n_terms, -1) / n[:, :, None]
        variances = ((squares - n * (means**2).sum(axis=2)) / (n - 1)).reshape(len(totals), 2, gamma + 1)
        path, branch = variances[:, 0], variances[:, 1]
        ratios = np.divide(branch, path, out=np.full_like(path, np.nan), where=path > 0)
        return np.hstack([path, branch, ratios])

    counts = np.repeat(sums[:, :1], 3 * (gamma + 1), axis=1)
    found = bootstrap(sums, statistic, counts, resampling, undefined="the path's gradient is 0")
    path, branch, ratios = (found[i * (gamma + 1) : (i + 1) * (gamma + 1)] for i in range(3))
    return [
        {
            "position": AGGREGATE if k == gamma else k + 1,
            "path": path[k].value,
            "branch": branch[k].value,
            "ratio": ratios[k].value,
            "ratio_lo": ratios[k].lo,
            "ratio_hi": ratios[k].hi,
            "n_windows": ratios[k].n,
            "n_prompts": ratios[k].n_prompts,
            "method": ratios[k].method,
        }
        for k in range(gamma + 1)
    ]


def _sums(gradients: Float[np.ndarray, "windows 2 gamma size"]) -> Float[np.ndarray, " columns"]:
    """Windows, then sums of squares and sums of entries of every term and of the whole window."""
    whole = np.concatenate([gradients, gradients.sum(axis=2, keepdims=True)], axis=2)
    squares = (whole**2).sum(axis=(0, 3)).reshape(-1)
    return np.concatenate([[len(gradients)], squares, whole.sum(axis=0).reshape(-1)])
