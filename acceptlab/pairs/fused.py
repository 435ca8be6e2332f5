"""The decoder layers of a Llama: the same numbers as transformers, with a fifth of its operations.

Boundary: hidden states in, hidden states out, for several sequences in one pass, each with its own cache of slots.
Embedding and output layer are the caller's, the products of a layer those of `layers`. What the checkpoint keeps apart
is joined or folded: query, key and value into one product, the gate into the products next to it, every norm's scale
into the product behind it, the scale of attention into the rotary tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from acceptlab.pairs.layers import Layer
from acceptlab.pairs.slots import FIRST_CAPACITY, LONG, LlamaSizes, OpenSlots, Part, SlotCache, bounds

Rotary = Callable[[Int[Tensor, " rows"]], tuple[Float[Tensor, "rows dim"], Float[Tensor, "rows dim"]]]


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
    """Llama decoder layers, whatever form their weights have (see `layers`)."""

    def __init__(
        self,
        layers: Iterable[Layer],
        final_norm: Float[Tensor, " size"],
        sizes: LlamaSizes,
        rotary: Rotary,
    ) -> None:
        self.sizes = sizes
        self._layers = list(layers)
        size = len(final_norm)
        self._root_eps = torch.tensor((size * sizes.rms_eps) ** 0.5)
        self._output_scale = final_norm * size**0.5
        self._tables = _RotaryTables(rotary, sizes)
        self.watched: frozenset[int] = frozenset()
        self.seen: dict[int, Float[Tensor, "rows size"]] = {}
        """Hidden states in front of the watched layers, of the last pass."""

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
            if number in self.watched:
                self.seen[number] = x
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

    def write_states(
        self, cache: SlotCache, states: Sequence[Float[Tensor, "rows size"]], positions: Int[Tensor, " rows"]
    ) -> None:
        """Append keys and values of given hidden states, one for every layer, without running anything."""
        cos, sin = self._tables.at(positions)
        span, n_kv, head_dim = cache.open(len(positions)), self.sizes.n_kv_heads, self.sizes.head_dim
        for number, (layer, own) in enumerate(zip(self._layers, states, strict=True)):
            heads = layer.qkv(self._normed(own), False).view(len(own), -1, head_dim)
            heads = torch.addcmul(heads * cos, heads.roll(head_dim // 2, -1), sin)
            cache.buffer[number, :, span] = heads[:, -2 * n_kv :].transpose(0, 1)

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
