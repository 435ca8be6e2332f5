"""Greedy and its relaxations: which drafted tokens the target lets pass. NumPy only, shared with the replay.

All of them use the target's *model* distribution (temperature 1, untruncated), and all decode by its
argmax: the correction and the bonus are the argmax, whatever passed. `greedy` and `top` compare tokens (the
argmax is the lowest id among exact ties, as in a real greedy decoder); `additive`, `ratio` and `typical`
compare probabilities, so that a token tied with the argmax passes.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from jaxtyping import Bool, Float64, Int

from acceptlab.errors import UsageError
from acceptlab.rules import Rule, RuleKind

_T = TypeVar("_T")


def threshold(
    rule: Rule, top_prob: Float64[np.ndarray, " *n"], entropy: Float64[np.ndarray, " *n"] | None = None
) -> Float64[np.ndarray, " *n"]:
    """The target probability that a token needs in order to pass.

    additive: top - eps; ratio: gamma * top; typical: min(eps, delta * exp(-entropy)), the entropy-thresholded
    acceptance of Medusa (arXiv 2401.10774).

    Args:
        rule: additive, ratio or typical.
        top_prob: the target's largest probability.
        entropy: in nats, for typical only.
    """
    if rule.kind is RuleKind.ADDITIVE:
        return top_prob - _given(rule.eps)
    if rule.kind is RuleKind.RATIO:
        return top_prob * _given(rule.gamma)
    if rule.kind is not RuleKind.TYPICAL or entropy is None:
        raise UsageError(f"rule '{rule}' has no probability threshold here: use additive, ratio or typical")
    tau = np.minimum(_given(rule.eps), _given(rule.delta) * np.exp(-entropy))
    # exp(-entropy) is at most the top probability; rounding must not make the argmax itself fail
    return np.asarray(np.minimum(tau, top_prob) if _given(rule.delta) <= 1 else tau)


def passes(
    rule: Rule,
    *,
    is_argmax: Bool[np.ndarray, " *n"] | None = None,
    rank: Int[np.ndarray, " *n"] | None = None,
    prob: Float64[np.ndarray, " *n"] | None = None,
    top_prob: Float64[np.ndarray, " *n"] | None = None,
    entropy: Float64[np.ndarray, " *n"] | None = None,
) -> Bool[np.ndarray, " *n"]:
    """Whether each token passes; a rule reads only what it needs.

    Args:
        rule: greedy (reads `is_argmax`), top (`rank`), additive and ratio (`prob`, `top_prob`), typical
            (those two and `entropy`).
        is_argmax: whether the token is the target's argmax.
        rank: its rank in the target's model distribution, 0 the argmax, ties by lower id.
        prob: its probability in the target's model distribution.
        top_prob: the largest probability there, computed in the same array and type as `prob`.
        entropy: the entropy there, in nats.
    """
    if rule.kind is RuleKind.GREEDY:
        return _given(is_argmax).copy()
    if rule.kind is RuleKind.TOP:
        return np.asarray(_given(rank) < _given(rule.m))
    return np.asarray(_given(prob) >= threshold(rule, _given(top_prob), entropy))


def _given(value: _T | None) -> _T:
    if value is None:
        raise UsageError("a rule lacks a value that it needs: pass what `passes` lists for it")
    return value
