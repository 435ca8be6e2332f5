"""The one optimisation problem behind every certificate, solved by pooling probabilities to a common level.

The nearest draft that rejects raises one token and lowers those above it (or, for trees, lowers the target's
argmax and raises those below) until they share a level: the arithmetic mean of their target probabilities for
KL(target || draft), the geometric mean for KL(draft || target). Candidates join in order while they are on
the far side of the running mean. Boundary: sorted candidates in, level and divergence out; no rules, no token
ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from acceptlab.theory.floatforms import entropic_excess, exponential_excess, log_ratio

Candidates = Float[np.ndarray, "*batch width"]
Scalars = Float[np.ndarray, "*batch"]
Order = Literal["descending", "ascending"]


@dataclass(frozen=True)
class Pooled:
    """A start token pooled with the first `count` candidates.

    `level` is their common probability, before renormalisation in the reverse direction; `divergence` is the
    least divergence of a draft that makes the start token and these candidates equal, in nats.
    """

    count: Int[np.ndarray, "*batch"]
    level: Scalars
    divergence: Scalars


def pool_forward(start: Scalars, candidates: Candidates, order: Order = "descending") -> Pooled:
    """Least KL(target || draft): the level is the mean of the pooled probabilities.

    Args:
        start: probability of the token that must reach (descending) or lose (ascending) the top.
        candidates: other probabilities, sorted; broadcast against `start`.
        order: descending candidates join while above the mean, ascending ones while below it.
    """
    means, joins = _running_means(start, candidates, _beyond(start, candidates, order), order)
    count = np.logical_and.accumulate(joins, axis=-1).sum(axis=-1)
    level = _pick(means, count)
    safe_level = np.where(level > 0.0, level, 1.0)
    members, values = _members(candidates, count)
    offsets = np.where(members, (values - safe_level[..., None]) / safe_level[..., None], 0.0)
    total = entropic_excess((start - safe_level) / safe_level) + entropic_excess(offsets).sum(axis=-1)
    return Pooled(count, level, safe_level * total)


def pool_reverse(
    start: Scalars, candidates: Candidates, rest: Scalars, order: Order = "descending"
) -> Pooled:
    """Least KL(draft || target): the level is the geometric mean of the pooled probabilities.

    A start token of probability 0 cannot be raised: the divergence is infinite, the pool empty. In ascending
    order, candidates of probability 0 bring the level to 0: the start token ties with them at no more cost
    than its own probability.

    Args:
        start: probability of the token that must reach (descending) or lose (ascending) the top.
        candidates: other probabilities, sorted; broadcast against `start`.
        rest: total probability of all tokens that are neither the start token nor a candidate. Where the
            start token itself stands among the candidates, `rest` carries its probability once with a minus
            sign.
        order: descending candidates join while above the mean, ascending ones while below it.
    """
    candidates = np.asarray(candidates, dtype=np.float64)
    reference = np.maximum(candidates[..., 0] if order == "descending" else start, np.finfo(np.float64).tiny)
    is_zero = start <= 0.0
    start_log = np.where(is_zero, 0.0, log_ratio(np.where(is_zero, 1.0, start), reference))
    logs = log_ratio(candidates, reference[..., None])
    beyond = _beyond(start, candidates, order)
    # logarithms of zeros that cannot join would only spread infinities
    means, joins = _running_means(start_log, np.where(candidates > 0.0, logs, 0.0), beyond, order)
    count = np.logical_and.accumulate(joins & (candidates > 0.0), axis=-1).sum(axis=-1)
    level_log = _pick(means, count)
    level = reference * np.exp(level_log)
    members, values = _members(candidates, count)
    steps = np.where(members, _members(logs, count)[1] - level_log[..., None], 0.0)
    loss = _loss(start, start_log - level_log, level) + _loss(values, steps, level[..., None]).sum(axis=-1)
    outside = _pick(_suffix_sums(candidates), count) + rest
    remaining = np.maximum(outside, 0.0) + (count + 1) * level
    divergence = _from_loss(loss, remaining)
    if order == "ascending":
        return _with_zeros(start, candidates, rest, Pooled(count, level, divergence))
    return Pooled(
        np.where(is_zero, 0, count), np.where(is_zero, 0.0, level), np.where(is_zero, np.inf, divergence)
    )


def _beyond(start: Scalars, candidates: Candidates, order: Order) -> Bool[np.ndarray, "*batch width"]:
    """Candidates strictly beyond the start token: rounding of a mean must not pool equals."""
    return candidates > start[..., None] if order == "descending" else candidates < start[..., None]


def _running_means(
    start: Scalars, values: Candidates, beyond: Bool[np.ndarray, "*batch width"], order: Order
) -> tuple[Candidates, Bool[np.ndarray, "*batch width"]]:
    """Mean of the start and the first k values for k = 0..width, and whether value k is beyond the k-th of
    them.
    """
    sums = np.concatenate([np.zeros((*values.shape[:-1], 1)), np.cumsum(values, axis=-1)], axis=-1)
    means = (start[..., None] + sums) / np.arange(1, values.shape[-1] + 2)
    is_out = values > means[..., :-1] if order == "descending" else values < means[..., :-1]
    return means, beyond & is_out


def _pick(values: Candidates, index: Int[np.ndarray, "*batch"]) -> Scalars:
    values = np.broadcast_to(values, (*index.shape, values.shape[-1]))
    return np.take_along_axis(values, index[..., None], axis=-1)[..., 0]


def _members(
    values: Candidates, count: Int[np.ndarray, "*batch"]
) -> tuple[Bool[np.ndarray, "*batch pooled"], Candidates]:
    """Which of the leading values are pooled, and those values; cut at the longest pool."""
    width = int(count.max(initial=0))
    return np.arange(width) < count[..., None], values[..., :width]


def _suffix_sums(values: Candidates) -> Candidates:
    """Sum of the values from the k-th on, for k = 0..width; small ones first where the order is
    descending.
    """
    sums = np.cumsum(values[..., ::-1], axis=-1)[..., ::-1]
    return np.concatenate([sums, np.zeros((*values.shape[:-1], 1))], axis=-1)


def _loss(probs: Candidates, steps: Candidates, level: Candidates) -> Candidates:
    """Level * (e^step - 1 - step), which is probs - level * (1 + step): nonnegative, and 0 where the step is
    0.
    """
    near = level * exponential_excess(np.minimum(steps, 1.0))
    return np.where(steps > 1.0, probs - level * (1.0 + steps), near)


def _from_loss(loss: Scalars, remaining: Scalars) -> Scalars:
    """-log(1 - loss), where `remaining` is 1 - loss summed directly."""
    with np.errstate(divide="ignore"):
        large = -np.log(np.where(loss < 0.5, 1.0, remaining))
    # adding 0.0 turns -0.0 into 0.0
    return np.where(loss < 0.5, -np.log1p(-np.minimum(loss, 0.5)), large) + 0.0


def _with_zeros(start: Scalars, candidates: Candidates, rest: Scalars, pooled: Pooled) -> Pooled:
    """Where a candidate has probability 0, the level is 0 and the pool is the start token with all the
    zeros.
    """
    n_zeros = (np.broadcast_to(candidates, (*start.shape, candidates.shape[-1])) <= 0.0).sum(axis=-1)
    others = candidates.sum(axis=-1) + rest
    has_zero = n_zeros > 0
    return Pooled(
        np.where(has_zero, n_zeros, pooled.count),
        np.where(has_zero, 0.0, pooled.level),
        np.where(has_zero, _from_loss(start, others), pooled.divergence),
    )
