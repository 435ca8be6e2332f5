"""Greedy and its relaxations: what passes, monotony, ties, and what is read off the logits."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from acceptlab.errors import RunError, UsageError
from acceptlab.relaxed import passes, threshold
from acceptlab.rules import Rule, parse_rule
from acceptlab.sampling import Warp
from acceptlab.tree import Tree
from acceptlab.verify import Drafted, Target, Verdict, read_target, verify
from tests.verify.helpers import random_tree

RELAXATIONS = (
    ["greedy", "additive:0", "additive:0.05", "additive:0.2", "additive:0.9"],
    ["greedy", "ratio:1", "ratio:0.8", "ratio:0.3", "ratio:0"],
    ["greedy", "top:1", "top:2", "top:4", "top:100"],
    ["typical:eps=0.4,delta=1", "typical:eps=0.2,delta=0.6", "typical:eps=0.09,delta=0.3"],
)
"""Each list from strict to loose."""


def drafted_tree(rng: np.random.Generator, vocab: int, chain: bool = False) -> Drafted:
    tree = random_tree(rng, 10, chain)
    ids = np.zeros(10, dtype=np.int64)
    for children in tree.children:
        # more children than tokens: repeats, which a rule must take in its stride
        ids[list(children)] = np.resize(rng.permutation(vocab), len(children))
    return Drafted(tree, ids, np.full(11, -1))


def decide(rule: Rule, drafted: Drafted, logits: torch.Tensor) -> Verdict:
    target = read_target(rule, drafted, logits, Warp())
    return verify(rule, drafted, target, np.full(drafted.tree.n_nodes + 1, 0.5))


def passing(rule: Rule, drafted: Drafted, logits: torch.Tensor) -> np.ndarray:
    """Which nodes pass, whether or not they are reached."""
    target = read_target(rule, drafted, logits, Warp())
    rows = drafted.tree.parent_rows
    assert target.argmax is not None
    return passes(
        rule,
        is_argmax=drafted.token_ids == target.argmax[rows],
        rank=target.node_rank,
        prob=target.node_prob,
        top_prob=None if target.top_prob is None else target.top_prob[rows],
        entropy=None if target.entropy is None else target.entropy[rows],
    )


def by_hand(rule: Rule, drafted: Drafted, logits: torch.Tensor) -> list[bool]:
    """The definitions on plain lists."""
    result = []
    for node, context in enumerate(drafted.tree.parent_rows):
        probs = torch.softmax(logits[context].double(), dim=0).tolist()
        token, top = int(drafted.token_ids[node]), max(probs)
        order = sorted(range(len(probs)), key=lambda token: (-float(logits[context][token]), token))
        entropy = -sum(p * np.log(p) for p in probs if p > 0)
        result.append(
            {
                "greedy": token == order[0],
                "additive": probs[token] >= top - (rule.eps or 0),
                "ratio": probs[token] >= top * (rule.gamma if rule.gamma is not None else 0),
                "top": order.index(token) < (rule.m or 0),
                "typical": probs[token] >= min(rule.eps or 0, (rule.delta or 0) * np.exp(-entropy)),
            }[rule.kind]
        )
    return result


@pytest.mark.parametrize("name", sorted({name for names in RELAXATIONS for name in names}))
def test_what_passes_equals_the_definition(name: str) -> None:
    rule = parse_rule(name)
    seen = set()
    for seed in range(15):
        rng = np.random.default_rng(seed)
        drafted = drafted_tree(rng, 7)
        logits = torch.from_numpy(rng.normal(size=(11, 7)) * 1.5).float()
        logits[:, 6] = -torch.inf
        expected = by_hand(rule, drafted, logits)
        assert passing(rule, drafted, logits).tolist() == expected
        seen |= set(expected)
        verdict = decide(rule, drafted, logits)
        tested = verdict.test_prob > 0
        assert set(verdict.accept_prob[tested]) <= {0.0, 1.0}
        assert verdict.accept_prob[tested].tolist() == [float(expected[i]) for i in np.flatnonzero(tested)]
        assert verdict.expected_accepted_len == verdict.accepted_len
        leaf = verdict.accepted[-1] + 1 if verdict.accepted else 0
        assert verdict.next_token == int(logits[leaf].argmax())
    assert seen == {True, False} or name in {"ratio:0", "top:100", "additive:0.9"}


@pytest.mark.parametrize("names", RELAXATIONS, ids=lambda names: names[-1].partition(":")[0])
def test_relaxing_lets_more_pass_and_never_shortens_a_chain(names: list[str]) -> None:
    longer = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        logits = torch.from_numpy(rng.normal(size=(11, 6))).float()
        for chain in (True, False):
            drafted = drafted_tree(rng, 6, chain)
            for strict, loose in pairwise(names):
                fewer = passing(parse_rule(strict), drafted, logits)
                more = passing(parse_rule(loose), drafted, logits)
                assert (more | ~fewer).all()
                if chain:
                    lengths = [
                        decide(parse_rule(name), drafted, logits).accepted_len for name in (strict, loose)
                    ]
                    assert lengths[0] <= lengths[1]
                    longer += lengths[1] > lengths[0]
    assert longer > 0


def test_without_ties_the_strictest_forms_are_greedy() -> None:
    for seed in range(40):
        rng = np.random.default_rng(seed)
        drafted = drafted_tree(rng, 5)
        logits = torch.from_numpy(rng.normal(size=(11, 5))).float()
        greedy = decide(parse_rule("greedy"), drafted, logits)
        for name in ("additive:0", "ratio:1", "top:1"):
            other = decide(parse_rule(name), drafted, logits)
            assert np.array_equal(other.outcome, greedy.outcome)
            assert other.next_token == greedy.next_token


def test_ties_pass_by_probability_but_not_by_identity() -> None:
    logits = torch.tensor([[1.0, 1.0, 0.0]] * 2)
    second = Drafted(Tree((-1,)), np.array([1]), np.full(2, -1))
    for name, accepted in (("greedy", 0), ("top:1", 0), ("top:2", 1), ("additive:0", 1), ("ratio:1", 1)):
        assert decide(parse_rule(name), second, logits).accepted_len == accepted, name
    assert decide(parse_rule("greedy"), second, logits).next_token == 0


def test_the_typical_threshold_never_fails_the_argmax_by_rounding() -> None:
    rule = parse_rule("typical:eps=0.9,delta=1")
    for n in range(2, 200):
        entropy = np.array([np.log(n)])
        top = np.array([1.0 / n])
        assert threshold(rule, top, entropy)[0] <= top[0]
    beyond = threshold(parse_rule("typical:eps=0.9,delta=3"), np.array([0.5]), np.array([np.log(2)]))
    assert beyond[0] == 0.9  # above delta 1 even the argmax may fail: no clamp
    uniform = torch.zeros(2, 7)
    drafted = Drafted(Tree((-1,)), np.array([5]), np.full(2, -1))
    assert decide(rule, drafted, uniform).accepted_len == 1


def test_numbers_read_off_the_logits() -> None:
    rng = np.random.default_rng(3)
    drafted = drafted_tree(rng, 9)
    logits = torch.from_numpy(rng.normal(size=(11, 9)) * 4).float()
    logits[2, 4] = -torch.inf
    target = read_target(parse_rule("typical:eps=0.1,delta=0.3"), drafted, logits, Warp())
    probs = torch.softmax(logits.double(), dim=1).numpy()
    inner = np.flatnonzero(drafted.tree.n_children)
    parents = drafted.tree.parent_rows
    assert target.node_prob == pytest.approx(probs[parents, drafted.token_ids], rel=1e-12)
    assert target.top_prob is not None
    assert target.top_prob[inner] == pytest.approx(probs[inner].max(axis=1), rel=1e-12)
    logs = np.log(np.where(probs > 0, probs, 1.0))
    assert target.entropy is not None
    assert target.entropy[inner] == pytest.approx(-(probs * logs).sum(axis=1)[inner], rel=1e-12)
    assert target.probs is None  # no relaxed rule builds a sampling distribution


def test_entropy_of_two_equal_tokens_beside_a_masked_one() -> None:
    drafted = Drafted(Tree((-1,)), np.array([0]), np.full(2, -1))
    logits = torch.tensor([[0.0, 0.0, -torch.inf]] * 2)
    target = read_target(parse_rule("typical:eps=0.1,delta=0.3"), drafted, logits, Warp())
    assert target.entropy is not None
    assert target.entropy[0] == pytest.approx(0.6931471805599453, rel=1e-14)


def test_greedy_reads_nothing_but_the_argmax() -> None:
    drafted = Drafted(Tree((-1,)), np.array([0]), np.full(2, -1))
    target = read_target(parse_rule("greedy"), drafted, torch.tensor([[0.0, 2.0, 2.0]] * 2), Warp(0.0))
    assert target.argmax is not None
    assert target.argmax.tolist() == [1, -1]  # the leaf's only where it is asked for
    assert target.late_argmax is not None
    assert target.late_argmax(1) == 1
    others = (target.probs, target.node_prob, target.node_rank, target.top_prob, target.entropy)
    assert others == (None,) * 5


def test_lossless_rules_read_the_warped_distribution() -> None:
    drafted = Drafted(Tree((-1,)), np.array([0]), np.full(2, -1))
    logits = torch.tensor([[0.0, 1.0, 2.0]] * 2)
    target = read_target(parse_rule("onehot"), drafted, logits, Warp(0.5, 2))
    assert target.probs is not None
    assert target.probs[0].tolist() == pytest.approx([0.0, 1 / (1 + np.e**2), 1 / (1 + np.e**-2)], rel=1e-12)


def test_bad_logits_and_missing_numbers_are_refused() -> None:
    drafted = Drafted(Tree((-1,)), np.array([0]), np.full(2, -1))
    with pytest.raises(RunError, match="float32"):
        read_target(parse_rule("greedy"), drafted, torch.tensor([[0.0, float("nan")]] * 2), Warp())
    with pytest.raises(UsageError, match="lacks"):
        verify(parse_rule("top:2"), drafted, Target(argmax=np.zeros(2, dtype=np.int64)), np.zeros(2))
    with pytest.raises(UsageError, match="no probability threshold"):
        threshold(parse_rule("greedy"), np.ones(1))
