"""A head whose upper layers attend to what the target has computed about the text, layer by layer.

Lower layers read tokens, as in a causal drafter. Every upper layer takes its keys and values of committed positions
from the target's own hidden states in front of one of its layers (a tap), and only those of the anchor and of
drafted positions from the head itself: cross-attention to the target in the manner of GliDe (arXiv 2402.02082), with
hidden states instead of the target's cache, so that the projections can be trained. A layer that starts as a copy of
the tapped one sees at once what that one sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from acceptlab.drafters.base import Drafter, Rows, copy_tensors, with_layers
from acceptlab.drafters.llama import LlamaLayer, LlamaShape, LlamaStack, attend, layer_number, rotate
from acceptlab.drafters.output_layer import CutOutput
from acceptlab.errors import UsageError

KeysValues = tuple[Float[Tensor, "sequences kv slots dim"], Float[Tensor, "sequences kv slots dim"]]


class CrossHead(Drafter):
    """Token by token. The first layers read tokens; layer n from there on reads the target in front of `taps[n]`.

    What it drafts it sees through its own keys and values only, whatever the depth: all places of all windows are one
    pass in training, and nothing is fed back.
    """

    kind: ClassVar[str] = "cross"
    needs_features: ClassVar[bool] = False
    taps: Int[Tensor, " layers"]

    def __init__(self, shape: LlamaShape, output: CutOutput, embeddings: Float[Tensor, "vocab size"]) -> None:
        super().__init__(shape, output, embeddings)
        self.layers = nn.ModuleList(LlamaLayer(shape) for _ in range(shape.n_layers))
        # The layer of the target in front of which a layer reads; -1 where it reads tokens only.
        self.register_buffer("taps", torch.full((shape.n_layers,), -1))

    @property
    def lower(self) -> Sequence[LlamaLayer]:
        """The layers that read tokens only."""
        return self._layers()[: self.n_lower]

    @property
    def upper(self) -> Sequence[LlamaLayer]:
        """The layers that read the target."""
        return self._layers()[self.n_lower :]

    @property
    def n_lower(self) -> int:
        """How many layers read tokens only."""
        return int((self.taps < 0).sum())

    @property
    def tap_layers(self) -> tuple[int, ...]:
        """Layers of the target in front of which its hidden states are read, one for every upper layer."""
        return tuple(int(tap) for tap in self.taps if tap >= 0)

    def _layers(self) -> list[LlamaLayer]:
        return [layer for layer in self.layers if isinstance(layer, LlamaLayer)]

    @classmethod
    def from_target(cls, target: LlamaStack, layers: tuple[int, ...], output: CutOutput) -> CrossHead:
        """Start from copies of these layers of the target (negative: from the end) and of its final norm.

        Which of them read the target, and where, `default_taps` says.
        """
        head = cls(with_layers(target.shape, len(layers)), output, target.embed_tokens.weight)
        for mine, number in zip(head.layers, layers, strict=True):
            copy_tensors(mine, target.layer(number))
        copy_tensors(head.norm, target.norm)
        head.tap(default_taps(layers, target.shape.n_layers))
        return head.requires_grad_(True)

    def tap(self, layers: Sequence[int]) -> None:
        """Let the last layers read the target in front of these layers of it.

        Raises:
            UsageError: more taps than layers.
        """
        if len(layers) > len(self.layers):
            raise UsageError(f"{len(layers)} taps are more than the head's {len(self.layers)} layers")
        self.taps.fill_(-1)
        self.taps[len(self.taps) - len(layers) :] = torch.tensor(list(layers), dtype=self.taps.dtype)

    def keys_values(
        self, layer: LlamaLayer, states: Float[Tensor, "batch slots size"], rotary: tuple[Tensor, Tensor]
    ) -> KeysValues:
        """Keys and values of the target's hidden states, as an upper layer sees them."""
        batch, slots, _ = states.shape
        h = layer.input_layernorm(states)
        key, value = (
            linear(h).view(batch, slots, -1, layer.head_dim).transpose(1, 2)
            for linear in (layer.self_attn.k_proj, layer.self_attn.v_proj)
        )
        return rotate(key, rotary), value

    def row_hidden(self, rows: Rows) -> Float[Tensor, "rows size"]:
        """Normed hidden states of the rows, each at its own depth.

        Raises:
            UsageError: the target's hidden states are not there.
        """
        if rows.taps is None or rows.taps.shape[0] != len(self.upper):
            raise UsageError(
                "these trajectories were loaded without the hidden states that a cross head reads"
            )
        rotary = self.rotary(torch.arange(rows.token_ids.shape[1])[None])
        x = self._run_lower(rows, rotary)
        own_rotary = (rotary[0][:, :, rows.position], rotary[1][:, :, rows.position])
        windows = _Windows.of(rows)
        for layer, states in zip(self.upper, rows.taps, strict=True):
            true_keys, true_values = self.keys_values(layer, states, rotary)
            query, key, value = layer.project(x, own_rotary)
            key, value = windows.spread(key), windows.spread(value)
            attended = windows.attend(windows.spread(query), (true_keys, true_values), (key, value))
            x = layer.finish(x, windows.pick(attended))
        out: Tensor = self.norm(x[0])
        return out

    def _run_lower(self, rows: Rows, rotary: tuple[Tensor, Tensor]) -> Float[Tensor, "1 rows size"]:
        """The lower layers over whole sequences, of which the last one's output is kept for the rows only."""
        x = self.embed(rows.token_ids)
        if not self.lower:
            return x[rows.sequence, rows.position][None]
        *first, last = self.lower
        for layer in first:
            x = layer(x, rotary)
        query, key, value = last.project(x, rotary)
        attended = attend(query, key, value, None)[rows.sequence, :, rows.position]
        return last.finish(x[rows.sequence, rows.position][None], attended.transpose(0, 1)[None])


def default_taps(layers: Sequence[int], n_target_layers: int) -> tuple[int, ...]:
    """The later half of these layers, the larger one of an odd number, reads the target where it comes from.

    Raises:
        UsageError: the target has no such layer.
    """
    numbers = tuple(layer_number(number, n_target_layers) for number in layers)
    return numbers[len(layers) // 2 :]


class _Windows:
    """Attention of rows that see the target up to their anchor, and their own window from there on."""

    def __init__(self, rows: Rows) -> None:
        self.shape = tuple(rows.token_ids.shape)
        self.places = rows.sequence * self.shape[1] + rows.position
        slots = torch.arange(self.shape[1])
        anchors = torch.zeros(self.shape[0] * self.shape[1], dtype=torch.long)
        anchors = anchors.index_copy(0, self.places, rows.position - rows.depth).view(*self.shape, 1)
        # heads and their groups lie between sequences and slots
        self.sees_target: Bool[Tensor, "sequences 1 1 slots slots"] = (slots < anchors)[:, None, None]
        self.sees_own = ((slots >= anchors) & (slots <= slots[:, None]))[:, None, None]

    @classmethod
    def of(cls, rows: Rows) -> _Windows:
        """Of these rows."""
        return cls(rows)

    def spread(self, values: Float[Tensor, "1 heads rows dim"]) -> Float[Tensor, "sequences heads slots dim"]:
        """Values of the rows at their places, 0 elsewhere."""
        _, heads, _, dim = values.shape
        flat = values.new_zeros((self.shape[0] * self.shape[1], heads, dim))
        flat = flat.index_copy(0, self.places, values[0].transpose(0, 1))
        return flat.view(*self.shape, heads, dim).transpose(1, 2)

    def pick(self, values: Float[Tensor, "sequences heads slots dim"]) -> Float[Tensor, "1 heads rows dim"]:
        """Values at the rows' places."""
        flat = values.transpose(1, 2).flatten(0, 1)
        return flat.index_select(0, self.places).transpose(0, 1)[None]

    def attend(
        self, query: Float[Tensor, "sequences heads slots dim"], target: KeysValues, own: KeysValues
    ) -> Float[Tensor, "sequences heads slots dim"]:
        """One softmax over the target's positions before the anchor and the head's own ones behind it."""
        sequences, heads, slots, dim = query.shape
        kv_heads = target[0].shape[1]
        grouped = query.reshape(sequences, kv_heads, heads // kv_heads, slots, dim) * dim**-0.5
        to_target, to_own = (grouped @ keys[:, :, None].transpose(-1, -2) for keys in (target[0], own[0]))
        scores = torch.where(self.sees_target, to_target, to_own.masked_fill(~self.sees_own, -torch.inf))
        weights = scores.softmax(dim=-1)
        out = (weights * self.sees_target) @ target[1][:, :, None]
        out = out + (weights * self.sees_own) @ own[1][:, :, None]
        return out.reshape(query.shape)
