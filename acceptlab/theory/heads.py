"""Exact thresholds for many rules at once from the most probable tokens only.

A pool consists of tokens more probable than the rejected one, so a certificate needs the head of the
distribution down to that token and no more. Where a head of K tokens does not reach it, the full row decides.
Boundary: sorted probabilities in, thresholds out; the nearest drafts are in `certificates`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Float, Int

from acceptlab.errors import UsageError
from acceptlab.rules import Rule
from acceptlab.theory.criteria import (
    RANK_KINDS,
    VALUE_KINDS,
    Ties,
    acceptance_level,
    check_certifiable,
    rank_limit,
)
from acceptlab.theory.lines import solve_in_head
from acceptlab.theory.pools import Pooled, pool_forward, pool_reverse

FullRows = Callable[[Int[np.ndarray, " rows"]], Float[np.ndarray, "rows vocab"]]
Thresholds = tuple[Float[np.ndarray, "contexts rules"], Float[np.ndarray, "contexts rules"]]

_NOTHING = -1.0
"""Stands for the probability of the rejected token where a rule rejects nothing."""

_MASS_ERROR = 1e-13
"""Bound on the error of 1 - sum(head): a softmax over a large vocabulary misses 1 by up to this."""

_TOLERANCE = 1e-9
"""Relative accuracy of a reverse threshold without which the mass outside of the head must be summed."""


def thresholds_from_head(
    head_probs: Float[np.ndarray, "contexts width"],
    entropies: Float[np.ndarray, " contexts"],
    vocab_size: int,
    full_rows: FullRows,
    rules: Sequence[Rule],
    *,
    rest_sum: Float[np.ndarray, " contexts"] | None = None,
    ties: Ties = Ties.IDENTITY,
) -> Thresholds:
    """Exact certificate thresholds on both divergences, for every context and rule.

    greedy, top:M and tree:M compare token ids by default, as engines do: where the two most probable tokens
    are equally probable, the greedy threshold is 0.

    Args:
        head_probs: the target's largest probabilities in descending order, float64, at least one; all of them
            where the vocabulary is no larger.
        entropies: the target's entropy in nats; only typical acceptance looks at it.
        vocab_size: number of tokens, those of probability 0 included.
        full_rows: gives the whole distributions of some contexts; called where the head does not suffice.
        rules: rules of the certificate family.
        rest_sum: the target's mass outside of the head, summed directly. Without it 1 - sum(head) is used,
            and contexts where that would cost a reverse threshold a part in 1e9 ask for the full row.
        ties: how greedy and top:M treat equal probabilities.

    Returns:
        Thresholds on KL(target || draft) and on KL(draft || target), in nats; +inf where the rule cannot
        reject, or no finite divergence can make it.

    Raises:
        UsageError: a rule has no certificate.
    """
    rules = _checked(tuple(rules))
    head = np.asarray(head_probs, dtype=np.float64)
    entropies = np.asarray(entropies, dtype=np.float64)
    is_complete = head.shape[1] >= vocab_size
    rest = _rest(head, rest_sum, is_complete)
    starts = _all_rejected_probs(head, entropies, vocab_size, full_rows, rules, ties)
    forward, reverse, is_short = solve_in_head(head, rest, starts, vocab_size, rules)
    if is_complete:
        return forward, reverse
    if is_short.any():
        deep = np.flatnonzero(is_short)
        forward[deep], reverse[deep] = _solve_deep(
            sort_descending(full_rows(deep)), entropies[deep], head.shape[1], rules, ties
        )
    if rest_sum is None:
        imprecise = np.flatnonzero(_is_imprecise(reverse) & ~is_short)
        if imprecise.size:
            rest = _tail_sums(full_rows(imprecise), head[imprecise])
            reverse[imprecise] = solve_in_head(head[imprecise], rest, starts[imprecise], vocab_size, rules)[1]
    return forward, reverse


@lru_cache(maxsize=16)
def _checked(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    for rule in rules:
        check_certifiable(rule)
    return rules


def sort_descending(probs: Float[np.ndarray, "contexts vocab"]) -> Float[np.ndarray, "contexts vocab"]:
    """Every row sorted, largest first."""
    return np.sort(np.asarray(probs, dtype=np.float64), axis=-1)[:, ::-1]


def rejected_probs(
    head: Float[np.ndarray, "contexts width"],
    entropies: Float[np.ndarray, " contexts"],
    vocab_size: int,
    rules: Sequence[Rule],
    ties: Ties,
) -> tuple[Float[np.ndarray, "contexts rules"], Bool[np.ndarray, "contexts rules"]]:
    """Probability of the most probable rejected token, -1 where nothing is rejected; and where the head
    cannot tell.

    Entries of tree rules are -1: they do not reject one token.
    """
    n_contexts, width = head.shape
    starts = np.full((n_contexts, len(rules)), _NOTHING)
    is_unknown = np.zeros(starts.shape, dtype=bool)
    columns, levels = [], []
    for column, rule in enumerate(rules):
        if rule.kind in VALUE_KINDS:
            columns.append(column)
            levels.append(acceptance_level(head[:, 0], entropies, rule))
        elif rule.kind in RANK_KINDS and rank_limit(rule) < vocab_size:
            limit = rank_limit(rule)
            if limit > width or (limit == width and ties is Ties.IDENTITY):
                is_unknown[:, column] = True
            elif ties is Ties.IDENTITY:
                starts[:, column] = head[:, limit]
            else:
                columns.append(column)
                levels.append(head[:, limit - 1])
    if columns:
        level = np.stack(levels, axis=1)
        first_below = (head[:, None] < level[..., None]).argmax(axis=-1)  # 0 where there is none
        largest = np.take_along_axis(head, first_below, axis=1)
        found = largest < level
        starts[:, columns] = np.where(found, largest, _NOTHING)
        # no probability is below a level of 0
        is_unknown[:, columns] = ~found & (level > 0.0) & (width < vocab_size)
    return starts, is_unknown


def _all_rejected_probs(
    head: Float[np.ndarray, "contexts width"],
    entropies: Float[np.ndarray, " contexts"],
    vocab_size: int,
    full_rows: FullRows,
    rules: Sequence[Rule],
    ties: Ties,
) -> Float[np.ndarray, "contexts rules"]:
    """`rejected_probs`, with the whole rows where the head cannot tell."""
    starts, is_unknown = rejected_probs(head, entropies, vocab_size, rules, ties)
    unknown_rows = np.flatnonzero(is_unknown.any(axis=1))
    if unknown_rows.size:
        full = np.asarray(full_rows(unknown_rows), dtype=np.float64)
        for column in np.flatnonzero(is_unknown.any(axis=0)).tolist():
            is_open = is_unknown[unknown_rows, column]
            contexts = unknown_rows[is_open]
            rows = full if is_open.all() else full[is_open]
            starts[contexts, column] = _rejected_in_full(rows, entropies[contexts], rules[column], ties)
    return starts


def _rejected_in_full(
    probs: Float[np.ndarray, "rows vocab"], entropies: Float[np.ndarray, " rows"], rule: Rule, ties: Ties
) -> Float[np.ndarray, " rows"]:
    """As `rejected_probs`, for one rule and whole rows in any order."""
    if rule.kind in RANK_KINDS:
        limit = rank_limit(rule)
        partitioned = -np.partition(-probs, limit, axis=1)
        if ties is Ties.IDENTITY:
            return partitioned[:, limit]
        level = partitioned[:, :limit].min(axis=1)
    else:
        level = acceptance_level(probs.max(axis=1), entropies, rule)
    largest = np.full(len(probs), _NOTHING)
    # row by row: a row stays in the processor's cache
    for row, (row_probs, row_level) in enumerate(zip(probs, level.tolist(), strict=True)):
        is_rejected = row_probs < row_level
        if is_rejected.any():
            largest[row] = (row_probs * is_rejected).max()
    return largest


def _solve_deep(
    ordered: Float[np.ndarray, "rows vocab"],
    entropies: Float[np.ndarray, " rows"],
    width: int,
    rules: Sequence[Rule],
    ties: Ties,
) -> Thresholds:
    """Thresholds of fully sorted rows, whose pools went beyond `width` tokens: widen until they end."""
    n_rows, vocab_size = ordered.shape
    starts, _ = rejected_probs(ordered, entropies, vocab_size, rules, ties)
    forward, reverse = np.empty_like(starts), np.empty_like(starts)
    rows = np.arange(n_rows)
    while rows.size:
        width = min(8 * width, vocab_size)
        head, rest = ordered[rows, :width], ordered[rows, width:].sum(axis=1)
        forward[rows], reverse[rows], is_short = solve_in_head(head, rest, starts[rows], vocab_size, rules)
        rows = rows[is_short] if width < vocab_size else rows[:0]
    return forward, reverse


def pool_tree(
    head: Float[np.ndarray, "contexts width"], rest: Float[np.ndarray, " contexts"], m: int
) -> tuple[Pooled, Pooled]:
    """Forward and reverse pools of tree:m: the argmax falls level with the m most probable others.

    `head` must hold at least m + 1 tokens in descending order, `rest` the mass outside of it.
    """
    top_prob, ascending = head[:, 0], head[:, m:0:-1]
    outside = head[:, m + 1 :].sum(axis=1) + rest
    return (
        pool_forward(top_prob, ascending, "ascending"),
        pool_reverse(top_prob, ascending, outside, "ascending"),
    )


def _rest(
    head: Float[np.ndarray, "contexts width"],
    rest_sum: Float[np.ndarray, " contexts"] | None,
    is_complete: bool,
) -> Float[np.ndarray, " contexts"]:
    if is_complete:
        return np.zeros(head.shape[0])
    if rest_sum is None:
        return np.asarray(np.maximum(1.0 - head.sum(axis=1), 0.0))
    rest = np.asarray(rest_sum, dtype=np.float64)
    if rest.shape != head.shape[:1]:
        raise UsageError(
            f"rest_sum has shape {rest.shape}: give one number for each of {head.shape[0]} contexts"
        )
    return rest


def _is_imprecise(reverse: Float[np.ndarray, "contexts rules"]) -> Bool[np.ndarray, " contexts"]:
    """Where an error of the outside mass would move a reverse threshold by more than the tolerance."""
    # up to log 2 the threshold does not use that mass
    finite = np.where(np.isfinite(reverse) & (reverse > 0.69), reverse, 0.0)
    is_imprecise = (finite > 0.0) & (finite * np.exp(-finite) * _TOLERANCE < _MASS_ERROR)
    return np.asarray(is_imprecise.any(axis=1))


def _tail_sums(
    full: Float[np.ndarray, "rows vocab"], head: Float[np.ndarray, "rows width"]
) -> Float[np.ndarray, " rows"]:
    """Mass of a row outside of its head: all smaller tokens, and equals of the last one that found no
    place.
    """
    sums = np.empty(len(head))
    # row by row: a row stays in the processor's cache
    for row, (probs, last) in enumerate(zip(full, head[:, -1].tolist(), strict=True)):
        is_smaller = probs < last
        n_equal_left = probs.size - np.count_nonzero(is_smaller) - head.shape[1]
        sums[row] = (probs * is_smaller).sum() + n_equal_left * last
    return sums
