"""Certificates against 60-digit arithmetic, against a general solver, and by their own proof of
optimality.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acceptlab.errors import UsageError
from acceptlab.rules import RuleKind, parse_rule
from acceptlab.theory.certificates import (
    Direction,
    Ties,
    certificate,
    certificate_for_mask,
    is_certified,
    tree_certificate,
)
from acceptlab.theory.criteria import acceptance_level, rejected_mask
from acceptlab.theory.divergences import entropy, kl_draft_target, kl_target_draft
from tests.theory.references import (
    exact_threshold,
    exact_tree_threshold,
    numeric_threshold,
    numeric_tree_threshold,
)
from tests.theory.samples import RULES, distributions

MEASURE = {Direction.FORWARD: kl_target_draft, Direction.REVERSE: kl_draft_target}
# rounding of the level is second order, but a margin of 1e-10 has only six digits itself in a float64
# probability
CLOSE = {"rel": 1e-9, "abs": 1e-22}
directions = st.sampled_from(list(Direction))


@settings(deadline=None, max_examples=150)
@given(distributions(), st.sampled_from(RULES), directions, st.sampled_from(list(Ties)))
def test_threshold_equals_the_definition_in_60_digits(
    probs: np.ndarray, text: str, direction: Direction, ties: Ties
) -> None:
    rule = parse_rule(text)
    found = certificate(probs[None], rule, direction, ties).threshold[0]
    if rule.kind is RuleKind.TREE:
        expected = exact_tree_threshold(probs.tolist(), int(rule.m or 0), direction.value)
    else:
        expected = exact_threshold(probs.tolist(), rejected_mask(probs[None], rule, ties)[0], direction.value)
    assert found == pytest.approx(expected, **CLOSE)


@settings(deadline=None, max_examples=100)
@given(distributions(), st.lists(st.booleans(), min_size=8, max_size=8), directions)
def test_any_mask_equals_the_definition(probs: np.ndarray, flags: list[bool], direction: Direction) -> None:
    mask = np.array(flags[: len(probs)])
    found = certificate_for_mask(probs[None], mask[None], direction)
    expected = exact_threshold(probs.tolist(), mask.tolist(), direction.value)
    assert found.threshold[0] == pytest.approx(expected, **CLOSE)
    assert (found.token_index[0] >= 0) == mask.any()


@settings(deadline=None, max_examples=150)
@given(distributions(), st.sampled_from(RULES), directions, st.sampled_from(list(Ties)))
def test_nearest_draft_rejects_at_the_threshold(
    probs: np.ndarray, text: str, direction: Direction, ties: Ties
) -> None:
    rule = parse_rule(text)
    found = certificate(probs[None], rule, direction, ties)
    if not np.isfinite(found.threshold[0]):
        assert np.isnan(found.nearest_draft).all()
        return
    draft, token = found.nearest_draft[0], found.token_index[0]
    assert draft.sum() == pytest.approx(1.0, abs=1e-12)
    # the divergence of the stored draft is that of its rounded entries
    assert MEASURE[direction](probs, draft) == pytest.approx(found.threshold[0], rel=1e-9, abs=1e-14)
    if rule.kind is RuleKind.TREE:
        before = (draft >= draft[token]).sum() - 1
        assert before >= int(rule.m or 0)
        assert token == probs.argmax()
    else:
        assert rejected_mask(probs[None], rule, ties)[0, token]
        assert draft[token] == draft.max()


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("text", ["greedy", "additive:0.15", "ratio:0.6", "top:2", "tree:2"])
def test_a_general_solver_finds_no_smaller_divergence(text: str, direction: Direction) -> None:
    rng = np.random.default_rng(7)
    rule = parse_rule(text)
    for probs in rng.dirichlet(np.full(5, 1.5), size=4):
        if rule.kind is RuleKind.TREE:
            numeric = numeric_tree_threshold(probs, 2, direction.value)
        else:
            numeric = numeric_threshold(probs, rejected_mask(probs[None], rule)[0], direction.value)
        found = certificate(probs[None], rule, direction).threshold[0]
        # the solver stops a little above the minimum
        assert found == pytest.approx(numeric, rel=1e-5, abs=1e-7)


@settings(deadline=None, max_examples=100)
@given(distributions(), st.sampled_from(["greedy", "ratio:0.5", "top:3"]))
def test_forward_draft_satisfies_the_optimality_condition(probs: np.ndarray, text: str) -> None:
    # over every draft in which the rejected token is largest, sum target * draft / nearest is at most 1:
    # it is enough to look at the extreme ones, uniform on the rejected token and any set of others
    found = certificate(probs[None], parse_rule(text), Direction.FORWARD)
    token = found.token_index[0]
    if token < 0:
        return
    nearest = found.nearest_draft[0]
    ratios = np.divide(probs, nearest, out=np.zeros_like(probs), where=nearest > 0)
    others = np.sort(np.delete(ratios, token))[::-1]
    averages = (ratios[token] + np.concatenate([[0.0], np.cumsum(others)])) / np.arange(1, len(probs) + 1)
    assert averages.max() <= 1.0 + 1e-12  # roundings of the quotients


@settings(deadline=None, max_examples=60)
@given(distributions(), directions)
def test_trees_widen_and_tree_1_is_greedy(probs: np.ndarray, direction: Direction) -> None:
    thresholds = [tree_certificate(probs[None], m, direction).threshold[0] for m in range(1, len(probs) + 1)]
    greedy = certificate(probs[None], parse_rule("greedy"), direction, Ties.IDENTITY).threshold[0]
    assert thresholds[0] == pytest.approx(greedy, **CLOSE)
    assert thresholds[-1] == np.inf
    steps = list(pairwise(thresholds))
    # equal neighbours differ by rounding
    assert all(later >= earlier * (1 - 1e-12) - 1e-15 for earlier, later in steps)


@settings(deadline=None, max_examples=60)
@given(distributions(), st.sampled_from(["greedy", "top:2", "top:4"]), directions)
def test_identity_ties_are_never_more_generous(probs: np.ndarray, text: str, direction: Direction) -> None:
    level, identity = (
        certificate(probs[None], parse_rule(text), direction, ties).threshold[0] for ties in Ties
    )
    assert identity <= level


def test_contexts_are_independent_rows() -> None:
    rng = np.random.default_rng(3)
    probs = rng.dirichlet(np.ones(6), size=5)
    for text in RULES:
        for direction in Direction:
            together = certificate(probs, parse_rule(text), direction)
            for row in range(5):
                alone = certificate(probs[row : row + 1], parse_rule(text), direction)
                assert together.threshold[row] == alone.threshold[0]
                assert np.array_equal(together.nearest_draft[row], alone.nearest_draft[0], equal_nan=True)


def test_typical_level_never_exceeds_the_largest_probability() -> None:
    rule = parse_rule("typical:eps=1.0,delta=1.0")
    exceeded = 0
    for size in range(2, 200):
        uniform = np.full((1, size), 1.0 / size)
        exceeded += np.exp(-entropy(uniform))[0] > uniform[0, 0]
        assert acceptance_level(uniform.max(axis=1), entropy(uniform), rule)[0] <= uniform[0, 0]
        assert certificate(uniform, rule, Direction.FORWARD).threshold[0] == np.inf
    # the clamp has work to do: exp(-entropy) rounds above 1/n for many n
    assert exceeded > 20


def test_flat_contexts_keep_their_digits() -> None:
    # sum p log(p/c) would give noise of 1e-16 here, and negative thresholds
    for gap in (1e-4, 1e-6, 1e-8):
        probs = np.array([[0.5 + gap / 2, 0.5 - gap / 2]])
        margin = float(probs[0, 0] - probs[0, 1])
        for direction in Direction:
            found = certificate(probs, parse_rule("greedy"), direction).threshold[0]
            # h(D) = D^2/2 + D^4/12 + ..., -log(1 - D^2)/2 = D^2/2 + D^4/4 + ...
            assert found == pytest.approx(margin**2 / 2, rel=1e-8, abs=0.0)
            assert found == pytest.approx(
                exact_threshold(probs[0].tolist(), [False, True], direction), rel=1e-12, abs=0.0
            )


def test_a_margin_that_rounds_to_one_gives_a_finite_reverse_threshold() -> None:
    probs = np.array([[1.0 - 1e-18, 1e-18]])
    assert probs[0, 0] == 1.0
    found = certificate(probs, parse_rule("greedy"), Direction.REVERSE).threshold[0]
    assert found == pytest.approx(-np.log(2e-9), rel=1e-8, abs=0.0)


def test_a_small_mass_outside_of_the_pool_is_summed_directly() -> None:
    # the pool is the argmax and the last token, so nearly all of 1 - sum(pool) would be rounding
    probs = np.array([[1.0 - 2e-9, 1e-9, 1e-9, 1e-30]])
    found = certificate(probs, parse_rule("tree:3"), Direction.REVERSE)
    assert found.pool.tolist() == [[True, False, False, True]]
    assert found.threshold[0] == pytest.approx(
        exact_tree_threshold(probs[0].tolist(), 3, "reverse"), rel=1e-12, abs=0.0
    )


def test_probabilities_at_the_edge_of_float64() -> None:
    probs = np.array([[1.0, 5e-324, 0.0], [0.5, 0.5, 1e-310]])
    for text in RULES:
        for direction in Direction:
            threshold = certificate(probs, parse_rule(text), direction).threshold
            assert not np.isnan(threshold).any()
            assert (threshold >= 0.0).all()


def test_is_certified_is_strict() -> None:
    threshold = np.array([0.1, 0.1, np.inf, 0.0, np.inf])
    divergence = np.array([0.1, 0.0999, 50.0, 0.0, np.inf])
    assert is_certified(divergence, threshold).tolist() == [False, True, True, False, False]


def test_rules_without_certificate_are_refused() -> None:
    probs = np.array([[0.5, 0.5]])
    with pytest.raises(UsageError, match="'rejection' has no certificate"):
        certificate(probs, parse_rule("rejection"), Direction.FORWARD)
    with pytest.raises(UsageError, match="judges a set of candidates"):
        rejected_mask(probs, parse_rule("tree:2"))
    with pytest.raises(UsageError, match="at least one candidate, not 0"):
        tree_certificate(probs, 0, Direction.FORWARD)
    with pytest.raises(UsageError, match=r"shape \(2,\)"):
        certificate(probs[0], parse_rule("tree:1"), Direction.FORWARD)
