"""Is a run what its manifest says, and are its rows possible? Every fault as one sentence.

Checksums, schemas, unique keys, not-a-number, and the invariants of `invariants`, evaluated by DuckDB in bounded
memory. Judges single rows and their links; statistics are elsewhere.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acceptlab.records import TABLES, Column, Table
from acceptlab.store.duck import null_column, open_database, quote, scan
from acceptlab.store.invariants import INVARIANTS, VIEWS
from acceptlab.store.manifest import read_manifest, sha256_file
from acceptlab.store.reader import Run, open_run, part_fault
from acceptlab.store.schema import INFINITE_COLUMNS, TABLE_NAMES

if TYPE_CHECKING:
    import duckdb

_LINKED = {
    "nodes": "linked_nodes",
    "contexts": "contexts",
    "steps": "linked_steps",
    "prompts": "linked_prompts",
}


def check_run(path: Path | str) -> list[str]:
    """All faults of a run, each one sentence that names the file or the first row; empty where it is sound.

    Raises:
        UsageError: the folder holds no run.
        RunError: the manifest is damaged.
    """
    folder = Path(path)
    faults = list(_part_faults(folder, read_manifest(folder)))
    if faults:  # rows may be missing or other than they were written, so that every finding would be a guess
        return [*faults, "the rows were not checked, since a part is not what was written"]
    run = open_run(folder)
    with tempfile.TemporaryDirectory(prefix="acceptlab-") as spill:
        connection = _connect(run, spill)
        try:
            faults += _key_faults(connection)
            faults += _origin_faults(connection, run)
            faults += _number_faults(connection)
            faults += _row_faults(connection)
        finally:
            connection.close()
    return faults


def _part_faults(folder: Path, manifest: dict[str, Any]) -> Iterator[str]:
    for name in TABLE_NAMES:
        for entry in manifest["parts"].get(name, []):
            fault = part_fault(folder, name, entry)
            path = folder / entry["file"]
            if fault is not None:
                yield fault
            elif sha256_file(path) != entry["sha256"]:
                yield f"part '{path}' has another checksum than the manifest lists: restore it, or collect again"


def _connect(run: Run, spill: str) -> duckdb.DuckDBPyConnection:
    """The run's tables and their linked views, in a database that holds no rows itself."""
    connection = open_database(spill)
    # its use of Parquet minima and maxima, which leave not-a-number out, makes isnan() false everywhere
    connection.execute("SET disabled_optimizers = 'statistics_propagation'")
    for table in TABLES:
        connection.execute(f"CREATE VIEW {table.name} AS {_select(connection, table, run.files(table.name))}")
    for view in VIEWS:
        connection.execute(view)
    return connection


def _select(connection: duckdb.DuckDBPyConnection, table: Table, files: list[Path]) -> str:
    """Every declared column, null where no part has it."""
    if not files:
        return f"SELECT {', '.join(map(null_column, table.columns))} WHERE false"
    described = connection.execute(f"DESCRIBE SELECT * FROM {scan(files)}").fetchall()
    found = {row[0] for row in described}
    columns = [column.name if column.name in found else null_column(column) for column in table.columns]
    return f"SELECT {', '.join(columns)} FROM {scan(files)}"


def _key_faults(connection: duckdb.DuckDBPyConnection) -> Iterator[str]:
    """Keys that two rows share; runs that were merged may hold the same prompt under several run ids."""
    for table in TABLES:
        key = ", ".join(("run_id", *table.key))
        query = f"SELECT {key} FROM {table.name} GROUP BY {key} HAVING count(*) > 1"
        n_rows, first = _one(connection, f"SELECT count(*), any_value(t) FROM ({query}) AS t")
        if n_rows:
            yield f"{table.name}: {n_rows} keys occur more than once, one is {_where(first)}"


def _origin_faults(connection: duckdb.DuckDBPyConnection, run: Run) -> Iterator[str]:
    """Rows of another run, and prompts that only some tables know."""
    merged = [source["run_id"] for source in run.manifest.get("merged_from", [])]
    known = ", ".join(quote(str(run_id)) for run_id in merged or [run.run_id])
    for name in TABLE_NAMES:
        query = f"SELECT DISTINCT run_id FROM {name} WHERE run_id NOT IN ({known})"
        n_ids, first = _one(connection, f"SELECT count(*), min(run_id) FROM ({query})")
        if n_ids:
            yield f"{name}: {n_ids} run ids are not the manifest's, one is '{first}'"
        query = f"SELECT DISTINCT run_id, prompt_id FROM {name} AS t ANTI JOIN prompts AS p USING (run_id, prompt_id)"
        n_prompts, first = _one(connection, f"SELECT count(*), min(prompt_id) FROM ({query})")
        if n_prompts:
            yield f"{name}: {n_prompts} prompts are missing from table prompts, one is '{first}'"


def _number_faults(connection: duckdb.DuckDBPyConnection) -> Iterator[str]:
    """Columns with not-a-number anywhere, or infinity where it is no value."""
    for table in TABLES:
        columns = [column for column in table.columns if "float" in column.type]
        for word, value in (("not-a-number", "nan"), ("infinity", "inf")):
            tested = [c for c in columns if value == "nan" or c.name not in INFINITE_COLUMNS]
            counts = ", ".join(f"count_if({_has(column, value)})" for column in tested)
            if not counts:
                continue
            for column, n_rows in zip(
                tested, _one(connection, f"SELECT {counts} FROM {table.name}"), strict=True
            ):
                if n_rows:
                    yield f"{table.name}: column '{column.name}' holds {word} in {n_rows} rows"


def _has(column: Column, value: str) -> str:
    if column.type.startswith("list<"):
        return f"list_contains({column.name}, '{value}'::FLOAT)"
    return f"is{value}({column.name})"


def _row_faults(connection: duckdb.DuckDBPyConnection) -> Iterator[str]:
    """Broken invariants of every table in one scan of its linked view."""
    for table in TABLES:
        rules = [rule for rule in INVARIANTS if rule.table == table.name]
        key = ", ".join(f"{name} := {name}" for name in ("run_id", *table.key))
        parts = ", ".join(
            f"count_if({rule.broken}), any_value(struct_pack({key})) FILTER ({rule.broken})" for rule in rules
        )
        found = _one(connection, f"SELECT {parts} FROM {_LINKED[table.name]}")
        for rule, n_rows, first in zip(rules, found[::2], found[1::2], strict=True):
            if n_rows:
                yield f"{table.name}: {rule.says} in {n_rows} rows, one is {_where(first)}"


def _one(connection: duckdb.DuckDBPyConnection, query: str) -> tuple[Any, ...]:
    row = connection.execute(query).fetchone()
    assert row is not None  # an aggregate without grouping has one row
    return tuple(row)


def _where(key: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value!r}" for name, value in key.items() if name != "run_id")
