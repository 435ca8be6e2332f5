"""The cached model against plain forwards: positions, masks, siblings, gathering, growth."""

from __future__ import annotations

import pytest
import torch

from acceptlab.pairs.cached import CachedModel
from acceptlab.tree import Tree, from_branches
from tests.tiny import FAMILIES, VOCAB, tiny_model

# float32 sums in another order: the largest difference seen over all families is 4e-6
TOLERANCE = 1e-5
PROMPT = torch.arange(7) * 5 % VOCAB
# irregular on purpose: siblings at every level, a leaf beside an inner node, second siblings with children
TREE = Tree((-1, -1, 0, 1, 1, 4, 4, 2, 6))


def tree_pass(model: CachedModel, past: int, root: int, tree: Tree, tokens: torch.Tensor) -> torch.Tensor:
    positions = past + torch.cat([torch.zeros(1, dtype=torch.int64), torch.from_numpy(tree.depths)])
    visible = torch.cat(
        [torch.ones(tree.n_nodes + 1, past, dtype=torch.bool), torch.from_numpy(tree.visible)], 1
    )
    return model.forward(torch.cat([torch.tensor([root]), tokens]), positions, visible)


def plain(model: CachedModel, token_ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model.model(torch.tensor([token_ids])).logits[0, -1].float()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_tree_pass_equals_one_plain_forward_a_path(family: str, attention: str) -> None:
    model = CachedModel(tiny_model(family, attention=attention), family)
    tokens = torch.arange(TREE.n_nodes) * 11 % VOCAB
    model.prefill(PROMPT[:-1])
    logits = tree_pass(model, len(PROMPT) - 1, int(PROMPT[-1]), TREE, tokens)
    assert torch.allclose(logits[0], plain(model, PROMPT.tolist()), atol=TOLERANCE)
    for node in range(TREE.n_nodes):
        path = [int(tokens[i]) for i in TREE.path(node)]
        assert torch.allclose(logits[node + 1], plain(model, PROMPT.tolist() + path), atol=TOLERANCE), node


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_sibling_does_not_move_the_other_branches(family: str, attention: str) -> None:
    model = CachedModel(tiny_model(family, attention=attention), family)
    tokens = torch.arange(TREE.n_nodes) * 11 % VOCAB
    changed = tokens.clone()
    changed[1] = (changed[1] + 17) % VOCAB
    results = []
    for drafted in (tokens, changed):
        model.reset()
        model.prefill(PROMPT[:-1])
        results.append(tree_pass(model, len(PROMPT) - 1, int(PROMPT[-1]), TREE, drafted))
    below = {node for node in range(TREE.n_nodes) if 1 in TREE.path(node)}
    untouched = [0, *(node + 1 for node in range(TREE.n_nodes) if node not in below)]
    assert torch.equal(results[0][untouched], results[1][untouched])
    assert not torch.allclose(results[0][2], results[1][2], atol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_keeping_second_siblings_equals_a_fresh_prefill(family: str) -> None:
    model = CachedModel(tiny_model(family), family)
    fresh = CachedModel(model.model, family)
    tokens = torch.arange(TREE.n_nodes) * 11 % VOCAB
    past = len(PROMPT) - 1
    model.prefill(PROMPT[:-1])
    tree_pass(model, past, int(PROMPT[-1]), TREE, tokens)
    path = TREE.path(8)  # 1, 4, 6, 8: scattered slots, only second siblings on the way
    assert path == (1, 4, 6, 8)
    model.keep(torch.cat([torch.arange(past + 1), past + 1 + torch.tensor(path)]))
    text = torch.cat([PROMPT, tokens[list(path)]])
    fresh.prefill(text)
    assert model.n_slots == fresh.n_slots == len(text)
    for ours, theirs in zip(model._cache.layers, fresh._cache.layers, strict=True):
        assert torch.allclose(ours.keys[:, :, : len(text)], theirs.keys[:, :, : len(text)], atol=TOLERANCE)
        assert torch.allclose(
            ours.values[:, :, : len(text)], theirs.values[:, :, : len(text)], atol=TOLERANCE
        )
    one = torch.ones((1, len(text) + 1), dtype=torch.bool)
    following = model.forward(torch.tensor([3]), torch.tensor([len(text)]), one)
    assert torch.allclose(following[0], plain(model, [*text.tolist(), 3]), atol=TOLERANCE)


def test_rejecting_every_node_leaves_the_committed_length() -> None:
    model = CachedModel(tiny_model("llama"), "tiny")
    tree = from_branches([2, 2])
    model.prefill(PROMPT[:-1])
    tree_pass(model, len(PROMPT) - 1, int(PROMPT[-1]), tree, torch.arange(tree.n_nodes))
    assert model.n_slots == len(PROMPT) + tree.n_nodes
    model.keep(torch.arange(len(PROMPT)))
    assert model.n_slots == len(PROMPT)
    assert all(layer.get_seq_length() == len(PROMPT) for layer in model._cache.layers)


def test_nothing_kept_is_an_empty_cache() -> None:
    model = CachedModel(tiny_model("llama"), "tiny")
    model.prefill(PROMPT)
    model.keep(torch.empty(0, dtype=torch.int64))
    assert model.n_slots == 0
    model.prefill(PROMPT[:-1])
    logits = tree_pass(model, len(PROMPT) - 1, int(PROMPT[-1]), Tree(()), torch.empty(0, dtype=torch.int64))
    assert torch.allclose(logits[0], plain(model, PROMPT.tolist()), atol=TOLERANCE)


def test_buffers_grow_without_losing_anything() -> None:
    model = CachedModel(tiny_model("llama", max_position_embeddings=1024), "tiny")
    text = torch.arange(600) * 7 % VOCAB
    model.prefill(text[:200])
    model.prefill(text[200:599])
    logits = tree_pass(model, 599, int(text[-1]), Tree(()), torch.empty(0, dtype=torch.int64))
    assert torch.allclose(logits[0], plain(model, text.tolist()), atol=TOLERANCE)


def test_dropout_is_off_even_if_the_model_came_in_training_mode() -> None:
    model = tiny_model("gpt2", resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)
    model.train()
    cached = CachedModel(model, "tiny")
    runs = []
    for _ in range(2):
        cached.reset()
        runs.append(tree_pass(cached, 0, 1, TREE, torch.arange(TREE.n_nodes)))
    assert torch.equal(runs[0], runs[1])
