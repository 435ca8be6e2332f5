"""Tree lengths against explicit coin tosses, weights against differences, block verification by
enumeration.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acceptlab.errors import UsageError
from acceptlab.theory.estimators import (
    block_accept_probs,
    block_prefix_weights,
    block_survival,
    length_law,
    position_weights,
    product_expected_len,
    tree_expected_len,
    tree_reach,
    tree_survival,
)
from acceptlab.tree import Tree, from_branches

unit = st.floats(0.0, 1.0)


def toss(tree: Tree, coins: tuple[bool, ...]) -> tuple[set[int], list[int]]:
    """Nodes that are tested and accepted when every node has its coin."""
    tested, accepted = set(), []
    row = 0
    while True:
        for node in tree.children[row]:
            tested.add(node)
            if coins[node]:
                accepted.append(node)
                row = node + 1
                break
        else:
            return tested, accepted


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_reach_and_length_law_equal_all_coin_tosses(data: st.DataObject) -> None:
    n_nodes = data.draw(st.integers(1, 7))
    tree = Tree(tuple(data.draw(st.integers(-1, node - 1)) for node in range(n_nodes)))
    accept = np.array(data.draw(st.lists(unit, min_size=n_nodes, max_size=n_nodes)))
    expected_test, expected_reach = np.zeros(n_nodes), np.zeros(n_nodes)
    law = np.zeros(tree.depth + 1)
    for coins in product((False, True), repeat=n_nodes):
        weight = np.prod(np.where(coins, accept, 1.0 - accept))
        tested, accepted = toss(tree, coins)
        expected_test[list(tested)] += weight
        expected_reach[accepted] += weight
        law[len(accepted)] += weight
    test, reach = tree_reach(tree, accept)
    # sums of up to 128 products
    assert test == pytest.approx(expected_test, abs=1e-13)
    assert reach == pytest.approx(expected_reach, abs=1e-13)
    assert length_law(tree_survival(tree, reach)) == pytest.approx(law, abs=1e-13)
    assert tree_expected_len(reach) == pytest.approx(law @ np.arange(len(law)), abs=1e-13)


def test_nodes_that_cannot_be_tested_may_be_undefined() -> None:
    tree = from_branches([2, 1])
    accept = np.array([[1.0, np.nan, 0.5, np.nan], [0.0, 0.25, np.nan, 1.0]])
    test, reach = tree_reach(tree, accept)
    assert test.tolist() == [[1.0, 0.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.25]]
    assert tree_expected_len(reach).tolist() == [1.5, 0.5]


def test_an_empty_tree_accepts_nothing() -> None:
    tree = Tree(())
    _, reach = tree_reach(tree, np.zeros((3, 0)))
    assert tree_expected_len(reach).tolist() == [0.0] * 3
    assert length_law(tree_survival(tree, reach)).tolist() == [[1.0]] * 3


def test_wrong_number_of_nodes_is_refused() -> None:
    with pytest.raises(UsageError, match="must be 2 nodes"):
        tree_reach(Tree((-1, 0)), np.zeros(3))


def test_product_length_is_the_geometric_sum_for_equal_rates() -> None:
    rates = np.full((2, 4), 0.8)
    assert product_expected_len(rates) == pytest.approx([0.8 * (1 - 0.8**4) / 0.2] * 2, rel=1e-14, abs=0.0)


def test_unsmoothed_weights_are_the_gradient_of_the_expected_length() -> None:
    alphas = np.array([0.9, 0.5, 0.7, 0.2])
    step = 1e-6
    slopes = []
    for position in range(4):
        moved = [alphas.copy(), alphas.copy()]
        moved[0][position] *= np.exp(step)
        moved[1][position] *= np.exp(-step)
        slopes.append((product_expected_len(moved[0]) - product_expected_len(moved[1])) / (2 * step))
    # central differences are good to step squared
    assert position_weights(alphas, 0.0) == pytest.approx(slopes, rel=1e-9, abs=0.0)


def test_smoothing_keeps_weights_alive_and_one_makes_them_count_down() -> None:
    alphas = np.array([[0.0, 1.0, 0.5]])
    assert position_weights(alphas, 0.0).tolist() == [[0.0, 0.0, 0.0]]
    assert (position_weights(alphas, 0.5) > 0).all()
    assert position_weights(alphas, 1.0).tolist() == [[3.0, 2.0, 1.0]]
    with pytest.raises(UsageError, match=r"rho is 1\.5"):
        position_weights(alphas, 1.5)


def test_block_verification_by_enumeration() -> None:
    draft, target = np.array([2 / 3, 1 / 3]), np.array([1 / 3, 2 / 3])
    ratio = target / draft
    block_len = token_len = 0.0
    for tokens in product(range(2), repeat=2):
        weight = draft[list(tokens)].prod()
        prefix = block_prefix_weights(ratio[list(tokens)])
        residual = np.maximum(prefix[:-1, None] * target - draft, 0.0).sum(axis=1)
        survival = block_survival(block_accept_probs(prefix, residual))
        block_len += weight * survival.sum()
        token_len += weight * product_expected_len(np.minimum(1.0, ratio[list(tokens)]))
    assert token_len == pytest.approx(10 / 9, rel=1e-14, abs=0.0)
    assert block_len == pytest.approx(11 / 9, rel=1e-14, abs=0.0)


def test_block_edges() -> None:
    assert block_prefix_weights(np.array([[0.5, 4.0, 0.25]])).tolist() == [[0.5, 1.0, 0.25]]
    # a prefix weight of 1 with nothing left over: 0/0 counts as 0, a later success must keep it
    assert block_accept_probs(np.array([1.0, 0.5]), np.array([0.0])).tolist() == [0.0, 0.5]
    assert block_survival(np.array([0.0, 0.5])).tolist() == [0.5, 0.5]
    with pytest.raises(UsageError, match="2 positions: give one less than 2"):
        block_accept_probs(np.ones(2), np.ones(2))
