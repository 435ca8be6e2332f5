"""The fast path from the head of the distribution equals certificates of the whole distribution."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acceptlab.errors import UsageError
from acceptlab.records import CERTIFICATE_RULES
from acceptlab.rules import parse_rule
from acceptlab.theory.certificates import Direction, Ties, certificate, thresholds, thresholds_from_head
from acceptlab.theory.divergences import entropy
from tests.theory.samples import RULES, distributions, realistic_rows

SINGLE = (*RULES[:6], "additive:0.5", "ratio:0.01", "top:9", "typical:eps=0.3,delta=2")
TOLERANCE = {True: 1e-12, False: 1e-9}
"""Relative error where the mass outside of the head is given, and where it is 1 - sum(head)."""


class Rows:
    """Gives whole rows on request and remembers which."""

    def __init__(self, probs: np.ndarray) -> None:
        self.probs = probs
        self.asked: set[int] = set()

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        self.asked |= set(rows.tolist())
        return self.probs[rows]


def plain(probs: np.ndarray, texts: tuple[str, ...], ties: Ties, direction: Direction) -> np.ndarray:
    columns = [certificate(probs, parse_rule(text), direction, ties).threshold for text in texts]
    return np.stack(columns, axis=1)


def fast(
    probs: np.ndarray, texts: tuple[str, ...], width: int, ties: Ties, *, with_rest: bool, rows: Callable
) -> tuple[np.ndarray, np.ndarray]:
    ordered = np.sort(probs, axis=1)[:, ::-1]
    rest = ordered[:, width:].sum(axis=1) if with_rest else None
    rules = [parse_rule(text) for text in texts]
    return thresholds_from_head(
        ordered[:, :width], entropy(probs), probs.shape[1], rows, rules, rest_sum=rest, ties=ties
    )


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_any_head_of_small_vocabularies(data: st.DataObject) -> None:
    probs = data.draw(distributions(max_size=14))[None]
    width = data.draw(st.integers(1, probs.shape[1]))
    ties, with_rest = data.draw(st.sampled_from(list(Ties))), data.draw(st.booleans())
    single, tree = data.draw(st.sampled_from(SINGLE)), data.draw(st.sampled_from(["tree:2", "tree:9"]))
    found = fast(probs, (tree, single), width, ties, with_rest=with_rest, rows=Rows(probs))
    for direction, values in zip(Direction, found, strict=True):
        expected = plain(probs, (tree, single), ties, direction)
        assert values == pytest.approx(expected, rel=TOLERANCE[with_rest], abs=1e-24)


def test_realistic_rows_with_the_default_rules() -> None:
    probs = realistic_rows(np.random.default_rng(5), 9, 49152)
    expected = [plain(probs, CERTIFICATE_RULES, Ties.IDENTITY, direction) for direction in Direction]
    for with_rest in (True, False):
        rows = Rows(probs)
        found = fast(probs, CERTIFICATE_RULES, 64, Ties.IDENTITY, with_rest=with_rest, rows=rows)
        for values, exact in zip(found, expected, strict=True):
            assert values == pytest.approx(exact, rel=TOLERANCE[with_rest], abs=1e-24)
        # flat contexts need more than the head, most do not; nearly certain ones need the mass outside
        assert 1 <= len(rows.asked) <= 6


def test_pools_that_outgrow_the_head_are_completed() -> None:
    # 300 equal tokens over a rejected one far below: the pool holds them all, and its end shows in no head of
    # 64
    weights = np.concatenate([np.full(300, 1.0), np.full(5000, 1e-4)])
    probs = (weights / weights.sum())[None] * np.ones((2, 1))
    for text in ("additive:0.002", "ratio:0.5", "top:300", "tree:299"):
        rows = Rows(probs)
        found = fast(probs, (text,), 64, Ties.IDENTITY, with_rest=True, rows=rows)
        for direction, values in zip(Direction, found, strict=True):
            expected = plain(probs, (text,), Ties.IDENTITY, direction)
            assert values == pytest.approx(expected, rel=1e-12, abs=0.0), text
        assert rows.asked == {0, 1}


def test_a_head_that_suffices_asks_for_nothing() -> None:
    probs = realistic_rows(np.random.default_rng(6), 15, 2000)[5:11]

    def refuse(rows: np.ndarray) -> np.ndarray:
        raise AssertionError(f"rows {rows} asked for")

    texts = ("greedy", "top:2", "tree:8", "ratio:0.8")
    found = fast(probs, texts, 64, Ties.IDENTITY, with_rest=True, rows=refuse)
    assert np.isfinite(found[0]).all()


def test_large_reverse_thresholds_ask_for_the_mass_outside() -> None:
    # the threshold is -log of a mass of 1e-7, of which 1 - sum(head) knows some digits only
    probs = np.concatenate([[1.0 - 2e-7], np.full(2, 1e-14), np.full(997, 2e-7 / 997)])[None]
    probs /= probs.sum()
    rows = Rows(probs)
    found = fast(probs, ("tree:2", "greedy"), 4, Ties.IDENTITY, with_rest=False, rows=rows)
    assert found[1] == pytest.approx(
        plain(probs, ("tree:2", "greedy"), Ties.IDENTITY, Direction.REVERSE), rel=1e-11, abs=0.0
    )
    assert rows.asked == {0}


def test_greedy_compares_ids_by_default() -> None:
    head = np.array([[0.4, 0.4]])
    rules = [parse_rule("greedy"), parse_rule("tree:1")]
    found = thresholds_from_head(head, np.array([1.0]), 3, Rows(head), rules, rest_sum=np.array([0.2]))
    assert found[0].tolist() == [[0.0, 0.0]]
    assert found[1].tolist() == [[0.0, 0.0]]
    assert thresholds(np.array([[0.4, 0.4, 0.2]]), rules)[0].tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("ties", list(Ties))
def test_thresholds_of_whole_distributions(ties: Ties) -> None:
    probs = realistic_rows(np.random.default_rng(8), 6, 500)
    rules = [parse_rule(text) for text in RULES]
    for direction, values in zip(Direction, thresholds(probs, rules, ties), strict=True):
        assert values == pytest.approx(plain(probs, RULES, ties, direction), rel=1e-12, abs=0.0)


def test_bad_arguments_are_refused() -> None:
    probs = np.array([[0.5, 0.3, 0.2]])
    with pytest.raises(UsageError, match="'onehot' has no certificate"):
        thresholds(probs, [parse_rule("onehot")])
    with pytest.raises(UsageError, match=r"rest_sum has shape \(2,\)"):
        thresholds_from_head(
            probs[:, :2], entropy(probs), 3, Rows(probs), [parse_rule("greedy")], rest_sum=np.zeros(2)
        )
