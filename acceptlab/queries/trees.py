"""Queries behind replays and tree shapes, one typed function a .sql file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import duckdb
import numpy as np
import pandas as pd

from acceptlab.queries import fetch

Columns = Mapping[str, np.ndarray]


def replay_steps(connection: duckdb.DuckDBPyConnection, first: int, last: int) -> pd.DataFrame:
    """Drafted steps of the prompts first to last, in order (`replay_steps.sql`)."""
    return fetch(connection, "replay_steps", first=first, last=last)


def replay_nodes(connection: duckdb.DuckDBPyConnection, first: int, last: int) -> Columns:
    """Nodes of those steps, in order (`replay_nodes.sql`); nan where a float is undefined."""
    return _arrays(fetch(connection, "replay_nodes", first=first, last=last))


def replay_lists(connection: duckdb.DuckDBPyConnection, first: int, last: int) -> Columns:
    """Where the stored lists of the target have those nodes (`replay_lists.sql`); nan where they end before."""
    return _arrays(fetch(connection, "replay_lists", first=first, last=last))


def end_tokens(connection: duckdb.DuckDBPyConnection) -> frozenset[int]:
    """Tokens that ended a text (`end_tokens.sql`)."""
    return frozenset(int(token) for token in fetch(connection, "end_tokens")["token_id"])


def rank_sums(connection: duckdb.DuckDBPyConnection) -> pd.DataFrame:
    """Offered and accepted children by prompt, depth and child_rank (`rank_sums.sql`)."""
    return fetch(connection, "rank_sums")


def pass_costs(connection: duckdb.DuckDBPyConnection) -> pd.DataFrame:
    """Times of the steps by their number of nodes and levels (`pass_costs.sql`)."""
    return fetch(connection, "pass_costs")


def drafted_sums(connection: duckdb.DuckDBPyConnection) -> pd.DataFrame:
    """Accepted lengths and times of drafted steps by prompt (`drafted_sums.sql`)."""
    return fetch(connection, "drafted_sums")


def largest_tree(connection: duckdb.DuckDBPyConnection) -> tuple[int, ...]:
    """Parents of the largest drafted tree, -1 the root (`largest_tree.sql`); empty where nothing was drafted."""
    return tuple(int(parent) for parent in fetch(connection, "largest_tree")["parent"])


def _arrays(frame: pd.DataFrame) -> dict[str, Any]:
    return {str(name): frame[name].to_numpy() for name in frame.columns}
