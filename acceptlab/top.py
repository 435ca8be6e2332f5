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
        rows = scores.detach().numpy()
        values, ids = np.empty((len(rows), k), rows.dtype), np.empty((len(rows), k), np.int64)
        if all(_top_of_row(*each) for each in zip(rows, values, ids, strict=True)):
            return torch.from_numpy(values), torch.from_numpy(ids)
    largest, places = scores.topk(k)
    return largest, places


def _top_of_row(
    row: Float[np.ndarray, " vocab"], values: Float[np.ndarray, " k"], ids: Int64[np.ndarray, " k"]
) -> bool:
    """Write the same of one row; False where it has a nan, which `topk` puts first, or too many equal entries."""
    k, n_columns = len(values), len(row) // _FOLD
    n_folded = _FOLD * n_columns
    maxima = row[:n_folded].reshape(_FOLD, n_columns).max(axis=0)
    if np.isnan(maxima.max()) or (n_folded < len(row) and np.isnan(row[n_folded:]).any()):
        return False
    level = np.partition(maxima, n_columns - k)[n_columns - k]
    places = (row >= level).nonzero()[0]
    if len(places) > _CROWD * k:
        return False
    found = row[places]
    order = (-found).argsort(kind="stable")[:k]
    values[:], ids[:] = found[order], places[order]
    return True
