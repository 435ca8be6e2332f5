"""A trained causal drafter on weights of 16 bits: the numbers of `drafters.model`, in less time and memory.

Its passes are short and many, so what counts is reading the weights once and doing little else.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Generic, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from acceptlab.drafters.base import Drafter
from acceptlab.drafters.causal import CausalDrafter
from acceptlab.drafters.cross_head import CrossHead
from acceptlab.drafters.model import DrafterModel
from acceptlab.pairs import halves
from acceptlab.pairs.fused import FusedLlama
from acceptlab.pairs.halves import Half
from acceptlab.pairs.heap import trim_memory
from acceptlab.pairs.layers import HalfLayer, LlamaWeights
from acceptlab.pairs.packed import release
from acceptlab.pairs.slots import LlamaSizes, Part
from acceptlab.passes import Pass

Plain = TypeVar("Plain", CausalDrafter, CrossHead)


def can_draft_lean(drafter: CausalDrafter | CrossHead) -> bool:
    """Whether the drafter's weights are 16-bit numbers, and its passes can run on them here."""
    if drafter.embeddings.device.type != "cpu" or not halves.is_available():
        return False
    return all(halves.holds(weight) for weight in matrices(drafter))


def matrices(drafter: CausalDrafter | CrossHead) -> list[nn.Parameter]:
    """The matrices of the layers."""
    return [parameter for parameter in drafter.layers.parameters() if parameter.ndim == 2]


class HalfOutput:
    """The output layer of a drafter in 16 bits: its logits over the whole vocabulary."""

    def __init__(self, drafter: Drafter) -> None:
        self._half = Half(drafter.drafting_weight(), drafter.output.bias.detach())
        self._log_shares = drafter.output.rest_log_shares
        self._kept = drafter.output.token_ids.numpy().astype(np.int64)
        self.nbytes = self._half.nbytes

    def logits(self, hidden: Float[Tensor, "rows size"]) -> Float[Tensor, "rows vocab"]:
        """As `CutOutput.expand` of its logits, in half the time."""
        logits = self._half.linear(hidden)
        full = logits[:, -1:] + self._log_shares
        full.numpy()[:, self._kept] = logits[:, :-1].numpy()
        return full


class HalfWeights(Generic[Plain]):
    """All matrices of a drafter in 16 bits. The drafter gives those of its layers away."""

    def __init__(self, drafter: Plain) -> None:
        self._drafter: Plain = drafter
        with torch.no_grad():
            self.output = HalfOutput(drafter)
            dim = drafter.shape.head_dim
            self._layers = [HalfLayer(LlamaWeights.of(layer, dim)) for layer in drafter.layers]
            for weight in matrices(drafter):
                weight.data = weight.data.new_empty((0, weight.shape[1]))
        release([drafter.embeddings])  # the output layer has read its rows
        self.nbytes = self.output.nbytes + sum(layer.nbytes for layer in self._layers)

    def stack(self, first: int, end: int) -> FusedLlama:
        """Layers first to end - 1, to be run one after the other."""
        shape = self._drafter.shape
        sizes = LlamaSizes(shape.n_heads, shape.n_kv_heads, shape.head_dim, shape.rms_eps)
        return FusedLlama(self._layers[first:end], self._drafter.norm.weight.detach(), sizes, self._rotary)

    def plain(self) -> Plain:
        """The drafter with all weights in float32 again; the target's embeddings are not copied."""
        copied = deepcopy(self._drafter, {id(self._drafter.embeddings): self._drafter.embeddings})
        for half, layer in zip(self._layers, copied.layers, strict=True):
            half.fill(layer)
        return copied

    def _rotary(self, positions: Int[Tensor, " rows"]) -> tuple[Tensor, Tensor]:
        cos, sin = self._drafter.rotary(positions[None])
        return cos[0, 0], sin[0, 0]


def plain_drafter(model: DrafterModel) -> CausalDrafter:
    """The drafter behind a model, in float32."""
    return model.plain() if isinstance(model, LeanDrafter) else model.drafter


class LeanDrafter(DrafterModel):
    """Runs a `CausalDrafter` on weights of 16 bits. The drafter that it is made from gives its matrices away.

    `drafter` has none from then on: `plain` gives one that runs on its own.
    """

    is_lean = True

    def __init__(self, model: DrafterModel) -> None:
        drafter = model.drafter
        self._weights = HalfWeights(drafter)
        self._layers = self._weights.stack(0, len(drafter.layers))
        self._name_and_size(drafter, model.name)
        trim_memory()

    def plain(self) -> CausalDrafter:
        """The drafter with all weights in float32; the target's embeddings are not copied."""
        return self._weights.plain()

    @property
    def nbytes(self) -> int:
        """Memory of the matrices, which `drafter` lacks."""
        return self._weights.nbytes

    @property
    def n_slots(self) -> int:
        """Slots in the cache."""
        return self._slots.length

    def reset(self) -> None:
        """Empty the cache."""
        self._slots = self._layers.new_cache()

    @torch.inference_mode()
    def prefill(self, token_ids: Int[Tensor, " tokens"]) -> None:
        """Append a plain causal run of tokens behind a dense prefix; no logits are computed."""
        if len(token_ids):
            self._pass(token_ids, torch.arange(self.n_slots, self.n_slots + len(token_ids)), None)

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Int[Tensor, " rows"],
        positions: Int[Tensor, " rows"],
        visible: Bool[Tensor, "rows slots"],
    ) -> Float[Tensor, "rows vocab"]:
        """Append one slot a row; next-token logits of every row in float32, over the whole vocabulary."""
        return self._logits(self._pass(token_ids, positions, visible))

    @torch.inference_mode()
    def forward_many(self, passes: Sequence[Pass]) -> list[Float[Tensor, "rows vocab"]]:
        """Passes of several forks in one go."""
        parts = []
        for each in passes:
            assert isinstance(each.model, LeanDrafter)
            parts.append(Part(each.model._slots, len(each.token_ids), each.visible))
        x = self.drafter.embed(torch.cat([each.token_ids for each in passes]))
        x = self._layers.run(x, torch.cat([each.positions for each in passes]), parts)
        return list(torch.split(self._logits(x), [part.n_rows for part in parts]))

    def _pass(self, token_ids: Tensor, positions: Tensor, visible: Tensor | None) -> Tensor:
        part = Part(self._slots, len(token_ids), visible)
        return self._layers.run(self.drafter.embed(token_ids), positions, [part])

    def _logits(self, x: Float[Tensor, "rows size"]) -> Float[Tensor, "rows vocab"]:
        return self._weights.output.logits(self._layers.final(x))

    @torch.inference_mode()
    def keep(self, slots: Int[Tensor, " kept"]) -> None:
        """Keep exactly these slots, in this order; slots that stay in place are not copied."""
        self._slots.keep_slots(slots)
