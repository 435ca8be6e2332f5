"""Margin-only bounds: never above the exact threshold, attained where they say so."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acceptlab.errors import UsageError
from acceptlab.rules import parse_rule
from acceptlab.theory.certificates import Direction, Ties, certificate, thresholds
from acceptlab.theory.divergences import margins
from acceptlab.theory.margins import gap_bound, margin_bound, pair_bound, typical_bound_numeric
from tests.theory.samples import distributions, random_targets

TEXTS = (
    "greedy",
    "additive:0.1",
    "additive:0.4",
    "ratio:0.8",
    "ratio:0.3",
    "top:2",
    "top:4",
    "typical:eps=0.09,delta=0.3",
    "typical:eps=0.5,delta=1",
    "tree:1",
    "tree:3",
)


@pytest.mark.parametrize("text", TEXTS)
def test_never_above_the_exact_threshold(text: str) -> None:
    rng = np.random.default_rng(11)
    rule = parse_rule(text)
    for vocab_size in (2, 3, 5, 9, 40):
        probs = random_targets(rng, 1500, vocab_size)
        top = margins(probs)
        bounds = margin_bound(top.margin, rule, top.one_minus_margin, vocab_size)
        for bound, exact in zip(bounds, thresholds(probs, [rule]), strict=True):
            assert (bound <= exact[:, 0] * (1 + 1e-12) + 1e-15).all()  # roundings of either


@settings(deadline=None, max_examples=200)
@given(distributions(), st.sampled_from(TEXTS), st.sampled_from(list(Ties)))
def test_never_above_the_exact_threshold_on_edge_rows(probs: np.ndarray, text: str, ties: Ties) -> None:
    rule = parse_rule(text)
    top = margins(probs[None])
    if text.startswith("additive") and abs(top.margin[0] - rule.eps) < 1e-12:
        return  # equality in decimals falls on either side in binary: the bound is discontinuous there
    bounds = margin_bound(top.margin, rule, top.one_minus_margin, len(probs))
    for bound, exact in zip(bounds, thresholds(probs[None], [rule], ties), strict=True):
        assert bound[0] <= exact[0, 0] * (1 + 1e-9) + 1e-15


def worst_rows(text: str, gap: float) -> np.ndarray | None:
    """The distribution at which a bound is attained."""
    rule = parse_rule(text)
    m = int(rule.m or 1)
    if text == "additive:0.4":
        eps = 0.4
        # just inside: the third token must be below the level, not at it
        return np.array([1 + eps + gap + 1e-9, 1 + eps - 2 * gap, 1 + gap - 2 * eps - 1e-9]) / 3
    return np.array([1 + m * gap, *[1 - gap] * m]) / (m + 1)


@pytest.mark.parametrize("text", ["greedy", "top:4", "tree:3", "additive:0.4"])
@pytest.mark.parametrize("gap", [1e-3, 0.1, 0.3])
def test_attained(text: str, gap: float) -> None:
    probs = worst_rows(text, gap)
    top = margins(probs)
    for bound, exact in zip(
        margin_bound(top.margin, parse_rule(text), top.one_minus_margin),
        thresholds(probs[None], [parse_rule(text)]),
        strict=True,
    ):
        # the third token was moved by 1e-9
        assert exact[0, 0] == pytest.approx(
            float(bound), rel=1e-6 if text == "additive:0.4" else 1e-11, abs=0.0
        )


def test_reverse_bound_needs_the_summed_complement() -> None:
    probs = np.array([1.0 - 1e-18, 1e-18])
    top = margins(probs)
    assert top.margin == 1.0
    exact = certificate(probs[None], parse_rule("greedy"), Direction.REVERSE).threshold[0]
    sound = margin_bound(top.margin, parse_rule("greedy"), top.one_minus_margin)[1]
    assert sound == pytest.approx(exact, rel=1e-9, abs=0.0)
    assert (
        margin_bound(top.margin, parse_rule("greedy"))[1] == np.inf
    )  # unsound: why the complement is asked for


def test_additive_bound_falls_as_the_margin_passes_eps() -> None:
    below, above = margin_bound(np.array([0.1, 0.1 + 1e-9]), parse_rule("additive:0.1"))[0]
    assert below > above


def test_degenerate_parameters() -> None:
    gap = np.array([0.0, 0.5, 1.0])
    for text, value in {
        "ratio:0": np.inf,
        "ratio:1.5": 0.0,
        "additive:-0.1": 0.0,
        "additive:1": np.inf,
        "typical:eps=0,delta=0.3": np.inf,
        "typical:eps=0.1,delta=0": np.inf,
        "typical:eps=0.6,delta=3": 0.0,
    }.items():
        for bound in margin_bound(gap, parse_rule(text)):
            assert bound.tolist() == [value] * 3, text
    assert margin_bound(gap, parse_rule("top:4"), vocab_size=4)[0].tolist() == [np.inf] * 3
    with pytest.raises(UsageError, match="no certificate"):
        margin_bound(gap, parse_rule("block"))


def test_numeric_typical_bound_lies_between() -> None:
    rule = parse_rule("typical:eps=0.09,delta=0.3")
    gap = np.array([0.05, 0.1, 0.2, 0.3, 0.5, 0.6, 0.8])
    closed, numeric = margin_bound(gap, rule), typical_bound_numeric(gap, rule)
    # published with six digits
    assert closed[0] == pytest.approx(
        [0.014202, 0.028404, 0.056807, 0.101073, 0.205572, 0.261706, 0.378653], abs=6e-7
    )
    assert numeric[0] == pytest.approx(
        [0.030658, 0.059525, 0.111266, 0.154042, 0.214276, 0.261706, 0.378653], abs=6e-7
    )
    assert all((low <= high + 1e-9).all() for low, high in zip(closed, numeric, strict=True))
    rng = np.random.default_rng(12)
    probs = random_targets(rng, 60, 30)
    top = margins(probs)
    for bound, exact in zip(typical_bound_numeric(top.margin, rule), thresholds(probs, [rule]), strict=True):
        assert (bound <= exact[:, 0] + 1e-7).all()  # the grid's minimum may lie a little above the infimum


def test_pair_and_gap_bounds() -> None:
    rng = np.random.default_rng(13)
    probs = -np.sort(-random_targets(rng, 2000, 6), axis=1)
    for text, rank in (("greedy", 1), ("top:3", 3)):
        exact = thresholds(probs, [parse_rule(text)])
        for values, gaps, pairs in zip(
            exact,
            gap_bound(probs[:, 0], probs[:, rank]),
            pair_bound(probs[:, 0], probs[:, rank]),
            strict=True,
        ):
            assert (gaps <= pairs * (1 + 1e-9) + 1e-14).all()  # 1 - gap is not summed here
            assert (pairs <= values[:, 0] * (1 + 1e-9) + 1e-14).all()
    two = thresholds(np.array([[0.7, 0.3]]), [parse_rule("greedy")])
    assert [float(value) for value in pair_bound(0.7, 0.3)] == pytest.approx(
        [two[0][0, 0], two[1][0, 0]], rel=1e-12, abs=0.0
    )
