"""Slow references for the certificates: 50-digit decimals by the definition, and numeric minimisation.

Nothing here shares code with `acceptlab.theory`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal, localcontext
from itertools import combinations

import numpy as np
from scipy.optimize import minimize

DIGITS = 60


def exact_threshold(probs: Sequence[float], rejected: Sequence[bool], direction: str) -> float:
    """Least divergence of a draft whose argmax is rejected, by a scan over pools in 60-digit arithmetic."""
    with localcontext() as context:
        context.prec = DIGITS
        total = sum(map(Decimal, probs))
        exact = [Decimal(prob) / total for prob in probs]
        candidates = [prob for prob, is_rejected in zip(exact, rejected, strict=True) if is_rejected]
        if not candidates:
            return math.inf
        start = max(candidates)
        others = sorted(exact, reverse=True)
        others.remove(start)
        return _scan(start, others, exact, direction, descending=True)


def exact_tree_threshold(probs: Sequence[float], m: int, direction: str) -> float:
    """Least divergence of a draft whose top m miss the target's argmax, ties against it."""
    if m >= len(probs):
        return math.inf
    with localcontext() as context:
        context.prec = DIGITS
        total = sum(map(Decimal, probs))
        exact = sorted((Decimal(prob) / total for prob in probs), reverse=True)
        chosen = sorted(exact[1 : m + 1])
        if direction == "reverse" and chosen[0] == 0:
            left = sum(exact[1:])
            return math.inf if left == 0 else float(-left.ln())
        return _scan(exact[0], chosen, exact, direction, descending=False)


def _scan(
    start: Decimal, others: Sequence[Decimal], exact: Sequence[Decimal], direction: str, *, descending: bool
) -> float:
    pool = [start]
    is_reverse = direction == "reverse"
    if is_reverse and start == 0:
        return math.inf
    for prob in others:
        level = _level(pool, is_reverse)
        if (prob > level) if descending else (prob < level):
            pool.append(prob)
        else:
            break
    level = _level(pool, is_reverse)
    if is_reverse:
        remaining = sum(exact) - sum(pool) + len(pool) * level
        return float(-remaining.ln()) + 0.0
    return float(sum((prob * (prob / level).ln() for prob in pool if prob > 0), Decimal(0))) + 0.0


def _level(pool: Sequence[Decimal], is_geometric: bool) -> Decimal:
    if not is_geometric:
        return sum(pool, Decimal(0)) / len(pool)
    return (sum((prob.ln() for prob in pool), Decimal(0)) / len(pool)).exp()


def numeric_threshold(probs: np.ndarray, rejected: np.ndarray, direction: str) -> float:
    """The same minimum by a general solver: over every rejected token, drafts in which it is a largest
    one.
    """
    tokens = range(len(probs))
    wanted = [[(token, other) for other in tokens if other != token] for token in np.flatnonzero(rejected)]
    return min((_minimise(probs, pairs, direction) for pairs in wanted), default=math.inf)


def numeric_tree_threshold(probs: np.ndarray, m: int, direction: str) -> float:
    """The tree's minimum by a general solver: over every set of m tokens that may come before the argmax."""
    top = int(np.argmax(probs))
    others = [token for token in range(len(probs)) if token != top]
    wanted = [[(token, top) for token in chosen] for chosen in combinations(others, m)]
    return min((_minimise(probs, pairs, direction) for pairs in wanted), default=math.inf)


def _minimise(probs: np.ndarray, pairs: list[tuple[int, int]], direction: str) -> float:
    """Minimise the divergence subject to draft[i] >= draft[j] for all pairs; probabilities must be
    positive.
    """
    rows = np.zeros((len(pairs), len(probs)))
    for row, (larger, smaller) in enumerate(pairs):
        rows[row, larger], rows[row, smaller] = 1.0, -1.0

    def objective(draft: np.ndarray) -> float:
        draft = np.maximum(draft, 1e-12)
        first, second = (probs, draft) if direction == "forward" else (draft, probs)
        return float((first * np.log(first / second)).sum())

    constraints = [
        {"type": "ineq", "fun": lambda draft: rows @ draft, "jac": lambda draft: rows},
        {"type": "eq", "fun": lambda draft: draft.sum() - 1.0, "jac": np.ones_like},
    ]
    start = np.full(len(probs), 1.0 / len(probs))
    bounds = [(1e-9, 1.0)] * len(probs)
    found = minimize(
        objective, start, bounds=bounds, constraints=constraints, method="SLSQP", options={"ftol": 1e-13}
    )
    return float(found.fun)
