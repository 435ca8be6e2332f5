"""A layer skip equals a model built by hand without those layers, and shares its memory with the target."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from acceptlab.errors import UsageError
from acceptlab.pairs.cached import CachedModel
from acceptlab.pairs.layerskip import skip_layers
from acceptlab.pairs.probe import plain_rows, probe
from tests.tiny import FAMILIES, VOCAB, tiny_model

DEPTH: dict[str, str] = {"gpt2": "n_layer"}
TOKENS = torch.arange(9)[None] * 7 % VOCAB


def deep_model(family: str, n_layers: int, **overrides: Any) -> Any:
    return tiny_model(family, **{DEPTH.get(family, "num_hidden_layers"): n_layers}, **overrides)


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_a_model_built_without_the_layers(family: str) -> None:
    target = deep_model(family, 5)
    by_hand = deep_model(family, 3, seed=1)
    kept = [0, 2, 4]
    weights = {}
    for name, value in target.state_dict().items():
        parts = name.split(".")
        place = next((i for i, part in enumerate(parts) if part.isdecimal()), None)
        if place is not None:
            if int(parts[place]) not in kept:
                continue
            parts[place] = str(kept.index(int(parts[place])))
        weights[".".join(parts)] = value
    by_hand.load_state_dict(weights)
    draft = skip_layers(target, {1, 3})
    with torch.inference_mode():
        expected = by_hand(TOKENS).logits
        assert torch.equal(draft(TOKENS).logits, expected)
        assert not torch.allclose(target(TOKENS).logits, expected, atol=1e-2)
    # tree passes of the twin, on a cache of three layers
    cached = CachedModel(draft, "draft")
    assert probe(cached, draft, "draft", plain_rows(draft)) < 1e-5
    cached.prefill(TOKENS[0])
    assert len(cached._cache.layers) == 3


def test_the_target_is_left_as_it_was_and_no_weight_is_held_twice() -> None:
    target = deep_model("llama", 4)
    with torch.inference_mode():
        before = target(TOKENS).logits
    draft = skip_layers(target, {1})
    mine = {p.data_ptr() for p in target.parameters()}
    assert {p.data_ptr() for p in draft.parameters()} < mine
    assert draft.config.num_hidden_layers == 3
    assert target.config.num_hidden_layers == 4
    assert [layer.self_attn.layer_idx for layer in target.model.layers] == [0, 1, 2, 3]
    assert [layer.self_attn.layer_idx for layer in draft.model.layers] == [0, 1, 2]
    with torch.inference_mode():
        draft(TOKENS)
        assert torch.equal(target(TOKENS).logits, before)
    assert draft.num_parameters() < target.num_parameters()


def test_what_is_attached_to_the_draft_does_not_reach_the_target() -> None:
    target = deep_model("llama", 4)
    draft = skip_layers(target, {1})
    seen: list[str] = []
    draft.model.norm.register_forward_hook(lambda *_: seen.append("norm"))
    draft.model.layers[0].register_buffer("extra", torch.zeros(1))
    draft.lm_head.weight = torch.nn.Parameter(torch.zeros_like(draft.lm_head.weight))
    with torch.inference_mode():
        assert float(target(TOKENS).logits.abs().max()) > 0
        assert seen == []
        assert float(draft(TOKENS).logits.abs().max()) == 0
    assert seen == ["norm"]
    assert "extra" not in dict(target.model.layers[0].named_buffers())


def test_layer_types_follow_the_layers_left() -> None:
    types = ["full_attention", "sliding_attention", "full_attention", "full_attention"]
    target = deep_model("qwen2", 4, layer_types=types, use_sliding_window=True, sliding_window=16)
    draft = skip_layers(target, {1})
    assert draft.config.layer_types == ["full_attention"] * 3
    assert target.config.layer_types == types


@pytest.mark.parametrize(
    ("skipped", "said"), [({4}, "layer 4, but the target's layers are 0 to 3"), ({0, 1, 2, 3}, "leaves none")]
)
def test_impossible_skips_are_refused(skipped: set[int], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        skip_layers(deep_model("llama", 4), skipped)


def test_a_target_bound_by_hooks_is_refused() -> None:
    target = deep_model("llama", 3)
    target.model.layers[0].forward = target.model.layers[0].forward
    with pytest.raises(UsageError, match="offloaded"):
        skip_layers(target, {1})
