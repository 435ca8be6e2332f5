"""Chain objectives on target-sampled trajectories: accepted length, its surrogates, and the gap between them.

A trajectory holds, for each of K positions, `ratios` b = min(1, draft/target) at the token that the target
sampled, and `overlaps` a = sum over the vocabulary of min(target, draft) in the context before it. B_k is the
product of the first k ratios, B_0 = 1. The target must have sampled from the very distribution that the
ratios use. Windows are fixed: positions after an EOS count as 0 (the mask ends with the EOS), so that every
mean has the same denominator.

J = sum of S_k is the expected accepted length without the bonus token; W multiplies mean overlaps instead and
is biased by their covariances with the path so far. Boundary: arrays in, estimates out; `enumeration` has
exact tables.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from acceptlab.errors import UsageError

Window = Float[np.ndarray, "n positions"]
Mask = Bool[np.ndarray, "n positions"]
PerTrajectory = Float[np.ndarray, " n"]
PerPosition = Float[np.ndarray, " positions"]
Positions = Float[np.ndarray, "*batch positions"]
Batch = Float[np.ndarray, "*batch"]


def window_mask(lengths: Float[np.ndarray, " n"], n_positions: int) -> Mask:
    """Mask of the first `lengths` positions of every window; a text that ended has a length below K, EOS
    included.
    """
    return np.arange(n_positions) < np.asarray(lengths)[:, None]


def path_weights(ratios: Window, mask: Mask | None = None) -> Window:
    """B_k for k = 1..K: probability, given the target's text, that at least k drafted tokens would be
    accepted.
    """
    return np.cumprod(_masked(ratios, mask), axis=1)


def branch_terms(ratios: Window, overlaps: Window, mask: Mask | None = None) -> Window:
    """B_(k-1) a_k for k = 1..K: the expectation of B_k over the last token alone (Rao-Blackwell)."""
    weights = path_weights(ratios, mask)
    before = np.concatenate([np.ones((weights.shape[0], 1)), weights[:, :-1]], axis=1)
    return np.asarray(before * _masked(overlaps, mask))


def path_lens(ratios: Window, mask: Mask | None = None) -> PerTrajectory:
    """Path estimate of the accepted length, one a trajectory: sum of B_k. Its mean is unbiased for J."""
    return np.asarray(path_weights(ratios, mask).sum(axis=1))


def branch_lens(ratios: Window, overlaps: Window, mask: Mask | None = None) -> PerTrajectory:
    """Branch estimate of the accepted length, one a trajectory: sum of B_(k-1) a_k. Its mean is unbiased for
    J.

    Each term varies no more than the path's; the variance of the sum is usually, but not always, smaller.
    """
    return np.asarray(branch_terms(ratios, overlaps, mask).sum(axis=1))


def wtv_lens(overlaps: Window, mask: Mask | None = None) -> PerTrajectory:
    """Trajectory WTV (weighted total variation), one a trajectory: sum of prefix products of overlaps.

    Biased for J. Its mean equals the population form for windows of two, and differs from it for longer ones.
    """
    return np.asarray(np.cumprod(_masked(overlaps, mask), axis=1).sum(axis=1))


@dataclass(frozen=True)
class ChainMeans:
    """Means over windows, all that the gap depends on; leading axes may run over resamples.

    `branch`: B_(k-1) a_k, which is S_k. `overlaps`: a_k. `weights`: B_(k-1), 1 at the first position.
    `ratios`: b_k and `pairs`: b_k a_(k+1), for all positions but the last.
    """

    branch: Positions
    overlaps: Positions
    weights: Positions
    ratios: Float[np.ndarray, "*batch pairs"]
    pairs: Float[np.ndarray, "*batch pairs"]


@dataclass(frozen=True)
class ChainGap:
    """J, W and what separates them, on one set of windows of K positions.

    `survival`: S_k, branch estimate of P(accepted length >= k). `mean_overlaps`: mean a_k. `covariances`:
    C_k = S_k - S_(k-1) * mean a_k. `contributions`: share of C_k in the gap, C_k times the sum over later
    positions of the products of mean overlaps; they sum to `joint_len - product_len`, whatever the sample.
    `path_covariances`: sample covariance of B_(k-1) and a_k; `remainders`: C_k minus it, which is
    (mean B_(k-1) - S_(k-1)) * mean a_k and vanishes with the sample size.
    `adjacent_covariances`: Cov(b_k, a_(k+1)), the diagnostic of REAL; the whole gap for K = 2 only.
    """

    survival: Positions
    mean_overlaps: Positions
    covariances: Positions
    contributions: Positions
    path_covariances: Positions
    remainders: Positions
    adjacent_covariances: Float[np.ndarray, "*batch pairs"]

    @property
    def joint_len(self) -> Batch:
        """J, the expected accepted length."""
        return np.asarray(self.survival.sum(axis=-1))

    @property
    def product_len(self) -> Batch:
        """W, population WTV: the sum of prefix products of mean overlaps."""
        return np.asarray(np.cumprod(self.mean_overlaps, axis=-1).sum(axis=-1))

    @property
    def gap(self) -> Batch:
        """J - W."""
        return np.asarray(self.joint_len - self.product_len)


def chain_gap(
    ratios: Window, overlaps: Window, mask: Mask | None = None, weights: PerTrajectory | None = None
) -> ChainGap:
    """Decompose J - W exactly into the covariances C_k.

    J - W = sum over k of sum over i <= k of C_i * product of mean a_j over j = i + 1..k.

    Args:
        ratios: b, [n, K].
        overlaps: a, [n, K].
        mask: valid positions, contiguous from the first; None where no text ended.
        weights: nonnegative weight of every trajectory: path probabilities of an enumeration, or how often a
            resample holds it. Equal where not given.

    Raises:
        UsageError: shapes that differ, a mask with holes, no trajectory or weights without a positive sum.
    """
    ratios, overlaps = _masked(ratios, mask), _masked(overlaps, mask)
    if ratios.shape != overlaps.shape or ratios.shape[0] == 0:
        raise UsageError(
            f"ratios {ratios.shape} and overlaps {overlaps.shape} must have one shape, not empty"
        )
    shares = _shares(weights, ratios.shape[0])
    return gap_of_means(
        ChainMeans(
            branch=shares @ branch_terms(ratios, overlaps),
            overlaps=shares @ overlaps,
            weights=np.concatenate([[1.0], shares @ path_weights(ratios)[:, :-1]]),
            ratios=shares @ ratios[:, :-1],
            pairs=shares @ (ratios[:, :-1] * overlaps[:, 1:]),
        )
    )


def gap_of_means(means: ChainMeans) -> ChainGap:
    """The decomposition from means alone, for windows that were summed elsewhere; see `chain_gap`."""
    survival, overlaps = means.branch, means.overlaps
    before = np.concatenate([np.ones_like(survival[..., :1]), survival[..., :-1]], axis=-1)
    covariances = survival - before * overlaps
    path_covariances = survival - means.weights * overlaps
    return ChainGap(
        survival=survival,
        mean_overlaps=overlaps,
        covariances=covariances,
        contributions=covariances * _remaining_products(overlaps),
        path_covariances=path_covariances,
        remainders=covariances - path_covariances,
        adjacent_covariances=means.pairs - means.ratios * overlaps[..., 1:],
    )


def step_start_weights(ratios: PerPosition, window: int) -> Float[np.ndarray, " starts"]:
    """Expected number of verification steps that begin at every position of a text, given the text.

    A step that begins at s accepts exactly n < K tokens with probability B_n (1 - b_(n+1)) and the next one
    begins at s + n + 1; with all K accepted it begins at s + K + 1. Steps therefore begin more often after
    rejections, and a mean over positions is not a mean over steps until it is weighted with these numbers.

    Args:
        ratios: b at every token of the text, [positions].
        window: K, drafted tokens a step.

    Returns:
        One weight a position; the first is 1.

    Raises:
        UsageError: a window below 1.
    """
    if window < 1:
        raise UsageError(f"the window is {window}: give at least 1 drafted token a step")
    ratios = np.asarray(ratios, dtype=np.float64)
    n_positions = ratios.shape[0]
    starts = np.zeros(n_positions)
    starts[:1] = 1.0
    for start in range(n_positions):
        mass = starts[start]
        for position in range(start, min(start + window, n_positions - 1)):
            starts[position + 1] += mass * (1.0 - ratios[position])
            mass *= ratios[position]
        if start + window + 1 < n_positions:
            starts[start + window + 1] += mass
    return starts


def _remaining_products(mean_overlaps: Positions) -> Positions:
    """For every i: 1 + a_(i+1) + a_(i+1) a_(i+2) + ..., by Horner's rule from the end."""
    totals = np.ones_like(mean_overlaps)
    for position in range(mean_overlaps.shape[-1] - 2, -1, -1):
        totals[..., position] = 1.0 + mean_overlaps[..., position + 1] * totals[..., position + 1]
    return totals


def _masked(values: Window, mask: Mask | None) -> Window:
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 2:
        raise UsageError(f"windows have shape {values.shape}: give [trajectories, positions]")
    if mask is None:
        return values
    valid = np.asarray(mask, dtype=bool)
    if valid.shape != values.shape:
        raise UsageError(
            f"the mask has shape {valid.shape}, the windows {values.shape}: give one entry a position"
        )
    if (valid[:, 1:] & ~valid[:, :-1]).any():
        raise UsageError("the mask has a hole: valid positions must run from the first to the EOS")
    return np.where(valid, values, 0.0)


def _shares(weights: PerTrajectory | None, n: int) -> PerTrajectory:
    if weights is None:
        return np.full(n, 1.0 / n)
    shares = np.asarray(weights, dtype=np.float64)
    if shares.shape != (n,) or not shares.sum() > 0.0 or (shares < 0.0).any():
        raise UsageError(f"weights of shape {shares.shape}: give {n} nonnegative numbers with a positive sum")
    return np.asarray(shares / shares.sum())
