"""One .sql file a question, over the Parquet parts of one or more runs, and one typed function each.

Queries return sums per prompt: statistics and bootstraps work on those, so that runs of tens of millions of nodes
stream through a few gigabytes. The few that need nodes fetch them by ranges of prompts, or in a few bytes each.
The grain, columns and units of every result stand in the header of its file. No statistics here.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from functools import cache
from importlib import resources
from itertools import count
from pathlib import Path
from typing import Literal

import duckdb
import numpy as np
import pandas as pd

from acceptlab import records
from acceptlab.errors import RunError, UsageError
from acceptlab.store import Run
from acceptlab.store.duck import MEMORY_LIMIT, null_column, open_database, quote, scan, sql_type

By = Literal["domain", "source", "run"]
GROUPINGS: tuple[By, ...] = ("domain", "source", "run")

_CONNECTIONS = count()


def connect(
    runs: Sequence[Run], *, by: By = "domain", memory_limit: str = MEMORY_LIMIT
) -> duckdb.DuckDBPyConnection:
    """Open a database in memory with the runs' tables as views: nodes, contexts, steps, prompts.

    A column that a part or all parts lack is null there, of its declared type. The table `prompt_groups`
    (run_id, prompt_id, label, prompt) gives every prompt that ran its group and its number; the same prompt
    in two runs has one number, so that it is resampled as one.

    Args:
        runs: Opened runs, each once.
        by: What `label` is: the prompt's domain, its source, or the run's folder name.
        memory_limit: As DuckDB writes it.

    Raises:
        UsageError: no run, or the same run twice.
        RunError: a part cannot be read.
    """
    if not runs:
        raise UsageError("name at least one run")
    if by not in GROUPINGS:
        raise UsageError(f"cannot group by '{by}': use one of {', '.join(GROUPINGS)}")
    _check_distinct(runs)
    spill = Path(tempfile.gettempdir()) / f"acceptlab-{os.getpid()}-{next(_CONNECTIONS)}"
    connection = open_database(str(spill), memory_limit)
    try:
        for table in records.TABLES:
            files = [path for run in runs for path in run.files(table.name)]
            connection.execute(f"CREATE VIEW {table.name} AS {_view(connection, table, files)}")
        connection.execute(f"CREATE TABLE prompt_groups AS {_groups(runs, by)}")
    except duckdb.Error as error:
        connection.close()
        raise broken(error) from None
    return connection


def _check_distinct(runs: Sequence[Run]) -> None:
    seen: dict[str, Path] = {}
    for run in runs:
        other = seen.setdefault(run.run_id, run.path)
        if other is not run.path:
            raise UsageError(f"'{run.path}' is the same run as '{other}': name it once")


def _view(connection: duckdb.DuckDBPyConnection, table: records.Table, files: Sequence[Path]) -> str:
    """The SELECT of a view: declared columns, cast where files disagree and null where they lack one."""
    if not files:
        columns = ", ".join(map(null_column, table.columns))
        return f"SELECT {columns} WHERE false"
    described = connection.execute(f"DESCRIBE SELECT * FROM {scan(files)}").fetchall()
    found = {str(row[0]): str(row[1]) for row in described}
    columns = ", ".join(_select(column, found.get(column.name)) for column in table.columns)
    return f"SELECT {columns} FROM {scan(files)}"


def _select(column: records.Column, found: str | None) -> str:
    if found is None:
        return null_column(column)
    if found == sql_type(column):
        return column.name
    return f"CAST({column.name} AS {sql_type(column)}) AS {column.name}"


def _groups(runs: Sequence[Run], by: By) -> str:
    """The SELECT of prompt_groups: prompts that have steps, numbered by domain and prompt_id."""
    label = {"domain": "ran.domain", "source": "prompts.source", "run": "folders.folder"}[by]
    return f"""
        WITH ran AS (SELECT DISTINCT run_id, domain, prompt_id FROM steps),
        folders AS ({_folders(runs)})
        SELECT
            ran.run_id,
            ran.prompt_id,
            coalesce({label}, 'unknown') AS label,
            (dense_rank() OVER (ORDER BY ran.domain, ran.prompt_id) - 1)::INTEGER AS prompt
        FROM ran
        LEFT JOIN prompts USING (run_id, prompt_id)
        LEFT JOIN folders USING (run_id)
    """


def _folders(runs: Sequence[Run]) -> str:
    """The SELECT of run ids with the name of their folder; a merged run holds several ids."""
    parts = []
    for run in runs:
        if files := run.files("steps"):
            folder = quote(run.path.resolve().name)
            parts.append(f"SELECT DISTINCT run_id, {folder} AS folder FROM {scan(files)}")
    return " UNION ".join(parts) or "SELECT NULL::VARCHAR AS run_id, NULL::VARCHAR AS folder WHERE false"


def broken(error: duckdb.Error) -> RunError:
    """What to raise where DuckDB cannot read a run."""
    first = str(error).strip().splitlines()[0]
    return RunError(f"the run cannot be read ({first}): check it with `acceptlab runs check`")


@cache
def sql(name: str) -> str:
    """The text of a query file of this package."""
    return resources.files(__package__).joinpath(f"{name}.sql").read_text(encoding="utf-8")


def fetch(connection: duckdb.DuckDBPyConnection, name: str, **parameters: object) -> pd.DataFrame:
    """The result of a query file; the functions of this package give it a name and types.

    Raises:
        RunError: a part cannot be read.
    """
    try:
        return connection.execute(sql(name), parameters or None).df()
    except duckdb.Error as error:
        raise broken(error) from None


def prompt_list(connection: duckdb.DuckDBPyConnection) -> pd.DataFrame:
    """Prompts of the runs, skipped ones included (`prompt_list.sql`)."""
    return fetch(connection, "prompt_list")


def has_nodes(connection: duckdb.DuckDBPyConnection) -> bool:
    """Whether anything was drafted."""
    return connection.execute("SELECT 1 FROM nodes LIMIT 1").fetchone() is not None


def prompt_groups(connection: duckdb.DuckDBPyConnection) -> pd.DataFrame:
    """Group and number of every prompt that ran: run_id, prompt_id, label, prompt."""
    return connection.execute("SELECT * FROM prompt_groups ORDER BY prompt, run_id").df()


def step_sums(connection: duckdb.DuckDBPyConnection) -> pd.DataFrame:
    """Counts and lengths over the steps of every prompt (`step_sums.sql`)."""
    return fetch(connection, "step_sums")


def accepted_lengths(connection: duckdb.DuckDBPyConnection) -> pd.DataFrame:
    """Steps by prompt and accepted length, of steps that drafted something (`accepted_lengths.sql`)."""
    return fetch(connection, "accepted_lengths")


def depth_sums(connection: duckdb.DuckDBPyConnection) -> pd.DataFrame:
    """Node counts and ratio sums by prompt and depth (`depth_sums.sql`)."""
    return fetch(connection, "depth_sums")


def context_sums(connection: duckdb.DuckDBPyConnection) -> pd.DataFrame:
    """Entropy sums over the contexts in which the draft proposed, by prompt (`context_sums.sql`)."""
    return fetch(connection, "context_sums")


def tree_depth_sums(connection: duckdb.DuckDBPyConnection) -> pd.DataFrame:
    """Depth of the drafted trees, by prompt (`tree_depth_sums.sql`)."""
    return fetch(connection, "tree_depth_sums")


def first_path_sums(connection: duckdb.DuckDBPyConnection) -> pd.DataFrame:
    """The path of first children by prompt and depth (`first_path_sums.sql`)."""
    return fetch(connection, "first_path_sums")


def entropy_nodes(connection: duckdb.DuckDBPyConnection, groups: Sequence[str]) -> dict[str, np.ndarray]:
    """What entropy correlations rank, by node (`entropy_nodes.sql`): 22 bytes a node."""
    try:
        found = connection.execute(sql("entropy_nodes"), {"groups": list(groups)}).fetchnumpy()
    except duckdb.Error as error:
        raise broken(error) from None
    return {name: np.asarray(column) for name, column in found.items()}
