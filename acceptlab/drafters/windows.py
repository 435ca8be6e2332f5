"""Windows of teacher-forced rows, arranged by sequence, and attention from them.

Tensor bookkeeping of the heads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from acceptlab.drafters.base import Rows


@dataclass(frozen=True)
class WindowGrid:
    """The windows of every sequence, padded to the same number.

    `row_of` (sequences, windows, gamma) are row numbers, -1 where there is none; `anchors` (sequences,
    windows) are the positions of the last tokens before the windows, 0 where there is no window.
    """

    row_of: Int[Tensor, "sequences windows gamma"]
    anchors: Int[Tensor, "sequences windows"]

    @classmethod
    def of(cls, rows: Rows) -> WindowGrid:
        """Arrange rows: a window begins at every row of depth 0."""
        n_sequences, gamma = rows.token_ids.shape[0], int(rows.depth.max()) + 1
        first = rows.depth == 0
        number = first.long().cumsum(0) - 1
        owner = rows.sequence[first]
        counts = torch.bincount(owner, minlength=n_sequences)
        starts = counts.cumsum(0) - counts
        place = number - starts[rows.sequence]
        row_of = torch.full((n_sequences, int(counts.max()), gamma), -1)
        row_of[rows.sequence, place, rows.depth] = torch.arange(len(rows.depth))
        anchors = torch.zeros(n_sequences, int(counts.max()), dtype=torch.long)
        anchors[rows.sequence, place] = rows.position - rows.depth
        return cls(row_of, anchors)


def attend_both(
    query: Float[Tensor, "batch heads windows dim"],
    context: tuple[Float[Tensor, "batch kv slots dim"], Float[Tensor, "batch kv slots dim"]],
    visible: Bool[Tensor, "batch windows slots"],
    own: tuple[Float[Tensor, "batch kv windows chain dim"], Float[Tensor, "batch kv windows chain dim"]],
) -> Float[Tensor, "batch heads windows dim"]:
    """One query a window over the visible slots of its context and all of the window's own slots."""
    batch, heads, windows, dim = query.shape
    kv_heads = context[0].shape[1]
    grouped = query.view(batch, kv_heads, heads // kv_heads, windows, dim) * dim**-0.5
    outer = grouped @ context[0].transpose(-1, -2)[:, :, None]
    outer = outer.masked_fill(~visible[:, None, None], -torch.inf)
    inner = torch.einsum("bkgwd,bkwcd->bkgwc", grouped, own[0])
    weights = torch.cat([outer, inner], dim=-1).softmax(dim=-1)
    n_slots = outer.shape[-1]
    out = weights[..., :n_slots] @ context[1][:, :, None]
    out = out + torch.einsum("bkgwc,bkwcd->bkgwd", weights[..., n_slots:], own[1])
    return out.reshape(batch, heads, windows, dim)
