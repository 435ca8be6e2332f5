"""Heads that read the target's last hidden state: token by token, or a window at once.

Position t takes the hidden state of position t - 1 (which predicted token t) beside the embedding of token t.
Stored hidden states begin at `features_start`, behind the system prompt that all trajectories share.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from acceptlab.drafters.base import Drafter, Rows, copy_tensors, with_layers
from acceptlab.drafters.causal import CausalDrafter
from acceptlab.drafters.llama import LlamaLayer, LlamaShape, LlamaStack, RMSNorm, attend
from acceptlab.drafters.output_layer import CutOutput
from acceptlab.drafters.windows import Packing, WindowGrid, attend_both, take_places
from acceptlab.errors import UsageError

KeysValues = tuple[Float[Tensor, "sequences kv slots dim"], Float[Tensor, "sequences kv slots dim"]]


class _FeatureDrafter(Drafter):
    """Fused embeddings and hidden states, as input of decoder layers."""

    needs_features: ClassVar[bool] = True
    first_position: Int[Tensor, ""]

    def __init__(self, shape: LlamaShape, output: CutOutput, embeddings: Float[Tensor, "vocab size"]) -> None:
        super().__init__(shape, output, embeddings)
        size = shape.hidden_size
        # The first position that training had a hidden state for; drafting reads none for earlier ones.
        self.register_buffer("first_position", torch.tensor(1))
        self.feature_norm = RMSNorm(size, shape.rms_eps)
        self.fuse_feature = nn.Linear(size, size, bias=False)
        self.fuse_token = nn.Linear(size, size, bias=False)
        # Start as if there were only the hidden state, at the size that the layer is used to.
        nn.init.eye_(self.fuse_feature.weight)
        nn.init.eye_(self.fuse_token.weight)

    @property
    @abstractmethod
    def decoder_layers(self) -> Sequence[LlamaLayer]:
        """The layers, in their order."""

    def start_from(self, target: LlamaStack, layers: Sequence[int]) -> None:
        """Copy layers and the final norm of the target."""
        for mine, number in zip(self.decoder_layers, layers, strict=True):
            copy_tensors(mine, target.layer(number))
        copy_tensors(self.norm, target.norm)
        self.requires_grad_(True)

    def fuse(
        self, features: Float[Tensor, "*rows size"], token_ids: Int[Tensor, "*rows"]
    ) -> Float[Tensor, "*rows size"]:
        """Input of the first layer: the previous position's hidden state and this position's token."""
        fused: Tensor = self.fuse_feature(self.feature_norm(features)) + self.fuse_token(
            self.embed(token_ids)
        )
        return fused


class FeatureHead(_FeatureDrafter):
    """Token by token, EAGLE-like (arXiv 2401.15077): behind the anchor it feeds on its own hidden states.

    Training runs what drafting runs: the first place of a window sees true hidden states only, place d the
    head's own ones at the d places before it, as in the training-time test of EAGLE-3 (arXiv 2503.01840).
    Positions that no hidden state is stored for have zeros instead: the head sees their tokens only.
    """

    kind: ClassVar[str] = "feature"

    def __init__(self, shape: LlamaShape, output: CutOutput, embeddings: Float[Tensor, "vocab size"]) -> None:
        super().__init__(shape, output, embeddings)
        self.layers = nn.ModuleList(LlamaLayer(shape) for _ in range(shape.n_layers))

    @property
    def decoder_layers(self) -> Sequence[LlamaLayer]:
        """The layers, in their order."""
        return [layer for layer in self.layers if isinstance(layer, LlamaLayer)]

    @classmethod
    def from_target(cls, target: LlamaStack, layers: tuple[int, ...], output: CutOutput) -> FeatureHead:
        """Start from copies of these layers of the target (negative: from the end) and of its final norm."""
        head = cls(with_layers(target.shape, len(layers)), output, target.embed_tokens.weight)
        head.start_from(target, layers)
        return head

    @classmethod
    @torch.no_grad()
    def from_causal(cls, drafter: CausalDrafter) -> FeatureHead:
        """Start from a copy of a causal drafter, with hidden states that count for nothing yet.

        So it computes what that drafter does, and learns from there what the hidden states add.
        """
        head = cls(drafter.shape, deepcopy(drafter.output), drafter.embeddings)
        copy_tensors(head.layers, drafter.layers)
        copy_tensors(head.norm, drafter.norm)
        head.fuse_feature.weight.zero_()
        # at the size of the embeddings: a step of training then moves the sum of both by little
        head.feature_norm.weight.fill_(float(drafter.embeddings.float().square().mean().sqrt()))
        return head.requires_grad_(True)

    def row_hidden(self, rows: Rows) -> Float[Tensor, "rows size"]:
        """Normed hidden states of the rows, each at its own depth."""
        grid = WindowGrid.of(rows)
        windows = Packing.of(grid.row_of[:, :, 0] >= 0)
        hidden, context = self._run_context(rows, grid.anchors, windows)
        visible = torch.arange(rows.token_ids.shape[1]) <= grid.anchors[:, :, None]
        found, numbers = [hidden], [windows.pack(grid.row_of[:, :, 0])]
        own: list[tuple[list[Tensor], list[Tensor]]] = [([], []) for _ in context]
        for depth in range(1, grid.row_of.shape[2]):
            now = Packing.of(grid.row_of[:, :, depth] >= 0)
            position = now.pack(grid.anchors + depth)
            sequence = now.places // now.row_of.shape[1]
            before = hidden.index_select(1, windows.rows_at(now.places))
            x = self.fuse(before, rows.token_ids[sequence, position])
            rotary = self.rotary(position)
            for layer, seen, (keys, values) in zip(self.decoder_layers, context, own, strict=True):
                query, key, value = (now.spread(part) for part in layer.project(x, rotary))
                keys.append(key)
                values.append(value)
                chain = torch.stack(keys, dim=3), torch.stack(values, dim=3)
                x = layer.finish(x, take_places(attend_both(query, seen, visible, chain), now.places))
            hidden, windows = self.norm(x), now
            found.append(hidden)
            numbers.append(now.pack(grid.row_of[:, :, depth]))
        order = torch.cat(numbers, dim=1)[0].argsort()
        return torch.cat(found, dim=1)[0].index_select(0, order)

    def _run_context(
        self, rows: Rows, anchors: Int[Tensor, "sequences windows"], windows: Packing
    ) -> tuple[Float[Tensor, "1 windows size"], list[KeysValues]]:
        """One causal pass over true hidden states up to the last anchors.

        Returns the normed hidden states at the anchors of the packed windows, for which alone the last layer's
        feed-forward block runs, and every layer's keys and values of all positions.
        """
        n_slots = rows.token_ids.shape[1]
        prefix = rows.token_ids[:, : rows.features_start + 1]
        n_shared = prefix.shape[1] if bool((prefix == prefix[:1]).all()) else 0
        packing = Packing.of(torch.arange(n_slots) <= anchors.amax(dim=1, keepdim=True), n_shared)
        x = self.fuse(packing.pack(_before_each(rows)), packing.pack(rows.token_ids))
        rotary = self.rotary((packing.places % n_slots)[None])
        wanted = windows.pack(torch.arange(len(anchors))[:, None] * n_slots + anchors)[0]
        context: list[KeysValues] = []
        for number, layer in enumerate(self.decoder_layers, start=1):
            query, key, value = (packing.spread(part) for part in layer.project(x, rotary))
            context.append((key, value))
            places = packing.places
            if number == len(self.layers):
                places, x = wanted, x.index_select(1, packing.rows_at(wanted))
            x = layer.finish(x, take_places(attend(query, key, value, None), places))
        return self.norm(x), context


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
        self.layer = LlamaLayer(shape)

    @property
    def decoder_layers(self) -> Sequence[LlamaLayer]:
        """Its one layer."""
        return [self.layer]

    @classmethod
    def from_target(cls, target: LlamaStack, layers: tuple[int, ...], output: CutOutput) -> BlockHead:
        """Start from the last of these layers of the target."""
        head = cls(with_layers(target.shape, 1), output, target.embed_tokens.weight)
        head.start_from(target, layers[-1:])
        return head

    def row_hidden(self, rows: Rows) -> Float[Tensor, "rows size"]:
        """Normed hidden states of the rows: place d of the block that its anchor opens."""
        grid = WindowGrid.of(rows)
        n_sequences, n_windows, gamma = grid.row_of.shape
        inputs, positions = self._context_inputs(rows)
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

    def _context_inputs(
        self, rows: Rows
    ) -> tuple[Float[Tensor, "sequences slots size"], Int[Tensor, "1 slots"]]:
        """Inputs of all positions from features_start + 1 on, with true hidden states; and the positions."""
        start = rows.features_start + 1
        inputs = self.fuse(_before_each(rows)[:, start:], rows.token_ids[:, start:])
        return inputs, torch.arange(start, rows.token_ids.shape[1])[None]

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


def _before_each(rows: Rows) -> Float[Tensor, "sequences length size"]:
    """The hidden state before every position, zeros where none is stored."""
    if rows.features is None:
        raise ValueError("these rows carry no hidden states")
    start = rows.features_start + 1
    n_sequences, length = rows.token_ids.shape
    none = rows.features.new_zeros(n_sequences, start, rows.features.shape[2])
    return torch.cat([none, rows.features[:, : length - start]], dim=1)


def _pick(hidden: Float[Tensor, "sequences windows gamma size"], grid: WindowGrid, n_rows: int) -> Tensor:
    """Back from the grid to rows."""
    flat = grid.row_of.flatten()
    order = torch.empty(n_rows, dtype=torch.long)
    kept = (flat >= 0).nonzero()[:, 0]
    order[flat[kept]] = kept
    return hidden.flatten(0, 2)[order]
