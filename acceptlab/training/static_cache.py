"""Batched decoding of a Llama stack with a static key-value cache; rows of different lengths, left-aligned.

A slot is a position, so rows need no padding mask: what a longer neighbour left in a row's slots lies beyond
the row's own position, where nothing looks, until the row writes there itself. Sampling is the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from acceptlab.drafters.causal import CausalDrafter
from acceptlab.drafters.llama import LlamaLayer, LlamaStack, attend


class StaticDecoder:
    """Decodes a batch of sequences one token at a time, with the target or a causal drafter."""

    def __init__(self, stack: LlamaStack | CausalDrafter) -> None:
        self.stack = stack
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.positions: Int[Tensor, " batch"] = torch.empty(0, dtype=torch.long)

    @torch.inference_mode()
    def prefill(
        self, prompts: Sequence[Sequence[int]], *, shared_len: int, room: int
    ) -> Float[Tensor, "batch tail size"]:
        """Fill the cache with the prompts and leave room for more tokens.

        The first `shared_len` tokens are equal in all prompts and run once. Returns the normed hidden states
        from position shared_len - 1 on; row i is meaningful up to the end of prompt i (index len -
        shared_len).
        """
        shape = self.stack.shape
        lens = torch.tensor([len(ids) for ids in prompts])
        n_slots = int(lens.max()) + room
        tail_len = max(int(lens.max()) - shared_len, 0)
        tails = torch.zeros(len(prompts), tail_len, dtype=torch.long)
        for row, ids in enumerate(prompts):
            tails[row, : len(ids) - shared_len] = torch.tensor(ids[shared_len:], dtype=torch.long)
        size = (len(prompts), shape.n_kv_heads, n_slots, shape.head_dim)
        # Zeros, not empty: a masked slot has weight 0, and 0 times what lies in fresh memory may not be 0.
        self.keys = [torch.zeros(size) for _ in range(shape.n_layers)]
        self.values = [torch.zeros(size) for _ in range(shape.n_layers)]
        self.positions = lens
        head = self._run(torch.tensor([list(prompts[0][:shared_len])], dtype=torch.long), 0)[:, -1:]
        tail = self._run(tails, shared_len)
        return torch.cat([head.expand(len(prompts), -1, -1), tail], dim=1)

    def _run(self, ids: Int[Tensor, "batch rows"], start: int) -> Float[Tensor, "batch rows size"]:
        stack, rows = self.stack, ids.shape[1]
        end = start + rows
        positions = torch.arange(start, end)[None]
        rotary = stack.rotary(positions)
        mask = torch.arange(end)[None, :] <= positions[0][:, None]
        x = stack.embed(ids)
        for layer, keys, values in zip(stack.layers, self.keys, self.values, strict=True):
            assert isinstance(layer, LlamaLayer)
            query, key, value = layer.project(x, rotary)
            # A batch of one (the shared beginning) is broadcast to every row of the cache.
            keys[:, :, start:end], values[:, :, start:end] = key, value
            batch = ids.shape[0]
            x = layer.finish(x, attend(query, keys[:batch, :, :end], values[:batch, :, :end], mask))
        out: Tensor = stack.norm(x)
        return out

    @torch.inference_mode()
    def step(self, token_ids: Int[Tensor, " batch"]) -> Float[Tensor, "batch size"]:
        """Append one token a row; returns the normed hidden states that predict the next ones."""
        stack, shape = self.stack, self.stack.shape
        batch, end = len(token_ids), int(self.positions.max()) + 1
        rows = torch.arange(batch)
        rotary = stack.rotary(self.positions[:, None])
        hidden = torch.arange(end)[None, :] > self.positions[:, None]
        bias = torch.zeros(batch, 1, 1, end).masked_fill_(hidden[:, None, None, :], -torch.inf)
        scale = shape.head_dim**-0.5
        x = stack.embed(token_ids)[:, None]
        for layer, keys, values in zip(stack.layers, self.keys, self.values, strict=True):
            assert isinstance(layer, LlamaLayer)
            query, key, value = layer.project(x, rotary)
            keys[rows, :, self.positions], values[rows, :, self.positions] = key[:, :, 0], value[:, :, 0]
            # Query heads of one key head are the rows of one small product: no copy of the cache for its
            # groups.
            grouped = query.reshape(batch, shape.n_kv_heads, -1, shape.head_dim) * scale
            weights = (grouped @ keys[:, :, :end].transpose(-1, -2)).add_(bias).softmax(dim=-1)
            attended = weights @ values[:, :, :end]
            x = layer.finish(x, attended.reshape(batch, shape.n_heads, 1, shape.head_dim))
        self.positions = self.positions + 1
        out: Tensor = stack.norm(x)[:, 0]
        return out

    @torch.inference_mode()
    def select(self, rows: Int[Tensor, " kept"]) -> None:
        """Keep only these rows of the batch."""
        self.keys = [keys[rows] for keys in self.keys]
        self.values = [values[rows] for values in self.values]
        self.positions = self.positions[rows]

    @torch.inference_mode()
    def logits(self, hidden: Float[Tensor, "batch size"]) -> Float[Tensor, "batch vocab"]:
        """The target's output layer; drafters have their own.

        Raises:
            TypeError: the decoder runs a drafter.
        """
        if not isinstance(self.stack, LlamaStack):
            raise TypeError("a drafter's logits come from its own output layer")
        return hidden @ self.stack.output_weight.T
