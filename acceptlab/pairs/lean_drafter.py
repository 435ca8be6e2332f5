"""A trained causal drafter on packed weights: the numbers of `drafters.model`, in less time.

Its passes are short and many, so what counts is reading the weights once and doing little else.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from acceptlab.drafters.model import DrafterModel
from acceptlab.pairs.fused import FusedLlama, LlamaWeights, join
from acceptlab.pairs.packed import Packed, few_rows, is_available, trim_memory, use_large_pages
from acceptlab.pairs.slots import LlamaSizes, Part
from acceptlab.passes import Pass


def can_draft_lean(model: DrafterModel) -> bool:
    """Whether the drafter's passes can run on packed weights here."""
    return is_available() and model.device.type == "cpu"


class LeanDrafter(DrafterModel):
    """Runs a `CausalDrafter` on packed weights, or on plain ones where these do well with several rows.

    Its passes have few rows as a rule, so that one copy of the weights is enough.
    """

    is_lean = True

    def __init__(self, model: DrafterModel) -> None:
        drafter, shape = model.drafter, model.drafter.shape
        sizes = LlamaSizes(shape.n_heads, shape.n_kv_heads, shape.head_dim, shape.rms_eps)
        self._is_plain = few_rows() > 1
        with torch.no_grad():
            plain = join(drafter.layers)
            self._layers = FusedLlama(
                map(LlamaWeights.of, drafter.layers),
                drafter.norm.weight.detach(),
                sizes,
                self._rotary,
                pack=not self._is_plain,
            )
        super().__init__(drafter, model.name)
        self._output = None if self._is_plain else Packed(self._weight)
        self._kept = drafter.output.token_ids.numpy().astype(np.int64)
        use_large_pages([plain, self._weight])
        if self._output is not None:
            use_large_pages([*self._layers.packed(), self._output])
        trim_memory()

    def _rotary(self, positions: Int[Tensor, " rows"]) -> tuple[Tensor, Tensor]:
        cos, sin = self.drafter.rotary(positions[None])
        return cos[0, 0], sin[0, 0]

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
        x = self._layers.run(x, torch.cat([each.positions for each in passes]), parts, plain=self._is_plain)
        return list(torch.split(self._logits(x), [part.n_rows for part in parts]))

    def _pass(self, token_ids: Tensor, positions: Tensor, visible: Tensor | None) -> Tensor:
        n_rows = len(token_ids)
        part = Part(self._slots, n_rows, visible)
        return self._layers.run(
            self.drafter.embed(token_ids), positions, [part], plain=self._is_plain or n_rows <= few_rows()
        )

    def _logits(self, x: Float[Tensor, "rows size"]) -> Float[Tensor, "rows vocab"]:
        output, hidden = self.drafter.output, self._layers.final(x)
        if self._output is None or len(hidden) <= few_rows():
            logits = functional.linear(hidden, self._weight, output.bias)
        else:
            logits = self._output.linear(hidden).add_(output.bias)
        # as `output.expand`, in half the time
        full = logits[:, -1:] + output.rest_log_shares
        full.numpy()[:, self._kept] = logits[:, :-1].numpy()
        return full

    @torch.inference_mode()
    def keep(self, slots: Int[Tensor, " kept"]) -> None:
        """Keep exactly these slots, in this order; slots that stay in place are not copied."""
        self._slots.keep_slots(slots)
