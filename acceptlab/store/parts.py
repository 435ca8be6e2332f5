"""Parquet parts: write one durably, read one with a named error, bring old ones to the present schema.

A part is a file of whole prompts of one table. Which parts a run has is the manifest's business.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from acceptlab.errors import RunError
from acceptlab.records import Table
from acceptlab.store.manifest import replacing, sha256_file
from acceptlab.store.schema import (
    FAST_LEVEL,
    ROW_GROUP_ROWS,
    arrow_schema,
    arrow_type,
    file_schema,
    reading_schema,
    table_named,
    write_options,
)


def write_part(
    folder: Path,
    table: Table,
    number: int,
    batches: Iterator[pa.Table],
    *,
    level: int = 0,
    compression: int = FAST_LEVEL,
) -> dict[str, Any]:
    """Write tables of the declared schema, in order, as one part; durable when this returns.

    Args:
        folder: the run's folder.
        table: which table.
        number: for the file name; unique in the run.
        batches: the rows.
        level: how many times these rows were joined into a larger part.
        compression: level of zstd.

    Returns:
        The part's entry for the manifest: file, rows, bytes, sha256, level, compression.
    """
    name = f"{table.name}/part-{number:06d}.parquet"
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    n_rows = 0
    groups = _regroup(batches, ROW_GROUP_ROWS[table.name])
    start = list(itertools.islice(groups, 1))
    options = write_options(table, compression, has_siblings=any(map(_has_siblings, start)))
    with replacing(path) as temporary:
        with pq.ParquetWriter(temporary, file_schema(table), **options) as writer:
            for group in itertools.chain(start, groups):
                writer.write_table(group.cast(file_schema(table)), row_group_size=ROW_GROUP_ROWS[table.name])
                n_rows += group.num_rows
        checksum = sha256_file(temporary)
    return {
        "file": name,
        "rows": n_rows,
        "bytes": path.stat().st_size,
        "sha256": checksum,
        "level": level,
        "compression": compression,
    }


def _regroup(tables: Iterator[pa.Table], n_rows: int) -> Iterator[pa.Table]:
    """The same rows in tables of `n_rows`, the last one shorter: row groups do not depend on part sizes."""
    held: list[pa.Table] = []
    n_held = 0
    for table in tables:
        held.append(table)
        n_held += table.num_rows
        while n_held >= n_rows:
            joined = pa.concat_tables(held)
            yield joined.slice(0, n_rows).unify_dictionaries()
            held = [joined.slice(n_rows)]
            n_held -= n_rows
    if n_held:
        yield pa.concat_tables(held).unify_dictionaries()


def _has_siblings(rows: pa.Table) -> bool:
    if "child_rank" not in rows.column_names:
        return False
    largest = pc.max(rows["child_rank"]).as_py()  # None where there are no rows
    return largest is not None and largest > 0


def open_part(path: Path) -> pq.ParquetFile:
    """Open a part.

    Raises:
        RunError: the file is missing, truncated or not Parquet; names it.
    """
    try:
        return pq.ParquetFile(path)
    except FileNotFoundError:
        raise RunError(f"part '{path}' is missing: restore it, or collect the run again") from None
    except (pa.ArrowException, OSError) as error:
        raise RunError(
            f"part '{path}' is damaged ({_first_line(error)}): restore it, or collect again"
        ) from None


def part_batches(
    path: Path, table: Table, columns: Sequence[str] | None, n_rows: int = 65_536
) -> Iterator[pa.Table]:
    """Stream a part in tables of at most `n_rows`, in the present schema; columns that it lacks are null.

    Raises:
        RunError: the part is damaged, or a column has another type; names the file.
    """
    with open_part(path) as file:
        fault = schema_fault(path, table, file.schema_arrow)
        if fault is not None:
            raise RunError(fault)
        wanted = [column.name for column in table.columns if columns is None or column.name in set(columns)]
        present = [name for name in wanted if name in file.schema_arrow.names]
        try:
            for batch in file.iter_batches(batch_size=n_rows, columns=present):
                yield conform(pa.Table.from_batches([batch]), table, wanted)
        except (pa.ArrowException, OSError) as error:
            message = f"part '{path}' is damaged ({_first_line(error)}): restore it, or collect again"
            raise RunError(message) from None


def conform(part: pa.Table, table: Table, columns: Sequence[str]) -> pa.Table:
    """The named columns in declared order and type; a column that the part lacks becomes nulls."""
    schema = reading_schema(table)
    fields = [schema.field(name) for name in columns]
    arrays = [
        part[field.name].cast(field.type)
        if field.name in part.column_names
        else pa.nulls(part.num_rows, field.type)
        for field in fields
    ]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata=schema.metadata))


def schema_fault(path: Path, table: Table, found: pa.Schema) -> str | None:
    """One sentence on the first column whose stored type is not the declared one; None where all agree."""
    for column in table.columns:
        if column.name not in found.names:
            continue
        stored, declared = _plain(found.field(column.name).type), _plain(arrow_type(column))
        if stored != declared:
            return (
                f"part '{path}' stores column '{column.name}' as {stored}, not {declared}: "
                "collect the run again with this version"
            )
    return None


def _plain(kind: pa.DataType) -> str:
    """A type's name without what writers vary: dictionary encoding, names of list elements."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"list<{_plain(kind.value_type)}>"
    return "string" if pa.types.is_large_string(kind) else str(kind)


def join_parts(
    folder: Path, name: str, entries: Sequence[dict[str, Any]], number: int, compression: int
) -> dict[str, Any]:
    """Join parts of a table into one of the next level, row order kept, without holding a whole table.

    The old files stay: the caller lists the new part in the manifest first, then removes them.
    """
    rows = (rows for entry in entries for rows in strict_rows(folder / entry["file"], name))
    level = 1 + max(int(entry.get("level", 0)) for entry in entries)
    return write_part(folder, table_named(name), number, rows, level=level, compression=compression)


def strict_rows(path: Path, name: str) -> Iterator[pa.Table]:
    """Stream a part in the schema that is written: no null where none may stand.

    Raises:
        RunError: the part is damaged, or lacks a column that may not be null.
    """
    table = table_named(name)
    for batch in part_batches(path, table, None, ROW_GROUP_ROWS[name]):
        for column in table.columns:
            if not column.nullable and batch[column.name].null_count:
                raise RunError(
                    f"part '{path}' has no '{column.name}' in some rows: it can be read, but not rewritten"
                )
        yield batch.cast(arrow_schema(table))


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
