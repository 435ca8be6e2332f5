"""Arrow arrays made of their buffers.

`pyarrow.array` imports pandas, where it is installed, to find out whether it was given a pandas object; a collection
has no use for its 30 MB. Values are checked by the caller.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from jaxtyping import Bool


def number_array(
    values: np.ndarray, kind: pa.DataType, is_null: Bool[np.ndarray, " rows"] | None = None
) -> pa.Array:
    """Numbers, or true and false, of the NumPy type that belongs to `kind`; null where `is_null` says so."""
    data = _bits(values) if pa.types.is_boolean(kind) else pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [_validity(is_null), data], _n_nulls(is_null))


def text_array(values: Sequence[str | None]) -> pa.Array:
    """Texts; None is null.

    Raises:
        TypeError: something else is among them.
    """
    wrong = next((value for value in values if not (value is None or isinstance(value, str))), None)
    if wrong is not None:
        raise TypeError(f"{wrong!r} is of type {type(wrong).__name__}")
    encoded = [b"" if value is None else value.encode() for value in values]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    if offsets[-1] > np.iinfo(np.int32).max:
        raise TypeError("more than 2 GB of it")
    is_null = np.array([value is None for value in values], dtype=bool)
    buffers = [_validity(is_null), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers, _n_nulls(is_null))


def _n_nulls(is_null: Bool[np.ndarray, " rows"] | None) -> int:
    return 0 if is_null is None else int(is_null.sum())


def _validity(is_null: Bool[np.ndarray, " rows"] | None) -> pa.Buffer | None:
    return None if _n_nulls(is_null) == 0 else _bits(~np.asarray(is_null))


def _bits(flags: Bool[np.ndarray, " rows"]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))
