"""A small pair and small drafters that the tests of the benches share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from acceptlab.drafters.causal import CausalDrafter
from acceptlab.drafters.output_layer import CutOutput
from acceptlab.pairs.pair import Pair
from tests.engine.helpers import related_pair
from tests.tiny import VOCAB
from tests.training.helpers import tiny_target

PROMPT = (5, 6, 7, 8, 9, 10)


def small_pair() -> Pair:
    """A tiny target with a draft that is right about half the time, and no tokenizer."""
    target, draft = related_pair("llama")
    return Pair(
        name="small",
        tokenizer=None,
        target_model=target.model,
        draft_model=draft.model,
        target=target,
        draft=draft,
        draft_note="",
        eos_ids=frozenset(),
        window_limit=None,
        notes=[],
    )


def small_drafter() -> CausalDrafter:
    """A drafter of two layers whose output is cut and biased."""
    output = CutOutput(torch.arange(3, 50), torch.linspace(1, 3, VOCAB), 32)
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        output.rest_weight.copy_(torch.randn(32, generator=rng) / 6)
        output.bias.copy_(torch.randn(48, generator=rng))
    return CausalDrafter.from_target(tiny_target(), (0, -1), output)


def plain_text(model: Any, prompt: Sequence[int], n_tokens: int) -> tuple[int, ...]:
    """Greedy continuation by whole forwards."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(n_tokens):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return tuple(ids[len(prompt) :])
