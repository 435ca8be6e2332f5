"""Linear weights that are 16-bit numbers, read in 16 bits and multiplied in float32, where PyTorch can do that.

A pass of few rows takes as long as reading the weights, so weights of half the size are read in half the time. A
weight whose every entry is a 16-bit number loses nothing by being kept as one: products and sums are those of
float32, so the result is that of the plain product up to float32 rounding. The operator is PyTorch's, made for
weights that are rounded; `holds` says for which weights nothing is rounded.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

_TOLERANCE = 1e-4
"""Largest difference from the plain product of standard normal numbers over 64 terms; rounding gives 1e-5."""


def holds(weight: Tensor) -> bool:
    """Whether every entry is a 16-bit floating point number."""
    return bool((weight.half().float() == weight).all())


def rounded(weight: Tensor) -> Tensor:
    """The nearest 16-bit numbers, in float32."""
    return weight.half().float()


class Half:
    """One weight (out, in) that `holds`, kept in 16 bits; `x` has shape (rows, in)."""

    def __init__(self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None = None) -> None:
        self._weight = torch.ops.quantized.linear_prepack_fp16(weight.float().contiguous(), bias)
        self.nbytes = 2 * weight.numel()

    def linear(self, x: Float[Tensor, "rows in"]) -> Float[Tensor, "rows out"]:
        """`x @ weight.T`, and the bias where there is one."""
        out: Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self._weight)
        return out

    def weight(self) -> Float[Tensor, "out in"]:
        """The weight again, in float32."""
        found: Tensor = torch.ops.quantized.linear_unpack_fp16(self._weight)[0]
        return found


@lru_cache(maxsize=1)
def is_available() -> bool:
    """Whether such products exist here and give the plain ones, the smallest numbers and the bias included."""
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(size, generator=generator) for size in ((5, 64), (48, 64)))
    bias = torch.randn(48, generator=generator)
    weight = rounded(weight)
    weight[0], x[0] = 2.0**-24, 2.0**20
    try:
        found = Half(weight, bias).linear(x)
    except (RuntimeError, AttributeError, TypeError):
        return False
    expected = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
    return bool(((found - expected).abs() <= _TOLERANCE * expected.abs().clamp(min=1)).all())
