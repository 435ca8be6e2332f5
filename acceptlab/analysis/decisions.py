"""Decisions of the argmax rules from stored numbers, which are rounded: passes for sure, or possibly.

Each stored number stands for an interval: a float32 for its neighbourhood, an entry of a context's list for what its
rounding may have cut off, a token outside the list for everything up to the list's last entry. A rule is evaluated at
both ends; the arithmetic of the rules is in `relaxed`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float64, Int

from acceptlab.relaxed import passes, threshold
from acceptlab.rules import Rule, RuleKind
from acceptlab.store import prob_upper_bounds

Ends = tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " n"]]


@dataclass(frozen=True, eq=False)
class Stored:
    """What the records say of each node, for the argmax rules. Pairs are the ends of what is possible."""

    rank: Int[np.ndarray, " n"]
    prob: Ends
    top_prob: Ends
    entropy: Ends


def around_float32(values: Float[np.ndarray, " n"]) -> Ends:
    """Ends between which a number lies that was rounded to these float32 values (its two neighbours)."""
    stored = values.astype(np.float32)
    low = np.nextafter(stored, np.float32(-np.inf)).astype(np.float64)
    return low, np.nextafter(stored, np.float32(np.inf)).astype(np.float64)


def around_listed(
    stored: Float[np.ndarray, " n"],
    rank: Int[np.ndarray, " n"],
    n_listed: Int[np.ndarray, " n"],
    last: Float[np.ndarray, " n"],
    mass: Float[np.ndarray, " n"],
) -> Ends:
    """Ends of a token's probability from the list of its context.

    Args:
        stored: the list's entry for the token, rounded down; anything where the list does not reach it.
        rank: the token's rank, which is its place in the list.
        n_listed: length of the list.
        last: the list's last entry.
        mass: sum of the list's entries.
    """
    listed = rank < n_listed
    value = np.where(listed, stored, last).astype(np.float64)
    most = prob_upper_bounds(value)  # the store rounds lists down
    rest = np.clip(1.0 - mass.astype(np.float64), 0.0, 1.0) + 1e-12
    return np.where(listed, value, 0.0), np.where(listed, most, np.minimum(most, rest))


def decide(rule: Rule, stored: Stored) -> tuple[Bool[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """Whether each node passes for sure, and whether it possibly passes.

    greedy and top go by stored ranks and are always sure. Where a token is the argmax, its probability is the top
    probability itself, so that no rounding comes between them.
    """
    if rule.kind in {RuleKind.GREEDY, RuleKind.TOP}:
        sure = passes(rule, is_argmax=stored.rank == 0, rank=stored.rank)
        return sure, sure
    is_top = stored.rank == 0
    surely, possibly = (
        prob >= threshold(rule, top, entropy)
        for prob, top, entropy in (
            (stored.prob[0], stored.top_prob[1], stored.entropy[0]),
            (stored.prob[1], stored.top_prob[0], stored.entropy[1]),
        )
    )
    if rule.kind is RuleKind.TYPICAL and float(rule.delta or 0.0) > 1:
        return surely, possibly
    always = {
        RuleKind.ADDITIVE: float(rule.eps or 0.0) >= 0,
        RuleKind.RATIO: float(rule.gamma or 0.0) <= 1,
        RuleKind.TYPICAL: True,
    }[rule.kind]
    return np.where(is_top, always, surely), np.where(is_top, always, possibly)
