"""Heads as language models: the same logits as in training, trees, forgetting, and lossless decoding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from acceptlab.drafters.base import Rows
from acceptlab.drafters.head_model import HeadModel
from acceptlab.errors import RunError
from tests.drafters.test_heads import GAMMA, make_head
from tests.training.helpers import tiny_target
from tests.training.test_train import hidden_states

PROMPT = [5, 6, 7, 8, 9, 10, 11]
FIRST = 3
# float32, three layers
CLOSE = {"rtol": 0, "atol": 3e-5}


class FixedStates:
    """Hidden states of a text that is known beforehand; only those of the first n_slots tokens may be read."""

    def __init__(self, text: list[int], n_slots: int) -> None:
        self.states = hidden_states(text)
        self.n_slots = n_slots

    def hidden(self, start: int, end: int) -> Tensor:
        assert end <= self.n_slots
        return self.states[start:end]


def make_model(kind: str, text: list[int], n_slots: int) -> tuple[HeadModel, FixedStates]:
    head = make_head(kind)
    head.first_position.fill_(FIRST)
    if kind == "block":
        head.set_gamma(GAMMA)
    model, source = HeadModel(head, kind), FixedStates(text, n_slots)
    model.attach(source)
    return model, source


def trained_logits(model: HeadModel, text: list[int], anchor: int, depth: int) -> Tensor:
    """What training computes for the row behind `depth` drafted tokens, in a window of the full width."""
    states = hidden_states(text)
    padded = text + [0] * GAMMA
    depths = torch.arange(GAMMA)
    rows = Rows(
        torch.tensor([padded]),
        torch.zeros_like(depths),
        anchor + depths,
        depths,
        states[None, FIRST - 1 :],
        FIRST - 1,
    )
    missing = len(padded) - states.shape[0]
    rows = Rows(
        rows.token_ids,
        rows.sequence,
        rows.position,
        rows.depth,
        torch.cat([rows.features, torch.zeros(1, missing, 32)], dim=1),
        FIRST - 1,
    )
    with torch.no_grad():
        return model.head.output.expand(model.head.row_logits(rows))[depth]


def draft_chain(model: HeadModel, committed: list[int], drafted: list[int]) -> list[Tensor]:
    """Logits behind the text and behind each drafted token but the last, as the engine asks for them."""
    start, n = model.n_slots, len(committed)
    slots = torch.arange(n)
    found = [
        model.forward(torch.tensor(committed[start:]), slots[start:], slots[None] <= slots[start:, None])[-1]
    ]
    for depth, token in enumerate(drafted[:-1], start=1):
        seen = torch.ones(1, n + depth, dtype=torch.bool)
        found.append(model.forward(torch.tensor([token]), torch.tensor([n - 1 + depth]), seen)[0])
    return found


@pytest.mark.parametrize("kind", ["feature", "block"])
def test_drafting_gives_what_training_saw_and_forgets_what_it_drafted(kind: str) -> None:
    text = [*PROMPT, 20, 21, 22, 23, 24]
    model, source = make_model(kind, text, len(PROMPT) - 1)
    model.prefill(torch.tensor(PROMPT[:-1]))
    assert model.n_slots == 6
    for depth, logits in enumerate(draft_chain(model, PROMPT, [20, 21, 22])):
        torch.testing.assert_close(logits, trained_logits(model, text, 6, depth), **CLOSE)
    # two tokens accepted and one more committed: the drafted slots go, whatever is asked to stay
    model.keep(torch.tensor([*range(7), 7, 8]))
    assert model.n_slots == 7
    source.n_slots = 9
    for depth, logits in enumerate(draft_chain(model, text[:10], [23, 24])):
        torch.testing.assert_close(logits, trained_logits(model, text, 9, depth), **CLOSE)
    model.reset()
    assert model.n_slots == 0


def test_siblings_of_a_tree_do_not_see_each_other() -> None:
    model, _ = make_model("feature", PROMPT, len(PROMPT) - 1)
    model.prefill(torch.tensor(PROMPT[:-1]))
    model.forward(torch.tensor(PROMPT[-1:]), torch.tensor([6]), torch.ones(1, 7, dtype=torch.bool))
    seen = torch.cat([torch.ones(2, 7, dtype=torch.bool), torch.eye(2, dtype=torch.bool)], dim=1)
    both = model.forward(torch.tensor([20, 30]), torch.tensor([7, 7]), seen)
    below = torch.cat([torch.ones(1, 7, dtype=torch.bool), torch.tensor([[False, True, True]])], dim=1)
    deeper = model.forward(torch.tensor([31]), torch.tensor([8]), below)[0]
    torch.testing.assert_close(both[0], trained_logits(model, [*PROMPT, 20], 6, 1), **CLOSE)
    torch.testing.assert_close(both[1], trained_logits(model, [*PROMPT, 30], 6, 1), **CLOSE)
    torch.testing.assert_close(deeper, trained_logits(model, [*PROMPT, 30, 31], 6, 2), **CLOSE)


def test_a_block_has_no_proposal_beyond_its_width() -> None:
    model, _ = make_model("block", PROMPT, len(PROMPT) - 1)
    model.prefill(torch.tensor(PROMPT[:-1]))
    found = draft_chain(model, PROMPT, [20, 21, 22, 23, 24, 25])
    assert [bool(torch.isfinite(logits).all()) for logits in found] == [True] * GAMMA + [False] * 2
    assert found[-1].max() == -torch.inf


def test_a_head_without_a_target_is_refused() -> None:
    with pytest.raises(RunError, match="not attached"):
        HeadModel(make_head("feature"), "alone").prefill(torch.tensor([1, 2]))
    assert tiny_target().shape.hidden_size == 32
