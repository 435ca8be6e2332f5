"""Trained drafters as drafts of a pair: greedy decoding gives the target's own text, whatever the drafter says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from acceptlab.drafters.cross_model import CrossModel
from acceptlab.drafters.files import KINDS, config_of, save_drafter
from acceptlab.drafters.head_model import HeadModel
from acceptlab.drafters.output_layer import CutOutput
from acceptlab.engine import Settings, decode
from acceptlab.errors import UsageError
from acceptlab.pairing import ProposalKind
from acceptlab.pairs.cached import CachedModel
from acceptlab.pairs.trained import WatchedModel, load_trained
from acceptlab.rules import parse_rule
from acceptlab.sampling import Warp
from acceptlab.tree import parse_tree
from tests.tiny import VOCAB, tiny_model
from tests.training.helpers import tiny_target

PROMPT = [5, 6, 7, 8, 9, 10]


def greedy_text(n_tokens: int) -> list[int]:
    model = tiny_model("llama", tie_word_embeddings=True)
    ids = list(PROMPT)
    for _ in range(n_tokens):
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(PROMPT) :]


@pytest.mark.parametrize("kind", ["causal", "feature", "block", "cross"])
@pytest.mark.parametrize("tree", ["chain:3", "kary:depth=2,branch=2"])
def test_greedy_decoding_with_a_trained_drafter_is_the_targets(kind: str, tree: str, tmp_path: Path) -> None:
    made = KINDS[kind].from_target(
        tiny_target(), (0, -1), CutOutput(torch.arange(3, 50), torch.ones(VOCAB), 32)
    )
    save_drafter(tmp_path / kind, made, config_of(made, "tiny", {}))
    model = tiny_model("llama", tie_word_embeddings=True)
    draft = load_trained(tmp_path / kind, model)
    target = CachedModel(model, "tiny")
    if isinstance(draft, HeadModel | CrossModel):
        target = WatchedModel(model, "tiny")
        if isinstance(draft, CrossModel):
            target.watch(draft.tap_layers)
        draft.attach(target)
    settings = Settings(parse_tree(tree), parse_rule("greedy"), ProposalKind.RANKED, Warp(1.0, 0, 1.0), 24, 0)
    steps = list(decode(target, draft, PROMPT, "p", settings))
    assert [token for step in steps for token in step.emitted] == greedy_text(24)
    # every step has both models' distributions at the root
    assert all(step.tree.n_nodes > 0 for step in steps[:-1])


def test_hidden_states_follow_the_cache() -> None:
    model = tiny_model("llama", tie_word_embeddings=True)
    watched = WatchedModel(model, "tiny")
    watched.prefill(torch.tensor(PROMPT))
    plain = model.base_model(torch.tensor([PROMPT])).last_hidden_state[0].detach()
    watched.keep(torch.tensor([0, 1, 2, 3]))
    torch.testing.assert_close(watched.hidden(1, 4), plain[1:4], rtol=0, atol=2e-5)
    assert watched.hidden(0, 4).shape[0] == watched.n_slots == 4


def test_hidden_states_of_a_long_text_and_of_an_accepted_path() -> None:
    model = tiny_model("llama", tie_word_embeddings=True, max_position_embeddings=600)
    watched = WatchedModel(model, "tiny")
    watched.watch((1,))
    text = torch.arange(530) % 50 + 5
    plain = model.base_model(text[None], output_hidden_states=True)
    watched.prefill(text[:200])
    for start in (200, 365):  # over the end of the first buffer, and of one that has grown
        places = torch.arange(start, start + 165)
        watched.forward(text[places], places, torch.arange(start + 165) <= places[:, None])
    wanted = (plain.last_hidden_state[0].detach(), plain.hidden_states[1][0].detach())
    slots = torch.arange(530)
    for kept in (slots, torch.cat([slots[:300], torch.tensor([302, 305])])):
        watched.keep(kept)
        found = (watched.hidden(0, 530), watched.inner(1, 0, 530))
        for states, rows in zip(found, wanted, strict=True):
            torch.testing.assert_close(states, rows[kept], rtol=0, atol=5e-5)


def test_targets_without_a_final_norm_are_refused() -> None:
    with pytest.raises(UsageError, match="Llama-type"):
        WatchedModel(tiny_model("gpt2"), "gpt2")
