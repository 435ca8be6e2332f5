"""One decoder layer's weights in the form in which its products run: packed, as the checkpoint has them, or in 16 bits.

Boundary: products of hidden states with weights, norms folded in. Attention and caches are in `fused`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.nn import functional

from acceptlab.pairs.halves import Half
from acceptlab.pairs.packed import Packed


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


class Layer(Protocol):
    """The products of one decoder layer. `plain` asks for the weights as the checkpoint has them, where that helps."""

    def qkv(self, x: Tensor, plain: bool) -> Tensor:
        """Queries, keys and values of normed rows, side by side."""
        ...

    def add_o(self, attended: Tensor, x: Tensor, plain: bool) -> Tensor:
        """The output projection and the residual."""
        ...

    def add_mlp(self, normed: Tensor, x: Tensor, plain: bool) -> Tensor:
        """The gated feed-forward block and the residual."""
        ...


class HalfLayer:
    """One layer's weights in 16 bits, which they must be numbers of (`halves.holds`)."""

    def __init__(self, weights: LlamaWeights) -> None:
        root = weights.q.shape[1] ** 0.5
        self._before, self._after = weights.input_norm * root, weights.post_norm * root
        self._qkv = Half(torch.cat([weights.q, weights.k, weights.v]))
        self._gate_up = Half(torch.cat([weights.gate, weights.up]))
        self._o, self._down = Half(weights.o), Half(weights.down)
        self._heights = [len(weights.q), len(weights.k), len(weights.v)]

    @property
    def nbytes(self) -> int:
        """Memory of the weights."""
        return sum(half.nbytes for half in (self._qkv, self._o, self._gate_up, self._down))

    def fill(self, layer: Any) -> None:
        """Give the weights back to a module (see `LlamaWeights.of`), in float32."""
        q, k, v = torch.split(self._qkv.weight(), self._heights)
        gate, up = self._gate_up.weight().chunk(2)
        attention = {"q": q, "k": k, "v": v, "o": self._o.weight()}
        block = {"gate": gate, "up": up, "down": self._down.weight()}
        for part, found in ((layer.self_attn, attention), (layer.mlp, block)):
            for name, weight in found.items():
                getattr(part, f"{name}_proj").weight.data = weight.contiguous()

    def qkv(self, x: Tensor, plain: bool) -> Tensor:
        """Queries, keys and values of normed rows, side by side."""
        return self._qkv.linear(x * self._before)

    def add_o(self, attended: Tensor, x: Tensor, plain: bool) -> Tensor:
        """The output projection and the residual."""
        return self._o.linear(attended).add_(x)

    def add_mlp(self, normed: Tensor, x: Tensor, plain: bool) -> Tensor:
        """The gated feed-forward block and the residual."""
        gate, up = self._gate_up.linear(normed * self._after).chunk(2, dim=-1)
        return self._down.linear(functional.silu(gate).mul_(up)).add_(x)


class PackedLayer:
    """One layer's weights, packed once they are wanted so. Passes of few rows may run on the plain ones."""

    def __init__(self, weights: LlamaWeights) -> None:
        self.weights = weights
        root = weights.q.shape[1] ** 0.5
        self._before, self._after = weights.input_norm * root, weights.post_norm * root

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

    def pack(self) -> tuple[Packed, ...]:
        """All weights, packed by now."""
        return self._qkv, self._o, self._gate, self._up, self._down

    def qkv(self, x: Tensor, plain: bool) -> Tensor:
        """Queries, keys and values side by side."""
        if not plain:
            return self._qkv.linear(x)
        x = x * self._before
        parts = (self.weights.q, self.weights.k, self.weights.v)
        return torch.cat([functional.linear(x, weight) for weight in parts], dim=-1)

    def add_o(self, attended: Tensor, x: Tensor, plain: bool) -> Tensor:
        """The output projection and the residual."""
        return x + functional.linear(attended, self.weights.o) if plain else self._o.linear_add(attended, x)

    def add_mlp(self, normed: Tensor, x: Tensor, plain: bool) -> Tensor:
        """The gated feed-forward block and the residual."""
        if plain:
            normed = normed * self._after
            gate = functional.silu(functional.linear(normed, self.weights.gate))
            return x + functional.linear(
                gate.mul_(functional.linear(normed, self.weights.up)), self.weights.down
            )
        gated = self._up.linear_mul(normed, self._gate.linear_silu(normed))
        return self._down.linear_add(gated, x)


_PACKED_LAYERS: WeakValueDictionary[tuple[int, ...], PackedLayer] = WeakValueDictionary()
"""Layers by where their weights lie: a draft made of the target's own layers shares them."""


def packed_layer(weights: LlamaWeights) -> PackedLayer:
    """A layer on packed weights, the same one for the same weights."""
    # a layer holds its weights, so an address stays taken as long as the entry lives
    tensors = [getattr(weights, field.name) for field in fields(weights)]
    key = tuple(number for tensor in tensors for number in (tensor.data_ptr(), tensor._version))
    layer = _PACKED_LAYERS.get(key)
    if layer is None:
        layer = _PACKED_LAYERS[key] = PackedLayer(weights)
        layer.pack()
    return layer
