"""Heads that read the target's last hidden state: token by token, or a window at once.

Both start where hidden states begin: tokens before `features_start` + 1 are not seen. Position t takes the
hidden state of position t - 1 (which predicted token t) beside the embedding of token t.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from acceptlab.drafters.base import Drafter, Rows, copy_tensors, with_layers
from acceptlab.drafters.llama import LlamaLayer, LlamaShape, LlamaStack, RMSNorm
from acceptlab.drafters.output_layer import CutOutput
from acceptlab.drafters.windows import WindowGrid, attend_both
from acceptlab.errors import UsageError


class _FeatureDrafter(Drafter):
    """One decoder layer over fused embeddings and hidden states."""

    needs_features: ClassVar[bool] = True
    first_position: Int[Tensor, ""]

    def __init__(self, shape: LlamaShape, output: CutOutput, embeddings: Float[Tensor, "vocab size"]) -> None:
        super().__init__(shape, output, embeddings)
        size = shape.hidden_size
        # The first position that training saw; drafting looks at no earlier one.
        self.register_buffer("first_position", torch.tensor(1))
        self.feature_norm = RMSNorm(size, shape.rms_eps)
        self.fuse_feature = nn.Linear(size, size, bias=False)
        self.fuse_token = nn.Linear(size, size, bias=False)
        self.layer = LlamaLayer(shape)
        # Start as if there were only the hidden state, at the size that the layer is used to.
        nn.init.eye_(self.fuse_feature.weight)
        nn.init.eye_(self.fuse_token.weight)

    def start_from(self, target: LlamaStack, layer: int) -> None:
        """Copy a layer and the final norm of the target."""
        copy_tensors(self.layer, target.layers[layer])
        copy_tensors(self.norm, target.norm)
        self.requires_grad_(True)

    def fuse(
        self, features: Float[Tensor, "*rows size"], token_ids: Int[Tensor, "*rows"]
    ) -> Float[Tensor, "*rows size"]:
        """Input of the layer: the previous position's hidden state and this position's token."""
        fused: Tensor = self.fuse_feature(self.feature_norm(features)) + self.fuse_token(
            self.embed(token_ids)
        )
        return fused

    def context_inputs(
        self, rows: Rows
    ) -> tuple[Float[Tensor, "sequences slots size"], Int[Tensor, "1 slots"]]:
        """Inputs of all positions from features_start + 1 on, with true hidden states; and the positions."""
        if rows.features is None:
            raise ValueError("these rows carry no hidden states")
        start = rows.features_start + 1
        n_slots = rows.token_ids.shape[1] - start
        inputs = self.fuse(rows.features[:, :n_slots], rows.token_ids[:, start:])
        return inputs, torch.arange(start, start + n_slots)[None]


class FeatureHead(_FeatureDrafter):
    """Token by token, EAGLE-like (arXiv 2401.15077): behind the anchor it feeds on its own hidden states.

    Training runs what drafting runs: the first place of a window sees true hidden states only, place d the
    head's own ones at the d places before it, as in the training-time test of EAGLE-3 (arXiv 2503.01840).
    """

    kind: ClassVar[str] = "feature"

    @classmethod
    def from_target(cls, target: LlamaStack, layers: tuple[int, ...], output: CutOutput) -> FeatureHead:
        """Start from the last of these layers of the target."""
        head = cls(with_layers(target.shape, 1), output, target.embed_tokens.weight)
        head.start_from(target, layers[-1])
        return head

    def row_hidden(self, rows: Rows) -> Float[Tensor, "rows size"]:
        """Normed hidden states of the rows, each at its own depth."""
        grid = WindowGrid.of(rows)
        inputs, positions = self.context_inputs(rows)
        query, key, value = self.layer.project(inputs, self.rotary(positions))
        slots = positions[0]
        causal = slots[None, :] <= slots[:, None]
        x = self.layer.finish(inputs, _attend_masked(query, key, value, causal))
        context: Tensor = self.norm(x)
        first = grid.anchors - slots[0]
        batch = torch.arange(len(first))[:, None]
        hidden = context[batch, first.clamp_min(0)]
        found = [hidden]
        visible = slots[None, None, :] <= grid.anchors[:, :, None]
        # a sequence with fewer windows than others has padding, which sees its first slot
        visible[..., 0] = True
        own_keys: list[Tensor] = []
        own_values: list[Tensor] = []
        for depth in range(1, grid.row_of.shape[2]):
            position = (grid.anchors + depth).clamp_max(rows.token_ids.shape[1] - 1)
            fused = self.fuse(hidden, rows.token_ids[batch, position])
            q, k, v = self.layer.project(fused, self.rotary(position))
            own_keys.append(k)
            own_values.append(v)
            own = torch.stack(own_keys, dim=3), torch.stack(own_values, dim=3)
            hidden = self.norm(self.layer.finish(fused, attend_both(q, (key, value), visible, own)))
            found.append(hidden)
        return _pick(torch.stack(found, dim=2), grid, len(rows.depth))


class BlockHead(_FeatureDrafter):
    """The whole window in one pass, in the manner of DFlash and Domino: learned slots stand for later tokens.

    Place 0 is the anchor's token itself; places 1.. are learned vectors. All places see the context up to the
    anchor and each other, so the proposals of one window do not depend on the tokens drafted in it.
    """

    kind: ClassVar[str] = "block"
    max_gamma: ClassVar[int] = 16
    gamma: Int[Tensor, ""]

    def __init__(self, shape: LlamaShape, output: CutOutput, embeddings: Float[Tensor, "vocab size"]) -> None:
        super().__init__(shape, output, embeddings)
        # All places of a block see each other, so drafting opens blocks of the width that training did.
        self.register_buffer("gamma", torch.tensor(8))
        self.slots = nn.Parameter(torch.zeros(self.max_gamma, shape.hidden_size))

    @classmethod
    def from_target(cls, target: LlamaStack, layers: tuple[int, ...], output: CutOutput) -> BlockHead:
        """Start from the last of these layers of the target."""
        head = cls(with_layers(target.shape, 1), output, target.embed_tokens.weight)
        head.start_from(target, layers[-1])
        return head

    def row_hidden(self, rows: Rows) -> Float[Tensor, "rows size"]:
        """Normed hidden states of the rows: place d of the block that its anchor opens."""
        grid = WindowGrid.of(rows)
        n_sequences, n_windows, gamma = grid.row_of.shape
        inputs, positions = self.context_inputs(rows)
        _, key, value = self.layer.project(inputs, self.rotary(positions))
        start = int(positions[0, 0])
        batch = torch.arange(n_sequences)[:, None]
        anchor = inputs[batch, (grid.anchors - start).clamp_min(0)]
        block = self.block_inputs(anchor, gamma)
        places = grid.anchors[:, :, None] + torch.arange(gamma)
        size = self.shape.hidden_size
        q, k, v = self.layer.project(
            block.view(n_sequences, n_windows * gamma, size),
            self.rotary(places.view(n_sequences, n_windows * gamma)),
        )
        by_window = (n_sequences, -1, n_windows, gamma, self.shape.head_dim)
        own = k.reshape(by_window), v.reshape(by_window)
        visible = positions[0][None, None, :] < grid.anchors[:, :, None]
        attended = [
            attend_both(q.reshape(by_window)[:, :, :, place], (key, value), visible, own)
            for place in range(gamma)
        ]
        stacked = torch.stack(attended, dim=3).reshape(
            n_sequences, -1, n_windows * gamma, self.shape.head_dim
        )
        x = self.layer.finish(block.view(n_sequences, n_windows * gamma, size), stacked)
        hidden = self.norm(x).view(n_sequences, n_windows, gamma, size)
        return _pick(hidden, grid, len(rows.depth))

    def set_gamma(self, gamma: int) -> None:
        """Fix the width of the blocks.

        Raises:
            UsageError: wider than there are learned slots.
        """
        if not 1 <= gamma <= self.max_gamma:
            raise UsageError(f"gamma {gamma} does not fit a block head: use 1 to {self.max_gamma}")
        self.gamma.fill_(gamma)

    def block_inputs(
        self, anchor: Float[Tensor, "*windows size"], gamma: int
    ) -> Float[Tensor, "*windows gamma size"]:
        """Inputs of a block: the anchor's, then the anchor's hidden part moved by learned vectors."""
        slots = self.slots[:gamma].clone()
        slots[0] = 0
        return anchor[..., None, :] + slots


def _attend_masked(query: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> Tensor:
    return nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=visible, enable_gqa=query.shape[1] != key.shape[1]
    )


def _pick(hidden: Float[Tensor, "sequences windows gamma size"], grid: WindowGrid, n_rows: int) -> Tensor:
    """Back from the grid to rows."""
    flat = grid.row_of.flatten()
    order = torch.empty(n_rows, dtype=torch.long)
    kept = (flat >= 0).nonzero()[:, 0]
    order[flat[kept]] = kept
    return hidden.flatten(0, 2)[order]
