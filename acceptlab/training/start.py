"""What a training run starts from: the drafter, its output vocabulary, and where it reads the target.

Nothing is trained here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from acceptlab.drafters.base import Drafter
from acceptlab.drafters.causal import CausalDrafter
from acceptlab.drafters.cross_head import CrossHead, default_taps
from acceptlab.drafters.files import KINDS, load_drafter
from acceptlab.drafters.heads import BlockHead, FeatureHead
from acceptlab.drafters.llama import LlamaStack
from acceptlab.drafters.output_layer import CutOutput
from acceptlab.errors import UsageError
from acceptlab.training.corpus import Example, mean_target_probs
from acceptlab.training.settings import TrainSettings

_SAMPLE_TOKENS = 12_000
_SMOOTHING = 1e-7
"""Added to the mean target distribution, so that ids never seen still share in the rest class."""


def make_drafter(settings: TrainSettings, target: LlamaStack, examples: Sequence[Example]) -> Drafter:
    """The drafter that a run starts from: `init`, or layers of the target with the ids of most mass kept.

    Raises:
        UsageError: `init` is of another kind, and no causal drafter to begin a feature head with.
    """
    first_position = max(e.shared_len for e in examples)
    if not settings.init:
        output = cut_output(settings.n_kept, target, examples)
        fresh = KINDS[settings.kind].from_target(target, settings.layers, output).train()
        if isinstance(fresh, FeatureHead | BlockHead):
            fresh.first_position.fill_(first_position)
        if isinstance(fresh, CrossHead) and settings.taps:
            fresh.tap(settings.taps)
        if isinstance(fresh, BlockHead):
            fresh.set_gamma(settings.gamma)
        return fresh
    drafter = load_drafter(Path(settings.init), target.embed_tokens.weight)
    if settings.kind == "feature" and isinstance(drafter, CausalDrafter):
        drafter = FeatureHead.from_causal(drafter)
        drafter.first_position.fill_(first_position)
    if drafter.kind != settings.kind:
        raise UsageError(
            f"'{settings.init}' is a drafter of kind {drafter.kind}, not {settings.kind}: change one"
        )
    if settings.recut:
        drafter.output = move_output(drafter.output, cut_output(settings.n_kept, target, examples))
        drafter.share_embeddings(target.embed_tokens.weight)
    if settings.grow:
        assert isinstance(drafter, CausalDrafter)
        drafter = drafter.grown(target, settings.grow)
    return drafter.train()


def tap_layers(settings: TrainSettings, target: LlamaStack) -> tuple[int, ...]:
    """Layers of the target in front of which the drafter of these settings reads it.

    Raises:
        UsageError: `init` reads it elsewhere, or the target has no layer to begin with.
    """
    if settings.kind != "cross":
        return ()
    if settings.init:
        found = load_drafter(Path(settings.init), target.embed_tokens.weight).tap_layers
        if found and settings.taps and found != settings.taps:
            raise UsageError(
                f"the head in '{settings.init}' has taps {list(found)}, not {list(settings.taps)}: leave taps out"
            )
        return found
    usual = default_taps(settings.layers, target.shape.n_layers)
    return settings.taps or usual


def cut_output(n_kept: int, target: LlamaStack, examples: Sequence[Example]) -> CutOutput:
    """An output layer for the ids that carry most of the target's mass on this text."""
    means = mean_target_probs(examples, target.output_weight, max_tokens=_SAMPLE_TOKENS)
    seen = torch.zeros_like(means)
    for example in examples:
        ids = torch.from_numpy(example.token_ids[example.prompt_len :])
        seen.index_add_(0, ids, torch.ones(len(ids), dtype=seen.dtype))
    # Half from the distributions of a sample of positions, half from counts over all of the text.
    shares = 0.5 * means + 0.5 * seen / seen.sum()
    kept = shares.argsort(descending=True)[:n_kept].sort().values
    return CutOutput(kept, shares + _SMOOTHING, target.shape.hidden_size)


@torch.no_grad()
def move_output(old: CutOutput, new: CutOutput) -> CutOutput:
    """Carry over what was trained of an output layer to another cut.

    Biases of common ids, and the rest class.
    """
    new.rest_weight.copy_(old.rest_weight)
    new.bias[-1] = old.bias[-1]
    classes = old.classes(new.token_ids.long())
    common = classes < old.n_kept
    new.bias[:-1][common] = old.bias[classes[common]]
    return new
