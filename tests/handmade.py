"""Runs with rows chosen by hand, where a test needs exact counts; and edits of runs that exist. For tests only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from acceptlab import records
from acceptlab.store import RunWriter


@dataclass(frozen=True)
class Node:
    """A drafted node; child ranks and depths follow from the parents."""

    parent: int
    outcome: str
    accept_ratio: float | None = 0.5
    is_argmax: bool = False
    entropy: float = 1.0
    overlap: float = 0.5


@dataclass(frozen=True)
class Step:
    """A step. Without `emitted` it emits the accepted tokens and the bonus."""

    nodes: Sequence[Node] = ()
    emitted: int | None = None
    stop: str | None = None
    bonus: int | None = 7
    expected: float = 0.0
    times_ms: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Drafting, verifying, bookkeeping."""


def chain(*outcomes: str, **changes: Any) -> list[Node]:
    """A chain of nodes with these outcomes, `a`ccepted, `r`ejected or `u`ntested."""
    names = {"a": "accepted", "r": "rejected", "u": "untested"}
    return [Node(i - 1, names[outcome], **changes) for i, outcome in enumerate(outcomes)]


def write_run(
    folder: Path,
    prompts: Mapping[str, Sequence[Step]],
    *,
    run_id: str = "by-hand",
    sources: Mapping[str, str] | None = None,
    complete: bool = True,
    config: Mapping[str, Any] | None = None,
    per_part: int = 1,
) -> Path:
    """Write a run of prompts named `domain/id`, so many to a part, and return its folder."""
    domains = list(dict.fromkeys(name.split("/")[0] for name in prompts))
    fields = {"run_id": run_id, "config": {"draft_note": "", "domains": domains, **(config or {})}}
    writer = RunWriter.create(folder, fields)
    names = list(prompts)
    for first in range(0, len(names), per_part):
        rows: dict[str, list[dict[str, Any]]] = {"nodes": [], "steps": [], "prompts": []}
        for name in names[first : first + per_part]:
            for table, new in _prompt_rows(name, prompts[name], (sources or {}).get(name, "hand")).items():
                rows[table] += new
        writer.write({table: _columns(table_rows) for table, table_rows in rows.items() if table_rows})
    if complete:
        writer.finish()
    return folder


def _prompt_rows(name: str, steps: Sequence[Step], source: str) -> dict[str, list[dict[str, Any]]]:
    keys = {"domain": name.split("/", maxsplit=1)[0], "prompt_id": name}
    rows: dict[str, list[dict[str, Any]]] = {"nodes": [], "steps": []}
    written = 0
    for index, step in enumerate(steps):
        rows["nodes"] += _node_rows({**keys, "step": index}, step.nodes)
        rows["steps"].append(_step_row({**keys, "step": index, "context_len": 1 + written}, step))
        written += rows["steps"][-1]["emitted_len"]
    counts = {"n_prompt_tokens": 1, "n_new_tokens": written, "output_token_ids": [1] * written}
    return {**rows, "prompts": [_fill(records.PROMPTS, {**keys, "source": source, **counts})]}


def _node_rows(keys: dict[str, Any], nodes: Sequence[Node]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for index, node in enumerate(nodes):
        siblings = [row for row in rows if row["parent"] == node.parent]
        row = {
            **keys,
            "node": index,
            "parent": node.parent,
            "depth": 1 if node.parent < 0 else rows[node.parent]["depth"] + 1,
            "child_rank": len(siblings),
            "accept_ratio": node.accept_ratio,
            "is_target_argmax": node.is_argmax,
            "outcome": node.outcome,
            "draft_entropy": node.entropy,
            "target_entropy": 2.0 * node.entropy,
            "overlap": node.overlap,
        }
        rows.append(_fill(records.NODES, row))
    return rows


def _step_row(keys: dict[str, Any], step: Step) -> dict[str, Any]:
    accepted = sum(node.outcome == "accepted" for node in step.nodes)
    emitted = step.emitted if step.emitted is not None else accepted + (step.bonus is not None)
    row = {
        **keys,
        "n_nodes": len(step.nodes),
        "n_tested": sum(node.outcome != "untested" for node in step.nodes),
        "accepted_len": accepted,
        "expected_accepted_len": step.expected,
        "emitted_len": emitted,
        "bonus_token_id": step.bonus,
        "stop_reason": step.stop,
        **dict(zip(("draft_ms", "verify_ms", "other_ms"), step.times_ms, strict=True)),
    }
    return _fill(records.STEPS, row)


def _fill(table: records.Table, row: dict[str, Any]) -> dict[str, Any]:
    """A row with every column: nulls where they are allowed, else a plain value."""
    filled = dict(row)
    for column in table.columns:
        if column.name in filled or column.name == "run_id":
            continue
        plain = "" if column.type == "string" else [] if column.type.startswith("list") else 0
        filled[column.name] = None if column.nullable else plain
    return filled


def _columns(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def drop_columns(folder: Path, table: str, columns: Sequence[str]) -> None:
    """Rewrite the parts of a table as an older version would have: without these columns."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    for entry in manifest["parts"][table]:
        path = folder / entry["file"]
        pq.write_table(pq.read_table(path).drop_columns(list(columns)), path)
        entry["bytes"] = path.stat().st_size
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
