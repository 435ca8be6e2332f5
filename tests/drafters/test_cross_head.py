"""Cross heads: batched training against a slow oracle, drafting against training, and hidden states of the target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from acceptlab.drafters.base import Rows
from acceptlab.drafters.cross_head import CrossHead
from acceptlab.drafters.cross_model import CrossModel, text_rows
from acceptlab.drafters.files import config_of, load_drafter, save_drafter
from acceptlab.drafters.output_layer import CutOutput
from acceptlab.errors import RunError, UsageError
from acceptlab.pairs import halves
from acceptlab.pairs.lean_cross import LeanCross
from acceptlab.pairs.lean_drafter import can_draft_lean, matrices
from acceptlab.pairs.packed import is_available
from acceptlab.pairs.trained import WatchedModel
from acceptlab.training.corpus import make_batch
from acceptlab.training.taps import tap_states
from tests.tiny import VOCAB, tiny_model
from tests.training.helpers import tiny_target
from tests.training.test_train import make_examples

GAMMA = 4
TEXT = [5, 6, 7, 8, 9, 10, 11, 20, 21, 22, 23, 24]
# float32, three layers
CLOSE = {"rtol": 0, "atol": 3e-5}


def make_head(taps: tuple[int, ...] = (1, 0)) -> CrossHead:
    head = CrossHead.from_target(
        tiny_target(), (0, 1, -1), CutOutput(torch.arange(3, 40), torch.ones(VOCAB), 32)
    )
    head.tap(taps)
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for layer in head.layers:
            layer.self_attn.k_proj.weight.add_(
                0.2 * torch.randn(layer.self_attn.k_proj.weight.shape, generator=rng)
            )
        for parameter in head.layers.parameters():
            parameter.copy_(halves.rounded(parameter))
    return head


def states_of(token_ids: list[int], layer: int) -> Tensor:
    return tap_states(tiny_target(), [torch.tensor(token_ids)], [layer])[layer][0]


def make_rows(taps: tuple[int, ...]) -> Rows:
    examples = [
        replace(e, taps=tuple(states_of(e.token_ids[:-1].tolist(), tap).numpy() for tap in taps))
        for e in make_examples(5)
    ]
    return make_batch(examples, gamma=GAMMA, offsets=[0, 1, 2, 3, 0]).rows


@torch.no_grad()
def slow_hidden(head: CrossHead, token_ids: list[int], depth: int) -> Tensor:
    """The last token's hidden state, `depth` tokens behind the anchor: one query, one head and one key at a time."""
    anchor, n = len(token_ids) - 1 - depth, len(token_ids)
    rows = head.embed(torch.tensor(token_ids))
    n_lower = len(head.layers) - len(head.tap_layers)
    for number, layer in enumerate(head.layers):
        cos, sin = (table[0, 0] for table in head.rotary(torch.arange(n)[None]))
        sources = rows
        if number >= n_lower:
            states = states_of(token_ids[: anchor + 1], head.tap_layers[number - n_lower])
            sources = torch.cat([states[:anchor], rows[anchor:]])
        out = []
        for place in range(n):
            if number >= n_lower and place < anchor:
                out.append(torch.full((32,), torch.nan))  # what stands here must not be used
                continue
            query = turned(layer.self_attn.q_proj(layer.input_layernorm(rows[place])), cos[place], sin[place])
            keys, values = [], []
            for other in range(place + 1):
                h = layer.input_layernorm(sources[other])
                keys.append(turned(layer.self_attn.k_proj(h), cos[other], sin[other]))
                values.append(layer.self_attn.v_proj(h).view(-1, head.shape.head_dim))
            attended = []
            group = head.shape.n_heads // head.shape.n_kv_heads
            for number_of_head, one in enumerate(query):
                scores = torch.stack([key[number_of_head // group] @ one for key in keys])
                weights = (scores * head.shape.head_dim**-0.5).softmax(0)
                attended.append(
                    sum(w * value[number_of_head // group] for w, value in zip(weights, values, strict=True))
                )
            x = rows[place] + layer.self_attn.o_proj(torch.cat(attended))
            out.append(x + layer.mlp(layer.post_attention_layernorm(x)))
        rows = torch.stack(out)
    return head.norm(rows[-1])


def turned(flat: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    x = flat.view(-1, len(cos))
    half = len(cos) // 2
    return x * cos + torch.cat([-x[:, half:], x[:, :half]], dim=1) * sin


@pytest.mark.parametrize("taps", [(1,), (1, 0), (0, 1, 1)])
def test_training_sees_what_drafting_will_see(taps: tuple[int, ...]) -> None:
    head, rows = make_head(taps), make_rows(taps)
    assert rows.taps.shape[0] == len(taps)
    with torch.no_grad():
        fast = head.row_hidden(rows)
    for row in range(len(rows.depth)):
        text = rows.token_ids[rows.sequence[row], : rows.position[row] + 1].tolist()
        torch.testing.assert_close(fast[row], slow_hidden(head, text, int(rows.depth[row])), **CLOSE)
    assert {0, 1, 2, 3} == set(rows.depth.tolist())


def test_gradients_reach_every_weight() -> None:
    head = make_head()
    head.row_logits(make_rows((1, 0))).logsumexp(-1).sum().backward()
    assert all(bool(p.grad.abs().sum() > 0) for p in head.parameters())


def test_trajectories_without_these_states_are_refused() -> None:
    head, rows = make_head(), make_rows((1, 0))
    for taps in (None, rows.taps[:1]):
        with pytest.raises(UsageError, match="without the hidden states that a cross head reads"):
            head.row_hidden(replace(rows, taps=taps))
    with pytest.raises(UsageError, match="4 taps are more than the head's 3 layers"):
        head.tap((0, 0, 1, 1))


class FixedStates:
    """Hidden states of a text that is known beforehand; only those of the first n_slots tokens may be read."""

    def __init__(self, n_slots: int) -> None:
        self.n_slots = n_slots

    def inner(self, layer: int, start: int, end: int) -> Tensor:
        assert end <= self.n_slots
        return states_of(TEXT, layer)[start:end]


def make_model(n_committed: int, lean: bool) -> tuple[CrossModel, FixedStates]:
    model, source = CrossModel(make_head(), "cross"), FixedStates(n_committed - 1)
    if lean and not can_draft_lean(model.head):
        pytest.skip("this processor has no products of 16-bit weights")
    model = LeanCross(model) if lean else model
    model.attach(source)
    model.prefill(torch.tensor(TEXT[: n_committed - 1]))
    return model, source


def wanted(text: list[int], depth: int) -> Tensor:
    head = make_head()
    with torch.no_grad():
        return head.output.expand(head.output(slow_hidden(head, text, depth)[None], head.drafting_weight()))[
            0
        ]


def run_committed(model: CrossModel, text: list[int]) -> Tensor:
    start, places = model.n_slots, torch.arange(len(text))
    return model.forward(torch.tensor(text[start:]), places[start:], places[None] <= places[start:, None])


def draft(model: CrossModel, token: int, position: int) -> Tensor:
    seen = torch.ones(1, model.n_slots + 1, dtype=torch.bool)
    return model.forward(torch.tensor([token]), torch.tensor([position]), seen)[0]


@pytest.mark.parametrize("lean", [False, True])
def test_drafting_gives_what_training_saw_and_forgets_what_it_drafted(lean: bool) -> None:
    model, source = make_model(7, lean)
    assert model.n_slots == 6
    torch.testing.assert_close(run_committed(model, TEXT[:7])[-1], wanted(TEXT[:7], 0), **CLOSE)
    torch.testing.assert_close(draft(model, 20, 7), wanted(TEXT[:8], 1), **CLOSE)
    torch.testing.assert_close(draft(model, 21, 8), wanted(TEXT[:9], 2), **CLOSE)
    # two tokens accepted and one more committed: drafted slots go, whatever is asked to stay
    model.keep(torch.tensor([*range(7), 7, 8]))
    assert model.n_slots == 7
    source.n_slots = 9
    rows = run_committed(model, TEXT[:10])
    for row, end in zip(rows, (8, 9, 10), strict=True):
        if lean and end < 10:
            assert bool((row == -torch.inf).all())  # no proposal
            continue
        torch.testing.assert_close(row, wanted(TEXT[:end], 0), **CLOSE)
    torch.testing.assert_close(draft(model, 23, 10), wanted(TEXT[:11], 1), **CLOSE)
    # nothing accepted
    model.keep(torch.arange(10))
    source.n_slots = 10
    torch.testing.assert_close(run_committed(model, TEXT[:11])[0], wanted(TEXT[:11], 0), **CLOSE)
    model.reset()
    assert model.n_slots == 0


@pytest.mark.parametrize("lean", [False, True])
def test_siblings_of_a_tree_do_not_see_each_other(lean: bool) -> None:
    model, _ = make_model(7, lean)
    run_committed(model, TEXT[:7])
    seen = torch.cat([torch.ones(2, 7, dtype=torch.bool), torch.eye(2, dtype=torch.bool)], dim=1)
    both = model.forward(torch.tensor([20, 30]), torch.tensor([7, 7]), seen)
    below = torch.cat([torch.ones(1, 7, dtype=torch.bool), torch.tensor([[False, True, True]])], dim=1)
    deeper = model.forward(torch.tensor([31]), torch.tensor([8]), below)[0]
    torch.testing.assert_close(both[0], wanted([*TEXT[:7], 20], 1), **CLOSE)
    torch.testing.assert_close(both[1], wanted([*TEXT[:7], 30], 1), **CLOSE)
    torch.testing.assert_close(deeper, wanted([*TEXT[:7], 30, 31], 2), **CLOSE)


@pytest.mark.parametrize("lean", [False, True])
def test_drafting_starts_behind_a_committed_token_that_has_run(lean: bool) -> None:
    model, _ = make_model(7, lean)
    with pytest.raises(RunError, match="'cross' drafts only behind a committed token that it has run"):
        draft(model, 20, 7)
    model.reset()
    model.prefill(torch.tensor(TEXT[:6]))
    run_committed(model, TEXT[:7])
    first = draft(model, 20, 7)
    draft(model, 21, 8)
    # what was drafted goes, the anchor stays, and the same can be drafted again
    model.keep(torch.arange(7))
    torch.testing.assert_close(draft(model, 20, 7), first, **CLOSE)
    # without its anchor the text is there for lower layers only
    model.keep(torch.arange(6))
    with pytest.raises(RunError, match="run that first"):
        draft(model, 20, 7)


@pytest.mark.parametrize("lean", [False, True])
def test_rows_behind_every_token_of_a_text(lean: bool) -> None:
    model, source = make_model(5, lean)
    source.n_slots = len(TEXT)
    rows = text_rows(model, torch.tensor(TEXT), 4)
    assert len(rows) == len(TEXT) - 4
    for row, end in zip(rows, range(5, len(TEXT) + 1), strict=True):
        torch.testing.assert_close(row, wanted(TEXT[:end], 0), **CLOSE)


def test_a_head_without_a_target_is_refused() -> None:
    model = CrossModel(make_head(), "alone")
    model.prefill(torch.tensor([1, 2]))
    with pytest.raises(RunError, match="'alone' is not attached"):
        draft(model, 3, 2)


def test_the_weights_can_be_had_again() -> None:
    model, source = make_model(7, lean=True)
    assert isinstance(model, LeanCross)
    assert all(p.numel() == 0 for p in matrices(model.head))
    plain = model.plain()
    again = dict(plain.head.named_parameters())
    for name, parameter in make_head().named_parameters():
        torch.testing.assert_close(again[name], parameter, rtol=0, atol=0)
    plain.prefill(torch.tensor(TEXT[:6]))
    torch.testing.assert_close(run_committed(plain, TEXT[:7])[-1], wanted(TEXT[:7], 0), **CLOSE)
    assert source.n_slots == 6


@pytest.mark.parametrize("lean", [False, True])
def test_the_target_gives_its_inner_states(lean: bool) -> None:
    if lean and not is_available():
        pytest.skip("this processor has no packed products")
    target = WatchedModel(tiny_model("llama", tie_word_embeddings=True), "tiny", lean=lean)
    assert target.is_lean == lean
    target.watch((1, 0))
    target.model(torch.tensor([TEXT[:4]]))
    target.prefill(torch.tensor(TEXT[:6]))
    seen = torch.ones(3, 9, dtype=torch.bool).tril(6)
    target.forward(torch.tensor(TEXT[6:9]), torch.arange(6, 9), seen)
    for layer in (0, 1):
        torch.testing.assert_close(target.inner(layer, 2, 9), states_of(TEXT, layer)[2:9], **CLOSE)
    # the same model may run elsewhere, which is none of this cache's business
    target.model(torch.tensor([TEXT[:4]]))
    WatchedModel(target.model, "other", lean=lean).prefill(torch.tensor(TEXT[:2]))
    assert target.inner(1, 0, 20).shape[0] == target.hidden(0, 20).shape[0] == target.n_slots == 9
    target.keep(torch.arange(7))
    assert target.inner(1, 0, 9).shape[0] == target.n_slots == 7
    target.reset()
    assert target.inner(1, 0, 9).shape[0] == 0
    with pytest.raises(UsageError, match="'tiny' has 2 layers, and the head reads in front of number 7"):
        target.watch((1, 7))


def test_a_stored_head_is_the_same_head(tmp_path: Path) -> None:
    head, rows = make_head((1, 0)), make_rows((1, 0))
    save_drafter(tmp_path / "head", head, config_of(head, "tiny", {}), bits=16)
    loaded = load_drafter(tmp_path / "head", tiny_target().embed_tokens.weight)
    assert isinstance(loaded, CrossHead)
    assert loaded.tap_layers == (1, 0)
    with torch.no_grad():
        torch.testing.assert_close(
            loaded.row_logits(rows), head.row_logits(rows), rtol=0, atol=2e-2
        )  # 16 bits


def test_a_large_head_is_stored_in_files_of_a_given_size(tmp_path: Path) -> None:
    head, config = make_head(), config_of(make_head(), "tiny", {})
    weight = tiny_target().embed_tokens.weight
    save_drafter(tmp_path, head, config, bits=8, file_bytes=20_000)
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert len(files) >= 2
    assert files[0] == f"model-00001-of-0000{len(files)}.safetensors"
    assert all((tmp_path / name).stat().st_size < 24_500 for name in files)  # with their headers
    found = load_drafter(tmp_path, weight).state_dict()
    (tmp_path / "one").mkdir()
    save_drafter(tmp_path / "one", head, config, bits=8)
    expected = load_drafter(tmp_path / "one", weight).state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0)
    # a folder that is written again in one file is read from that file
    save_drafter(tmp_path, make_head((0,)), config, bits=8)
    assert load_drafter(tmp_path, weight).tap_layers == (0,)
    save_drafter(tmp_path, head, config, bits=8, file_bytes=20_000)
    (tmp_path / files[-1]).unlink()
    with pytest.raises(RunError, match="cannot load the drafter .*restore its files"):
        load_drafter(tmp_path, weight)
