"""Scored texts on disk: what both models say of every token of the texts of a run, one row a token.

One small Parquet file beside the run, with the run's id and the way of scoring in its metadata; written to a
temporary name and renamed, so that an interrupted scoring keeps what it had.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from acceptlab.errors import RunError, UsageError
from acceptlab.files import replacing

SCHEMA = pa.schema(
    [
        pa.field("domain", pa.string(), nullable=False),
        pa.field("prompt_id", pa.string(), nullable=False),
        pa.field("position", pa.int32(), nullable=False),
        pa.field("overlap", pa.float64(), nullable=False),
        pa.field("ratio", pa.float64(), nullable=False),
    ]
)
"""Of the new token at `position` (from 0): the overlap of the context before it and min(1, draft/target) at it."""

_FACTS = b"acceptlab_scores"


def scores_path(run: Path) -> Path:
    """Where the scores of a run lie unless named: beside its folder."""
    return run.with_name(f"{run.name}.scores.parquet")


def write_scores(path: Path, frame: pd.DataFrame, facts: Mapping[str, Any]) -> None:
    """Replace the file by these rows.

    Raises:
        RunError: the file cannot be written.
    """
    try:
        table = pa.Table.from_pandas(frame, schema=SCHEMA, preserve_index=False)
    except pa.ArrowInvalid as error:
        raise RunError(f"cannot write '{path}': {error}") from None
    table = table.replace_schema_metadata({_FACTS: json.dumps(dict(facts)).encode()})
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def read_scores(path: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Rows and facts of a file.

    Raises:
        UsageError: no such file.
        RunError: a file that is not one of these.
    """
    if not path.is_file():
        raise UsageError(f"there are no scores at '{path}': make them with `acceptlab audit roads RUN`")
    try:
        table = pq.read_table(path)
        facts: dict[str, Any] = json.loads(table.schema.metadata[_FACTS])
        return table.cast(SCHEMA).to_pandas(), facts
    except (pa.ArrowInvalid, OSError, KeyError, TypeError, ValueError):
        raise RunError(f"'{path}' holds no scored texts: remove it, or name another file") from None
