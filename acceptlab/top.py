"""The largest entries of long rows. Plain `topk` reads a row with a heap; here all but a few entries drop out first."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

_FOLD = 32
"""A row is folded into so many strips, and an entry is looked at only if it reaches the k-th largest column maximum."""

_FEW = 4
"""Up to so many entries are found by as many searches for the largest one."""
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
    if is_plain and k <= min(_FEW, scores.shape[1]) and len(scores):
        few = _few_of_rows(scores.detach().numpy(), k)
        if few is not None:
            return torch.from_numpy(few[0]), torch.from_numpy(few[1])
    elif is_plain and scores.shape[1] >= 4 * k * _FOLD and len(scores):
        found = _top_of_rows(scores.detach().numpy(), k)
        if found is not None:
            return torch.from_numpy(found[0]), torch.from_numpy(found[1])
    largest, places = scores.topk(k)
    return largest, places


def _few_of_rows(
    rows: Float[np.ndarray, "rows vocab"], k: int
) -> tuple[Float[np.ndarray, "rows k"], Int64[np.ndarray, "rows k"]] | None:
    """The same for a few entries, lower ids first among equal ones and a nan before all, as in `topk`.

    None where -inf is among them: what has been found counts as that.
    """
    left = rows.copy() if k > 1 else rows
    places = np.arange(len(rows))
    ids = np.empty((len(rows), k), np.int64)
    for rank in range(k):
        ids[:, rank] = left.argmax(axis=1)
        if rank + 1 < k:
            left[places, ids[:, rank]] = -np.inf
    values = np.take_along_axis(rows, ids, axis=1)
    return None if (values == -np.inf).any() else (values, ids)


def _top_of_rows(
    rows: Float[np.ndarray, "rows vocab"], k: int
) -> tuple[Float[np.ndarray, "rows k"], Int64[np.ndarray, "rows k"]] | None:
    """The same; None where there is a nan, which `topk` puts first, or where too many entries are equal."""
    n_rows, vocab = rows.shape
    n_columns = vocab // _FOLD
    n_folded = _FOLD * n_columns
    maxima = rows[:, :n_folded].reshape(n_rows, _FOLD, n_columns).max(axis=1)
    if np.isnan(maxima.max()) or np.isnan(rows[:, n_folded:]).any():
        return None
    levels = np.partition(maxima, n_columns - k, axis=1)[:, n_columns - k]
    values, ids = np.empty((n_rows, k), rows.dtype), np.empty((n_rows, k), np.int64)
    for place, (row, level) in enumerate(zip(rows, levels, strict=True)):
        places = (row >= level).nonzero()[0]
        if len(places) > _CROWD * k:
            return None
        found = row[places]
        order = (-found).argsort(kind="stable")[:k]
        values[place], ids[place] = found[order], places[order]
    return values, ids
