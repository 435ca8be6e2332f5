"""Divergences against 60-digit sums, their inequalities, and the edges of float64."""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acceptlab.theory.divergences import (
    entropy,
    kl_draft_target,
    kl_target_draft,
    margins,
    overlap,
    overlap_bounds,
    renyi_half,
    total_variation,
)
from tests.theory.samples import distributions


@st.composite
def pairs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    target, draft = draw(distributions()), draw(distributions())
    size = min(len(target), len(draft))
    target, draft = target[:size] + 0.0, draft[:size] + 0.0
    # what the cut took away goes to token 0
    target[0] += max(1.0 - target.sum(), 0.0)
    draft[0] += max(1.0 - draft.sum(), 0.0)
    if draw(st.booleans()):
        draft = target * np.exp(draw(st.floats(-6, 0).map(lambda e: 10.0**e)) * np.cos(np.arange(size)))
    return target / target.sum(), draft / draft.sum()


@settings(deadline=None)
@given(pairs())
def test_kl_equals_the_sum_in_60_digits(pair: tuple[np.ndarray, np.ndarray]) -> None:
    target, draft = pair
    with localcontext() as context:
        context.prec = 60
        sums = [sum(map(Decimal, probs)) for probs in pair]
        exact = [[Decimal(prob) / total for prob in probs] for probs, total in zip(pair, sums, strict=True)]
        terms = [a * (a / b).ln() if b else Decimal("inf") for a, b in zip(*exact, strict=True) if a]
        expected = float(sum(terms, Decimal(0)))
    # 1e-20: rows sum to 1 within a rounding, whose square is all that is left of it
    assert kl_target_draft(target, draft) == pytest.approx(expected, rel=1e-11, abs=1e-20)
    assert kl_draft_target(draft, target) == kl_target_draft(target, draft)


@settings(deadline=None)
@given(pairs())
def test_inequalities(pair: tuple[np.ndarray, np.ndarray]) -> None:
    target, draft = pair
    shared, renyi = overlap(target, draft), renyi_half(target, draft)
    lower, upper = overlap_bounds(renyi)
    assert shared + total_variation(target, draft) == pytest.approx(1.0, abs=1e-14)
    # the bounds are attained, so roundings may cross them; near 1 the root magnifies them to 1e-8
    assert lower <= shared + 3e-8
    assert shared <= upper + 1e-14
    assert renyi <= kl_target_draft(target, draft) * (1 + 1e-9) + 1e-15
    assert renyi >= 0.0


def test_disjoint_supports() -> None:
    target, draft = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    assert kl_target_draft(target, draft) == np.inf
    assert renyi_half(target, draft) == np.inf
    assert [float(bound) for bound in overlap_bounds(renyi_half(target, draft))] == [0.0, 0.0]
    assert overlap(target, draft) == 0.0


def test_identical_distributions_have_no_divergence() -> None:
    probs = np.random.default_rng(0).dirichlet(np.full(1000, 0.1), size=3)
    for function in (kl_target_draft, kl_draft_target, renyi_half, total_variation):
        assert (function(probs, probs) == 0.0).all()


def test_near_equality_keeps_its_digits() -> None:
    # KL = D^2/2 and Renyi-1/2 = D^2/4 to leading order; the textbook sums give noise of 1e-16
    step = 1e-9
    target, draft = np.array([0.5, 0.5]), np.array([0.5 + step / 2, 0.5 - step / 2])
    moved = draft[0] - draft[1]  # the step that the rounded draft really has
    assert kl_target_draft(target, draft) == pytest.approx(moved**2 / 2, rel=1e-8, abs=0.0)
    assert renyi_half(target, draft) == pytest.approx(moved**2 / 4, rel=1e-8, abs=0.0)


def test_lower_overlap_bound_keeps_its_digits_at_large_divergence() -> None:
    # 1 - sqrt(1 - e^-50) is 0 in float64; the truth is half of e^-50
    assert overlap_bounds(np.array(50.0))[0] == pytest.approx(0.5 * np.exp(-50.0), rel=1e-12, abs=0.0)


def test_subnormal_draft_probabilities() -> None:
    value = kl_target_draft(np.array([0.5, 0.5]), np.array([1.0, 5e-324]))
    assert value == pytest.approx(
        0.5 * np.log(0.5) + 0.5 * (np.log(0.5) - np.log(5e-324)), rel=1e-12, abs=0.0
    )


def test_entropy() -> None:
    assert entropy(np.array([0.5, 0.5, 0.0])) == pytest.approx(np.log(2), rel=1e-15, abs=0.0)
    certain = entropy(np.array([[1.0, 0.0]]))
    assert certain.tolist() == [0.0]
    assert not np.signbit(certain).any()
    assert entropy(np.full(49152, 1 / 49152)) == pytest.approx(
        np.log(49152), rel=1e-13, abs=0.0
    )  # a long sum


def test_margins() -> None:
    top = margins(np.array([[0.2, 0.5, 0.3], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]))
    assert top.top_prob.tolist() == [0.5, 0.5, 1.0]
    assert top.margin == pytest.approx([0.2, 0.0, 1.0], abs=1e-16)
    assert top.one_minus_margin == pytest.approx([0.8, 1.0, 0.0], abs=1e-16)
    peaked = margins(np.array([1.0, 1e-20, 1e-22]))
    assert peaked.margin == 1.0
    assert peaked.one_minus_margin == pytest.approx(2.01e-20, rel=1e-12, abs=0.0)
    assert [float(value) for value in margins(np.array([1.0]))] == [1.0, 1.0, 0.0]
