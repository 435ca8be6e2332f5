"""Which proposed tokens a rule rejects, given the target's distribution.

A rule of the certificate family accepts a proposed token when the target's probability of it reaches a level,
or when its id is in a list of the target's most probable tokens. Boundary: no divergences; the acceptance of
drafted trees is in `verify`.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from jaxtyping import Bool, Float

from acceptlab.errors import UsageError
from acceptlab.rules import PROVABLE, Rule, RuleKind
from acceptlab.theory.divergences import entropy

RANK_KINDS = frozenset({RuleKind.GREEDY, RuleKind.TOP})
"""Rules that look at ranks only; ties matter to them."""

VALUE_KINDS = frozenset({RuleKind.ADDITIVE, RuleKind.RATIO, RuleKind.TYPICAL})
"""Rules that compare a probability with a level; equal probabilities share their fate."""


class Ties(StrEnum):
    """What happens to a token whose probability equals that of the last accepted one.

    `level` accepts it: the rule is a level on probabilities. `identity` rejects it: the rule compares token
    ids, as engines do, and the lower id wins. Thresholds under identity are never above those under level.
    Only greedy and top:M differ; additive, ratio and typical are levels by definition, and tree:M always
    compares ids.
    """

    LEVEL = "level"
    IDENTITY = "identity"


def check_certifiable(rule: Rule) -> None:
    """Refuse a rule that has no certificate.

    Raises:
        UsageError: the rule is a lossless one, whose acceptance is random whatever the divergence.
    """
    if rule.kind not in RANK_KINDS | VALUE_KINDS | {RuleKind.TREE}:
        raise UsageError(f"rule '{rule}' has no certificate, its acceptance is random: use {PROVABLE}")


def rank_limit(rule: Rule) -> int:
    """How many of the target's most probable tokens a rank rule accepts: 1 for greedy, M for top:M and
    tree:M.
    """
    return 1 if rule.kind is RuleKind.GREEDY else int(rule.m or 1)


def acceptance_level(
    top_prob: Float[np.ndarray, " contexts"], entropies: Float[np.ndarray, " contexts"], rule: Rule
) -> Float[np.ndarray, " contexts"]:
    """The probability that a token needs under additive, ratio or typical acceptance.

    Typical acceptance (Cai et al., Medusa, 2024) asks for min(eps, delta * exp(-entropy)). With delta <= 1
    that is never above the largest probability, though exp(-entropy) in float64 is for half of all uniform
    distributions: hence the clamp.
    """
    top_prob = np.asarray(top_prob, dtype=np.float64)
    if rule.kind is RuleKind.ADDITIVE:
        return top_prob - _number(rule.eps)
    if rule.kind is RuleKind.RATIO:
        return _number(rule.gamma) * top_prob
    if rule.kind is RuleKind.TYPICAL:
        delta = _number(rule.delta)
        level = np.minimum(_number(rule.eps), delta * np.exp(-np.asarray(entropies, dtype=np.float64)))
        return np.minimum(level, top_prob) if delta <= 1.0 else level
    raise UsageError(f"rule '{rule}' has no acceptance level: use additive, ratio or typical")


def rejected_mask(
    target_probs: Float[np.ndarray, "contexts vocab"], rule: Rule, ties: Ties = Ties.IDENTITY
) -> Bool[np.ndarray, "contexts vocab"]:
    """Which proposed tokens the rule rejects in every context.

    Raises:
        UsageError: tree:M rejects no single token, or the rule has no certificate.
    """
    check_certifiable(rule)
    probs = np.asarray(target_probs, dtype=np.float64)
    vocab_size = probs.shape[-1]
    if rule.kind is RuleKind.TREE:
        raise UsageError(f"rule '{rule}' judges a set of candidates, not one token: ask for its certificate")
    if rule.kind in VALUE_KINDS:
        return probs < acceptance_level(probs.max(axis=-1), entropy(probs), rule)[..., None]
    n_accepted = min(rank_limit(rule), vocab_size)
    if ties is Ties.LEVEL:
        return probs < -np.partition(-probs, n_accepted - 1, axis=-1)[..., n_accepted - 1 : n_accepted]
    accepted_ids = np.argsort(-probs, axis=-1, kind="stable")[..., :n_accepted]
    rejected = np.ones(probs.shape, dtype=bool)
    np.put_along_axis(rejected, accepted_ids, False, axis=-1)
    return rejected


def _number(parameter: float | None) -> float:
    return 0.0 if parameter is None else float(parameter)
