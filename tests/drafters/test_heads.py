"""The heads' batched training passes against a step-by-step run of what drafting does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from acceptlab.drafters.base import Rows
from acceptlab.drafters.causal import CausalDrafter
from acceptlab.drafters.files import KINDS, config_of, load_drafter, save_drafter
from acceptlab.drafters.heads import BlockHead, FeatureHead
from acceptlab.drafters.llama import attend
from acceptlab.drafters.output_layer import CutOutput
from acceptlab.training.corpus import make_batch
from tests.training.helpers import VOCAB, tiny_target
from tests.training.test_train import make_examples

GAMMA = 4
# float32, three layers
CLOSE = {"rtol": 0, "atol": 3e-5}


def make_head(kind: str) -> FeatureHead | BlockHead:
    head = KINDS[kind].from_target(
        tiny_target(), (0, 1, -1), CutOutput(torch.arange(3, 40), torch.ones(VOCAB), 32)
    )
    assert isinstance(head, FeatureHead | BlockHead)
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in (
            head.fuse_feature.weight,
            head.fuse_token.weight,
            *([head.slots] if kind == "block" else []),
        ):
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=rng))
    return head


def make_rows(*, shared: bool = False) -> Rows:
    rows = make_batch(make_examples(5), gamma=GAMMA, offsets=[0, 1, 2, 3, 0], with_features=True).rows
    if shared:
        # the beginning without hidden states, as a system prompt
        rows.token_ids[:, : rows.features_start + 1] = torch.tensor([4, 9])
    return rows


def context(head: FeatureHead | BlockHead, rows: Rows, sequence: int, end: int) -> tuple[Tensor, Tensor]:
    """Fused inputs and positions of one sequence's tokens up to position `end`, inclusive."""
    start = rows.features_start + 1
    positions = torch.arange(start, end + 1)
    fused = head.fuse(
        rows.features[sequence, positions - 1 - rows.features_start], rows.token_ids[sequence, positions]
    )
    return fused, positions


def draft_feature(head: FeatureHead, rows: Rows, sequence: int, anchor: int, depth: int) -> Tensor:
    """The slow oracle: one token at a time through all layers.

    Hidden states are the true ones up to the anchor, none where none are stored, and the head's own behind it.
    """
    caches: list[list[Tensor]] = [[] for _ in head.layers]
    hidden = torch.zeros(32)
    for position in range(anchor + depth + 1):
        if position <= anchor:
            known = position > rows.features_start
            hidden = rows.features[sequence, position - 1 - rows.features_start] if known else torch.zeros(32)
        x = head.fuse(hidden, rows.token_ids[sequence, position])[None, None]
        for layer, cache in zip(head.layers, caches, strict=True):
            query, key, value = layer.project(x, head.rotary(torch.tensor([[position]])))
            cache[:] = [torch.cat([*cache[:1], key], dim=2), torch.cat([*cache[1:], value], dim=2)]
            everything = torch.ones(1, position + 1, dtype=torch.bool)
            x = layer.finish(x, attend(query, cache[0], cache[1], everything))
        hidden = head.norm(x)[0, 0]
    return hidden


def draft_block(head: BlockHead, rows: Rows, sequence: int, anchor: int, depth: int, gamma: int) -> Tensor:
    """The slow oracle: context before the anchor, then the block with every place seeing every place."""
    fused, positions = context(head, rows, sequence, anchor)
    block = head.block_inputs(fused[-1], gamma)
    inputs = torch.cat([fused[:-1], block])
    places = torch.cat([positions[:-1], anchor + torch.arange(gamma)])
    query, key, value = head.layer.project(inputs[None], head.rotary(places[None]))
    everything = torch.ones(gamma, len(places), dtype=torch.bool)
    attended = attend(query[:, :, -gamma:], key, value, everything)
    return head.norm(head.layer.finish(block[None], attended))[0, depth]


@pytest.mark.parametrize("shared", [False, True])
def test_feature_head_trains_on_what_it_will_draft(shared: bool) -> None:
    head, rows = make_head("feature"), make_rows(shared=shared)
    with torch.no_grad():
        fast = head.row_hidden(rows)
        for row in range(len(rows.depth)):
            sequence, depth = int(rows.sequence[row]), int(rows.depth[row])
            slow = draft_feature(head, rows, sequence, int(rows.position[row]) - depth, depth)
            torch.testing.assert_close(fast[row], slow, **CLOSE)


def test_a_head_begins_with_what_its_causal_drafter_computes() -> None:
    output = CutOutput(torch.arange(3, 40), torch.ones(VOCAB), 32)
    drafter = CausalDrafter.from_target(tiny_target(), (0, 1, -1), output)
    with torch.no_grad():
        output.bias.copy_(torch.linspace(-1, 1, 38))
        output.rest_weight.fill_(0.1)
        drafter.norm.weight.mul_(1.3)
        drafter.layers[1].mlp.up_proj.weight.mul_(0.7)
    head, rows = FeatureHead.from_causal(drafter), make_rows()
    wanted = drafter.row_logits(rows).detach()
    torch.testing.assert_close(head.row_logits(rows).detach(), wanted, **CLOSE)
    head.row_logits(rows).logsumexp(-1).sum().backward()
    # hidden states count for nothing yet, and have a slope
    assert bool(head.fuse_feature.weight.grad.any())
    assert all(p.grad is None for p in drafter.parameters())
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.1)
    torch.testing.assert_close(drafter.row_logits(rows).detach(), wanted, rtol=0, atol=0)
    assert float((head.row_logits(rows).detach() - wanted).abs().max()) > 0.1


def test_block_head_trains_on_what_it_will_draft() -> None:
    head, rows = make_head("block"), make_rows()
    with torch.no_grad():
        fast = head.row_hidden(rows)
        for row in range(len(rows.depth)):
            sequence, depth = int(rows.sequence[row]), int(rows.depth[row])
            slow = draft_block(head, rows, sequence, int(rows.position[row]) - depth, depth, GAMMA)
            torch.testing.assert_close(fast[row], slow, **CLOSE)


def test_block_proposals_ignore_the_tokens_drafted_in_the_window() -> None:
    head, rows = make_head("block"), make_rows()
    row = int((rows.depth == 2).nonzero()[0, 0])
    changed = rows.token_ids.clone()
    changed[rows.sequence[row], rows.position[row]] = 50
    with torch.no_grad():
        before, after = head.row_hidden(rows)[row], head.row_hidden(replace(rows, token_ids=changed))[row]
    torch.testing.assert_close(before, after)


@pytest.mark.parametrize("kind", ["feature", "block"])
def test_hidden_states_behind_the_anchor_are_never_read(kind: str) -> None:
    head, rows = make_head(kind), make_rows()
    row = int((rows.depth == 3).nonzero()[0, 0])
    anchor = int(rows.position[row]) - 3
    changed = rows.features.clone()
    # the anchor's own input uses position anchor - 1
    changed[rows.sequence[row], anchor - rows.features_start :] += 1
    with torch.no_grad():
        before, after = head.row_hidden(rows)[row], head.row_hidden(replace(rows, features=changed))[row]
    torch.testing.assert_close(before, after)


@pytest.mark.parametrize("bits", [16, 8])
@pytest.mark.parametrize("kind", ["feature", "block"])
def test_heads_have_gradients_and_survive_saving(kind: str, bits: int, tmp_path: Path) -> None:
    head, rows = make_head(kind), make_rows()
    head.first_position.fill_(7)
    head.row_logits(rows).logsumexp(-1).sum().backward()
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in head.parameters())
    save_drafter(tmp_path / "h", head, config_of(head, "tiny", {}), bits=bits)
    loaded = load_drafter(tmp_path / "h", tiny_target().embed_tokens.weight)
    with torch.no_grad():
        error = (loaded.row_logits(rows) - head.row_logits(rows)).abs().max()
    # weights are kept in 16 or 8 bits; logits reach about 7
    assert 0 < float(error) < {16: 5e-2, 8: 0.5}[bits]
    assert (loaded.kind, loaded.shape.n_layers) == (kind, {"feature": 3, "block": 1}[kind])
    assert int(loaded.first_position) == 7


def test_rows_without_hidden_states_are_refused() -> None:
    with pytest.raises(ValueError, match="hidden states"):
        make_head("feature").row_hidden(replace(make_rows(), features=None))
