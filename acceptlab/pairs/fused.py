"""The decoder layers of a Llama on packed weights: the same numbers as transformers, with a fifth of its operations.

Boundary: hidden states in, hidden states out, for several sequences in one pass, each with its own cache of slots.
Embedding and output layer are the caller's. What the checkpoint keeps apart is joined or folded when the weights are
packed: query, key and value into one product, the gate into the products next to it, every norm's scale into the
product behind it, the scale of attention into the rotary tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from acceptlab.pairs.packed import Packed
from acceptlab.pairs.slots import FIRST_CAPACITY, LONG, LlamaSizes, OpenSlots, Part, SlotCache, bounds

Rotary = Callable[[Int[Tensor, " rows"]], tuple[Float[Tensor, "rows dim"], Float[Tensor, "rows dim"]]]


@dataclass(frozen=True)
class LlamaWeights:
    """The weights of one decoder layer, as the checkpoint names them."""

    input_norm: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    post_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor

    @classmethod
    def of(cls, layer: Any) -> LlamaWeights:
        """Those of a module that names its parts as the checkpoints do."""
        q, k, v, o = (getattr(layer.self_attn, f"{name}_proj").weight.detach() for name in "qkvo")
        gate, up, down = (
            getattr(layer.mlp, f"{name}_proj").weight.detach() for name in ("gate", "up", "down")
        )
        norms = (layer.input_layernorm.weight.detach(), layer.post_attention_layernorm.weight.detach())
        return cls(norms[0], q, k, v, o, norms[1], gate, up, down)

    def matrices(self) -> tuple[Tensor, ...]:
        """All weights but the scales of the norms."""
        return self.q, self.k, self.v, self.o, self.gate, self.up, self.down


class _Layer:
    """One layer's weights, packed once they are wanted so. Passes of few rows may run on the plain ones."""

    def __init__(self, weights: LlamaWeights) -> None:
        self.weights = weights
        root = weights.q.shape[1] ** 0.5
        self._before, self._after = weights.input_norm * root, weights.post_norm * root
        self._plain_qkv = _joined(weights.q, weights.k, weights.v)
        self._plain_gate_up = _joined(weights.gate, weights.up)

    @cached_property
    def _qkv(self) -> Packed:
        return Packed(torch.cat([self.weights.q, self.weights.k, self.weights.v]) * self._before)

    @cached_property
    def _o(self) -> Packed:
        return Packed(self.weights.o)

    @cached_property
    def _gate(self) -> Packed:
        return Packed(self.weights.gate * self._after)

    @cached_property
    def _up(self) -> Packed:
        return Packed(self.weights.up * self._after)

    @cached_property
    def _down(self) -> Packed:
        return Packed(self.weights.down)

    def packed(self) -> tuple[Packed, ...]:
        """All weights, packed by now."""
        return self._qkv, self._o, self._gate, self._up, self._down

    def qkv(self, x: Tensor, plain: bool) -> Tensor:
        """Queries, keys and values side by side."""
        if not plain:
            return self._qkv.linear(x)
        x = x * self._before
        return _side_by_side([functional.linear(x, weight) for weight in self._plain_qkv])

    def add_o(self, attended: Tensor, x: Tensor, plain: bool) -> Tensor:
        """The output projection and the residual."""
        return x + functional.linear(attended, self.weights.o) if plain else self._o.linear_add(attended, x)

    def add_mlp(self, normed: Tensor, x: Tensor, plain: bool) -> Tensor:
        """The gated feed-forward block and the residual."""
        if plain:
            normed = normed * self._after
            found = [functional.linear(normed, weight) for weight in self._plain_gate_up]
            gate, up = found if len(found) > 1 else found[0].chunk(2, dim=-1)
            return x + functional.linear(functional.silu(gate).mul_(up), self.weights.down)
        gated = self._up.linear_mul(normed, self._gate.linear_silu(normed))
        return self._down.linear_add(gated, x)


def _joined(*weights: Float[Tensor, "_ size"]) -> tuple[Tensor, ...]:
    """The weights as one matrix where they lie one behind the other in memory, else as they are."""
    first = weights[0]
    ends = [weight.data_ptr() + weight.nbytes for weight in weights[:-1]]
    is_one = all(weight.is_contiguous() for weight in weights) and all(
        end == after.data_ptr() and after.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        for end, after in zip(ends, weights[1:], strict=True)
    )
    if not is_one:
        return weights
    return (first.as_strided((sum(len(weight) for weight in weights), first.shape[1]), first.stride()),)


def _side_by_side(columns: Sequence[Float[Tensor, "rows _"]]) -> Float[Tensor, "rows all"]:
    return columns[0] if len(columns) == 1 else torch.cat(list(columns), dim=-1)


def join(layers: Iterable[Any]) -> Tensor:
    """Move the weights of modules (see `LlamaWeights.of`) into one block of memory and return it.

    In it, weights that read the same input lie one behind the other, so that their products are one.
    """
    parts = [
        getattr(block, f"{name}_proj").weight
        for layer in layers
        for names, block in (("qkvo", layer.self_attn), (("gate", "up", "down"), layer.mlp))
        for name in names
    ]
    memory = torch.cat([part.detach().flatten() for part in parts])
    for part, place in zip(parts, torch.split(memory, [part.numel() for part in parts]), strict=True):
        part.data = place.view(part.shape)
    return memory


_PACKED_LAYERS: WeakValueDictionary[tuple[int, ...], _Layer] = WeakValueDictionary()
"""Layers by where their weights lie: a draft made of the target's own layers shares them."""


def _shared_layer(weights: LlamaWeights) -> _Layer:
    # a layer holds its weights, so an address stays taken as long as the entry lives
    tensors = [getattr(weights, field.name) for field in fields(weights)]
    key = tuple(number for tensor in tensors for number in (tensor.data_ptr(), tensor._version))
    layer = _PACKED_LAYERS.get(key)
    if layer is None:
        layer = _PACKED_LAYERS[key] = _Layer(weights)
    return layer


class _RotaryTables:
    """Cosines and sines of all positions so far, made once: the rotary embedding has to depend on nothing else.

    x cos + rotate_half(x) sin is x cos + roll(x) sin with the first half of sin negative. Attention's scale goes to
    the queries by way of these tables; values pass through them unchanged.
    """

    def __init__(self, rotary: Rotary, sizes: LlamaSizes) -> None:
        self._rotary = rotary
        self._factors = torch.tensor([sizes.head_dim**-0.5, 1.0, 0.0])[:, None]
        counts = (sizes.n_heads, sizes.n_kv_heads, sizes.n_kv_heads)
        self._kinds = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
        self._half = sizes.head_dim // 2
        self._cos = self._sin = torch.empty((0, 3, sizes.head_dim))

    def at(self, positions: Int[Tensor, " rows"]) -> tuple[Tensor, Tensor]:
        """Tables (rows, heads, dim) for queries, keys and values side by side."""
        end = int(positions.max()) + 1
        if end > len(self._cos):
            self._grow(max(end, 2 * len(self._cos), FIRST_CAPACITY))
        place = positions[:, None]
        return self._cos[place, self._kinds], self._sin[place, self._kinds]

    def _grow(self, n: int) -> None:
        cos, sin = self._rotary(torch.arange(n))
        sin = torch.cat([-sin[:, : self._half], sin[:, self._half :]], dim=-1)
        self._cos, self._sin = cos[:, None] * self._factors, sin[:, None] * self._factors
        self._cos[:, 2] = 1.0


class FusedLlama:
    """Llama decoder layers that run on packed weights, or on plain ones where `pack` is off and every pass says so."""

    def __init__(
        self,
        layers: Iterable[LlamaWeights],
        final_norm: Float[Tensor, " size"],
        sizes: LlamaSizes,
        rotary: Rotary,
        *,
        pack: bool = True,
    ) -> None:
        self.sizes = sizes
        self._layers = []
        for weights in layers:  # one after the other: the caller may let go of a layer's plain weights
            self._layers.append(_shared_layer(weights))
            if pack:
                self._layers[-1].packed()
        size = self._layers[0].weights.q.shape[1]
        self._root_eps = torch.tensor((size * sizes.rms_eps) ** 0.5)
        self._output_scale = final_norm * size**0.5
        self._tables = _RotaryTables(rotary, sizes)

    def packed(self) -> Iterator[Packed]:
        """The packed weights of all layers."""
        for layer in self._layers:
            yield from layer.packed()

    def plain(self) -> Iterator[Tensor]:
        """The matrices that were packed, as they were."""
        for layer in self._layers:
            yield from layer.weights.matrices()

    def new_cache(self) -> SlotCache:
        """An empty cache."""
        return SlotCache(len(self._layers), 2 * self.sizes.n_kv_heads, self.sizes.head_dim)

    def run(
        self,
        x: Float[Tensor, "rows size"],
        positions: Int[Tensor, " rows"],
        parts: Sequence[Part],
        *,
        plain: bool = False,
    ) -> Float[Tensor, "rows size"]:
        """Run all layers over the rows of all parts, below each other, and append them to their caches.

        `plain` takes the weights as they were before packing: a little faster for one row.
        """
        cos, sin = self._tables.at(positions)
        slots = [OpenSlots.open(part, self.sizes) for part in parts]
        places = bounds(parts)
        n_rows, head_dim = len(x), self.sizes.head_dim
        for number, layer in enumerate(self._layers):
            heads = layer.qkv(self._normed(x), plain).view(n_rows, -1, head_dim)
            heads = torch.addcmul(heads * cos, heads.roll(head_dim // 2, -1), sin)
            if len(slots) == 1:
                attended = self._attend(heads, slots[0], number)
            else:
                each = zip(slots, places, strict=True)
                attended = torch.cat([self._attend(heads[a:b], part, number) for part, (a, b) in each])
            x = layer.add_o(attended, x, plain)
            x = layer.add_mlp(self._normed(x), x, plain)
        return x

    def _normed(self, x: Float[Tensor, "rows size"]) -> Float[Tensor, "rows size"]:
        """Every row over its root mean square, short of the factor sqrt(size), which the weights hold."""
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        normed: Tensor = x / norm.hypot_(self._root_eps)
        return normed

    def final(self, x: Float[Tensor, "rows size"]) -> Float[Tensor, "rows size"]:
        """The norm before the output layer."""
        return self._normed(x).mul_(self._output_scale)

    def _attend(
        self, heads: Float[Tensor, "rows heads dim"], slots: OpenSlots, number: int
    ) -> Float[Tensor, "rows size"]:
        """Append keys and values, then attend: grouped heads of one key head are rows of one product."""
        n_rows, n_all, dim = heads.shape
        n_heads, n_kv = self.sizes.n_heads, self.sizes.n_kv_heads
        group, start, stride = n_heads // n_kv, heads.storage_offset(), n_all * dim
        # one view each instead of a slice, a reshape and a transposition: this runs in every layer of every pass
        new = heads.as_strided((2 * n_kv, n_rows, dim), (dim, stride, 1), start + n_heads * dim)
        slots.new[number].copy_(new)
        query = heads.as_strided((n_kv, group, n_rows, dim), (group * dim, dim, stride, 1), start)
        keys, values = slots.keys[number], slots.values[number]
        if n_rows >= LONG:
            return _attend_long(query, keys, values, slots.bias, is_causal=slots.bias is None)
        scores = torch.bmm(query.reshape(n_kv, group * n_rows, dim), keys.transpose(1, 2))
        if slots.bias is not None:
            scores[..., -slots.bias.shape[-1] :].add_(slots.bias)
        out = torch.bmm(scores.softmax(dim=-1), values)
        by_row = out.as_strided((n_rows, n_kv, group, dim), (dim, group * n_rows * dim, n_rows * dim, 1))
        return by_row.reshape(n_rows, n_heads * dim)


def _attend_long(
    query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, *, is_causal: bool
) -> Tensor:
    """Attention of many rows in blocks; the scale is in the queries already."""
    out = functional.scaled_dot_product_attention(
        query.flatten(0, 1)[None], keys[None], values[None],
        attn_mask=bias, is_causal=is_causal, scale=1.0, enable_gqa=True,
    )  # fmt: skip
    return out[0].transpose(0, 1).reshape(query.shape[2], -1)
