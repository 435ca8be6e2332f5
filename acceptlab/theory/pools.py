"""The one optimisation problem behind every certificate, solved by pooling probabilities to a common level.

The nearest draft that rejects raises one token and lowers those above it (or, for trees, lowers the target's
argmax and raises those below) until they share a level: the arithmetic mean of their target probabilities for
KL(target || draft), the geometric mean for KL(draft || target). Candidates join in order while they are on
the far side of the running mean. Boundary: sorted candidates in, level and divergence out; no rules, no token
ids.

Many pools are solved at once as *lines*: the start token followed by its candidates. With sign +1 candidates
descend and join while above the mean, with sign -1 they ascend and join while below it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from acceptlab.theory.floatforms import entropic_excess, exponential_excess, log_ratio

Candidates = Float[np.ndarray, "*batch width"]
Lines = Float[np.ndarray, "*batch length"]
Scalars = Float[np.ndarray, "*batch"]
Signs = Float[np.ndarray, "..."]
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


@dataclass(frozen=True)
class Melted:
    """A pool of the reverse direction before renormalisation: of mass 1 a draft has lost `loss`."""

    count: Int[np.ndarray, "*batch"]
    level: Scalars
    loss: Scalars

    def divergence(self, outside: Scalars) -> Scalars:
        """-log(1 - loss), where `outside` is the mass that is not in the pool: what is left is summed directly."""
        return _from_loss(self.loss, np.maximum(outside, 0.0) + (self.count + 1) * self.level)


def pool_forward(start: Scalars, candidates: Candidates, order: Order = "descending") -> Pooled:
    """Least KL(target || draft): the level is the mean of the pooled probabilities.

    Args:
        start: probability of the token that must reach (descending) or lose (ascending) the top.
        candidates: other probabilities, sorted; broadcast against `start`.
        order: descending candidates join while above the mean, ascending ones while below it.
    """
    return pool_lines(_line(start, candidates), _sign(order))


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
    line = _line(start, candidates)
    candidates = line[..., 1:]
    reference = np.maximum(line[..., :2].max(axis=-1), np.finfo(np.float64).tiny)
    melted = melt_lines(line, log_line(line, reference), reference, _sign(order))
    divergence = melted.divergence(_pick(suffix_sums(candidates), melted.count) + rest)
    pooled = Pooled(melted.count, melted.level, divergence)
    if order == "ascending":
        return _with_zeros(line[..., 0], candidates, rest, pooled)
    is_zero = line[..., 0] <= 0.0
    return Pooled(
        np.where(is_zero, 0, pooled.count),
        np.where(is_zero, 0.0, pooled.level),
        np.where(is_zero, np.inf, divergence),
    )


def pool_lines(lines: Lines, sign: Signs) -> Pooled:
    """Forward pools of lines; `sign` broadcasts against the batch."""
    count, level = _join(lines, lines, sign)
    is_member = _members(lines, count)
    sizes = count.ravel() + 1
    safe_level = np.repeat(np.where(level > 0.0, level, 1.0).ravel(), sizes)
    excess = entropic_excess((lines[..., : is_member.shape[-1]][is_member] - safe_level) / safe_level)
    return Pooled(count, level, level * _sums(excess, sizes).reshape(level.shape))


def melt_lines(lines: Lines, log_lines: Lines, reference: Scalars, sign: Signs) -> Melted:
    """Reverse pools of lines whose logarithms, relative to `reference`, are `log_lines` (see `log_line`)."""
    count, level_log = _join(log_lines, lines, sign)
    level = reference * np.exp(level_log)
    is_member = _members(lines, count)
    sizes, length = count.ravel() + 1, is_member.shape[-1]
    steps = log_lines[..., :length][is_member] - np.repeat(level_log.ravel(), sizes)
    losses = _loss(lines[..., :length][is_member], steps, np.repeat(level.ravel(), sizes))
    return Melted(count, level, _sums(losses, sizes).reshape(level.shape))


def log_line(lines: Lines, reference: Scalars) -> Lines:
    """Logarithms of probabilities relative to a reference of each line.

    Those of zeros, which join no pool that counts, are put to 0: they would only spread infinities.
    """
    return np.where(lines > 0.0, log_ratio(lines, reference[..., None]), 0.0)


def suffix_sums(values: Candidates) -> Candidates:
    """Sum of the values from the k-th on, for k = 0..width; small ones first where the order is
    descending.
    """
    sums = np.zeros((*values.shape[:-1], values.shape[-1] + 1))
    np.cumsum(values[..., ::-1], axis=-1, out=sums[..., -2::-1])
    return sums


def zero_divergence(start: Scalars, others: Scalars) -> Scalars:
    """Least KL(draft || target) of losing the start token altogether; `others` is the mass of all other tokens."""
    return _from_loss(start, others)


def _line(start: Scalars, candidates: Candidates) -> Lines:
    start, candidates = np.asarray(start, dtype=np.float64), np.asarray(candidates, dtype=np.float64)
    shape = np.broadcast_shapes(start.shape, candidates.shape[:-1])
    line = np.empty((*shape, candidates.shape[-1] + 1))
    line[..., 0], line[..., 1:] = start, candidates
    return line


def _sign(order: Order) -> Signs:
    return np.asarray(1.0 if order == "descending" else -1.0)


def _join(values: Lines, probs: Lines, sign: Signs) -> tuple[Int[np.ndarray, "*batch"], Scalars]:
    """How many candidates join their start, and the mean of those that did.

    A candidate must lie beyond the mean of all before it, and by its probability beyond the start token:
    rounding of a mean must not pool equals.
    """
    means = np.cumsum(values, axis=-1)
    means /= np.arange(1, values.shape[-1] + 1)
    joins = np.zeros(values.shape, dtype=bool)
    signs = sign[..., None]
    np.greater(signs * values[..., 1:], signs * means[..., :-1], out=joins[..., :-1])
    joins[..., :-1] &= signs * probs[..., 1:] > signs * probs[..., :1]
    count = joins.argmin(axis=-1)  # the last one never joins: it stands for the end of the line
    return count, _pick(means, count)


def _members(lines: Lines, count: Int[np.ndarray, "*batch"]) -> Bool[np.ndarray, "*batch pooled"]:
    """Which of the leading tokens are pooled, the start token first; cut at the longest pool."""
    return np.arange(int(count.max(initial=0)) + 1) <= count[..., None]


def _sums(values: Float[np.ndarray, " members"], sizes: Int[np.ndarray, " pools"]) -> Scalars:
    """Sums over the members of every pool, none of which is empty."""
    return np.add.reduceat(values, np.cumsum(sizes) - sizes) if sizes.size else np.zeros(0)


def _pick(values: Candidates, index: Int[np.ndarray, "*batch"]) -> Scalars:
    return np.take_along_axis(values, index[..., None], axis=-1)[..., 0]


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
    n_zeros = (candidates <= 0.0).sum(axis=-1)
    has_zero = n_zeros > 0
    return Pooled(
        np.where(has_zero, n_zeros, pooled.count),
        np.where(has_zero, 0.0, pooled.level),
        np.where(has_zero, zero_divergence(start, candidates.sum(axis=-1) + rest), pooled.divergence),
    )
