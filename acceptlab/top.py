"""The largest entries of long rows. Plain `topk` reads a row with a heap; here all but a few entries drop out first."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

_FOLD = 32
"""A row is folded into so many strips, and an entry is looked at only if it reaches the k-th largest column maximum."""

_CROWD = 16
"""Where more than so many times k entries reach it, many are equal: plain `topk` then."""


def top(
    scores: Float[Tensor, "rows vocab"], k: int
) -> tuple[Float[Tensor, "rows k"], Int64[Tensor, "rows k"]]:
    """The k largest entries of every row, largest first, and where they are; equal ones in any order.

    At least k entries reach the k-th largest of the column maxima, and all that are among the k largest do, so the
    values are those of `topk`.
    """
    is_plain = scores.device.type == "cpu" and scores.dtype in {torch.float32, torch.float64}
    if is_plain and scores.shape[1] >= 4 * k * _FOLD:
        rows = [_top_of_row(row, k) for row in scores.detach().numpy()]
        found = [row for row in rows if row is not None]
        if rows and len(found) == len(rows):
            values, ids = (np.stack(each) for each in zip(*found, strict=True))
            return torch.from_numpy(values), torch.from_numpy(ids)
    largest, places = scores.topk(k)
    return largest, places


def _top_of_row(
    row: Float[np.ndarray, " vocab"], k: int
) -> tuple[Float[np.ndarray, " k"], Int64[np.ndarray, " k"]] | None:
    """The same of one row; None where it has a nan, which `topk` puts first, or where too many entries are equal."""
    n_columns = len(row) // _FOLD
    maxima = row[: _FOLD * n_columns].reshape(_FOLD, n_columns).max(axis=0)
    largest = np.partition(maxima, n_columns - k)[n_columns - k :]
    places = np.flatnonzero(~(row < largest[0]))
    found = row[places]
    # a nan is not below anything, so it is among those found
    if not k <= len(places) <= _CROWD * k or np.isnan(found).any():
        return None
    order = np.argsort(-found, kind="stable")[:k]
    return found[order], places[order]
