"""Feature-level and block heads behind the `LanguageModel` protocol; they read the target's hidden states.

Committed text is always run on the target's own hidden states. What was drafted is forgotten after every
step, so its tokens run again once they are committed: the cache then holds nothing that came from the head's
own states.
"""

from __future__ import annotations

from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from acceptlab.drafters.heads import BlockHead, FeatureHead
from acceptlab.drafters.llama import attend
from acceptlab.errors import RunError


class HiddenStates(Protocol):
    """The target, as far as the heads look into it."""

    @property
    def n_slots(self) -> int:
        """Committed tokens that the target has run."""
        ...

    def hidden(self, start: int, end: int) -> Float[Tensor, "rows size"]:
        """Normed last hidden states of slots start to end - 1."""
        ...


class HeadModel:
    """Runs a head one sequence at a time (implements `acceptlab.models.LanguageModel`).

    A slot is a token at its position; the first `n_true` slots are committed text. Drafted rows must follow a
    pass over committed ones.
    """

    max_len: int | None = None

    def __init__(self, head: FeatureHead | BlockHead, name: str) -> None:
        self.head = head.eval()
        self.name = name
        self.vocab_size = head.shape.vocab_size
        self.device = head.embeddings.device
        self._source: HiddenStates | None = None
        self._weight = head.output.stack_weight(head.kept_weight)
        self.reset()

    def attach(self, source: HiddenStates) -> None:
        """Name the target whose hidden states are read."""
        self._source = source

    @property
    def n_slots(self) -> int:
        """Slots in the cache."""
        return len(self._positions)

    def reset(self) -> None:
        """Empty the cache."""
        shape = self.head.shape
        empty = torch.empty(1, shape.n_kv_heads, 0, shape.head_dim, device=self.device)
        n_layers = len(self.head.decoder_layers)
        self._n_true = 0
        self._positions = torch.empty(0, dtype=torch.long)
        self._hidden = torch.empty(0, shape.hidden_size, device=self.device)
        self._keys, self._values = [empty] * n_layers, [empty] * n_layers
        self._block = torch.empty(0, self.vocab_size, device=self.device)

    @torch.inference_mode()
    def prefill(self, token_ids: Int[Tensor, " tokens"]) -> None:
        """Append committed tokens behind a dense prefix."""
        if len(token_ids):
            self._run_committed(token_ids)

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Int[Tensor, " rows"],
        positions: Int[Tensor, " rows"],
        visible: Bool[Tensor, "rows slots"],
    ) -> Float[Tensor, "rows vocab"]:
        """Append one slot a row; next-token logits of every row in float32, over the whole vocabulary.

        Rows are committed tokens, in order, or drafted ones, told apart by whether the target has run the
        token before.
        """
        if int(positions[0]) <= self._target().n_slots and self._n_true == self.n_slots:
            hidden = self._run_committed(token_ids)
            if isinstance(self.head, BlockHead):
                return self._open_block(self.head, token_ids)
            return self._logits(hidden)
        if isinstance(self.head, BlockHead):
            self._append(positions)
            return self._place(positions - self._n_true)
        return self._logits(self._run_drafted(self.head, token_ids, positions, visible))

    def _target(self) -> HiddenStates:
        if self._source is None:
            raise RunError(f"the head '{self.name}' is not attached to a target: load it as part of a pair")
        return self._source

    def _fused(self, token_ids: Tensor, start: int) -> Tensor:
        """Inputs of committed tokens from position `start` on; position 0 has no hidden state before it."""
        end = start + len(token_ids)
        before = self._target().hidden(max(start - 1, 0), end - 1).float()
        if start == 0:
            before = torch.cat([torch.zeros(1, self.head.shape.hidden_size, device=self.device), before])
        if start < int(self.head.first_position):
            known = torch.arange(start, end, device=self.device) >= self.head.first_position
            before = before * known[:, None]
        return self.head.fuse(before, token_ids.to(self.device))[None]

    def _trained(self, slots: Tensor) -> Tensor:
        """Which positions may be seen: a block head was trained without those before the first hidden state."""
        first = int(self.head.first_position) if isinstance(self.head, BlockHead) else 0
        return slots >= first

    def _run_committed(self, token_ids: Tensor) -> Tensor:
        start = self._n_true
        fused = self._fused(token_ids, start)
        positions = torch.arange(start, start + len(token_ids))
        slots = torch.cat([self._positions, positions])
        seen = (slots[None] <= positions[:, None]) & self._trained(slots)[None]
        hidden = self._run(fused, positions, seen | (slots[None] == positions[:, None]))
        self._n_true = self.n_slots
        return hidden

    def _run_drafted(
        self, head: FeatureHead, token_ids: Tensor, positions: Tensor, visible: Tensor
    ) -> Tensor:
        earlier = visible[:, : self.n_slots] & (self._positions[None] == positions[:, None] - 1)
        parents = earlier.long().argmax(dim=1).to(self.device)
        fused = head.fuse(self._hidden[parents], token_ids.to(self.device))[None]
        return self._run(fused, positions, visible)

    def _run(self, x: Tensor, positions: Tensor, seen: Tensor) -> Float[Tensor, "rows size"]:
        """Append slots to every layer's cache; their normed hidden states, which are kept as well."""
        rotary, mask = self.head.rotary(positions[None].to(self.device)), seen.to(self.device)
        for number, layer in enumerate(self.head.decoder_layers):
            query, key, value = layer.project(x, rotary)
            self._keys[number] = torch.cat([self._keys[number], key], dim=2)
            self._values[number] = torch.cat([self._values[number], value], dim=2)
            x = layer.finish(x, attend(query, self._keys[number], self._values[number], mask))
        hidden: Tensor = self.head.norm(x)[0]
        self._hidden = torch.cat([self._hidden, hidden])
        self._append(positions)
        return hidden

    def _open_block(self, head: BlockHead, token_ids: Tensor) -> Tensor:
        """Draft a whole window behind the last token; other rows get no proposal."""
        gamma, anchor = int(head.gamma), self._n_true - 1
        fused = self._fused(token_ids[-1:], anchor)[0, 0]
        block = head.block_inputs(fused, gamma)[None]
        places = torch.arange(anchor, anchor + gamma)
        query, key, value = head.layer.project(block, head.rotary(places[None].to(self.device)))
        keys = torch.cat([self._keys[0][:, :, :anchor], key], dim=2)
        values = torch.cat([self._values[0][:, :, :anchor], value], dim=2)
        seen = torch.ones(gamma, anchor + gamma, dtype=torch.bool)
        seen[:, : min(int(head.first_position), anchor)] = False
        x = head.layer.finish(block, attend(query, keys, values, seen.to(self.device)))
        self._block = self._logits(head.norm(x)[0])
        rows = torch.full((len(token_ids), self.vocab_size), -torch.inf, device=self.device)
        rows[-1] = self._block[0]
        return rows

    def _place(self, depths: Tensor) -> Tensor:
        """Logits of drafted rows: place 1 of the block predicts behind a node of depth 1."""
        rows = torch.full((len(depths), self.vocab_size), -torch.inf, device=self.device)
        places = depths + 1
        known = places < len(self._block)
        rows[known] = self._block[places[known]]
        return rows

    def _append(self, positions: Tensor) -> None:
        self._positions = torch.cat([self._positions, positions])

    def _logits(self, hidden: Tensor) -> Tensor:
        return self.head.output.expand(self.head.output(hidden, self._weight))

    @torch.inference_mode()
    def keep(self, slots: Int[Tensor, " kept"]) -> None:
        """Keep the committed slots among these, which come first and in place; drafted ones are forgotten."""
        in_place = slots == torch.arange(len(slots))
        kept = int((in_place & (slots < self._n_true)).long().cumprod(dim=0).sum())
        self._n_true = kept
        self._positions, self._hidden = self._positions[:kept], self._hidden[:kept]
        self._keys = [keys[:, :, :kept] for keys in self._keys]
        self._values = [values[:, :, :kept] for values in self._values]
