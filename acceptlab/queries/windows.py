"""Queries behind windows along one path of the drafted trees, one typed function a .sql file."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import duckdb
import pandas as pd

from acceptlab.queries import fetch

Measure = Literal["sampled", "argmax", "onehot"]
"""What the ratio and the overlap of a position are; see `path_windows.sql`."""


def tree_nodes(connection: duckdb.DuckDBPyConnection) -> pd.DataFrame:
    """Shapes of the drafted trees, by run and node (`tree_nodes.sql`)."""
    return fetch(connection, "tree_nodes")


def path_windows(
    connection: duckdb.DuckDBPyConnection, path: pd.DataFrame, measure: Measure, ends: Collection[int]
) -> pd.DataFrame:
    """Sums over the windows along a path, by prompt and depth (`path_windows.sql`).

    Args:
        connection: where to; the table path_nodes is made anew.
        path: nodes of the path, in the columns run_id and node.
        measure: what is multiplied.
        ends: tokens that end a text.
    """
    connection.execute("CREATE OR REPLACE TEMP TABLE path_nodes (run_id VARCHAR, node SMALLINT)")
    rows = [(str(run_id), int(node)) for run_id, node in zip(path["run_id"], path["node"], strict=True)]
    if rows:
        connection.executemany("INSERT INTO path_nodes VALUES (?, ?)", rows)
    # no token has id -1: a list without entries would have no type
    return fetch(connection, "path_windows", measure=measure, ends=sorted(ends) or [-1])


def chain_roots(connection: duckdb.DuckDBPyConnection, window: int) -> pd.DataFrame:
    """Steps of chains by where they began in the written text (`chain_roots.sql`)."""
    return fetch(connection, "chain_roots", window=window)
