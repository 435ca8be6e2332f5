"""Both thresholds of many rules in many contexts as one batch of pools, from the heads of the distributions.

NumPy costs more a call than it costs a number here, so all rules and contexts are solved together. Boundary: sorted
heads and the rejected tokens in, thresholds out; which token is rejected, and what to do where a head does not
suffice, is in `heads`, the pooling itself in `pools`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Float, Int

from acceptlab.rules import Rule, RuleKind
from acceptlab.theory.criteria import rank_limit
from acceptlab.theory.pools import log_line, melt_lines, pool_lines, suffix_sums, zero_divergence


def solve_in_head(
    head: Float[np.ndarray, "contexts width"],
    rest: Float[np.ndarray, " contexts"],
    starts: Float[np.ndarray, "contexts rules"],
    vocab_size: int,
    rules: Sequence[Rule],
) -> tuple[
    Float[np.ndarray, "contexts rules"], Float[np.ndarray, "contexts rules"], Bool[np.ndarray, " contexts"]
]:
    """Both thresholds, and contexts whose pool may go on beyond the head. All rules are solved together."""
    width = head.shape[1]
    layout = _layout(tuple(rules), width, vocab_size)
    can_reject = starts >= 0.0
    start = np.where(can_reject, starts, head[:, :1])
    # only tokens above the least start token can join
    n_above = int((head > start.min(axis=1, initial=1.0)[:, None]).sum(axis=1).max(initial=0))
    in_line = layout.places[:, : 1 + max(n_above, layout.longest_tree)]
    lines = head[:, in_line]
    lines[..., 0] = start
    reference = np.maximum(head[:, 0], np.finfo(np.float64).tiny)
    log_lines = log_line(head, reference)[:, in_line]
    log_lines[..., 0] = log_line(start, reference)
    pooled = pool_lines(lines, layout.sign)
    melted = melt_lines(lines, log_lines, reference[:, None], layout.sign)
    below = suffix_sums(head)
    outside = np.where(layout.is_tree, below[:, np.minimum(layout.after, width)], -start) + rest[:, None]
    places = layout.first + layout.sign * melted.count
    outside += np.take_along_axis(_sums_beside(head, below), places, axis=1)
    divergence = np.where(start > 0.0, melted.divergence(outside), np.inf)
    if head[:, -1].min(initial=1.0) <= 0.0:
        has_zero = layout.is_tree & (head[:, np.minimum(layout.after, width) - 1] <= 0.0)
        without = zero_divergence(head[:, :1], below[:, 1:2] + rest[:, None])
        divergence = np.where(has_zero, without, divergence)
    is_finite = can_reject | layout.is_tree
    is_short = (can_reject & ((pooled.count == width) | (melted.count == width))).any(axis=1)
    return (
        np.where(is_finite, pooled.divergence, np.inf),
        np.where(is_finite, divergence, np.inf),
        is_short | layout.asks_for_more,
    )


@dataclass(frozen=True)
class _Layout:
    """Where the lines of some rules find their tokens in a head (see `pools`).

    A rule that rejects one token pools it with the tokens from the argmax down, a tree its argmax with the m next
    ones from the last of them up. `places` [rule, place in the line]: a tree's line goes on with its start token,
    which never joins. `sign` [rule] is that of `pools`. The mass outside of a pool of k candidates is found at place
    `first` + `sign` k of `_sums_beside`, and `after` is where the tokens begin that no pool of the tree can hold.
    """

    places: Int[np.ndarray, "rules length"]
    sign: Int[np.ndarray, " rules"]
    first: Int[np.ndarray, " rules"]
    after: Int[np.ndarray, " rules"]
    is_tree: Bool[np.ndarray, " rules"]
    longest_tree: int
    asks_for_more: bool
    """Whether a tree does not fit into the head, though into the vocabulary."""


@lru_cache(maxsize=64)
def _layout(rules: tuple[Rule, ...], width: int, vocab_size: int) -> _Layout:
    limits = np.array([rank_limit(rule) if rule.kind is RuleKind.TREE else 0 for rule in rules])
    is_tree = (limits > 0) & (limits < min(width, vocab_size))
    size = np.where(limits > 0, np.where(is_tree, limits, 0), width)
    steps = np.arange(int(size.max(initial=0)) + 1)
    up, down = limits[:, None] + 1 - steps, steps - 1
    places = np.where(is_tree[:, None], up, down)
    places = np.where((steps > 0) & (steps <= size[:, None]), places, 0)
    sign = np.where(limits > 0, -1, 1)
    first = np.where(limits > 0, width + 1 + size, 0)
    asks_for_more = bool(((limits >= width) & (limits < vocab_size)).any())
    longest = int(limits[is_tree].max(initial=0))
    return _Layout(places, sign, first, size + 1, is_tree, longest, asks_for_more)


def _sums_beside(
    head: Float[np.ndarray, "contexts width"], below: Float[np.ndarray, "contexts sums"]
) -> Float[np.ndarray, "contexts both"]:
    """Mass of the head from the k-th token on, for k = 0..width, then of the k tokens after the first."""
    above = np.cumsum(np.where(np.arange(head.shape[1]) > 0, head, 0.0), axis=1)
    return np.concatenate([below, above], axis=1)
