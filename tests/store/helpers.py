"""Small runs for the tests of the store: tables of single prompts, files as they lie on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from acceptlab.records import TABLES
from acceptlab.rules import parse_rule
from acceptlab.store import RunWriter, open_run
from acceptlab.tree import parse_tree
from tests.synthetic import Walk
from tests.synthetic_tables import tables_of

FIELDS: dict[str, Any] = {
    "run_id": "run-1",
    "config": {"pair": "toy", "tree": "chain:2", "rule": "greedy", "temperature": 1.0, "seed": 0},
    "models": {"target": {"id": "toy", "sha256": "aa"}},
}

Tables = dict[str, dict[str, Any]]


def prompt_tables(number: int, *, tree: str = "chain:2", rule: str = "greedy", n_steps: int = 3) -> Tables:
    """The four tables of prompt `code/NUMBER`, a function of the number alone."""
    shape = parse_tree(tree).static
    assert shape is not None
    walk = Walk(
        np.random.default_rng(number),
        tree=shape,
        rule=parse_rule(rule),
        domain="code",
        n_prompts=1,
        n_steps=n_steps,
        vocab_size=64,
        limit=8,
    )
    return tables_of(walk, [f"code/{number:03d}"])


def write_run(
    folder: Path, n_prompts: int, *, finish: bool = True, fields: dict[str, Any] | None = None
) -> RunWriter:
    """A run of the first `n_prompts` prompts, one write each."""
    writer = RunWriter.create(folder, fields or FIELDS)
    for number in range(n_prompts):
        writer.write(prompt_tables(number))
    if finish:
        writer.finish()
    return writer


def frames(folder: Path) -> dict[str, pd.DataFrame]:
    """All tables of a run, sorted by key, plain columns."""
    run = open_run(folder)
    return {
        table.name: run.read(table.name)
        .to_pandas()
        .astype({"run_id": str, "domain": str, "prompt_id": str})
        .sort_values(list(table.key), ignore_index=True)
        for table in TABLES
    }


def snapshot(folder: Path) -> dict[str, str]:
    """Checksum of every file below a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def rewrite_part(folder: Path, table: str, change: Callable[[pa.Table], pa.Table]) -> Path:
    """Replace the first part of a table by a changed one that the manifest lists correctly."""
    manifest = json.loads((folder / "manifest.json").read_text())
    entry = manifest["parts"][table][0]
    path = folder / entry["file"]
    changed = change(pq.ParquetFile(path).read())
    pq.write_table(changed, path)
    entry["rows"] = changed.num_rows
    entry["bytes"] = path.stat().st_size
    entry["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return path
