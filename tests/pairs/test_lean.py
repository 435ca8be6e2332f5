"""Packed weights: the same numbers as transformers wherever they are used, and nothing changes where they are not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from acceptlab.engine import decode
from acceptlab.pairs import packed
from acceptlab.pairs.cached import CachedModel
from acceptlab.pairs.layerskip import skip_layers
from acceptlab.pairs.lean import can_run_lean
from acceptlab.pairs.pair import pair_from_models
from acceptlab.pairs.trained import WatchedModel
from acceptlab.tree import Tree
from tests.engine.helpers import SHAPES, related_pair, settings
from tests.pairs.helpers import word_tokenizer
from tests.tiny import VOCAB, tiny_model

# float32 sums in another order; the largest difference seen is 6e-6 on logits of some ten units
TOLERANCE = 3e-5
LEAN_FAMILIES = ("llama", "mistral")
TREE = Tree((-1, -1, 0, 1, 1, 4, 4, 2, 6))
PROMPT = torch.arange(7) * 5 % VOCAB

needs_packing = pytest.mark.skipif(not packed.is_available(), reason="this PyTorch cannot pack weights")


def both(family: str, **overrides: object) -> tuple[CachedModel, CachedModel]:
    """The same model on packed weights and through transformers."""
    model = tiny_model(family, **overrides)
    lean = CachedModel(model, "lean", lean=True)
    assert lean.is_lean
    return lean, CachedModel(model, "plain")


def run_tree(model: CachedModel, past: int, root: int, tokens: torch.Tensor) -> torch.Tensor:
    positions = past + torch.cat([torch.zeros(1, dtype=torch.int64), torch.from_numpy(TREE.depths)])
    seen = torch.ones(TREE.n_nodes + 1, past, dtype=torch.bool)
    visible = torch.cat([seen, torch.from_numpy(TREE.visible)], 1)
    return model.forward(torch.cat([torch.tensor([root]), tokens]), positions, visible)


@needs_packing
@pytest.mark.parametrize("family", LEAN_FAMILIES)
@pytest.mark.parametrize("length", [1, 7, 150, 300])
def test_trees_and_what_follows_equal_transformers(family: str, length: int) -> None:
    models = both(family, max_position_embeddings=512)
    text = torch.arange(length) * 5 % VOCAB
    tokens = torch.arange(TREE.n_nodes) * 11 % VOCAB
    rows = []
    for model in models:
        model.prefill(text[: length // 2])  # two runs: the second one meets a cache
        model.prefill(text[length // 2 : -1])
        seen = [run_tree(model, length - 1, int(text[-1]), tokens)]
        path = length + torch.tensor(TREE.path(8))
        model.keep(torch.cat([torch.arange(length), path]))
        assert model.n_slots == length + 4
        for step in range(5):  # single rows, packed at first and then plain
            here = torch.tensor([length + 4 + step])
            seen.append(
                model.forward(here % VOCAB, here, torch.ones((1, length + 5 + step), dtype=torch.bool))
            )
        rows.append(torch.cat(seen))
    torch.testing.assert_close(*rows, rtol=0, atol=TOLERANCE)


@needs_packing
def test_a_long_pass_behind_a_cache_sees_what_its_mask_says() -> None:
    models = both("llama")
    text = torch.arange(90) * 7 % VOCAB
    visible = torch.ones((80, 90), dtype=torch.bool).tril(10)
    visible[:, 3] = False  # one hidden slot in the prefix
    rows = []
    for model in models:
        model.prefill(text[:10])
        rows.append(model.forward(text[10:], torch.arange(10, 90), visible))
    torch.testing.assert_close(*rows, rtol=0, atol=TOLERANCE)


@needs_packing
def test_scaled_rotary_tables_are_those_of_the_model() -> None:
    rope = {
        "rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }  # fmt: skip
    lean, plain = both("llama", rope_parameters=rope)
    for model in (lean, plain):
        model.prefill(PROMPT[:-1])
    rows = [run_tree(model, 6, int(PROMPT[-1]), torch.arange(TREE.n_nodes)) for model in (lean, plain)]
    torch.testing.assert_close(*rows, rtol=0, atol=TOLERANCE)


@needs_packing
@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_text_is_the_same_on_packed_weights(shape: str) -> None:
    target, draft = related_pair("llama")
    pairs = [(target, draft), *[tuple(CachedModel(m.model, "lean", lean=True) for m in (target, draft))]]
    texts = []
    for each in pairs:
        steps = list(decode(*each, PROMPT.tolist(), "a", settings(shape, max_new_tokens=40)))
        texts.append([token for step in steps for token in step.emitted])
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 5


@needs_packing
@pytest.mark.parametrize("few", [1, 3])
def test_short_passes_turn_to_the_plain_weights_and_back(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acceptlab.pairs.cached.few_rows", lambda: few)
    lean, plain = both("llama")
    assert lean._lean is not None
    calls: list[bool] = []
    inner = lean._lean.run
    lean._lean.run = lambda *a, plain, **k: (calls.append(plain), inner(*a, plain=plain, **k))[1]  # type: ignore
    for model in (lean, plain):
        model.prefill(PROMPT)
    start = len(PROMPT)
    for n_rows in (1, 1, 1, 1, 1, few, few, few + 1, few):
        places = torch.arange(start, start + n_rows)
        visible = torch.arange(start + n_rows)[None, :] <= places[:, None]
        rows = [model.forward(places * 3 % VOCAB, places, visible) for model in (lean, plain)]
        torch.testing.assert_close(*rows, rtol=0, atol=TOLERANCE)
        start += n_rows
    assert calls == [False, False, False, False, True, True, True, True, False, False]


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope"])
def test_positions_that_depend_on_the_length_are_left_to_transformers(rope_type: str) -> None:
    model = tiny_model("llama")
    model.base_model.rotary_emb.rope_type = rope_type
    assert not can_run_lean(model)


@needs_packing
def test_a_draft_of_the_targets_layers_shares_their_packed_weights() -> None:
    model = tiny_model("llama", num_hidden_layers=3)
    target = CachedModel(model, "target", lean=True)
    draft = CachedModel(skip_layers(model, {1}), "draft", lean=True)
    assert target._lean is not None
    assert draft._lean is not None
    layers = [each._lean._layers._layers for each in (target, draft)]
    assert layers[1] == [layers[0][0], layers[0][2]]


@needs_packing
def test_weights_that_were_changed_are_packed_anew() -> None:
    model = tiny_model("llama")
    first = CachedModel(model, "first", lean=True)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.mul_(2.0)
    second = CachedModel(model, "second", lean=True)
    plain = CachedModel(model, "plain")
    one = (torch.tensor([1]), torch.tensor([0]), torch.ones((1, 1), dtype=torch.bool))
    rows = [each.forward(*one) for each in (first, second, plain)]
    torch.testing.assert_close(rows[1], rows[2], rtol=0, atol=TOLERANCE)
    assert not torch.allclose(rows[0], rows[2], atol=1e-3)


@needs_packing
def test_hidden_states_of_a_watched_target_follow_packed_passes() -> None:
    watched = WatchedModel(tiny_model("llama"), "tiny", lean=True)
    assert watched.is_lean
    watched.prefill(PROMPT)
    plain = watched.model.base_model(PROMPT[None]).last_hidden_state[0].detach()
    watched.keep(torch.arange(4))
    torch.testing.assert_close(watched.hidden(0, 4), plain[:4], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    "overrides",
    [{"attention_bias": True}, {"mlp_bias": True}, {"hidden_act": "gelu"}],
    ids=lambda o: next(iter(o)),
)
def test_other_layers_run_through_transformers(overrides: dict[str, object]) -> None:
    assert not CachedModel(tiny_model("llama", **overrides), "m", lean=True).is_lean


@pytest.mark.parametrize("family", ["gpt2", "qwen2", "qwen3", "gemma", "opt"])
def test_other_architectures_run_through_transformers(family: str) -> None:
    assert not can_run_lean(tiny_model(family))


def test_low_precision_and_watched_layers_run_through_transformers() -> None:
    assert not can_run_lean(tiny_model("llama").to(torch.bfloat16))
    model = tiny_model("llama")
    model.model.layers[1].mlp.up_proj.register_forward_hook(lambda *a: None)
    assert not can_run_lean(model)


def hide(monkeypatch: pytest.MonkeyPatch, **ops: object) -> None:
    packed.is_available.cache_clear()
    monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace(**ops))


def test_without_the_operators_everything_runs_through_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama", vocab_size=60)
    expected = CachedModel(model, "plain").forward(
        torch.tensor([1]), torch.tensor([0]), torch.ones((1, 1), dtype=torch.bool)
    )
    hide(monkeypatch)
    try:
        pair = pair_from_models(word_tokenizer(60), model, tiny_model("llama", seed=1, vocab_size=60))
        assert pair.describe()["passes"]["target"] == "plain weights"
        one = (torch.tensor([1]), torch.tensor([0]), torch.ones((1, 1), dtype=torch.bool))
        assert torch.equal(pair.target.forward(*one), expected)
    finally:
        packed.is_available.cache_clear()


def test_operators_that_fail_or_give_other_numbers_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x: torch.Tensor, weight: torch.Tensor, *rest: object) -> torch.Tensor:
        return x @ weight.T + 0.01

    def failing(*arguments: object) -> torch.Tensor:
        raise RuntimeError("no such kernel")

    wrong.binary = lambda x, other, weight, *rest: x @ weight.T + other  # type: ignore[attr-defined]
    for reorder in (lambda weight, rows: weight, failing):
        hide(monkeypatch, _reorder_linear_weight=reorder, _linear_pointwise=wrong)
        try:
            assert not packed.is_available()
        finally:
            packed.is_available.cache_clear()


@needs_packing
def test_a_model_whose_packed_passes_are_wrong_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    assert packed.is_available()  # known before the product is broken
    linear_add = packed.Packed.linear_add
    monkeypatch.setattr(packed.Packed, "linear_add", lambda self, x, other: linear_add(self, x, 1.5 * other))
    pair = pair_from_models(
        word_tokenizer(60), tiny_model("llama", vocab_size=60), tiny_model("llama", seed=1, vocab_size=60)
    )
    assert pair.describe()["passes"]["target"] == "plain weights"


@needs_packing
def test_a_pair_says_what_runs_it_and_can_be_told_not_to() -> None:
    models = [tiny_model("llama", seed=seed, vocab_size=60) for seed in (0, 1)]
    for lean, passes in ((True, "packed weights"), (False, "plain weights")):
        described = pair_from_models(word_tokenizer(60), *models, lean=lean).describe()
        assert described["passes"] == {"target": passes, "draft": passes}


def test_released_memory_holds_what_it_held() -> None:
    tensor = torch.arange(100_000, dtype=torch.float32)
    packed.release([tensor, tensor[:3]])
    assert torch.equal(tensor, torch.arange(100_000, dtype=torch.float32))


@needs_packing
def test_large_pages_change_no_number() -> None:
    weight = torch.randn((1500, 1600), generator=torch.Generator().manual_seed(0))
    made = packed.Packed(weight)
    start, n_bytes = made.place()
    assert start > 0
    assert n_bytes >= weight.nbytes
    x = torch.randn((3, 1600), generator=torch.Generator().manual_seed(1))
    before = made.linear(x)
    packed.use_large_pages([made])
    assert torch.equal(made.linear(x), before)


def test_systems_without_the_call_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    packed._madvise.cache_clear()
    monkeypatch.setattr(packed.sys, "platform", "win32")
    try:
        assert packed._madvise() is None
        packed.release([torch.zeros(100_000)])
    finally:
        packed._madvise.cache_clear()
