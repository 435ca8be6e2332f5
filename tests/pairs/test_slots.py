"""Buffers of keys and values: used again for the next text, grown with what they hold, never read unwritten."""

from __future__ import annotations

import pytest
import torch

from acceptlab.pairs import packed
from acceptlab.pairs.cached import CachedModel
from acceptlab.pairs.slots import FIRST_CAPACITY, SlotCache
from tests.tiny import VOCAB, tiny_model

needs_packing = pytest.mark.skipif(not packed.is_available(), reason="this PyTorch cannot pack weights")
TEXT = torch.arange(9) * 5 % VOCAB


def rows_of_a_tree(model: CachedModel) -> torch.Tensor:
    """Logits of the last token of a text and of two continuations, then of what follows the second one."""
    n = len(TEXT)
    model.reset()
    model.prefill(TEXT[:-1])
    visible = torch.ones((3, n + 2), dtype=torch.bool).tril(n - 1)
    visible[2, n] = False
    tree = model.forward(torch.tensor([int(TEXT[-1]), 7, 8]), torch.tensor([n - 1, n, n]), visible)
    model.keep(torch.tensor([*range(n), n + 1]))
    after = model.forward(torch.tensor([3]), torch.tensor([n + 1]), torch.ones((1, n + 2), dtype=torch.bool))
    return torch.cat([tree, after])


@needs_packing
def test_the_next_text_uses_the_buffer_again_and_reads_nothing_of_the_last_one() -> None:
    model = CachedModel(tiny_model("llama"), "tiny", lean=True)
    expected = rows_of_a_tree(model)
    assert model._slots is not None
    buffer = model._slots.buffer
    with torch.inference_mode():
        buffer.fill_(torch.nan)
    assert torch.equal(rows_of_a_tree(model), expected)
    assert model._slots.buffer is buffer


@needs_packing
def test_a_fork_has_a_buffer_of_its_own() -> None:
    model = CachedModel(tiny_model("llama"), "tiny", lean=True)
    model.prefill(TEXT)
    twin = model.fork()
    twin.prefill(TEXT[:4])
    assert model._slots is not None
    assert twin._slots is not None
    assert model._slots is not twin._slots
    assert (model.n_slots, twin.n_slots) == (len(TEXT), 4)


@pytest.mark.parametrize("n_more", [1, FIRST_CAPACITY, 5 * FIRST_CAPACITY])
def test_a_buffer_grows_with_what_it_holds(n_more: int) -> None:
    cache = SlotCache(2, 4, 8)
    first = cache.open(FIRST_CAPACITY)
    written = torch.randn((2, 4, FIRST_CAPACITY, 8))
    cache.buffer[:, :, first] = written
    assert cache.open(n_more) == slice(FIRST_CAPACITY, FIRST_CAPACITY + n_more)
    assert cache.buffer.shape == (2, 4, max(2 * FIRST_CAPACITY, FIRST_CAPACITY + n_more), 8)
    assert torch.equal(cache.buffer[:, :, :FIRST_CAPACITY], written)


def test_a_buffer_without_content_is_let_go_before_a_larger_one_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = SlotCache(2, 4, 8)
    there: list[bool] = []
    empty = torch.empty

    def watched(shape: tuple[int, ...]) -> torch.Tensor:
        there.append(hasattr(cache, "buffer"))
        return empty(shape)

    monkeypatch.setattr(torch, "empty", watched)
    cache.open(FIRST_CAPACITY + 1)
    assert there == [False]
    assert cache.buffer.shape[2] == 2 * FIRST_CAPACITY
