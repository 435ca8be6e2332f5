"""Columns as Python or NumPy values -> Arrow arrays of the declared types, with every value checked.

The last gate before a file: a value that a column cannot hold exactly enough is refused by the column's name.
Not-a-number becomes null in a nullable float column and is refused elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from acceptlab.errors import RunError
from acceptlab.records import Column, Table
from acceptlab.store.arrays import number_array, text_array
from acceptlab.store.rounding import THRESHOLD_BITS, round_down, round_down_probs
from acceptlab.store.schema import DICTIONARY_COLUMNS, INFINITE_COLUMNS, arrow_schema, arrow_type

Values: TypeAlias = Any
"""Sequences, NumPy arrays or Arrow arrays; None stands for null."""


def to_arrow(table: Table, columns: Mapping[str, Values], run_id: str) -> pa.Table:
    """Check the columns of one table and convert them; `run_id` is added.

    Raises:
        RunError: a column is missing, unknown, of another length, or holds a value that it cannot store.
    """
    expected = [column.name for column in table.columns if column.name != "run_id"]
    missing = [name for name in expected if name not in columns]
    unknown = [name for name in columns if name not in expected]
    if missing or unknown:
        what = f"lacks column '{missing[0]}'" if missing else f"has no column '{unknown[0]}'"
        raise RunError(
            f"table '{table.name}' {what}: pass exactly the columns of docs/schema.md without run_id"
        )
    n_rows = len(columns[expected[0]])
    arrays = []
    for column in table.columns:
        if column.name == "run_id":
            arrays.append(_text(column, [run_id] * n_rows, table.name))
            continue
        values = columns[column.name]
        if len(values) != n_rows:
            raise RunError(
                f"column '{table.name}.{column.name}' has {len(values)} rows, '{expected[0]}' has {n_rows}: "
                "pass columns of one length"
            )
        arrays.append(_array(column, values, table.name))
    return pa.Table.from_arrays(arrays, schema=arrow_schema(table))


def _array(column: Column, values: Values, table: str) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if column.type == "string":
        return _text(column, values, table)
    if isinstance(values, pa.Array):
        values = (
            values.to_pylist()
            if values.null_count or pa.types.is_nested(values.type)
            else values.to_numpy(False)
        )
    if column.type.startswith("list<"):
        return _lists(column, values, table)
    if column.type == "bool":
        return _booleans(column, values, table)
    if column.type.startswith("int"):
        return _integers(column, values, table, arrow_type(column))
    return _floats(column, values, table)


def _text(column: Column, values: Values, table: str) -> pa.Array:
    if isinstance(values, pa.DictionaryArray):
        values = values.cast(
            values.type.value_type
        )  # also moves nulls among the dictionary's values to the rows
    try:
        array = values.cast(pa.string()) if isinstance(values, pa.Array) else text_array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as error:
        raise _bad(column, table, f"holds a value that is not text ({error})") from None
    if array.null_count and not column.nullable:
        raise _bad(column, table, "has a null where a text is required")
    return array.dictionary_encode() if column.name in DICTIONARY_COLUMNS else array


def _booleans(column: Column, values: Values, table: str) -> pa.Array:
    array: np.ndarray = np.asarray(values)
    if array.dtype != np.bool_ and len(array):
        raise _bad(column, table, f"holds {array.dtype} where true or false is required")
    return number_array(array.astype(np.bool_), pa.bool_())


def _integers(column: Column, values: Any, table: str, kind: pa.DataType) -> pa.Array:
    """Whole numbers of `kind`; None is null where the column may be null."""
    is_null = np.zeros(len(values), dtype=bool)
    array = np.asarray(values)
    if array.dtype == object:
        is_null = np.array([value is None for value in values], dtype=bool)
        array = np.asarray([0 if value is None else value for value in values])
    if len(array) and array.dtype.kind not in "iu":
        raise _bad(column, table, f"holds {array.dtype} where whole numbers are required")
    if is_null.any() and not column.nullable:
        raise _bad(column, table, "has a null where a number is required")
    limits = np.iinfo(kind.to_pandas_dtype())
    outside = (array < limits.min) | (array > limits.max)
    if outside.any():
        raise _bad(column, table, f"holds {array[outside][0]}, outside the range of {kind}")
    return number_array(array.astype(limits.dtype), kind, is_null)


def _floats(column: Column, values: Any, table: str) -> pa.Array:
    """Floats rounded to nearest; None and not-a-number are null where the column may be null."""
    exact = _as_floats(column, values, table)
    kind = arrow_type(column)
    dtype = kind.to_pandas_dtype()
    with np.errstate(over="ignore", under="ignore"):
        array = exact.astype(dtype)
    is_null = np.isnan(exact)
    if is_null.any() and not column.nullable:
        raise _bad(column, table, "is not a number in some row, and may not be null")
    _refuse_infinite(column, array, table)
    return number_array(array, kind, is_null)


def _lists(column: Column, values: Any, table: str) -> pa.Array:
    """Lists of numbers without nulls; floats are rounded down, as `records` states for them."""
    kind = arrow_type(column)
    if isinstance(values, np.ndarray) and values.ndim == 2:
        lengths, flat = np.full(len(values), values.shape[1]), values.reshape(-1)
    else:
        rows = [np.asarray(row if row is not None else [None], dtype=None) for row in values]
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        rows = [row for row in rows if len(row)]  # NumPy's default type of an empty one would widen others
        flat = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    element = Column(column.name, str(kind.value_type), column.doc)
    if pa.types.is_floating(kind.value_type):
        exact = _as_floats(column, flat, table)
        if np.isnan(exact).any():
            raise _bad(column, table, "is not a number in some list, where no null may stand")
        _refuse_infinite(column, exact, table)
        is_probs = column.name.endswith("_probs")
        stored = round_down_probs(exact) if is_probs else round_down(exact, np.float32, THRESHOLD_BITS)
        array = number_array(stored, kind.value_type)
    else:
        array = _integers(element, flat, table, kind.value_type)
    return pa.ListArray.from_arrays(number_array(offsets, pa.int32()), array, type=kind)


def _as_floats(column: Column, values: Any, table: str) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype in (np.float16, np.float32):
        return array
    try:
        return array.astype(np.float64)  # None becomes not-a-number
    except (TypeError, ValueError):
        raise _bad(column, table, f"holds {array.dtype} where numbers are required") from None


def _refuse_infinite(column: Column, array: np.ndarray, table: str) -> None:
    if column.name not in INFINITE_COLUMNS and np.isinf(array).any():
        raise _bad(column, table, "is infinite in some row, or too large for its type")
    if np.isneginf(array).any():
        raise _bad(column, table, "is minus infinity in some row")


def _bad(column: Column, table: str, what: str) -> RunError:
    return RunError(f"column '{table}.{column.name}' {what}: correct the value before it is stored")
