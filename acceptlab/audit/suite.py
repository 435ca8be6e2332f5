"""The enumeration part of `acceptlab audit losslessness`: which cases, and the table that comes out.

Every case states what it enumerated and the largest difference from the target's law. The cases use
residuals of at least two tokens, zeros in both distributions, equal and disjoint supports: a residual of
one token hides several faults.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from acceptlab.audit.controls import CONTROLS, RIGHT, ContextVerifier
from acceptlab.audit.exact import (
    TablePair,
    context_masses,
    decoding_law,
    largest_difference,
    plain_law,
    sibling_lists,
    target_chain,
    tree_laws,
)
from acceptlab.rng import generator
from acceptlab.rules import parse_rule
from acceptlab.sampling import Warp
from acceptlab.toy import TableModel, blended, random_table
from acceptlab.tree import parse_tree

TOLERANCE = 1e-12
"""Rounding of a few hundred float64 sums stays under 1e-14; the smallest bias among the controls is 1e-3."""


@dataclass(frozen=True)
class ExactCheck:
    """One row of the audit's table."""

    level: str
    """`context` (one token), `tree` (one step), or `text` (whole decoding)."""
    verifier: str
    vocab: int
    shape: str
    """Number of siblings of a context, or the tree and what else was set."""
    n_cases: int
    """How many lists of candidates, or final texts, were enumerated."""
    worst: float
    """Largest difference from the target's law."""
    is_right: bool
    """Whether the verifier is meant to be lossless; a control is not."""

    @property
    def passed(self) -> bool:
        """A right verifier agrees with the target, a broken one does not."""
        return (self.worst <= TOLERANCE) == self.is_right


def context_pairs(vocab: int, seed: int, n_random: int = 6) -> Iterator[tuple[Tensor, Tensor]]:
    """Target and draft distributions of one context: random ones, and the edges."""
    rng = generator(seed, "context pairs", vocab, "exact")
    for _ in range(n_random):
        yield _row(rng.dirichlet(np.ones(vocab))), _row(rng.dirichlet(np.ones(vocab)))
    some = _row(rng.dirichlet(np.ones(vocab)))
    yield some, some.clone()
    first, last = np.zeros(vocab), np.zeros(vocab)
    first[0] = last[-1] = 1.0
    yield _row(first), some
    yield some, _row(first)
    yield _row(first), _row(last)
    sparse, other = rng.dirichlet(np.ones(vocab)), rng.dirichlet(np.ones(vocab))
    sparse[0] = other[-1] = 0.0
    yield _row(sparse), _row(other)


def check_contexts(vocab_sizes: tuple[int, ...] = (2, 3, 4, 5), seed: int = 0) -> list[ExactCheck]:
    """Every lossless rule in one context: all vocabularies, all sibling counts, all lists of siblings."""
    checks = []
    for vocab in vocab_sizes:
        pairs = list(context_pairs(vocab, seed))
        for verifier in RIGHT:
            checks += [_check_context(verifier, vocab, k, pairs) for k in range(1, vocab + 1)]
    return checks


def check_controls(vocab: int = 5, seed: int = 0) -> list[ExactCheck]:
    """Every broken verifier in the same contexts: its law must differ from the target's."""
    pairs = list(context_pairs(vocab, seed))
    return [_check_context(verifier, vocab, verifier.n_siblings, pairs, False) for verifier in CONTROLS]


def _check_context(
    verifier: ContextVerifier, vocab: int, k: int, pairs: list[tuple[Tensor, Tensor]], is_right: bool = True
) -> ExactCheck:
    worst, n_cases = 0.0, 0
    for target, draft in pairs:
        if not is_right and int((draft > 0).sum()) < k:
            continue
        law = context_masses(verifier, target, draft, k).law
        worst = max(worst, float(np.abs(law - target.numpy()).max()))
        n_cases += len(sibling_lists(verifier.proposal, draft, k)[0])
    return ExactCheck("context", verifier.name, vocab, f"{k} siblings", n_cases, worst, is_right)


def check_trees(vocab_sizes: tuple[int, ...] = (2, 3, 4, 5), seed: int = 0) -> list[ExactCheck]:
    """Every lossless rule on trees up to depth 3 with every number of siblings at every depth."""
    checks = []
    for vocab, verifier in itertools.product(vocab_sizes, RIGHT):
        target = random_table(vocab, seed, order=2)
        draft = blended(target, random_table(vocab, seed + 1, order=2), 0.6)
        pair = TablePair(TableModel(target, vocab), TableModel(draft, vocab))
        law_of = tree_laws(verifier, pair)
        for depth in (1, 2, 3):
            plain = target_chain(pair, (0,), depth + 1)
            worst, shapes = 0.0, list(itertools.product(range(1, vocab + 1), repeat=depth))
            for branches in shapes:
                worst = max(worst, float(np.abs(law_of((0,), branches) - plain).max()))
            label = f"all branches of depth {depth}"
            checks.append(ExactCheck("tree", verifier.name, vocab, label, len(shapes), worst, True))
    return checks


_TEXTS = (
    ("rejection", "branches:2,1", 3, Warp()),
    ("rejection", "branches:1,2", 3, Warp()),
    ("rejection", "branches:3", 3, Warp(temperature=0.7)),
    ("rejection", "branches:2", 4, Warp(top_k=2)),
    ("rejection", "chain:3", 3, Warp()),
    ("rejection-iid", "branches:2,1", 3, Warp()),
    ("rejection-iid", "branches:3", 3, Warp(top_p=0.8)),
    ("onehot", "kary:depth=3,branch=2", 4, Warp()),
    ("onehot", "branches:3,2,1", 4, Warp(temperature=0.7)),
    ("onehot", "chain:3", 5, Warp()),
    ("block", "chain:2", 4, Warp()),
    ("block", "chain:3", 3, Warp()),
    ("block", "chain:3", 3, Warp(temperature=0.7, top_p=0.9)),
)


def check_texts(n_tokens: int = 3, seed: int = 0) -> list[ExactCheck]:
    """Whole decoding on table models, over all sequences, with and without an end of text."""
    checks = []
    for name, shape, vocab, settings in _TEXTS:
        rule = parse_rule(name)
        tree = parse_tree(shape).static
        target = random_table(vocab, seed, order=2)
        draft = blended(target, random_table(vocab, seed + 1, order=2), 0.6)
        pair = TablePair(TableModel(target, vocab), TableModel(draft, vocab), settings)
        for eos_ids in (frozenset[int](), frozenset({vocab - 1})):
            if tree is None:
                raise TypeError(f"tree '{shape}' is not static")
            law = decoding_law(rule, tree, pair, (0,), n_tokens, eos_ids=eos_ids)
            worst = largest_difference(law, plain_law(pair, (0,), n_tokens, eos_ids))
            label = f"{shape}, {n_tokens} tokens, T={settings.temperature:g}"
            label += f", top-k {settings.top_k}" if settings.top_k else ""
            label += f", top-p {settings.top_p:g}" if settings.top_p < 1 else ""
            label += ", end of text" if eos_ids else ""
            checks.append(ExactCheck("text", name, vocab, label, len(law), worst, True))
    return checks


def _row(probs: Float64[np.ndarray, " vocab"]) -> Float64[Tensor, " vocab"]:
    return torch.from_numpy(probs / probs.sum())
