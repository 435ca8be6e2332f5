"""The decoder layers of a Llama: the same numbers as transformers, with a fifth of its operations.

Boundary: hidden states in, hidden states out, for several sequences in one pass, each with its own cache of slots.
Embedding and output layer are the caller's, the products of a layer those of `layers`. What the checkpoint keeps apart
is joined or folded: query, key and value into one product, the gate into the products next to it, every norm's scale
into the product behind it, the scale of attention into the rotary tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor
from torch.nn import functional

from acceptlab.pairs.layers import Layer
from acceptlab.pairs.slots import FIRST_CAPACITY, LONG, LlamaSizes, OpenSlots, Part, SlotCache, bounds

Rotary = Callable[[Int[Tensor, " rows"]], tuple[Float[Tensor, "rows dim"], Float[Tensor, "rows dim"]]]


class _Turns:
    """Rotations of all positions so far as complex numbers, made once: they have to depend on nothing else.

    Rotating the halves (a, b) of a head is (a + ib)(cos + i sin). Attention's scale goes to the queries by way of these
    tables; values pass through them unchanged.
    """

    def __init__(self, rotary: Rotary, sizes: LlamaSizes) -> None:
        self._rotary = rotary
        self._scale, self._half = sizes.head_dim**-0.5, sizes.head_dim // 2
        self._table = torch.empty((3, 0, self._half), dtype=torch.complex64)

    def at(self, positions: Int[Tensor, " rows"]) -> Complex[Tensor, "kinds rows half_dim"]:
        """Factors of queries, keys and values."""
        end = int(positions.max()) + 1
        if end > self._table.shape[1]:
            self._grow(max(end, 2 * self._table.shape[1], FIRST_CAPACITY))
        return self._table[:, positions]

    def _grow(self, n: int) -> None:
        cos, sin = (part[:, : self._half].contiguous() for part in self._rotary(torch.arange(n)))
        turn = torch.complex(cos, sin)
        self._table = torch.stack([turn * self._scale, turn, torch.ones_like(turn)])


class _Rows:
    """The rows of one part in a pass: what turns them, and where its queries lie, by heads, in every layer."""

    def __init__(
        self,
        slots: OpenSlots,
        bounds: tuple[int, int],
        turns: Complex[Tensor, "kinds all_rows half_dim"],
        sizes: LlamaSizes,
    ) -> None:
        self.slots = slots
        (first, end), half = bounds, sizes.head_dim // 2
        n_heads, n_kv, n_rows = sizes.n_heads, sizes.n_kv_heads, end - first
        stride, start = (n_heads + 2 * n_kv) * half, first * (n_heads + 2 * n_kv) * half
        self._query_at = (n_heads, n_rows, half), (half, stride, 1), start
        kv_start = start + n_heads * half
        self._kv_at = (2, n_kv, n_rows, half), (n_kv * half, half, stride, 1), kv_start
        mine = turns[:, first:end]
        self._query_turns, self._kv_turns = mine[0], mine[1:, None]
        # filled by every layer in turn
        self._turned = torch.empty((n_heads, n_rows, half), dtype=torch.complex64)
        by_group = torch.view_as_real(self._turned).view(n_kv, n_heads // n_kv, n_rows, 2 * half)
        self.query: Float[Tensor, "kv_heads group rows dim"] = by_group
        self.flat_query: Float[Tensor, "kv_heads group_rows dim"] = by_group.flatten(1, 2)

    def fill(self, qkv: Complex[Tensor, "all_rows heads half_dim"], number: int) -> None:
        """Rotate queries, and keys and values into the slots of a layer; `qkv` is contiguous."""
        # one view each instead of a slice and a transposition: this runs in every layer of every pass
        torch.mul(qkv.as_strided(*self._query_at), self._query_turns, out=self._turned)
        torch.mul(qkv.as_strided(*self._kv_at), self._kv_turns, out=self.slots.new[number])


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
        self._turns = _Turns(rotary, sizes)
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

        `plain` takes the weights as they were before packing: a little faster for one row. Nothing is kept for
        gradients: call it under `torch.inference_mode` or `torch.no_grad`.
        """
        turns = self._turns.at(positions)
        rows = [
            _Rows(OpenSlots.open(part, self.sizes), place, turns, self.sizes)
            for part, place in zip(parts, bounds(parts), strict=True)
        ]
        for number, layer in enumerate(self._layers):
            if number in self.watched:
                self.seen[number] = x
            qkv = self._heads(layer.qkv(self._normed(x), plain))
            attended = [self._attend(qkv, own, number) for own in rows]
            x = layer.add_o(attended[0] if len(rows) == 1 else torch.cat(attended), x, plain)
            x = layer.add_mlp(self._normed(x), x, plain)
        return x

    def write_states(
        self, cache: SlotCache, states: Sequence[Float[Tensor, "rows size"]], positions: Int[Tensor, " rows"]
    ) -> None:
        """Append keys and values of given hidden states, one for every layer, without running anything."""
        n_rows = len(positions)
        slots = OpenSlots.open(Part(cache, n_rows, None), self.sizes, to_read=False)
        rows = _Rows(slots, (0, n_rows), self._turns.at(positions), self.sizes)
        for number, (layer, own) in enumerate(zip(self._layers, states, strict=True)):
            rows.fill(self._heads(layer.qkv(self._normed(own), False)), number)

    def _heads(self, qkv: Tensor) -> Complex[Tensor, "rows heads half_dim"]:
        half = self.sizes.head_dim // 2
        return torch.view_as_complex(qkv.view(len(qkv), -1, half, 2))

    def _normed(self, x: Float[Tensor, "rows size"]) -> Float[Tensor, "rows size"]:
        """Every row over its root mean square, short of the factor sqrt(size), which the weights hold."""
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        normed: Tensor = x / norm.hypot_(self._root_eps)
        return normed

    def final(self, x: Float[Tensor, "rows size"]) -> Float[Tensor, "rows size"]:
        """The norm before the output layer."""
        return self._normed(x).mul_(self._output_scale)

    def _attend(
        self, qkv: Complex[Tensor, "all_rows heads half_dim"], rows: _Rows, number: int
    ) -> Float[Tensor, "rows size"]:
        """Append keys and values, then attend: grouped heads of one key head are rows of one product."""
        rows.fill(qkv, number)
        slots = rows.slots
        n_kv, group, n_rows, dim = rows.query.shape
        keys, values = slots.keys[number], slots.values[number]
        if n_rows >= LONG:
            return _attend_long(rows.query, keys, values, slots.bias, is_causal=slots.bias is None)
        scores = torch.bmm(rows.flat_query, keys.transpose(1, 2))
        if slots.bias is not None:
            scores[..., -slots.bias.shape[-1] :].add_(slots.bias)
        out = torch.bmm(scores.softmax(dim=-1), values)
        by_row = out.as_strided((n_rows, n_kv, group, dim), (dim, group * n_rows * dim, n_rows * dim, 1))
        return by_row.reshape(n_rows, n_kv * group * dim)


def _attend_long(
    query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, *, is_causal: bool
) -> Tensor:
    """Attention of many rows in blocks; the scale is in the queries already."""
    out = functional.scaled_dot_product_attention(
        query.flatten(0, 1)[None], keys[None], values[None],
        attn_mask=bias, is_causal=is_causal, scale=1.0, enable_gqa=True,
    )  # fmt: skip
    return out[0].transpose(0, 1).reshape(query.shape[2], -1)
