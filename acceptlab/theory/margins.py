"""Lower bounds on certificate thresholds from the target's margin alone, for any vocabulary.

`margin` is the largest minus the second largest target probability. Every bound is at most the exact
threshold; most are attained by some distribution with that margin. All derive from two tokens of total mass s
and difference g, whose exact thresholds are s h(g/s) and -log(1 - s + sqrt(s^2 - g^2)): these fall with s and
rise with g, and dropping pooled tokens can only lower a threshold. The construction follows "When is a draft
accepted?" (arXiv 2606.30265).

Reverse bounds near a margin of 1 need 1 - margin summed without cancellation (`divergences.margins` gives
it): a margin that rounds to 1 would claim +inf.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from acceptlab.rules import Rule, RuleKind
from acceptlab.theory.criteria import check_certifiable, rank_limit
from acceptlab.theory.floatforms import entropic_excess, log1p_excess
from acceptlab.theory.pools import pool_forward, pool_reverse

Scalars = Float[np.ndarray, "..."]
Bounds = tuple[Scalars, Scalars]


def margin_bound(
    margin: Scalars, rule: Rule, one_minus_margin: Scalars | None = None, vocab_size: int | None = None
) -> Bounds:
    """Margin-only forward and reverse thresholds in nats.

    Typical acceptance has its closed form here, which may be used to certify; with delta > 1 the bound is 0,
    for the largest probability itself may be rejected. additive compares the margin with eps as they stand:
    where they agree to the last bit, only the exact threshold knows on which side a rule's own comparison
    falls.

    Args:
        margin: largest minus second largest probability, any shape.
        rule: a rule of the certificate family.
        one_minus_margin: its complement, summed; default 1 - margin.
        vocab_size: where given, top:M and tree:M with M at least this are +inf.

    Raises:
        UsageError: the rule has no certificate.
    """
    check_certifiable(rule)
    gap = np.asarray(margin, dtype=np.float64)
    complement = np.asarray(1.0 - gap if one_minus_margin is None else one_minus_margin, dtype=np.float64)
    if vocab_size is not None and rule.m is not None and rule.m >= vocab_size:
        return _constant(gap, np.inf)
    if rule.kind is RuleKind.TREE:
        return _tree_bound(gap, complement, rank_limit(rule))
    if rule.kind in {RuleKind.GREEDY, RuleKind.TOP}:
        # the top m + 1 tokens are all level but the first
        return _two_token_bound(gap, 2.0 * complement / (rank_limit(rule) + 1), complement)
    if rule.kind is RuleKind.ADDITIVE:
        return _additive_bound(gap, complement, float(rule.eps or 0.0))
    if rule.kind is RuleKind.RATIO:
        return _ratio_bound(gap, complement, float(rule.gamma or 0.0))
    return _typical_bound(gap, complement, float(rule.eps or 0.0), float(rule.delta or 0.0))


def gap_bound(top_prob: Scalars, rejected_prob: Scalars) -> Bounds:
    """Bound from the gap between the largest probability and that of the most probable rejected token, any
    rule.

    Sharp in the gap: attained when these two tokens have all the mass.
    """
    gap = np.asarray(top_prob, dtype=np.float64) - np.asarray(rejected_prob, dtype=np.float64)
    # all the mass: the complement of the gap is twice the smaller share
    return _two_token_bound(gap, 1.0 - gap, 1.0 - gap)


def pair_bound(top_prob: Scalars, rejected_prob: Scalars) -> Bounds:
    """Bound from both probabilities, of the argmax and of the most probable rejected token, any rule.

    The exact threshold where no other token has to be lowered.
    """
    top = np.asarray(top_prob, dtype=np.float64)
    rejected = np.asarray(rejected_prob, dtype=np.float64)
    gap = top - rejected
    return _two_token_bound(gap, 2.0 * rejected, (1.0 - top) + rejected)


def typical_bound_numeric(
    margin: Scalars, rule: Rule, one_minus_margin: Scalars | None = None, n_grid: int = 129
) -> Bounds:
    """Tighter margin-only bound for typical acceptance with 0 < delta <= 1, by minimising over the top
    probability.

    For reporting only: a minimum found on a grid can lie a little above the infimum, so it must not certify.
    The grid is refined around its best point until the step is below 1e-9 of the range.
    """
    gap = np.asarray(margin, dtype=np.float64)
    complement = np.asarray(1.0 - gap if one_minus_margin is None else one_minus_margin, dtype=np.float64)
    eps, delta = float(rule.eps or 0.0), float(rule.delta or 0.0)
    if min(eps, delta) <= 0.0 or delta > 1.0:
        return _typical_bound(gap, complement, eps, delta)
    found = []
    for direction in (0, 1):
        low, high = np.zeros_like(gap), np.ones_like(gap)
        for _ in range(6):
            share = low[..., None] + (high - low)[..., None] * np.linspace(0.0, 1.0, n_grid)
            values = _typical_at(gap[..., None], complement[..., None], share, eps, delta)[direction]
            best = np.take_along_axis(share, values.argmin(axis=-1)[..., None], axis=-1)[..., 0]
            half = 2.0 * (high - low) / (n_grid - 1)
            low, high = np.maximum(best - half, 0.0), np.minimum(best + half, 1.0)
        found.append(values.min(axis=-1))
    return found[0], found[1]


def _typical_at(gap: Scalars, complement: Scalars, share: Scalars, eps: float, delta: float) -> Bounds:
    """The two-token bound at top probability margin + share * (1 - margin) / 2, the range of possible ones.

    The most probable rejected token is the largest x with x < delta * exp(-H) for some rest of the
    distribution: (1 - x) log x <= log delta + a log a + (1 - a - x) log(a - margin). Both sides are monotone,
    so bisect.
    """
    second = share * complement / 2.0
    top = gap + second
    left = complement - second
    low = np.zeros_like(top)
    high = np.minimum(np.minimum(eps, second), left)
    with np.errstate(divide="ignore", invalid="ignore"):
        fixed = np.log(delta) + np.where(top > 0.0, top * np.log(top), 0.0)
        for _ in range(60):
            middle = 0.5 * (low + high)
            limit = fixed + np.where(left > middle, (left - middle) * np.log(second), 0.0)
            fits = (1.0 - middle) * np.log(middle) <= limit
            low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    # the two tokens: top and low, of difference top - low; the others have no part
    return _two_token_bound(top - low, 2.0 * low, (1.0 - top) + low)


def _two_token_bound(gap: Scalars, excess: Scalars, complement: Scalars) -> Bounds:
    """Exact thresholds of two tokens of mass s = gap + excess and difference gap; complement is 1 - gap."""
    gap, excess, complement = np.broadcast_arrays(gap, excess, complement)
    mass = gap + excess
    safe_mass = np.where(mass > 0.0, mass, 1.0)
    ratio = np.minimum(gap / safe_mass, 1.0)
    forward = 0.5 * mass * (entropic_excess(ratio) + entropic_excess(-ratio))
    root = np.sqrt(excess * (gap + mass))
    loss = gap * gap / np.where(mass > 0.0, mass + root, 1.0)
    remaining = np.maximum(complement - excess, 0.0) + root
    with np.errstate(divide="ignore"):
        large = -np.log(np.where(loss < 0.5, 1.0, remaining))
    return forward, np.where(loss < 0.5, -np.log1p(-np.minimum(loss, 0.5)), large) + 0.0


def _tree_bound(gap: Scalars, complement: Scalars, m: int) -> Bounds:
    """Argmax against m equal others, each (1 - margin)/(m + 1); the nearest draft is uniform on these
    tokens.
    """
    forward = (entropic_excess(m * gap) + m * entropic_excess(-gap)) / (m + 1)
    with np.errstate(divide="ignore"):
        direct = -(np.log1p(m * gap) + m * np.log(complement)) / (m + 1)
    inner = np.minimum(gap, 0.5)
    near = (log1p_excess(m * inner) + m * log1p_excess(-inner)) / (m + 1)
    return forward, np.where(gap < 0.5, near, direct)


def _additive_bound(gap: Scalars, complement: Scalars, eps: float) -> Bounds:
    """Margin above eps: the second token is rejected and the greedy bound holds. Else a third one must be
    found.

    Three tokens (1 + eps + D, 1 + eps - 2D, 1 + D - 2 eps)/3 of margin D; with eps >= (1 + D)/2 there is no
    room for a token below the level. The bound is not monotone: it falls as the margin passes eps.
    """
    if eps < 0.0:
        return _constant(gap, 0.0)
    greedy = _two_token_bound(gap, complement, complement)
    third = (2.0 * (1.0 - eps) - complement) / 3.0
    is_three = (gap <= eps) & (third > 0.0)
    start = np.where(is_three, third, 1.0)
    others = np.stack([1.0 + eps + gap, 1.0 + eps - 2.0 * gap], axis=-1) / 3.0
    others = np.where(is_three[..., None], others, 1.0)
    three = (
        pool_forward(start, others).divergence,
        pool_reverse(start, others, np.zeros_like(start)).divergence,
    )
    forward, reverse = (
        np.where(gap > eps, two, np.where(is_three, value, np.inf))
        for two, value in zip(greedy, three, strict=True)
    )
    return forward, reverse


def _ratio_bound(gap: Scalars, complement: Scalars, gamma: float) -> Bounds:
    """Gamma <= 0 rejects nothing, gamma > 1 everything; between, the smallest top probability is D/(1 -
    gamma).
    """
    if gamma <= 0.0:
        return _constant(gap, np.inf)
    if gamma > 1.0:
        return _constant(gap, 0.0)
    if gamma == 1.0:
        return _two_token_bound(gap, complement, complement)
    return _two_token_bound(gap, np.minimum(complement, 2.0 * gamma / (1.0 - gamma) * gap), complement)


def _typical_bound(gap: Scalars, complement: Scalars, eps: float, delta: float) -> Bounds:
    """Two-token bound of mass min(1, D + 2x), x the largest possible rejected probability; as exp(-H) <=
    top.
    """
    if min(eps, delta) <= 0.0:
        return _constant(gap, np.inf)
    if delta > 1.0:
        return _constant(gap, 0.0)
    rejected = np.minimum(eps, complement / 2.0)
    if delta < 1.0:
        rejected = np.minimum(rejected, gap * (delta / (1.0 - delta)))
    return _two_token_bound(gap, np.minimum(complement, 2.0 * rejected), complement)


def _constant(gap: Scalars, value: float) -> Bounds:
    return np.full(gap.shape, value), np.full(gap.shape, value)
