"""A causal drafter behind the `LanguageModel` protocol: one sequence, a cache of slots, plain torch.

A drafter's step is a few milliseconds, of which a general framework would spend most on its own account.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from acceptlab.drafters.causal import CausalDrafter
from acceptlab.drafters.llama import LlamaLayer, attend

_FIRST_CAPACITY = 256


class DrafterModel:
    """Runs a `CausalDrafter` one sequence at a time (implements `acceptlab.models.LanguageModel`)."""

    max_len: int | None = None

    def __init__(self, drafter: CausalDrafter, name: str) -> None:
        self._weight = drafter.drafting_weight()
        self._name_and_size(drafter, name)

    def _name_and_size(self, drafter: CausalDrafter, name: str) -> None:
        self.drafter = drafter.eval()
        self.name = name
        self.vocab_size = drafter.shape.vocab_size
        self.device = drafter.embeddings.device
        self.reset()

    @property
    def n_slots(self) -> int:
        """Slots in the cache."""
        return self._n_slots

    def reset(self) -> None:
        """Empty the cache."""
        shape = self.drafter.shape
        size = (shape.n_layers, shape.n_kv_heads, _FIRST_CAPACITY, shape.head_dim)
        self._n_slots = 0
        self._keys = torch.zeros(size, device=self.device)
        self._values = torch.zeros(size, device=self.device)

    @torch.inference_mode()
    def prefill(self, token_ids: Int[Tensor, " tokens"]) -> None:
        """Append a plain causal run of tokens behind a dense prefix; no logits are computed."""
        n_rows = len(token_ids)
        if n_rows == 0:
            return
        start = self._n_slots
        positions = torch.arange(start, start + n_rows)
        visible = torch.arange(start + n_rows)[None, :] <= positions[:, None]
        self._run(token_ids, positions, visible)

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Int[Tensor, " rows"],
        positions: Int[Tensor, " rows"],
        visible: Bool[Tensor, "rows slots"],
    ) -> Float[Tensor, "rows vocab"]:
        """Append one slot a row; next-token logits of every row in float32, over the whole vocabulary."""
        drafter = self.drafter
        hidden = drafter.norm(self._run(token_ids, positions, visible))
        logits: Tensor = drafter.output.expand(drafter.output(hidden, self._weight))
        return logits

    def _run(self, token_ids: Tensor, positions: Tensor, visible: Tensor) -> Float[Tensor, "rows size"]:
        start, end = self._n_slots, self._n_slots + len(token_ids)
        if end > self._keys.shape[2]:
            self._grow(end)
        rotary = self.drafter.rotary(positions[None].to(self.device))
        mask = visible.to(self.device)
        x = self.drafter.embed(token_ids.to(self.device))[None]
        for number, layer in enumerate(self.drafter.layers):
            assert isinstance(layer, LlamaLayer)
            query, key, value = layer.project(x, rotary)
            self._keys[number, :, start:end] = key[0]
            self._values[number, :, start:end] = value[0]
            keys, values = self._keys[number, None, :, :end], self._values[number, None, :, :end]
            x = layer.finish(x, attend(query, keys, values, mask))
        self._n_slots = end
        return x[0]

    def _grow(self, needed: int) -> None:
        capacity = max(needed, 2 * self._keys.shape[2])
        for name in ("_keys", "_values"):
            old = getattr(self, name)
            new = old.new_zeros((*old.shape[:2], capacity, old.shape[3]))
            new[:, :, : self._n_slots] = old[:, :, : self._n_slots]
            setattr(self, name, new)

    @torch.inference_mode()
    def keep(self, slots: Int[Tensor, " kept"]) -> None:
        """Keep exactly these slots, in this order; slots that stay in place are not copied."""
        moved = torch.nonzero(slots != torch.arange(len(slots)))
        first = int(moved[0, 0]) if len(moved) else len(slots)
        tail = slots[first:].to(self.device)
        if len(tail):
            for cache in (self._keys, self._values):
                cache[:, :, first : len(slots)] = cache[:, :, tail]
        self._n_slots = len(slots)
