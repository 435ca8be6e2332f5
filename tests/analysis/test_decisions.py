"""Decisions from rounded numbers: they enclose the decisions from exact ones, and are sure where they can be."""

from __future__ import annotations

import numpy as np
import pytest

from acceptlab.analysis.decisions import Stored, around_float32, around_listed, decide
from acceptlab.records import TOP_N
from acceptlab.relaxed import passes
from acceptlab.rules import parse_rule
from acceptlab.store import round_down_probs

RULES = (
    "greedy",
    "top:3",
    "additive:0.1",
    "additive:0",
    "additive:-0.1",
    "ratio:0.5",
    "ratio:1",
    "ratio:1.2",
    "typical:eps=0.09,delta=0.3",
    "typical:eps=0.2,delta=1.5",
)


class Sample:
    """Random distributions of 60 tokens, one token looked at in each, and what the records keep of it."""

    def __init__(self, seed: int = 0, n: int = 4000) -> None:
        rng = np.random.default_rng(seed)
        logits = rng.normal(0, rng.uniform(0.5, 6, (n, 1)), (n, 60))
        logits = np.round(logits, 1)  # ties
        probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        order = np.argsort(-probs, axis=1, kind="stable")
        self.rank = np.where(rng.random(n) < 0.7, rng.integers(0, 4, n), rng.integers(0, 60, n))
        token = order[np.arange(n), self.rank]
        self.prob, self.top = probs[np.arange(n), token], probs.max(1)
        self.entropy = -(probs * np.log(probs)).sum(1)
        ranked = np.take_along_axis(probs, order, 1)[:, :TOP_N].astype(np.float32)
        self.lists = round_down_probs(ranked).astype(np.float64)

    def truth(self, rule: str) -> np.ndarray:
        return passes(
            parse_rule(rule),
            is_argmax=self.rank == 0,
            rank=self.rank,
            prob=self.prob,
            top_prob=self.top,
            entropy=self.entropy,
        )

    def stored(self, listed: bool) -> Stored:
        prob = around_float32(self.prob)
        if listed:
            entry = np.take_along_axis(self.lists, np.minimum(self.rank, TOP_N - 1)[:, None], 1)[:, 0]
            length = np.full(len(self.rank), TOP_N)
            prob = around_listed(entry, self.rank, length, self.lists[:, -1], self.lists.sum(1))
        return Stored(self.rank, prob, around_float32(self.top), around_float32(self.entropy))


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_rounded_numbers_enclose_the_exact_decision(rule: str, listed: bool) -> None:
    sample = Sample()
    truth = sample.truth(rule)
    surely, possibly = decide(parse_rule(rule), sample.stored(listed))
    assert (~surely | truth).all()
    assert (~truth | possibly).all()
    assert 0 < truth.mean() < 1 or rule in {"additive:-0.1", "ratio:1.2"}
    # float32 leaves only exact and near ties open; lists leave some more
    assert (possibly & ~surely).mean() < (0.05 if listed else 0.02)


def test_ranks_are_never_in_doubt_and_the_argmax_always_passes() -> None:
    sample = Sample(1)
    for rule in ("greedy", "top:3"):
        surely, possibly = decide(parse_rule(rule), sample.stored(True))
        np.testing.assert_array_equal(surely, possibly)
        np.testing.assert_array_equal(surely, sample.truth(rule))
    for rule in ("additive:0", "ratio:1", "typical:eps=0.09,delta=0.3"):
        surely, _ = decide(parse_rule(rule), sample.stored(False))
        assert surely[sample.rank == 0].all()


def test_a_list_encloses_the_probability() -> None:
    sample = Sample(2)
    least, most = sample.stored(True).prob
    # the lists were rounded from float32, whose own rounding may exceed the last step
    assert (least <= sample.prob * (1 + 1e-7)).all()
    assert (sample.prob <= most * (1 + 1e-7)).all()
    beyond = sample.rank >= TOP_N
    assert beyond.any()
    assert (least[beyond] == 0).all()
    assert (
        most[beyond] < 0.04
    ).all()  # the smallest of 32 is at most 1/32, and its step is below a hundredth of it


def test_relaxing_only_lets_more_pass() -> None:
    stored = Sample(3).stored(True)
    for family in (("additive:0", "additive:0.1", "additive:0.3"), ("ratio:1", "ratio:0.7", "ratio:0.2")):
        before = np.zeros(len(stored.rank), dtype=bool)
        for rule in family:
            surely, _ = decide(parse_rule(rule), stored)
            assert (~before | surely).all()
            before = surely


@pytest.mark.parametrize(
    ("rule", "prob", "top", "entropy", "wanted"),
    [
        ("additive:0.1", (0.45, 0.46), (0.5, 0.54), (1.0, 1.0), (True, True)),
        ("additive:0.1", (0.45, 0.46), (0.5, 0.57), (1.0, 1.0), (False, True)),
        ("additive:0.1", (0.45, 0.46), (0.57, 0.58), (1.0, 1.0), (False, False)),
        ("ratio:0.5", (0.30, 0.31), (0.59, 0.61), (1.0, 1.0), (False, True)),
        ("ratio:0.5", (0.29, 0.31), (0.60, 0.60), (1.0, 1.0), (False, True)),
        # delta exp(-H) is 0.110 to 0.122: a larger entropy asks for less
        ("typical:eps=0.5,delta=0.3", (0.115, 0.115), (0.5, 0.5), (0.9, 1.0), (False, True)),
        ("typical:eps=0.5,delta=0.3", (0.125, 0.125), (0.5, 0.5), (0.9, 1.0), (True, True)),
    ],
)
def test_the_ends_that_decide(
    rule: str,
    prob: tuple[float, float],
    top: tuple[float, float],
    entropy: tuple[float, float],
    wanted: tuple[bool, bool],
) -> None:
    ends = ((np.array([low]), np.array([high])) for low, high in (prob, top, entropy))
    surely, possibly = decide(parse_rule(rule), Stored(np.array([1]), *ends))
    assert (bool(surely[0]), bool(possibly[0])) == wanted
