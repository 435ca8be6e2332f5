"""Arrow schemas and Parquet options of the tables that `records` declares.

Declarations in, Arrow objects out: no files here, no values of a run. Column types stand only in `records`.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from acceptlab.records import MEASURES, SCHEMA_VERSION, TABLES, Column, Table

TABLE_NAMES = tuple(table.name for table in TABLES)

DICTIONARY_COLUMNS = frozenset(
    {"run_id", "domain", "prompt_id", "outcome", "stop_reason", "source", "skip_reason"}
)
"""String columns with few distinct values: dictionary-encoded in Arrow and in Parquet."""

INFINITE_COLUMNS = frozenset(
    {"kl_target_draft", "kl_draft_target", "renyi_half", "thresholds_forward", "thresholds_reverse"}
)
"""Columns in which infinity is a value: divergences, and the thresholds that are compared with them."""

ROW_GROUP_ROWS = {"nodes": 131_072, "contexts": 65_536, "steps": 131_072, "prompts": 16_384}
"""Rows a row group: large enough for the encodings, small enough to stream a table of any length."""

FAST_LEVEL = 3
"""Compression of parts that are written while models run, and joined later."""

FINAL_LEVEL = 15
"""Compression of finished runs: a twentieth smaller, for about 0.04 ms a context on one core, once. Level 19 takes
three times as long for another thirtieth."""

_RARELY_REPEATED = frozenset({"draft_prob", "target_prob", "path_draft_prob"})
"""Float columns of nodes that seldom repeat a value; the others do, which needs the plain encoding."""

_SCALARS = {
    "bool": pa.bool_(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
}


def table_named(name: str) -> Table:
    """The declaration of a table; KeyError where there is none."""
    return {table.name: table for table in TABLES}[name]


def arrow_type(column: Column) -> pa.DataType:
    """The Arrow type of a declared column; list elements are never null."""
    if column.type.startswith("list<"):
        element = _SCALARS[column.type.removeprefix("list<").removesuffix(">")]
        return pa.list_(pa.field("element", element, nullable=False))
    if column.name in DICTIONARY_COLUMNS:
        return pa.dictionary(pa.int32(), pa.string())
    return _SCALARS[column.type]


def arrow_schema(table: Table) -> pa.Schema:
    """The schema of a table; metadata hold its version, grain and key, and each column's unit and meaning."""
    fields = [
        pa.field(
            column.name,
            arrow_type(column),
            nullable=column.nullable,
            metadata={"doc": column.doc, "unit": column.unit},
        )
        for column in table.columns
    ]
    about = {
        "schema_version": SCHEMA_VERSION,
        "table": table.name,
        "grain": table.grain,
        "key": list(table.key),
    }
    return pa.schema(fields, metadata={"acceptlab": json.dumps(about)})


def file_schema(table: Table) -> pa.Schema:
    """`arrow_schema` as files carry it: units, but not the meanings, which would take 3 bytes a row of a small run."""
    schema = arrow_schema(table)
    fields = [
        field.with_metadata({"unit": unit} if (unit := field.metadata[b"unit"]) else None) for field in schema
    ]
    return pa.schema(fields, metadata=schema.metadata)


def reading_schema(table: Table) -> pa.Schema:
    """`arrow_schema` with every column nullable: parts written before a column existed have nulls there."""
    schema = arrow_schema(table)
    return pa.schema([field.with_nullable(True) for field in schema], metadata=schema.metadata)


def write_options(table: Table, level: int = FINAL_LEVEL, *, has_siblings: bool = True) -> dict[str, Any]:
    """Keyword arguments of `pyarrow.parquet.ParquetWriter`: zstd of that level, and an encoding a column.

    Args:
        table: which table.
        level: level of zstd.
        has_siblings: whether nodes share parents, so that the measures of their contexts repeat.
    """
    dictionary: list[str] = []
    encodings: dict[str, str] = {}
    for column in table.columns:
        encoding = _encoding(table, column, has_siblings)
        if encoding == "DICTIONARY":
            dictionary.append(column.name)
        elif encoding:
            path = f"{column.name}.list.element" if column.type.startswith("list<") else column.name
            encodings[path] = encoding
    return {
        "compression": "zstd",
        "compression_level": level,
        "use_dictionary": dictionary,
        "column_encoding": encodings,
        # minima and maxima of floats leave not-a-number out, and some readers then find none
        "write_statistics": [column.name for column in table.columns if "float" not in column.type],
        "version": "2.6",
        "data_page_size": 1 << 20,
    }


def _encoding(table: Table, column: Column, has_siblings: bool) -> str:
    """The encoding that made a column smallest after zstd, on a real pair; empty for the plain one.

    Lists and the floats of contexts hardly repeat, so their bytes are split into streams. Siblings repeat the
    measures of their parent's context, which the plain encoding shows to zstd.
    """
    if column.name in DICTIONARY_COLUMNS:
        return "DICTIONARY"
    if column.type.startswith("list<"):
        return "BYTE_STREAM_SPLIT"
    if not column.type.startswith("float"):
        return ""
    if table.name != "nodes" or column.name in _RARELY_REPEATED:
        return "BYTE_STREAM_SPLIT"
    return "BYTE_STREAM_SPLIT" if column.name in MEASURES and not has_siblings else ""
