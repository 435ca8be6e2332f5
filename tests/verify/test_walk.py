"""Tested, reached, accepted: the walk over the tree against brute force."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from acceptlab.records import Outcome
from acceptlab.tree import Tree, parse_tree
from acceptlab.walk import (
    OUTCOMES,
    accepted_path,
    blocked_below,
    expected_len,
    length_law,
    reach_probs,
    survival,
    walk,
)
from tests import oracles
from tests.verify.helpers import cases, random_tree


@pytest.mark.parametrize("case", cases("tree_expected_length"), ids=lambda case: case["id"])
def test_expected_length_of_the_reference_trees(case: dict[str, Any]) -> None:
    parent_of = {
        child: int(parent) for parent, children in case["input"]["children"].items() for child in children
    }
    tree = Tree(tuple(parent_of[name] - 1 for name in sorted(parent_of)))
    accept = np.array(
        [case["input"]["conditional_acceptance"][str(name)] for name in sorted(parent_of)], dtype=float
    )
    _, reach = reach_probs(tree, accept)
    assert float(expected_len(reach)) == pytest.approx(case["expect"]["expected_length"], rel=1e-12)
    for name, value in case["expect"]["reach"].items():
        if name != "0":
            assert reach[int(name) - 1] == pytest.approx(value, rel=1e-12)
    law = length_law(tree, reach)
    for length, value in case["expect"]["length_law"].items():
        assert law[int(length)] == pytest.approx(value, abs=1e-12)
    assert law.sum() == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("seed", range(30))
def test_walk_and_reach_equal_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, int(rng.integers(1, 9)))
    n = tree.n_nodes
    accept = rng.choice([0.0, 0.3, 0.6, 1.0], n)
    blocked = blocked_below(tree, rng.random(n) < 0.2)
    uniforms = rng.random(n)
    outcome = walk(tree, accept, uniforms, blocked)
    names, path = oracles.walk_by_hand(tree.parents, accept.tolist(), uniforms.tolist(), blocked.tolist())
    assert [str(OUTCOMES[code]) for code in outcome] == names
    assert list(accepted_path(outcome)) == path
    test, reach = reach_probs(tree, accept, blocked)
    tested, reached = oracles.reach_by_hand(tree.parents, accept.tolist(), blocked.tolist())
    # products of at most 8 factors
    assert test == pytest.approx(tested, rel=0, abs=1e-12)
    assert reach == pytest.approx(reached, rel=0, abs=1e-12)
    assert survival(tree, reach).sum() == pytest.approx(float(expected_len(reach)), rel=1e-12)


def test_flags_past_the_first_rejection_do_not_count() -> None:
    chain = parse_tree("chain:4").static
    assert chain is not None
    outcome = walk(chain, np.array([1.0, 0.0, 1.0, 1.0]), np.full(4, 0.5))
    assert len(accepted_path(outcome)) == 1
    assert [OUTCOMES[code] for code in outcome] == [
        Outcome.ACCEPTED,
        Outcome.REJECTED,
        Outcome.UNTESTED,
        Outcome.UNTESTED,
    ]


def test_the_first_sibling_that_passes_is_taken_without_way_back() -> None:
    tree = Tree((-1, -1, -1, 0, 1))  # the child of the second sibling would pass, that of the first does not
    outcome = walk(tree, np.array([1.0, 1.0, 1.0, 0.0, 1.0]), np.zeros(5))
    assert accepted_path(outcome) == (0,)
    assert [OUTCOMES[code] for code in outcome] == [
        "accepted",
        "untested",
        "untested",
        "rejected",
        "untested",
    ]


def test_extreme_uniforms_decide_nothing_by_rounding() -> None:
    chain = Tree((-1, 0))
    for uniform in (0.0, 1.0 - 2.0**-53):
        outcome = walk(chain, np.array([1.0, 0.0]), np.full(2, uniform))
        assert [OUTCOMES[code] for code in outcome] == ["accepted", "rejected"]


def test_leading_axes_are_independent_steps() -> None:
    tree = parse_tree("branches:3,2").static
    assert tree is not None
    rng = np.random.default_rng(0)
    accept, uniforms = rng.random((5, 7, tree.n_nodes)), rng.random((5, 7, tree.n_nodes))
    blocked = rng.random((5, 7, tree.n_nodes)) < 0.1
    test, reach = reach_probs(tree, accept, blocked)
    outcome = walk(tree, accept, uniforms, blocked)
    for index in np.ndindex(5, 7):
        one_test, one_reach = reach_probs(tree, accept[index], blocked[index])
        assert np.array_equal(test[index], one_test)
        assert np.array_equal(reach[index], one_reach)
        assert np.array_equal(outcome[index], walk(tree, accept[index], uniforms[index], blocked[index]))
        assert length_law(tree, reach)[index] == pytest.approx(length_law(tree, one_reach))
    assert expected_len(reach).shape == (5, 7)


def test_undefined_acceptance_counts_as_none() -> None:
    test, reach = reach_probs(Tree((-1, -1, 1)), np.array([1.0, np.nan, np.nan]))
    assert test.tolist() == [1.0, 0.0, 0.0]
    assert reach.tolist() == [1.0, 0.0, 0.0]


def test_an_empty_tree_has_length_zero() -> None:
    test, reach = reach_probs(Tree(()), np.zeros(0))
    assert test.shape == (0,)
    assert float(expected_len(reach)) == 0.0
    assert length_law(Tree(()), reach).tolist() == [1.0]


def test_a_chain_of_half_chances_has_the_textbook_length() -> None:
    chain = parse_tree("chain:50").static
    assert chain is not None
    _, reach = reach_probs(chain, np.full(50, 0.5))
    assert float(expected_len(reach)) == pytest.approx(1 - 0.5**50, rel=1e-12)


def test_only_what_hangs_below_an_end_is_blocked() -> None:
    tree = Tree((-1, -1, 0, 2, 1))
    ends = np.array([True, False, False, False, False])
    assert blocked_below(tree, ends).tolist() == [False, False, True, True, False]
    assert not blocked_below(tree, np.zeros(5, dtype=bool)).any()


def test_the_walk_and_the_relaxed_rules_do_not_import_torch() -> None:
    modules = "acceptlab.walk, acceptlab.relaxed, acceptlab.pairing, acceptlab.rng"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
