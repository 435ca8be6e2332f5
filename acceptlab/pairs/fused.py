"""The decoder layers of a Llama on packed weights: the same numbers as transformers, with a fifth of its operations.

Boundary: hidden states in, hidden states out, for several sequences in one pass, each with its own cache of slots.
Embedding and output layer are the caller's. What the checkpoint keeps apart is joined or folded when the weights are
packed: query, key and value into one product, the gate into the products next to it, every norm's scale into the
product behind it, the scale of attention into the rotary tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any
from weakref import WeakValueDictionary

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from acceptlab.pairs.packed import Packed

FIRST_CAPACITY = 256
_LONG = 64
"""From this many rows on attention runs in blocks: the table of scores would be large."""

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


@dataclass(frozen=True)
class LlamaSizes:
    """What the shapes of the weights do not tell."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    rms_eps: float


class SlotCache:
    """Keys and values of one sequence in one buffer, (layers, 2 * kv_heads, capacity, head_dim), that doubles."""

    def __init__(self, n_layers: int, n_rows: int, head_dim: int) -> None:
        self.length = 0
        self.buffer = torch.zeros((n_layers, n_rows, FIRST_CAPACITY, head_dim))

    def open(self, n_slots: int) -> slice:
        """Make room for that many more slots and return them."""
        start, end = self.length, self.length + n_slots
        capacity = self.buffer.shape[2]
        if end > capacity:
            old = self.buffer
            self.buffer = old.new_zeros((*old.shape[:2], max(end, 2 * capacity), old.shape[3]))
            self.buffer[:, :, :start] = old[:, :, :start]
        self.length = end
        return slice(start, end)

    def keep(self, first: int, tail: Int[Tensor, " slots"]) -> None:
        """Keep the first slots as they are and move the slots `tail` behind them."""
        self.length = first + len(tail)
        if len(tail):
            self.buffer[:, :, first : self.length] = self.buffer[:, :, tail]

    def keep_slots(self, slots: Int[Tensor, " kept"]) -> None:
        """Keep exactly these slots, in this order; slots that stay in place are not copied."""
        moved = torch.nonzero(slots != torch.arange(len(slots)))
        first = int(moved[0, 0]) if len(moved) else len(slots)
        self.keep(first, slots[first:])


@dataclass(frozen=True)
class Part:
    """The rows of one sequence in a pass; `visible` (rows, slots) is None for a plain causal run."""

    cache: SlotCache
    n_rows: int
    visible: Bool[Tensor, "rows slots"] | None


class _Layer:
    """One layer's packed weights. Single rows may run on the plain ones: packing gains nothing for them."""

    def __init__(self, weights: LlamaWeights) -> None:
        self.weights = weights
        root = weights.q.shape[1] ** 0.5
        self._before, self._after = weights.input_norm * root, weights.post_norm * root
        self._qkv = Packed(torch.cat([weights.q, weights.k, weights.v]) * self._before)
        self._o = Packed(weights.o)
        self._gate, self._up = Packed(weights.gate * self._after), Packed(weights.up * self._after)
        self._down = Packed(weights.down)
        self._plain_qkv = _joined(weights.q, weights.k, weights.v)
        self._plain_gate_up = _joined(weights.gate, weights.up)

    def packed(self) -> tuple[Packed, ...]:
        """All packed weights."""
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


def _packed_layer(weights: LlamaWeights) -> _Layer:
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
    """Llama decoder layers that run on packed weights."""

    def __init__(
        self,
        layers: Iterable[LlamaWeights],
        final_norm: Float[Tensor, " size"],
        sizes: LlamaSizes,
        rotary: Rotary,
    ) -> None:
        self.sizes = sizes
        self._layers = [_packed_layer(weights) for weights in layers]
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
        spans = [part.cache.open(part.n_rows) for part in parts]
        bounds = _bounds(parts)
        biases = [_bias(part, self._group) for part in parts]
        for number, layer in enumerate(self._layers):
            heads = layer.qkv(self._normed(x), plain).view(len(x), -1, self.sizes.head_dim)
            heads = torch.addcmul(heads * cos, heads.roll(self.sizes.head_dim // 2, -1), sin)
            attended = [
                self._attend(heads[start:end], part.cache.buffer[number], span, bias)
                for part, (start, end), span, bias in zip(parts, bounds, spans, biases, strict=True)
            ]
            x = layer.add_o(attended[0] if len(attended) == 1 else torch.cat(attended), x, plain)
            x = layer.add_mlp(self._normed(x), x, plain)
        return x

    @property
    def _group(self) -> int:
        return self.sizes.n_heads // self.sizes.n_kv_heads

    def _normed(self, x: Float[Tensor, "rows size"]) -> Float[Tensor, "rows size"]:
        """Every row over its root mean square, short of the factor sqrt(size), which the weights hold."""
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        normed: Tensor = x / norm.hypot_(self._root_eps)
        return normed

    def final(self, x: Float[Tensor, "rows size"]) -> Float[Tensor, "rows size"]:
        """The norm before the output layer."""
        return self._normed(x).mul_(self._output_scale)

    def _attend(
        self, heads: Float[Tensor, "rows heads dim"], buffer: Tensor, span: slice, bias: Tensor | None
    ) -> Float[Tensor, "rows size"]:
        """Append keys and values, then attend: grouped heads of one key head are rows of one product."""
        n_rows, n_heads, n_kv = heads.shape[0], self.sizes.n_heads, self.sizes.n_kv_heads
        buffer[:, span] = heads[:, n_heads:].transpose(0, 1)
        used = buffer[:, : span.stop]
        keys, values = used[:n_kv], used[n_kv:]
        query = heads[:, :n_heads].view(n_rows, n_kv, self._group, -1).permute(1, 2, 0, 3)
        if n_rows >= _LONG:
            return _attend_long(query, keys, values, bias, is_causal=bias is None)
        scores = torch.bmm(query.reshape(n_kv, self._group * n_rows, -1), keys.transpose(1, 2))
        if bias is not None:
            scores[..., -bias.shape[-1] :].add_(bias)
        out = torch.bmm(scores.softmax(dim=-1), values)
        return out.view(n_kv, self._group, n_rows, -1).permute(2, 0, 1, 3).reshape(n_rows, -1)


def _bounds(parts: Sequence[Part]) -> list[tuple[int, int]]:
    """First and last row of every part among all rows."""
    ends = [0]
    for part in parts:
        ends.append(ends[-1] + part.n_rows)
    return list(pairwise(ends))


def _bias(part: Part, group: int) -> Float[Tensor, "rows slots"] | None:
    """What is added to the scores of the last slots: 0 where a row may look, else -inf; None where all may.

    The slots before the first one that is hidden from any row are left out, the rows repeated for grouped heads.
    """
    visible = part.visible
    n_slots, n_rows = part.cache.length, part.n_rows
    is_long = n_rows >= _LONG
    if visible is None:
        if n_rows == 1 or (is_long and n_slots == n_rows):
            return None
        visible = torch.ones((n_rows, n_slots), dtype=torch.bool).tril(n_slots - n_rows)
    if bool(visible.all()):
        return None
    hidden = torch.nonzero(~visible.all(dim=0))
    first = 0 if is_long else int(hidden[0])
    bias = torch.zeros((n_rows, n_slots - first)).masked_fill_(~visible[:, first:], -torch.inf)
    return bias if is_long else bias.repeat(group, 1)


def _attend_long(
    query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, *, is_causal: bool
) -> Tensor:
    """Attention of many rows in blocks; the scale is in the queries already."""
    out = functional.scaled_dot_product_attention(
        query.flatten(0, 1)[None], keys[None], values[None],
        attn_mask=bias, is_causal=is_causal, scale=1.0, enable_gqa=True,
    )  # fmt: skip
    return out[0].transpose(0, 1).reshape(query.shape[2], -1)
