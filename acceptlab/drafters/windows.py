"""Windows of teacher-forced rows, arranged by sequence, attention from them, and places without their padding.

Tensor bookkeeping of the heads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
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


@dataclass(frozen=True)
class Packing:
    """Places of padded sequences that are run, as the rows of one: padding costs nothing but in attention.

    `places` are the places of the rows, counted through all sequences; `row_of` is the row that stands at every
    place, where it is left out any one, whose attention nobody may use.
    """

    places: Int[Tensor, " rows"]
    row_of: Int[Tensor, "sequences slots"]

    @classmethod
    def of(cls, used: Bool[Tensor, "sequences slots"], n_shared: int = 0) -> Packing:
        """Pack the used places; the first `n_shared` ones are run once for all sequences, which share them."""
        used = used.clone()
        used[0, :n_shared], used[1:, :n_shared] = True, False
        row_of = (used.flatten().long().cumsum(0) - 1).clamp_min(0).view_as(used)
        row_of[1:, :n_shared] = row_of[0, :n_shared]
        return cls(used.flatten().nonzero()[:, 0], row_of)

    def pack(self, values: Shaped[Tensor, "sequences slots *rest"]) -> Shaped[Tensor, "1 rows *rest"]:
        """Values of the rows."""
        return values.flatten(0, 1).index_select(0, self.places)[None]

    def rows_at(self, places: Int[Tensor, " places"]) -> Int[Tensor, " places"]:
        """Rows that stand at these places, counted through all sequences."""
        return self.row_of.flatten()[places]

    def spread(self, rows: Float[Tensor, "1 heads rows dim"]) -> Float[Tensor, "sequences heads slots dim"]:
        """Queries, keys or values of the rows, at their places."""
        _, heads, n_rows, dim = rows.shape
        flat = rows[0].transpose(0, 1).reshape(n_rows, heads * dim)
        spread = flat.index_select(0, self.row_of.flatten())
        return spread.view(*self.row_of.shape, heads, dim).transpose(1, 2)


def take_places(
    attended: Float[Tensor, "sequences heads slots dim"], places: Int[Tensor, " rows"]
) -> Float[Tensor, "1 heads rows dim"]:
    """What was attended to at these places, counted through all sequences."""
    flat = attended.transpose(1, 2).flatten(0, 1)
    return flat.index_select(0, places).transpose(0, 1)[None]


def attend_both(
    query: Float[Tensor, "batch heads windows dim"],
    context: tuple[Float[Tensor, "batch kv slots dim"], Float[Tensor, "batch kv slots dim"]],
    visible: Bool[Tensor, "batch windows slots"],
    own: tuple[Float[Tensor, "batch kv windows chain dim"], Float[Tensor, "batch kv windows chain dim"]],
) -> Float[Tensor, "batch heads windows dim"]:
    """One query a window over the visible slots of its context and all of the window's own slots."""
    batch, heads, windows, dim = query.shape
    kv_heads = context[0].shape[1]
    grouped = query.reshape(batch, kv_heads, heads // kv_heads, windows, dim) * dim**-0.5
    # the queries of a group as rows of one product: the keys are not copied for each
    outer = grouped.flatten(2, 3) @ context[0].transpose(-1, -2)
    outer = outer.view(batch, kv_heads, -1, windows, outer.shape[-1])
    outer = outer.masked_fill(~visible[:, None, None], -torch.inf)
    inner = torch.einsum("bkgwd,bkwcd->bkgwc", grouped, own[0])
    weights = torch.cat([outer, inner], dim=-1).softmax(dim=-1)
    n_slots = outer.shape[-1]
    out = (weights[..., :n_slots].flatten(2, 3) @ context[1]).view(grouped.shape)
    out = out + torch.einsum("bkgwc,bkwcd->bkgwd", weights[..., n_slots:], own[1])
    return out.reshape(batch, heads, windows, dim)
