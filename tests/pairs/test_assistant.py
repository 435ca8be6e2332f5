"""A trained drafter as a transformers model: the same logits, and a refusal where they are not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from acceptlab.drafters.model import DrafterModel
from acceptlab.errors import RunError
from acceptlab.pairs.assistant import assistant_of
from tests.bench.helpers import PROMPT, small_drafter, small_pair
from tests.tiny import VOCAB


def test_a_trained_drafter_becomes_a_llama_with_its_logits() -> None:
    draft = DrafterModel(small_drafter(), "d")
    assistant = assistant_of(replace(small_pair(), draft_model=None, draft=draft))
    places = torch.arange(len(PROMPT))
    draft.reset()
    ours = draft.forward(torch.tensor(PROMPT), places, places[None, :] <= places[:, None])
    with torch.inference_mode():
        theirs = assistant(torch.tensor([PROMPT])).logits[0]
    assert theirs.shape == (len(PROMPT), VOCAB)
    # two implementations of the same float32 arithmetic
    torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-4)
    # ids outside of the cut vocabulary have their share of the rest class
    assert bool(torch.isfinite(theirs).all())


def test_other_logits_are_refused() -> None:
    draft = DrafterModel(small_drafter(), "d")
    draft._weight = draft._weight * 1.01
    with pytest.raises(RunError, match="gives other logits"):
        assistant_of(replace(small_pair(), draft_model=None, draft=draft))


def test_a_draft_that_is_a_transformers_model_is_used_as_it_is() -> None:
    pair = small_pair()
    assert assistant_of(pair) is pair.draft_model
