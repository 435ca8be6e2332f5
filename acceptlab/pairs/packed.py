"""Linear weights in the memory layout that oneDNN's own matrix product wants, where PyTorch can do that.

A weight as PyTorch keeps it has to be rearranged by the math library in every product; for the 2 to 64 rows of a
verification pass that costs as much as the product itself. Packed once, it is gone. The operators are PyTorch's, but
not documented, so everything here is guarded: where one is missing or does not give the plain product, `pack` returns
None and the caller goes on without. The numbers are those of the plain product up to float32 rounding.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import sys
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

_TOLERANCE = 1e-4
"""Largest difference from the plain product of standard normal numbers over 64 terms; rounding gives 1e-5."""
PREFILL_STEP = 32
"""Prompts run in a multiple of so many rows: the math library keeps code for every number of rows that it has met,
some megabytes each, so that memory would grow with every length of prompt."""
_PAGE_OUT, _COLLAPSE = 21, 25
"""MADV_PAGEOUT of Linux 5.4 (give pages back where nothing is lost by it) and MADV_COLLAPSE of Linux 6.1 (put small
pages together into large ones). Neither changes what memory holds."""
_HUGE = 2**21
"""Bytes of a large page."""


class Packed:
    """One weight (out, in), packed; `x` has shape (rows, in)."""

    def __init__(self, weight: Float[Tensor, "out in"]) -> None:
        self.shape = tuple(weight.shape)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)

    def linear(self, x: Float[Tensor, "rows in"]) -> Float[Tensor, "rows out"]:
        """`x @ weight.T`."""
        return self._unary(x, "none")

    def linear_silu(self, x: Float[Tensor, "rows in"]) -> Float[Tensor, "rows out"]:
        """`silu(x @ weight.T)` in one go."""
        return self._unary(x, "swish")

    def linear_add(self, x: Float[Tensor, "rows in"], other: Float[Tensor, "rows out"]) -> Tensor:
        """`x @ weight.T + other` in one go."""
        return self._binary(x, other, "add")

    def linear_mul(self, x: Float[Tensor, "rows in"], other: Float[Tensor, "rows out"]) -> Tensor:
        """`(x @ weight.T) * other` in one go."""
        return self._binary(x, other, "mul")

    def _unary(self, x: Tensor, after: str) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self._weight, None, after, [], "")
        return out

    def _binary(self, x: Tensor, other: Tensor, after: str) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, other, self._weight, None, after)
        return out

    def place(self) -> tuple[int, int]:
        """Address and size in memory; of size 0 where PyTorch does not tell."""
        ops = torch.ops.mkldnn
        if not hasattr(ops, "data_ptr") or not hasattr(ops, "_nbytes"):
            return 0, 0
        return int(ops.data_ptr(self._weight)), int(ops._nbytes(self._weight))


@lru_cache(maxsize=1)
def is_available() -> bool:
    """Whether packed products exist here and give the plain ones.

    Only on x86 processors, where they were measured to gain, and decided by what is installed, never by a timing: two
    runs on one machine have to round alike.
    """
    if platform.machine().lower() not in {"x86_64", "amd64"}:
        return False
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    ops = torch.ops.mkldnn
    if not hasattr(ops, "_reorder_linear_weight") or not hasattr(ops, "_linear_pointwise"):
        return False
    generator = torch.Generator().manual_seed(0)
    weight, x, other = (torch.randn(size, generator=generator) for size in ((48, 64), (5, 64), (5, 48)))
    try:
        packed = Packed(weight)
        found = torch.cat(
            [
                packed.linear(x),
                packed.linear_add(x, other),
                packed.linear_silu(x),
                packed.linear_mul(x, other),
            ]
        )
    except (RuntimeError, AttributeError, TypeError):
        return False
    plain = x @ weight.T
    expected = torch.cat([plain, plain + other, torch.nn.functional.silu(plain), plain * other])
    return bool((found - expected).abs().max() <= _TOLERANCE)


@lru_cache(maxsize=1)
def few_rows() -> int:
    """Up to so many rows the product with the plain weight is the faster one.

    On Intel processors PyTorch's library has kernels for two and three rows; elsewhere it is slow at more than one.
    """
    try:
        described = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        described = platform.processor()
    return 3 if "GenuineIntel" in described else 1


def release(tensors: Iterable[Tensor]) -> None:
    """Tell the system that these tensors are not needed for now, so that it may take their pages back.

    Weights are mapped from their file: their pages can be dropped and are read again if anything touches them. For
    memory that is no file this does nothing, and nothing either where the system has no such call.
    """
    # whole pages inside of each tensor
    for tensor in tensors:
        start = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > start:
            _advise(start, end - start, _PAGE_OUT)


def use_large_pages(weights: Iterable[Packed | Tensor]) -> None:
    """Ask the system to keep weights in large pages, where it can.

    Every pass reads all weights, and with small pages the translation of addresses takes a sixth of its time.
    """
    blocks: set[int] = set()
    for weight in weights:
        start, n_bytes = weight.place() if isinstance(weight, Packed) else (weight.data_ptr(), weight.nbytes)
        blocks.update(range(start // _HUGE, -(-(start + n_bytes) // _HUGE)))
    # one by one: a block whose ends are not mapped is refused, and only that one
    for block in sorted(blocks):
        _advise(block * _HUGE, _HUGE, _COLLAPSE)


@lru_cache(maxsize=1)
def _madvise() -> Any:
    """The system's call, or None."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        call = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return call


def _advise(start: int, n_bytes: int, advice: int) -> None:
    call = _madvise()
    if call is not None:
        call(start, n_bytes, advice)  # what the system does not know it refuses, and nothing happens
