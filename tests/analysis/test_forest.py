"""The forest against one walk a step and against enumeration of all decisions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from acceptlab.analysis.forest import Forest, below_end, forest_of, length_bounds, reach
from acceptlab.tree import Tree
from acceptlab.walk import blocked_below, reach_probs
from tests.oracles import walk_by_hand


def random_trees(rng: np.random.Generator, count: int, largest: int = 9) -> list[Tree]:
    """Trees of 1 to `largest` nodes whose siblings do not stand next to each other."""
    sizes = rng.integers(1, largest + 1, count)
    return [Tree(tuple(int(rng.integers(-1, node)) for node in range(size))) for size in sizes]


def forest_from(trees: list[Tree]) -> Forest:
    parents = np.concatenate([np.asarray(tree.parents) for tree in trees])
    ranks = np.concatenate([tree.child_ranks for tree in trees])
    return forest_of(np.array([tree.n_nodes for tree in trees]), parents, ranks)


@pytest.fixture(scope="module")
def trees() -> list[Tree]:
    return random_trees(np.random.default_rng(0), 60)


def test_structure_is_that_of_the_trees(trees: list[Tree]) -> None:
    forest = forest_from(trees)
    np.testing.assert_array_equal(forest.depth, np.concatenate([tree.depths for tree in trees]))
    start = 0
    for tree in trees:
        for row, family in enumerate(tree.children):
            rows = [start + node for node in family]
            assert [int(forest.before[r]) for r in rows] == [-1, *rows[:-1]][: len(rows)]
            assert [int(forest.after[r]) for r in rows] == [*rows[1:], -1][: len(rows)]
            if row > 0:
                assert forest.first_child[start + row - 1] == (rows[0] if rows else -1)
        start += tree.n_nodes


def test_reach_equals_a_walk_a_step(trees: list[Tree]) -> None:
    forest = forest_from(trees)
    accept = np.random.default_rng(1).random(forest.n_nodes)
    test, reached = reach(forest, accept)
    wanted = [reach_probs(tree, accept[forest.step == i]) for i, tree in enumerate(trees)]
    # products of the same numbers in the same order
    np.testing.assert_allclose(test, np.concatenate([w[0] for w in wanted]), rtol=1e-14)
    np.testing.assert_allclose(reached, np.concatenate([w[1] for w in wanted]), rtol=1e-14)


def test_nodes_below_an_end_are_found(trees: list[Tree]) -> None:
    forest = forest_from(trees)
    is_end = np.random.default_rng(2).random(forest.n_nodes) < 0.2
    wanted = [blocked_below(tree, is_end[forest.step == i]) for i, tree in enumerate(trees)]
    np.testing.assert_array_equal(below_end(forest, is_end), np.concatenate(wanted))
    assert not below_end(forest, np.zeros(forest.n_nodes, dtype=bool)).any()


def test_a_subset_is_the_forest_of_what_is_left(trees: list[Tree]) -> None:
    forest = forest_from(trees)
    keep = (forest.depth <= 2) & (forest.child_rank <= 1)
    keep &= (forest.parent < 0) | keep[forest.parent]  # depth 2 goes with its parent
    assert 0 < keep.sum() < forest.n_nodes
    accept = np.random.default_rng(3).random(forest.n_nodes)
    small = forest.subset(keep)
    _, all_reached = reach(forest, np.where(keep, accept, 0.0))
    _, reached = reach(small, accept[keep])
    np.testing.assert_allclose(reached, all_reached[keep], rtol=1e-14)
    assert small.n_steps == forest.n_steps


def test_bounds_are_the_ends_of_all_decisions() -> None:
    rng = np.random.default_rng(4)
    trees = random_trees(rng, 40, largest=8)
    forest = forest_from(trees)
    state = rng.integers(0, 3, forest.n_nodes)  # fails, passes, open
    least, most = length_bounds(forest, state == 1, state >= 1)
    for i, tree in enumerate(trees):
        here = state[forest.step == i]
        lengths = []
        for answers in itertools.product((0.0, 1.0), repeat=int((here == 2).sum())):
            accept = here.astype(float)
            accept[here == 2] = answers
            lengths.append(
                len(walk_by_hand(tree.parents, accept, [0.5] * tree.n_nodes, [False] * tree.n_nodes)[1])
            )
        assert (least[i], most[i]) == (min(lengths), max(lengths))
    assert (least < most).any()


def test_steps_without_nodes_have_length_zero() -> None:
    forest = forest_of(np.array([2, 0, 1]), np.array([-1, 0, -1]), np.zeros(3, dtype=int))
    sure = np.array([True, True, False])
    least, most = length_bounds(forest, sure, sure)
    assert least.tolist() == most.tolist() == [2, 0, 0]
