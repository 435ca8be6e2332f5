"""Slow references in plain Python, written from the definitions and from nothing in `acceptlab`.

Numbers may be floats or fractions; with fractions the laws are exact. A distribution is a list indexed by
token, a law is a dictionary from outcomes to probabilities. A *shape* is a nested tuple: one entry a child,
each the shape below it. A table is a function from a text (a tuple of tokens) to a distribution.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

Text = tuple[int, ...]
Shape = tuple[Any, ...]
Table = Callable[[Text], Sequence[Any]]
Law = dict[Text, Any]


def uniform_shape(branches: Sequence[int]) -> Shape:
    """The shape in which every node at depth d has branches[d] children."""
    return tuple(uniform_shape(branches[1:]) for _ in range(branches[0])) if branches else ()


def rational_table(vocab: int, seed: int, zeros: float = 0.0) -> Table:
    """Seeded fractions with small denominators; a share of zeros, never all."""

    @cache
    def row(text: Text) -> tuple[Fraction, ...]:
        rng = np.random.default_rng([seed, len(text), *text])
        weights = [int(w) for w in rng.integers(1, 10, vocab)]
        weights = [0 if rng.random() < zeros else w for w in weights]
        if not any(weights):
            weights[int(rng.integers(vocab))] = 1
        return tuple(Fraction(w, sum(weights)) for w in weights)

    return row


def normalised(weights: Sequence[Any]) -> list[Any]:
    total = sum(weights)
    return [w / total for w in weights]


def without(weights: Sequence[Any], token: int) -> list[Any]:
    """Weights with one token removed, renormalised; all zero where nothing is left."""
    left = [0 if t == token else w for t, w in enumerate(weights)]
    return normalised(left) if sum(left) else left


def candidates(rule: str, draft: Sequence[Any], k: int) -> Iterator[tuple[Any, Text]]:
    """Every list of siblings with its probability, as the proposal of the rule gives it."""
    if rule in {"onehot", "greedy"}:
        ranked = sorted(range(len(draft)), key=lambda token: (-draft[token], token))
        yield 1, tuple(token for token in ranked if draft[token] > 0)[:k]
        return
    if k == 0:
        yield 1, ()
        return
    for token, weight in enumerate(draft):
        if weight > 0:
            left = draft if rule == "rejection-iid" else without(draft, token)
            for other, tokens in candidates(rule, left, k - 1 if sum(left) else 0):
                yield weight * other, (token, *tokens)


def node(rule: str, target: Sequence[Any], draft: Sequence[Any], tokens: Text) -> tuple[list[Any], list[Any]]:
    """Acceptance probability of every sibling once tested, and the law of the correction after them."""
    accepts: list[Any] = []
    residual, left = list(target), list(draft)
    for token in tokens:
        if rule == "greedy":
            accepts.append(1 if token == target.index(max(target)) else 0)
        elif rule == "onehot":
            accepts.append(residual[token] if sum(residual) else 0)
            residual = without(residual, token)
        else:
            accepts.append(min(1, residual[token] / left[token]))
            excess = [max(r - q, 0) for r, q in zip(residual, left, strict=True)]
            residual = normalised(excess) if sum(excess) else residual
            left = left if rule == "rejection-iid" else without(left, token)
    if rule == "greedy":
        best = list(target).index(max(target))
        residual = [1 if token == best else 0 for token in range(len(target))]
    return accepts, residual


def node_law(rule: str, target: Sequence[Any], draft: Sequence[Any], k: int) -> tuple[list[Any], list[Any]]:
    """Law of the token that comes out of a context with k siblings, and the chance of acceptance by rank."""
    law = [0] * len(target)
    by_rank = [0] * k
    for weight, tokens in candidates(rule, draft, k):
        accepts, residual = node(rule, target, draft, tokens)
        rest = weight
        for rank, (token, accept) in enumerate(zip(tokens, accepts, strict=True)):
            law[token] += rest * accept
            by_rank[rank] += rest * accept
            rest *= 1 - accept
        if rest:
            law = [total + rest * r for total, r in zip(law, residual, strict=True)]
    return law, by_rank


def step_law(
    rule: str, target: Table, draft: Table, text: Text, shape: Shape, *, eos: frozenset[int] = frozenset()
) -> Law:
    """Law of what a step emits: the accepted tokens and the one after them, nothing after an end of text."""
    if rule == "block":
        return block_law(target, draft, text, depth_of(shape), eos)
    law: Law = defaultdict(int)
    for weight, tokens in candidates(rule, draft(text), len(shape)):
        accepts, residual = node(rule, target(text), draft(text), tokens)
        rest = weight
        for token, accept, below in zip(tokens, accepts, shape, strict=False):
            mass = rest * accept
            rest *= 1 - accept
            if mass and token in eos:
                law[token,] += mass
            elif mass:
                for tail, share in step_law(rule, target, draft, (*text, token), below, eos=eos).items():
                    law[token, *tail] += mass * share
        for token, share in enumerate(residual):
            if rest and share:
                law[token,] += rest * share
    return law


def depth_of(shape: Shape) -> int:
    return 1 + max(depth_of(child) for child in shape) if shape else 0


def block_law(target: Table, draft: Table, text: Text, length: int, eos: frozenset[int] = frozenset()) -> Law:
    """Block verification by enumerating every drafted chain and every longest index that passes."""
    law: Law = defaultdict(int)
    for weight, chain in _chains(draft, text, length, eos):
        probs = [1]  # P_0 .. P_K
        for i, token in enumerate(chain):
            here = (*text, *chain[:i])
            probs.append(min(probs[i] * target(here)[token] / draft(here)[token], 1))
        stops: list[Any] = []
        residuals = []
        for i in range(len(chain)):
            here = (*text, *chain[:i])
            residual = [max(probs[i] * t - d, 0) for t, d in zip(target(here), draft(here), strict=True)]
            mass, room = sum(residual), sum(residual) + 1 - probs[i]
            stops.append(mass / room if room else 0)
            residuals.append(residual)
        stops[:1] = [1] if chain else []  # length 0 is what is left
        stops.append(probs[-1] if chain else 1)
        residuals.append(list(target((*text, *chain))))
        rest = weight
        for i in reversed(range(len(chain) + 1)):
            mass, rest = rest * stops[i], rest * (1 - stops[i])
            if mass and i == len(chain) and chain and chain[-1] in eos:
                law[chain] += mass
            elif mass:
                for token, share in enumerate(normalised(residuals[i])):
                    law[*chain[:i], token] += mass * share
    return law


def _chains(draft: Table, text: Text, length: int, eos: frozenset[int]) -> Iterator[tuple[Any, Text]]:
    if length == 0 or (text and text[-1] in eos):
        yield 1, ()
        return
    for token, weight in enumerate(draft(text)):
        if weight:
            for other, chain in _chains(draft, (*text, token), length - 1, eos):
                yield weight * other, (token, *chain)


def decode_law(
    step: Callable[[Text], Law], text: Text, n_tokens: int, eos: frozenset[int] = frozenset()
) -> Law:
    """Law of the whole text that repeated steps emit, cut at the limit; a text ends with an end token."""
    memo: dict[Text, Law] = {}

    def rest_of(emitted: Text) -> Law:
        if len(emitted) >= n_tokens or (emitted and emitted[-1] in eos):
            return {(): 1}
        if emitted not in memo:
            law: Law = defaultdict(int)
            for tokens, mass in step((*text, *emitted)).items():
                kept = tokens[: n_tokens - len(emitted)]
                for tail, share in rest_of((*emitted, *kept)).items():
                    law[*kept, *tail] += mass * share
            memo[emitted] = law
        return memo[emitted]

    return rest_of(())


def plain_law(target: Table, text: Text, n_tokens: int, eos: frozenset[int] = frozenset()) -> Law:
    """Law of what the target alone writes, by the chain rule."""
    return decode_law(
        lambda here: {(token,): mass for token, mass in enumerate(target(here)) if mass}, text, n_tokens, eos
    )


def distance(left: Law, right: Law) -> float:
    """Largest difference of two laws over all outcomes."""
    return max(float(abs(left.get(key, 0) - right.get(key, 0))) for key in {*left, *right})


def walk_by_hand(
    parents: Sequence[int], accept: Sequence[float], uniforms: Sequence[float], blocked: Sequence[bool]
) -> tuple[list[str], list[int]]:
    """Outcomes and accepted path of one step: go down, try siblings in order, take the first that passes."""
    outcome = ["untested"] * len(parents)
    path: list[int] = []
    here = -1
    while True:
        for child in [n for n, parent in enumerate(parents) if parent == here and not blocked[n]]:
            if uniforms[child] < accept[child]:
                outcome[child] = "accepted"
                path.append(child)
                here = child
                break
            outcome[child] = "rejected"
        else:
            return outcome, path


def reach_by_hand(
    parents: Sequence[int], accept: Sequence[float], blocked: Sequence[bool]
) -> tuple[list[float], list[float]]:
    """Probability of being tested and of being on the path, by enumerating what every node would answer."""
    n = len(parents)
    tested, reached = [0.0] * n, [0.0] * n
    for answers in itertools.product((0.0, 1.0), repeat=n):
        weight = 1.0
        for answer, prob in zip(answers, accept, strict=True):
            weight *= prob if answer else 1.0 - prob
        if weight:
            outcome, path = walk_by_hand(parents, answers, [0.5] * n, blocked)
            for i in range(n):
                tested[i] += weight * (outcome[i] != "untested")
            for i in path:
                reached[i] += weight
    return tested, reached
