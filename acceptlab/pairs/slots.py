"""Keys and values of sequences in slots: one buffer a sequence, and what a pass fills, reads and masks in it.

Boundary: tensors on the CPU, in the shape that `fused` works with. No weights, no positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

FIRST_CAPACITY = 256
LONG = 64
"""From this many rows on attention runs in blocks: the table of scores would be large."""


@dataclass(frozen=True)
class LlamaSizes:
    """What the shapes of the weights do not tell."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    rms_eps: float


def in_place(slots: Int[Tensor, " kept"]) -> tuple[int, Int[Tensor, " moved"]]:
    """How many of the slots to keep stay where they are, and those that move up behind them."""
    moved = torch.nonzero(slots != torch.arange(len(slots)))
    first = int(moved[0, 0]) if len(moved) else len(slots)
    return first, slots[first:]


class SlotCache:
    """Keys and values of one sequence in one buffer, (layers, 2 * kv_heads, capacity, head_dim), that doubles."""

    def __init__(self, n_layers: int, n_rows: int, head_dim: int) -> None:
        self.length = 0
        # not filled: a slot is written before it is read, and what is not touched takes no memory
        self.buffer = torch.empty((n_layers, n_rows, FIRST_CAPACITY, head_dim))

    def clear(self) -> None:
        """Forget all slots, and keep the buffer for the next text."""
        self.length = 0

    def open(self, n_slots: int) -> slice:
        """Make room for that many more slots and return them."""
        start, end = self.length, self.length + n_slots
        capacity = self.buffer.shape[2]
        if end > capacity:
            shape = (*self.buffer.shape[:2], max(end, 2 * capacity), self.buffer.shape[3])
            used = self.buffer[:, :, :start] if start else None
            del self.buffer  # where nothing is to be kept, both are never there at once
            self.buffer = torch.empty(shape)
            if used is not None:
                self.buffer[:, :, :start] = used
        self.length = end
        return slice(start, end)

    def keep(self, first: int, tail: Int[Tensor, " slots"]) -> None:
        """Keep the first slots as they are and move the slots `tail` behind them."""
        self.length = first + len(tail)
        if len(tail):
            self.buffer[:, :, first : self.length] = self.buffer[:, :, tail]

    def keep_slots(self, slots: Int[Tensor, " kept"]) -> None:
        """Keep exactly these slots, in this order; slots that stay in place are not copied."""
        self.keep(*in_place(slots))


@dataclass(frozen=True)
class Part:
    """The rows of one sequence in a pass; `visible` (rows, slots) is None for a plain causal run."""

    cache: SlotCache
    n_rows: int
    visible: Bool[Tensor, "rows slots"] | None


@dataclass(frozen=True)
class OpenSlots:
    """The slots of one sequence in a pass, layer by layer: those to fill, and all keys and values."""

    new: tuple[Complex[Tensor, "two kv_heads rows half_dim"], ...]
    """Keys and values to be, as complex numbers."""
    keys: tuple[Float[Tensor, "kv_heads slots dim"], ...]
    values: tuple[Float[Tensor, "kv_heads slots dim"], ...]
    bias: Float[Tensor, "rows slots"] | None

    @classmethod
    def open(cls, part: Part, sizes: LlamaSizes, *, to_read: bool = True) -> OpenSlots:
        """Make room for the rows of a part; if they are only filled, what may be seen does not matter."""
        span, n_kv = part.cache.open(part.n_rows), sizes.n_kv_heads
        used = part.cache.buffer[:, :, : span.stop]
        return cls(
            _as_complex(used[:, :, span], n_kv),
            used[:, :n_kv].unbind(),
            used[:, n_kv:].unbind(),
            _bias(part, sizes.n_heads // n_kv) if to_read else None,
        )


def _as_complex(
    slots: Float[Tensor, "layers rows_of_cache rows dim"], n_kv: int
) -> tuple[Complex[Tensor, "two kv_heads rows half_dim"], ...]:
    """Every layer's part of the same memory, neighbours taken as one complex number."""
    n_layers, _, n_rows, dim = slots.shape
    return torch.view_as_complex(slots.view(n_layers, 2, n_kv, n_rows, dim // 2, 2)).unbind()


def bounds(parts: Sequence[Part]) -> list[tuple[int, int]]:
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
    is_long = n_rows >= LONG
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
