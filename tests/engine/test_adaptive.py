"""Adaptive trees against exhaustive search on table models, and stopping by entropy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import numpy as np
import pytest
import torch

from acceptlab.adaptive import grow_adaptive
from acceptlab.draft import Proposal
from acceptlab.engine import decode
from acceptlab.passes import run_alone
from acceptlab.toy import TableModel, blended, random_table
from acceptlab.tree import Adaptive
from tests.engine.helpers import settings

VOCAB = 5
TEXT = [1, 3, 2]


def draft_model(concentration: float = 0.5) -> TableModel:
    model = TableModel(random_table(VOCAB, seed=4, concentration=concentration), VOCAB)
    model.prefill(torch.tensor(TEXT[:-1]))
    return model


def value(model: TableModel, path: Iterable[int]) -> float:
    """Product of the draft's probabilities along a path, by looking every row up."""
    text, product = list(TEXT), 1.0
    for token in path:
        product *= float(model.next_probs(tuple(text))[token])
        text.append(token)
    return product


def paths_of(proposal: Proposal) -> set[tuple[int, ...]]:
    tokens = proposal.token_ids.tolist()
    return {tuple(tokens[i] for i in proposal.tree.path(node)) for node in range(proposal.tree.n_nodes)}


def best_paths(model: TableModel, depth: int, n_nodes: int) -> set[tuple[int, ...]]:
    every = [p for d in range(1, depth + 1) for p in itertools.product(range(VOCAB), repeat=d)]
    return set(sorted(every, key=lambda path: (-value(model, path), len(path)))[:n_nodes])


@pytest.mark.parametrize("shape", [Adaptive(12, 3, topk=125), Adaptive(12, 3, threshold=0.0)])
def test_an_unrestricted_search_keeps_the_best_paths_of_all(shape: Adaptive) -> None:
    proposal = run_alone(grow_adaptive(draft_model(), TEXT, shape))
    assert paths_of(proposal) == best_paths(draft_model(), 3, 12)


def test_dynamic_expands_only_the_best_of_a_level() -> None:
    model = draft_model()
    proposal = run_alone(grow_adaptive(model, TEXT, Adaptive(nodes=50, depth=3, topk=2)))
    expected: set[tuple[int, ...]] = set()
    frontier: list[tuple[int, ...]] = [()]
    for _ in range(3):
        children = []
        for path in frontier:
            row = model.next_probs((*TEXT, *path))
            children += [(*path, int(token)) for token in np.argsort(-row)[:2]]
        expected |= set(children)
        frontier = sorted(children, key=lambda path: -value(model, path))[:2]
    assert paths_of(proposal) == expected


def test_siblings_stand_in_the_order_of_their_probability() -> None:
    proposal = run_alone(grow_adaptive(draft_model(), TEXT, Adaptive(20, 4, topk=4)))
    model = draft_model()
    tokens = proposal.token_ids.tolist()
    for family in proposal.tree.children:
        values = [value(model, [tokens[i] for i in proposal.tree.path(node)]) for node in family]
        assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("threshold", [0.1, 0.2, 0.4, 10.0])
def test_opt_goes_deeper_only_while_the_sum_grows(threshold: float) -> None:
    model = draft_model()
    sums = [sum(value(model, path) for path in best_paths(model, depth, 15)) for depth in range(1, 6)]
    grown_too_little = [depth for depth in range(2, 6) if sums[depth - 1] - sums[depth - 2] <= threshold]
    last = grown_too_little[0]  # the level that showed it is looked at, and the best nodes of it stay
    proposal = run_alone(grow_adaptive(draft_model(), TEXT, Adaptive(15, 8, threshold=threshold)))
    assert paths_of(proposal) == best_paths(model, last, 15)


def test_contexts_are_those_that_the_draft_ran_and_that_stayed() -> None:
    model = draft_model()
    proposal = run_alone(grow_adaptive(model, TEXT, Adaptive(6, 4, topk=3)))
    tokens = proposal.token_ids.tolist()
    for index, row in enumerate(proposal.context_rows):
        path = [tokens[i] for i in proposal.tree.path(int(row) - 1)] if row else []
        expected = model.next_probs((*TEXT, *path))
        found = proposal.draft_logits[index].softmax(dim=-1).numpy()
        np.testing.assert_allclose(found, expected, atol=1e-6)  # float32 logits
    inner = {0, *(int(row) for row in proposal.tree.parent_rows)}
    assert inner <= set(proposal.context_rows.tolist())


@pytest.mark.parametrize("tree", ["dynamic:nodes=9,depth=4,topk=3", "opt:nodes=9,threshold=0.05"])
@pytest.mark.parametrize("rule", ["greedy", "onehot"])
def test_the_engine_runs_adaptive_trees_on_models_that_check_their_cache(tree: str, rule: str) -> None:
    table = random_table(VOCAB, seed=0)
    target = TableModel(table, VOCAB)
    draft = TableModel(blended(table, random_table(VOCAB, seed=1), weight=0.3), VOCAB)
    steps = list(decode(target, draft, TEXT, "a", settings(tree, rule, max_new_tokens=40)))
    assert sum(len(step.emitted) for step in steps) == 40
    assert len({len(step.verdict.accepted) for step in steps}) > 1


def entropy(probs: np.ndarray) -> float:
    return -sum(float(p) * math.log(float(p)) for p in probs if p > 0)


@pytest.mark.parametrize("rule", ["greedy", "rejection"])
def test_a_stop_by_entropy_drafts_nothing_below_unsure_contexts(rule: str) -> None:
    table = random_table(VOCAB, seed=0)
    draft = TableModel(blended(table, random_table(VOCAB, seed=1), weight=0.3), VOCAB)
    limit = 1.4
    text = list(TEXT)
    seen = set()
    for step in decode(
        TableModel(table, VOCAB),
        draft,
        TEXT,
        "a",
        settings("kary:depth=3,branch=2", rule, max_new_tokens=60, stop_entropy=limit),
    ):
        tokens = step.token_ids.tolist()
        for row, family in enumerate(step.tree.children):
            path = [tokens[i] for i in step.tree.path(row - 1)] if row else []
            unsure = entropy(draft.next_probs((*text, *path))) > limit
            if unsure or (row and step.tree.depths[row - 1] == 3):
                assert not family
            elif len(text) + 1 < len(TEXT) + 60:
                assert len(family) == 2
            seen.add((unsure, len(family)))
        text.extend(step.emitted)
    assert seen >= {(True, 0), (False, 2)}
