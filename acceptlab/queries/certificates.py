"""Queries behind certificates, one typed function a .sql file. Contexts are streamed, never all in memory at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
from jaxtyping import Float, Int

from acceptlab.errors import RunError
from acceptlab.queries import broken, fetch, sql
from acceptlab.records import CERTIFICATE_RULES

BATCH_ROWS = 131_072
_LISTS = ("thresholds_forward", "thresholds_reverse")

Columns = dict[str, np.ndarray]


def add_cluster_rows(connection: duckdb.DuckDBPyConnection, keys: pd.DataFrame) -> None:
    """Create the table `cluster_rows` that the queries of this module read.

    Args:
        connection: where to.
        keys: run_id, prompt_id and the `row` of each.
    """
    connection.register("cluster_keys", keys)
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE cluster_rows AS "
        "SELECT run_id::VARCHAR AS run_id, prompt_id::VARCHAR AS prompt_id, row::INTEGER AS row FROM cluster_keys"
    )
    connection.unregister("cluster_keys")


def certificate_contexts(
    connection: duckdb.DuckDBPyConnection, batch_rows: int = BATCH_ROWS
) -> Iterator[Columns]:
    """Contexts in batches of columns (`certificate_contexts.sql`); the thresholds have shape [contexts, rules].

    Raises:
        RunError: a part cannot be read, or holds another number of thresholds than there are rules.
    """
    try:
        relation: Any = connection.sql(sql("certificate_contexts"))
        # DuckDB 2 renamed it
        read = getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader
        for batch in read(batch_rows):
            if batch.num_rows:
                yield {name: _array(name, batch.column(name)) for name in batch.schema.names}
    except duckdb.Error as error:
        raise broken(error) from None


def certificate_thresholds(
    connection: duckdb.DuckDBPyConnection, rule_index: int
) -> tuple[Int[np.ndarray, " contexts"], Float[np.ndarray, "contexts 2"]]:
    """Prompt and thresholds of one rule, forward and reverse, in every context (`certificate_thresholds.sql`)."""
    frame = fetch(connection, "certificate_thresholds", place=rule_index + 1)
    return frame["row"].to_numpy(dtype=np.int64), frame[["forward", "reverse"]].to_numpy(dtype=np.float32)


def _array(name: str, column: Any) -> np.ndarray:
    if name not in _LISTS:
        return np.asarray(column.to_numpy(zero_copy_only=False))
    lengths = np.diff(column.offsets.to_numpy())
    if (lengths != len(CERTIFICATE_RULES)).any():
        found = int(lengths[lengths != len(CERTIFICATE_RULES)][0])
        raise RunError(
            f"a context stores {found} certificate thresholds and there are {len(CERTIFICATE_RULES)} rules: "
            "collect the run again with this version"
        )
    values = pa.ListArray.flatten(column).to_numpy(zero_copy_only=False)
    return np.asarray(values).reshape(len(column), len(CERTIFICATE_RULES))
