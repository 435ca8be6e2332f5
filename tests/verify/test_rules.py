"""`verify` against a plain-Python step: same probabilities, outcomes and tokens for every rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from acceptlab.errors import RunError, UsageError
from acceptlab.rules import parse_rule
from acceptlab.tree import Tree
from acceptlab.verify import Drafted, Target, Verdict, accept_probs, emission, verify
from tests import oracles
from tests.verify.helpers import FIXED, LOSSLESS, WIDE, RandomStep, random_step

ALMOST_ONE = 1.0 - 2.0**-53


def run(name: str, step: RandomStep, eos_ids: frozenset[int] = frozenset()) -> Verdict:
    target = Target(probs=torch.from_numpy(step.target))
    return verify(parse_rule(name), step.drafted, target, step.uniforms, eos_ids)


def accepts_by_hand(name: str, step: RandomStep, blocked: np.ndarray) -> tuple[list[float], list[Any]]:
    """Acceptance of every node and the correction of every context, one context at a time."""
    tree, ids = step.drafted.tree, step.drafted.token_ids
    if name == "block":
        return block_by_hand(step, int((~blocked).sum()))
    accepts = [0.0] * tree.n_nodes
    corrections: list[Any] = []
    for context, children in enumerate(tree.children):
        tested = [node for node in children if not blocked[node]]
        tokens = tuple(int(ids[node]) for node in tested)
        values, correction = oracles.node(
            name, step.target[context].tolist(), step.draft[context].tolist(), tokens
        )
        corrections.append(correction)
        for node, value in zip(tested, values, strict=True):
            accepts[node] = value
    return accepts, corrections


def block_by_hand(step: RandomStep, length: int) -> tuple[list[float], list[Any]]:
    ids, target, draft = step.drafted.token_ids, step.target, step.draft
    weights = [1.0]
    for i in range(length):
        weights.append(min(1.0, weights[i] * target[i, ids[i]] / draft[i, ids[i]]))
    excess = [np.maximum(weights[i] * target[i] - draft[i], 0.0) for i in range(length)]
    stops = [
        excess[i].sum() / (excess[i].sum() + 1.0 - weights[i]) if excess[i].sum() + 1.0 > weights[i] else 0.0
        for i in range(length)
    ]
    at_least = [1.0]
    for i in range(1, length + 1):
        at_least.append(1.0 - np.prod([1.0 - h for h in [*stops[i:], weights[-1]]]))
    accepts = [at_least[i + 1] / at_least[i] if at_least[i] else 0.0 for i in range(length)]
    padding = len(ids) - length
    return [*accepts, *[0.0] * padding], [*excess, *target[length:]]


@pytest.mark.parametrize("name", LOSSLESS)
@pytest.mark.parametrize("with_eos", [False, True])
def test_every_number_of_a_step_equals_the_plain_one(name: str, with_eos: bool) -> None:
    eos_ids = frozenset({2}) if with_eos else frozenset()
    ended = 0
    for seed in range(40):
        step = random_step(name, seed, n_nodes=3 + seed % 6)
        tree, ids = step.drafted.tree, step.drafted.token_ids
        verdict = run(name, step, eos_ids)
        blocked = step.drafted.blocked(eos_ids)
        accepts, corrections = accepts_by_hand(name, step, blocked)
        tested, reached = oracles.reach_by_hand(tree.parents, accepts, blocked.tolist())
        # eight factors, and residuals of differences near 1e-1
        assert verdict.test_prob == pytest.approx(tested, rel=0, abs=1e-12)
        assert verdict.expected_accepted_len == pytest.approx(sum(reached), rel=0, abs=1e-12)
        is_tested = verdict.test_prob > 0
        assert np.isnan(verdict.accept_prob[~is_tested]).all()
        possible = is_tested & (np.array(tested) > 1e-12)
        assert verdict.accept_prob[possible] == pytest.approx(np.array(accepts)[possible], rel=0, abs=1e-9)
        outcome, path = oracles.walk_by_hand(
            tree.parents, accepts, step.uniforms[:-1].tolist(), blocked.tolist()
        )
        assert [str(name) for name in verdict.outcomes] == outcome
        assert list(verdict.accepted) == path
        assert verdict.n_tested == sum(name != "untested" for name in outcome)
        if path and int(ids[path[-1]]) in eos_ids:
            assert verdict.next_token is None
            ended += 1
        else:
            law = corrections[path[-1] + 1 if path else 0]
            cumulative = np.cumsum(law)
            assert verdict.next_token == int((cumulative > step.uniforms[-1] * cumulative[-1]).argmax())
            assert law[verdict.next_token] > 0
    assert (ended > 0) == with_eos


@pytest.mark.parametrize("name", ["rejection", "rejection-iid", "onehot"])
def test_a_context_does_not_depend_on_the_rest_of_the_tree(name: str) -> None:
    for seed in range(10):
        step = random_step(name, seed, n_nodes=9)
        blocked = step.drafted.blocked(frozenset())
        target = Target(probs=torch.from_numpy(step.target))
        whole = accept_probs(parse_rule(name), step.drafted, target, blocked)
        for context, children in enumerate(step.drafted.tree.children):
            tested = [node for node in children if not blocked[node]]
            if not tested:
                continue
            rows = [context, *[node + 1 for node in tested]]
            alone = Drafted(
                Tree((-1,) * len(tested)),
                step.drafted.token_ids[tested],
                np.arange(len(rows)),
                torch.from_numpy(step.draft[rows]),
            )
            only = Target(probs=torch.from_numpy(step.target[rows]))
            free = np.zeros(len(tested), dtype=bool)
            assert np.array_equal(accept_probs(parse_rule(name), alone, only, free), whole[tested])
            law = emission(parse_rule(name), alone, only, free, 0)[0]
            assert torch.equal(law, emission(parse_rule(name), step.drafted, target, blocked, context)[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", LOSSLESS)
def test_nothing_mutates_its_inputs(name: str) -> None:
    for seed in range(10):
        step = random_step(name, seed)
        target, uniforms = torch.from_numpy(step.target.copy()), step.uniforms.copy()
        draft, ids = step.drafted.draft_probs, step.drafted.token_ids.copy()
        assert draft is not None
        before = draft.clone()
        verify(parse_rule(name), step.drafted, Target(probs=target), uniforms, frozenset({1}))
        assert np.array_equal(target.numpy(), step.target)
        assert torch.equal(draft, before)
        assert np.array_equal(uniforms, step.uniforms)
        assert np.array_equal(step.drafted.token_ids, ids)


@pytest.mark.parametrize("name", LOSSLESS)
@pytest.mark.parametrize("uniform", [0.0, ALMOST_ONE])
def test_extreme_uniforms_never_emit_what_the_target_excludes(name: str, uniform: float) -> None:
    for seed in range(40):
        step = random_step(name, seed, zeros=0.5)
        step.uniforms = np.full(len(step.uniforms), uniform)
        verdict = run(name, step)
        here = 0
        for node in verdict.accepted:
            assert step.target[here, step.drafted.token_ids[node]] > 0
            here = node + 1
        assert verdict.next_token is not None
        assert step.target[here, verdict.next_token] > 0


@pytest.mark.parametrize("name", LOSSLESS)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.5])
def test_equal_models_accept_everything(name: str, temperature: float) -> None:
    for seed in range(10):
        step = random_step(name, seed, n_nodes=4, zeros=0.0)
        chain = Tree((-1, 0, 1, 2))
        logits = torch.from_numpy(step.target).log().float() / temperature
        probs = torch.softmax(logits, dim=1, dtype=torch.float64)
        ids = probs.argmax(dim=1).numpy()[:4]
        drafted = Drafted(chain, ids, np.arange(5), probs)
        verdict = verify(parse_rule(name), drafted, Target(probs=probs), np.full(5, ALMOST_ONE))
        if name == "onehot":
            expected = probs.amax(dim=1).numpy()[:4]
            assert verdict.accept_prob == pytest.approx(expected, rel=1e-12)
        else:
            assert verdict.accept_prob.tolist() == [1.0] * 4  # exactly 1, not nearly
            assert verdict.accepted == (0, 1, 2, 3)
            assert verdict.expected_accepted_len == 4.0


@pytest.mark.parametrize("name", ["rejection", "rejection-iid", "block"])
def test_disjoint_supports_accept_nothing_and_stay_finite(name: str) -> None:
    target = torch.tensor([[0.5, 0.5, 0, 0]] * 3, dtype=torch.float64)
    draft = torch.tensor([[0, 0, 0.5, 0.5]] * 3, dtype=torch.float64)
    drafted = Drafted(Tree((-1, 0)), np.array([2, 3]), np.arange(3), draft)
    verdict = verify(parse_rule(name), drafted, Target(probs=target), np.array([0.0, 0.0, 0.3]))
    assert verdict.accepted == ()
    assert verdict.accept_prob[0] == 0.0
    assert np.isnan(verdict.accept_prob[1])
    assert verdict.test_prob.tolist() == [1.0, 0.0]
    assert verdict.next_token == 0


@pytest.mark.parametrize("name", ["rejection", "rejection-iid", "block"])
def test_what_rounding_leaves_of_a_rejection_is_accepted(name: str) -> None:
    target = torch.tensor([FIXED[0]] * 3, dtype=torch.float64)
    draft = target * (1.0 + 4e-16)
    drafted = Drafted(Tree((-1, 0)), np.array([0, 1]), np.array([0, 1, -1]), draft)
    verdict = verify(parse_rule(name), drafted, Target(probs=target), np.full(3, ALMOST_ONE))
    assert verdict.accepted == (0, 1)
    assert verdict.accept_prob.tolist() == [1.0, 1.0]
    assert verdict.next_token == 2


def test_an_accepted_end_of_text_stops_the_step() -> None:
    target = torch.tensor([WIDE[0]] * 4, dtype=torch.float64)
    drafted = Drafted(Tree((-1, 0, 1)), np.array([3, 0, 1]), np.arange(4), target.clone())
    verdict = verify(parse_rule("rejection"), drafted, Target(probs=target), np.zeros(4), frozenset({3}))
    assert verdict.accepted == (0,)
    assert verdict.next_token is None
    assert [str(name) for name in verdict.outcomes] == ["accepted", "untested", "untested"]
    assert verdict.test_prob.tolist() == [1.0, 0.0, 0.0]
    assert verdict.expected_accepted_len == 1.0


def test_places_without_a_token_are_never_tested() -> None:
    target = torch.tensor([WIDE[0]] * 4, dtype=torch.float64)
    draft = torch.tensor([[0, 1.0, 0, 0]] * 4, dtype=torch.float64)
    drafted = Drafted(Tree((-1, -1, 1)), np.array([1, -1, 2]), np.array([0, -1, -1, -1]), draft)
    verdict = verify(parse_rule("rejection"), drafted, Target(probs=target), np.array([0.99, 0, 0, 0.5]))
    assert [str(name) for name in verdict.outcomes] == ["rejected", "untested", "untested"]
    assert verdict.next_token in {0, 2}


def test_a_block_ends_before_an_empty_place() -> None:
    target = torch.tensor([WIDE[0]] * 4, dtype=torch.float64)
    draft = torch.tensor([WIDE[1]] * 4, dtype=torch.float64)
    gap = Drafted(Tree((-1, 0, 1)), np.array([1, -1, 2]), np.arange(4), draft)
    one = Drafted(Tree((-1,)), np.array([1]), np.arange(2), draft[:2])
    for uniform in (0.1, 0.5):
        drawn = np.array([uniform, 0.0, 0.0, 0.3])
        verdict = verify(parse_rule("block"), gap, Target(probs=target), drawn, frozenset({3}))
        short = verify(parse_rule("block"), one, Target(probs=target[:2]), drawn[[0, 3]], frozenset({3}))
        assert verdict.accepted == short.accepted
        assert verdict.next_token == short.next_token
        assert verdict.accept_prob[0] == short.accept_prob[0]
        assert verdict.test_prob.tolist() == [1.0, 0.0, 0.0]


def test_what_is_never_tested_has_no_acceptance() -> None:
    drafted = Drafted(Tree((-1, 0)), np.array([1, 1]), np.full(3, -1))
    blocked = drafted.blocked(frozenset({1}))
    target = Target(argmax=np.array([1, 1, 0]))
    assert accept_probs(parse_rule("greedy"), drafted, target, blocked).tolist() == [1.0, 0.0]


def test_an_empty_tree_is_a_plain_draw_from_the_target() -> None:
    target = torch.tensor([WIDE[0]], dtype=torch.float64)
    for name in LOSSLESS:
        drafted = Drafted(Tree(()), np.zeros(0, dtype=np.int64), np.array([-1]))
        verdict = verify(parse_rule(name), drafted, Target(probs=target), np.array([0.45]))
        assert verdict.next_token == 1
        assert verdict.expected_accepted_len == 0.0
        assert verdict.outcomes == ()


def test_a_token_that_was_not_drawn_from_the_draft_is_an_error() -> None:
    target = torch.tensor([FIXED[0]] * 3, dtype=torch.float64)
    draft = torch.tensor([[0.5, 0.5, 0.0]] * 3, dtype=torch.float64)
    for name in ("rejection", "rejection-iid", "block"):
        drafted = Drafted(Tree((-1, 0)), np.array([0, 2]), np.arange(3), draft)
        with pytest.raises(RunError, match="node 1 holds token 2"):
            verify(parse_rule(name), drafted, Target(probs=target), np.zeros(3))
    twice = Drafted(Tree((-1, -1)), np.array([0, 0]), np.arange(3), draft)
    with pytest.raises(RunError, match="cannot have drawn"):
        verify(parse_rule("rejection"), twice, Target(probs=target), np.zeros(3))


def test_missing_inputs_are_named() -> None:
    drafted = Drafted(Tree((-1,)), np.array([0]), np.arange(2))
    probs = torch.tensor([FIXED[0]] * 2, dtype=torch.float64)
    uniforms = np.zeros(2)
    with pytest.raises(UsageError, match="target's argmax"):
        verify(parse_rule("greedy"), drafted, Target(probs=probs), uniforms)
    with pytest.raises(UsageError, match="float64"):
        verify(parse_rule("onehot"), drafted, Target(probs=probs.float()), uniforms)
    with pytest.raises(UsageError, match="draft's sampling distribution"):
        verify(parse_rule("rejection"), drafted, Target(probs=probs), uniforms)
    with pytest.raises(UsageError, match="certificates only"):
        verify(parse_rule("tree:2"), drafted, Target(probs=probs), uniforms)
    with pytest.raises(UsageError, match="uniforms"):
        verify(parse_rule("onehot"), drafted, Target(probs=probs), np.zeros(1))
    with pytest.raises(UsageError, match="draft rows"):
        Drafted(Tree((-1,)), np.array([0, 1]), np.arange(2))
    forked = Drafted(Tree((-1, -1)), np.array([0, 1]), np.arange(3), torch.cat([probs, probs[:1]]))
    with pytest.raises(UsageError, match="for chains"):
        verify(parse_rule("block"), forked, Target(probs=forked.draft_probs), np.zeros(3))
