"""Certificates: how far a draft may be from the target before a rule can reject its most probable token.

A draft proposes its argmax. The threshold is the least divergence, in nats, of any draft whose proposal the
rule rejects, ties of the draft decided against it. A divergence strictly below the threshold proves
acceptance; at the threshold rejection is possible. The construction follows "When is a draft accepted?"
(arXiv 2606.30265). The divergence must be taken over the full vocabulary; a bucketed one is too small and
proves nothing.

Boundary: full distributions in, thresholds and nearest rejecting drafts out. `heads` has the cheap path for
the collector, `margins` the bounds from the margin alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from jaxtyping import Bool, Float, Int

from acceptlab.errors import UsageError
from acceptlab.rules import Rule, RuleKind
from acceptlab.theory.criteria import Ties, check_certifiable, rank_limit, rejected_mask
from acceptlab.theory.divergences import entropy
from acceptlab.theory.floatforms import round_down_float32
from acceptlab.theory.heads import pool_tree, sort_descending, thresholds_from_head
from acceptlab.theory.pools import Pooled, pool_forward, pool_reverse

__all__ = [
    "Certificate",
    "Direction",
    "Ties",
    "certificate",
    "certificate_for_mask",
    "is_certified",
    "rejected_mask",
    "round_down_float32",
    "thresholds",
    "thresholds_from_head",
    "tree_certificate",
]

Probs = Float[np.ndarray, "contexts vocab"]

_HEAD = 64
"""Leading tokens that nearly always hold the whole pool; longer ones are found all the same."""


class Direction(StrEnum):
    """Which divergence a threshold bounds: forward is KL(target || draft), reverse KL(draft || target)."""

    FORWARD = "forward"
    REVERSE = "reverse"


@dataclass(frozen=True)
class Certificate:
    """Exact certificates of some contexts in one direction.

    `threshold`: least divergence at which rejection is possible, nats; +inf where it never is.
    `token_index`: the rejected proposal of the nearest draft; for tree:M the target's argmax, which that
    draft ranks last among its top M + 1; -1 where nothing can be rejected.
    `pool`: tokens that share the highest (tree: the M-th highest) draft probability in the nearest draft.
    `level`: their probability, before renormalisation in the reverse direction; 0 where the threshold is
    infinite. `nearest_draft`: the draft at the threshold, nan where it is infinite. A tie decides against it.
    """

    threshold: Float[np.ndarray, " contexts"]
    token_index: Int[np.ndarray, " contexts"]
    pool: Bool[np.ndarray, "contexts vocab"]
    level: Float[np.ndarray, " contexts"]
    nearest_draft: Probs


def certificate(
    target_probs: Probs, rule: Rule, direction: Direction, ties: Ties = Ties.IDENTITY
) -> Certificate:
    """Certificates of a rule in every context.

    Args:
        target_probs: the distributions that the rule itself looks at, rows summing to 1.
        rule: greedy, additive, ratio, top, typical or tree.
        direction: which divergence.
        ties: how greedy and top treat equal probabilities.

    Raises:
        UsageError: the rule has no certificate.
    """
    check_certifiable(rule)
    if rule.kind is RuleKind.TREE:
        return tree_certificate(target_probs, rank_limit(rule), direction)
    return certificate_for_mask(target_probs, rejected_mask(target_probs, rule, ties), direction)


def certificate_for_mask(
    target_probs: Probs, rejected: Bool[np.ndarray, "contexts vocab"], direction: Direction
) -> Certificate:
    """Certificates for an arbitrary set of rejected tokens in every context.

    The most probable rejected token is the cheapest to raise, whatever the set; of equals the lowest id.
    """
    probs = _rows(target_probs)
    rejected = np.broadcast_to(np.asarray(rejected, dtype=bool), probs.shape)
    can_reject = rejected.any(axis=1)
    token_index = np.where(rejected, probs, -1.0).argmax(axis=1)
    start = np.take_along_axis(probs, token_index[:, None], axis=1)[:, 0]
    order = np.argsort(-probs, axis=1, kind="stable")
    ordered = np.take_along_axis(probs, order, axis=1)
    pooled = (
        pool_forward(start, ordered)
        if direction is Direction.FORWARD
        else pool_reverse(start, ordered, -start)
    )
    token_index = np.where(can_reject, token_index, -1)
    return _assemble(probs, order, token_index, pooled)


def tree_certificate(target_probs: Probs, m: int, direction: Direction) -> Certificate:
    """Certificates that the target's argmax is among the draft's m most probable tokens, ties against it.

    +inf where the vocabulary has no more than m tokens. Nondecreasing in m; m = 1 is greedy under identity
    ties.

    Raises:
        UsageError: m below 1.
    """
    if m < 1:
        raise UsageError(f"a tree has at least one candidate, not {m}: use tree:M with M from 1")
    probs = _rows(target_probs)
    order = np.argsort(-probs, axis=1, kind="stable")
    if m >= probs.shape[1]:
        none = np.full(probs.shape[0], -1)
        zeros = np.zeros(probs.shape[0])
        return _assemble(probs, order, none, Pooled(np.zeros_like(none), zeros, zeros))
    ordered = np.take_along_axis(probs, order, axis=1)
    forward, reverse = pool_tree(ordered, np.zeros(probs.shape[0]), m)
    return _assemble(
        probs, order[:, m:0:-1], order[:, 0], forward if direction is Direction.FORWARD else reverse
    )


def thresholds(
    target_probs: Probs, rules: Sequence[Rule], ties: Ties = Ties.IDENTITY
) -> tuple[Float[np.ndarray, "contexts rules"], Float[np.ndarray, "contexts rules"]]:
    """Forward and reverse thresholds of several rules in every context, without pools and drafts.

    Raises:
        UsageError: a rule has no certificate.
    """
    probs = _rows(target_probs)
    ordered = sort_descending(probs)
    return thresholds_from_head(
        ordered[:, :_HEAD],
        entropy(probs),
        probs.shape[1],
        lambda rows: ordered[rows],
        rules,
        rest_sum=ordered[:, _HEAD:].sum(axis=1),
        ties=ties,
    )


def is_certified(
    divergence: Float[np.ndarray, "..."], threshold: Float[np.ndarray, "..."]
) -> Bool[np.ndarray, "..."]:
    """Whether a divergence proves acceptance, with the margin that float64 arithmetic asks for.

    Strictly below, by a part in 1e9 and 1e-12 nats: far more than the rounding of either side. An infinite
    divergence certifies nothing, though against a rule that rejects nothing it could.
    """
    divergence, threshold = np.asarray(divergence, np.float64), np.asarray(threshold, np.float64)
    return divergence < threshold * (1.0 - 1e-9) - 1e-12


def _rows(target_probs: Probs) -> Probs:
    probs = np.asarray(target_probs, dtype=np.float64)
    if probs.ndim != 2 or probs.shape[1] == 0:
        raise UsageError(f"target probabilities have shape {probs.shape}: give [contexts, vocabulary]")
    return probs


def _assemble(
    probs: Probs,
    order: Int[np.ndarray, "contexts width"],
    token_index: Int[np.ndarray, " contexts"],
    pooled: Pooled,
) -> Certificate:
    """Turn pools of leading candidates, in `order`, into masks and drafts over token ids."""
    can_reject = token_index >= 0
    threshold = np.where(can_reject, pooled.divergence, np.inf)
    is_finite = np.isfinite(threshold)
    level = np.where(is_finite, pooled.level, 0.0)
    pool = np.zeros(probs.shape, dtype=bool)
    np.put_along_axis(pool, order, np.arange(order.shape[1]) < pooled.count[:, None], axis=1)
    rows = np.flatnonzero(can_reject)
    pool[rows, token_index[rows]] = True
    pool &= is_finite[:, None]
    masses = np.where(pool, level[:, None], probs)
    total = np.where(is_finite, masses.sum(axis=1), 1.0)
    nearest = np.where(is_finite[:, None], masses / total[:, None], np.nan)
    return Certificate(threshold, token_index, pool, level, nearest)
