"""The largest entries of long rows. Plain `topk` reads a row with a heap; here whole columns of it drop out first."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

_FOLD = 32
"""A row is folded into so many strips; a column of the fold is looked at only if its maximum is among the k largest."""


def top(
    scores: Float[Tensor, "rows vocab"], k: int
) -> tuple[Float[Tensor, "rows k"], Int64[Tensor, "rows k"]]:
    """The k largest entries of every row, largest first, and where they are; equal ones in any order.

    At least k entries of the k columns with the largest maxima reach the smallest of those maxima, and nothing outside
    of them exceeds it, so the values are those of `topk`.
    """
    n_columns = scores.shape[1] // _FOLD
    if scores.device.type != "cpu" or n_columns < 4 * k:
        values, ids = scores.topk(k)
        return values, ids
    folded = scores[:, : _FOLD * n_columns].view(-1, _FOLD, n_columns)
    columns = folded.amax(dim=1).topk(k, sorted=False).indices[:, None].expand(-1, _FOLD, -1)
    found = folded.gather(2, columns).flatten(1)
    places = (columns + n_columns * torch.arange(_FOLD)[:, None]).flatten(1)
    n_left = scores.shape[1] - _FOLD * n_columns
    if n_left:
        rest = torch.arange(scores.shape[1] - n_left, scores.shape[1]).expand(len(scores), -1)
        found = torch.cat([found, scores[:, -n_left:]], dim=1)
        places = torch.cat([places, rest], dim=1)
    values, order = found.topk(k)
    return values, places.gather(1, order)
