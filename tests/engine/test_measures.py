"""The vectorised measures against plain numpy over every token."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from acceptlab.measures import Contexts, measure
from acceptlab.records import CERTIFICATE_RULES, CONTEXTS, MEASURES, NODES, TOP_N
from acceptlab.rules import parse_rule
from acceptlab.sampling import Warp, warp
from acceptlab.theory import divergences
from acceptlab.theory.certificates import thresholds
from acceptlab.tree import Tree, from_branches

TREE = from_branches([3, 2])
PARENT_INDEX = TREE.parent_rows
UNWARPED = Warp()


def contexts(vocab: int, settings: Warp = UNWARPED, seed: int = 0, spread: float = 3.0) -> Contexts:
    generator = torch.Generator().manual_seed(seed)
    target = spread * torch.randn((4, vocab), generator=generator)
    draft = target + torch.randn((4, vocab), generator=generator)
    return Contexts(target, draft, warp(target, settings), warp(draft, settings))


def tokens(vocab: int) -> torch.Tensor:
    return torch.arange(TREE.n_nodes) * 7 % vocab


def softmax(logits: torch.Tensor) -> np.ndarray:
    weights = np.exp(logits.double().numpy() - logits.double().numpy().max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("vocab", [5, 300])
def test_measures_equal_the_plain_forms(vocab: int) -> None:
    given = contexts(vocab, Warp(0.7, 4, 0.9))
    found = measure(given, PARENT_INDEX, tokens(vocab), TREE).contexts
    target, draft = softmax(given.target_logits), softmax(given.draft_logits)
    expected = {
        "target_entropy": divergences.entropy(target),
        "draft_entropy": divergences.entropy(draft),
        "kl_target_draft": divergences.kl_target_draft(target, draft),
        "kl_draft_target": divergences.kl_draft_target(target, draft),
        "renyi_half": divergences.renyi_half(target, draft),
        "overlap": divergences.overlap(given.target_probs.numpy(), given.draft_probs.numpy()),
        "target_margin": divergences.margins(target).margin,
        "draft_margin": divergences.margins(draft).margin,
        "target_top_prob": target.max(axis=-1),
        "draft_top_prob": draft.max(axis=-1),
        "target_argmax": target.argmax(axis=-1),
        "draft_argmax": draft.argmax(axis=-1),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(
            found[name], values, rtol=1e-9, atol=1e-12, err_msg=name
        )  # float64 on both sides


def test_the_head_holds_the_most_probable_tokens_in_order() -> None:
    given = contexts(300)
    found = measure(given, PARENT_INDEX, tokens(300), TREE).contexts
    target = softmax(given.target_logits)
    order = np.argsort(-target, axis=-1)[:, :TOP_N]
    assert (found["target_token_ids"] == order).all()
    np.testing.assert_allclose(found["target_probs"], np.take_along_axis(target, order, -1), rtol=1e-9)


def test_thresholds_are_those_of_the_full_distribution() -> None:
    given = contexts(300, seed=3, spread=1.0)
    found = measure(given, PARENT_INDEX, tokens(300), TREE).contexts
    target = softmax(given.target_logits)
    exact_both = thresholds(target, [parse_rule(text) for text in CERTIFICATE_RULES])
    for name, exact in zip(("forward", "reverse"), exact_both, strict=True):
        np.testing.assert_allclose(
            found[f"thresholds_{name}"], exact, rtol=1e-9
        )  # float64 sums in another order


def test_node_columns_equal_a_loop_over_the_vocabulary() -> None:
    vocab = 60
    given = contexts(vocab, Warp(0.7, 10, 1.0))
    drafted = tokens(vocab)
    found = measure(given, PARENT_INDEX, drafted, TREE).nodes
    for node, token in enumerate(drafted.tolist()):
        row = int(PARENT_INDEX[node])
        draft_prob, target_prob = float(given.draft_probs[row, token]), float(given.target_probs[row, token])
        assert found["draft_prob"][node] == draft_prob
        assert found["target_prob"][node] == target_prob
        ratio = found["accept_ratio"][node]
        assert (
            math.isnan(ratio) if draft_prob == 0 else ratio == pytest.approx(min(1, target_prob / draft_prob))
        )
        for name, logits in (
            ("target_rank", given.target_logits[row]),
            ("draft_rank", given.draft_logits[row]),
        ):
            assert found[name][node] == sum(float(logits[v]) > float(logits[token]) for v in range(vocab))
        product = math.prod(float(given.draft_probs[PARENT_INDEX[i], drafted[i]]) for i in TREE.path(node))
        assert found["path_draft_prob"][node] == pytest.approx(product)
    assert any(math.isnan(value) for value in found["accept_ratio"])


def test_exact_ties_rank_by_lower_id() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 0.0]])
    given = Contexts(logits, logits, warp(logits, Warp()), warp(logits, Warp()))
    tree = from_branches([3])
    found = measure(given, tree.parent_rows, torch.tensor([2, 1, 0]), tree)
    assert found.nodes["target_rank"].tolist() == [1, 0, 2]
    assert found.nodes["is_target_argmax"].tolist() == [False, True, False]
    assert found.contexts["target_argmax"].tolist() == [1]
    assert found.contexts["target_token_ids"][0].tolist() == [1, 2, 0, 3]
    assert found.contexts["target_margin"].tolist() == [0.0]


def test_ranks_are_right_where_many_tokens_tie_at_the_end_of_the_head() -> None:
    vocab = 200
    logits = torch.zeros((1, vocab))
    logits[0, :60] = torch.arange(60, 0, -1).float()
    given = Contexts(logits, logits, warp(logits, Warp()), warp(logits, Warp()))
    tree = from_branches([4])
    found = measure(given, tree.parent_rows, torch.tensor([5, 60, 62, 199]), tree).nodes
    assert found["target_rank"].tolist() == [5, 60, 62, 199]


def test_the_short_cut_of_unwarped_distributions_changes_nothing() -> None:
    given = contexts(300)
    short = replace(given, unwarped=True)
    both = [measure(each, PARENT_INDEX, tokens(300), TREE) for each in (given, short)]
    for name, values in both[0].contexts.items():
        np.testing.assert_allclose(both[1].contexts[name], values, rtol=1e-12, err_msg=name)


def test_whole_rows_are_the_given_distributions_where_nothing_is_warped() -> None:
    # flat contexts: typical acceptance rejects nothing among the 64 most probable tokens
    given = contexts(3000, seed=4, spread=0.3)
    short = replace(given, unwarped=True)
    both = [
        measure(each, PARENT_INDEX, tokens(3000), TREE).contexts
        for each in (short, replace(short, target_probs=None, draft_probs=None))
    ]
    expected = thresholds(softmax(given.target_logits), [parse_rule(text) for text in CERTIFICATE_RULES])
    for name, exact in zip(("thresholds_forward", "thresholds_reverse"), expected, strict=True):
        for found in both:
            np.testing.assert_allclose(found[name], exact, rtol=1e-9)  # float64 sums in another order


def test_excluded_tokens_have_no_part_in_the_entropy() -> None:
    target = torch.tensor([[0.0, 0.0, -torch.inf]])
    draft = torch.tensor([[0.0, -torch.inf, 0.0]])
    given = Contexts(target, draft, warp(target, Warp()), warp(draft, Warp()))
    found = measure(given, np.zeros(1, dtype=np.int64), torch.tensor([0]), Tree((-1,))).contexts
    assert found["target_entropy"][0] == pytest.approx(0.6931, abs=1e-4)
    assert found["kl_target_draft"][0] == math.inf
    assert found["kl_draft_target"][0] == math.inf
    assert found["overlap"][0] == pytest.approx(0.5)


def test_identical_models_diverge_by_nothing() -> None:
    given = contexts(300)
    same = Contexts(given.target_logits, given.target_logits, given.target_probs, given.target_probs)
    found = measure(same, PARENT_INDEX, tokens(300), TREE).contexts
    for name in ("kl_target_draft", "kl_draft_target"):
        assert (found[name] == 0).all()
    np.testing.assert_allclose(found["overlap"], 1.0, atol=1e-12)  # sums of 300 float64 terms
    assert (found["overlap"] <= 1).all()


def test_every_declared_column_comes_out() -> None:
    found = measure(contexts(300), PARENT_INDEX, tokens(300), TREE)
    assert {column.name for column in CONTEXTS.columns} - set(found.contexts) == {
        "run_id", "domain", "prompt_id", "step", "node", "depth", "position",
    }  # fmt: skip
    assert set(MEASURES) <= set(found.nodes) <= {column.name for column in NODES.columns}
