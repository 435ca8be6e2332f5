"""DuckDB over the files of a run: its settings, quoted text, scans of parts, types of declared columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from acceptlab.records import Column

if TYPE_CHECKING:
    import duckdb

MEMORY_LIMIT = "2GB"
"""What DuckDB may hold in memory; more goes to a temporary folder, so that a run of any length can be read."""

_TYPES = {
    "string": "VARCHAR",
    "bool": "BOOLEAN",
    "int16": "SMALLINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "float16": "FLOAT",
    "float32": "FLOAT",
    "float64": "DOUBLE",
}


def open_database(spill: str, memory_limit: str = MEMORY_LIMIT) -> duckdb.DuckDBPyConnection:
    """An empty database in memory.

    Args:
        spill: folder for what does not fit into memory; made when needed.
        memory_limit: as DuckDB writes it.
    """
    import duckdb

    connection = duckdb.connect()
    connection.execute(f"SET memory_limit = {quote(memory_limit)}")
    connection.execute(f"SET temp_directory = {quote(spill)}")
    connection.execute("SET preserve_insertion_order = false")
    connection.execute("SET enable_progress_bar = false")
    return connection


def quote(text: str) -> str:
    """A text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def scan(files: Sequence[Path]) -> str:
    """What stands behind FROM for the rows of these Parquet files, columns matched by name."""
    return f"read_parquet([{', '.join(quote(str(path)) for path in files)}], union_by_name = true)"


def sql_type(column: Column) -> str:
    """DuckDB's name of a declared column's type."""
    is_list = column.type.startswith("list<")
    return _TYPES[column.type.removeprefix("list<").removesuffix(">")] + ("[]" if is_list else "")


def null_column(column: Column) -> str:
    """A column of nulls of the declared type, where files lack it."""
    return f"NULL::{sql_type(column)} AS {column.name}"
