"""One decoder layer's weights in the form in which its products run: packed, as the checkpoint has them, or in 16 bits.

Boundary: products of hidden states with weights, norms folded in. Attention and caches are in `fused`. Queries and keys
come with the two halves of every head interleaved, so that a rotation is one product of complex numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
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

    head_dim: int
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
    def of(cls, layer: Any, head_dim: int) -> LlamaWeights:
        """Those of a module that names its parts as the checkpoints do."""
        q, k, v, o = (getattr(layer.self_attn, f"{name}_proj").weight.detach() for name in "qkvo")
        gate, up, down = (
            getattr(layer.mlp, f"{name}_proj").weight.detach() for name in ("gate", "up", "down")
        )
        norms = (layer.input_layernorm.weight.detach(), layer.post_attention_layernorm.weight.detach())
        return cls(head_dim, norms[0], q, k, v, o, norms[1], gate, up, down)

    def matrices(self) -> tuple[Tensor, ...]:
        """All weights but the scales of the norms."""
        return self.q, self.k, self.v, self.o, self.gate, self.up, self.down

    def qkv(self) -> Tensor:
        """Queries, keys and values in one matrix, the halves of each head of the first two interleaved."""
        turned = [_interleaved(weight, self.head_dim) for weight in (self.q, self.k)]
        return torch.cat([*turned, self.v])


def _interleaved(weight: Tensor, head_dim: int) -> Tensor:
    """Rows 0, d/2, 1, d/2 + 1, ... of every head of dimension d: the two that a rotation turns side by side."""
    return weight.view(-1, 2, head_dim // 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def _apart(weight: Tensor, head_dim: int) -> Tensor:
    """The inverse of `_interleaved`."""
    return weight.view(-1, head_dim // 2, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


class Layer(Protocol):
    """The products of one decoder layer. `plain` asks for the weights as the checkpoint has them, where that helps."""

    def qkv(self, x: Tensor, plain: bool) -> Tensor:
        """Queries, keys and values of normed rows, side by side, queries and keys interleaved; contiguous."""
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
        self._qkv = Half(weights.qkv())
        self._gate_up = Half(torch.cat([weights.gate, weights.up]))
        self._o, self._down = Half(weights.o), Half(weights.down)
        self._heights = [len(weights.q), len(weights.k), len(weights.v)]
        self._head_dim = weights.head_dim

    @property
    def nbytes(self) -> int:
        """Memory of the weights."""
        return sum(half.nbytes for half in (self._qkv, self._o, self._gate_up, self._down))

    def fill(self, layer: Any) -> None:
        """Give the weights back to a module (see `LlamaWeights.of`), in float32."""
        q, k, v = torch.split(self._qkv.weight(), self._heights)
        q, k = _apart(q, self._head_dim), _apart(k, self._head_dim)
        gate, up = self._gate_up.weight().chunk(2)
        attention = {"q": q, "k": k, "v": v, "o": self._o.weight()}
        block = {"gate": gate, "up": up, "down": self._down.weight()}
        for part, found in ((layer.self_attn, attention), (layer.mlp, block)):
            for name, weight in found.items():
                # parts of a joined matrix would keep the whole of it in memory
                getattr(part, f"{name}_proj").weight.data = weight.clone()

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
        return Packed(self.weights.qkv() * self._before)

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
        x, half = x * self._before, self.weights.head_dim // 2
        q, k, v = (functional.linear(x, w) for w in (self.weights.q, self.weights.k, self.weights.v))
        turned = [part.view(len(x), -1, 2, half).transpose(2, 3) for part in (q, k)]
        return torch.cat([*turned, v.view(len(x), -1, half, 2)], dim=1)

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
    tensors = [*weights.matrices(), weights.input_norm, weights.post_norm]
    key = tuple(number for tensor in tensors for number in (tensor.data_ptr(), tensor._version))
    layer = _PACKED_LAYERS.get(key)
    if layer is None:
        layer = _PACKED_LAYERS[key] = PackedLayer(weights)
        layer.pack()
    return layer
