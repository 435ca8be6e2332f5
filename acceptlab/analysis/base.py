"""What every analysis shares: its result, and prompts as clusters in groups. No statistics of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import duckdb
import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from acceptlab import queries
from acceptlab.queries import By
from acceptlab.stats import Estimate
from acceptlab.store import Run

ALL = "all"
"""Label of the rows that pool every group."""

N_DOCS = {
    "n_nodes": "drafted nodes",
    "n_tested": "nodes that the rule tested: accepted or rejected",
    "n_steps": "steps that drafted at least one node",
    "n_prompts": "prompts that the row rests on",
    "method": "how the intervals were made",
    "reason": "why a value or an interval is missing",
}
"""Meaning of the columns that every table carries."""


@dataclass(frozen=True)
class AnalysisTable:
    """The result of an analysis: a frame with everything that is needed to read it.

    A quantity `x` with an interval is three columns, `x`, `x_lo` and `x_hi`; undefined values are null.
    `columns` says what each quantity is, with its unit.
    """

    name: str
    title: str
    caption: str
    frame: pd.DataFrame
    notes: list[str] = field(default_factory=list)
    columns: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Clusters:
    """Prompts that ran, with their groups. A row is one prompt in one group; `ALL` merges a prompt's rows."""

    by: By
    keys: pd.DataFrame
    """run_id, prompt_id, and the `row` of each."""
    row_labels: np.ndarray
    row_prompts: Int[np.ndarray, " rows"]
    groups: tuple[str, ...]
    """Labels in order, without ALL."""

    def dense(self, frame: pd.DataFrame, columns: Sequence[str]) -> Float[np.ndarray, "rows columns"]:
        """Per-prompt sums as an array; prompts that the frame lacks have zeros."""
        rows = self._rows(frame)
        values = np.zeros((len(self.row_labels), len(columns)))
        np.add.at(values, rows, frame[list(columns)].to_numpy(dtype=np.float64))
        return values

    def dense_by(
        self, frame: pd.DataFrame, level: str, columns: Sequence[str], n_levels: int
    ) -> Float[np.ndarray, "columns rows levels"]:
        """Per-prompt sums by a level from 0 to n_levels - 1 (such as depth - 1)."""
        rows, levels = self._rows(frame), frame[level].to_numpy(dtype=np.int64)
        values = np.zeros((len(columns), len(self.row_labels), n_levels))
        for i, column in enumerate(columns):
            np.add.at(values[i], (rows, levels), frame[column].to_numpy(dtype=np.float64))
        return values

    def select(
        self, values: Float[np.ndarray, "rows *rest"], group: str
    ) -> Float[np.ndarray, "prompts *rest"]:
        """The rows of one group; for ALL, one row a prompt."""
        if group != ALL:
            return np.asarray(values[self.row_labels == group])
        merged = np.zeros((int(self.row_prompts.max(initial=-1)) + 1, *values.shape[1:]))
        np.add.at(merged, self.row_prompts, values)
        return merged

    def prompts(self, group: str) -> Int[np.ndarray, " prompts"]:
        """Numbers of a group's prompts, in the order of `select`."""
        if group == ALL:
            return np.arange(int(self.row_prompts.max(initial=-1)) + 1)
        return np.asarray(self.row_prompts[self.row_labels == group])

    def _rows(self, frame: pd.DataFrame) -> Int[np.ndarray, " frame"]:
        merged = frame[["run_id", "prompt_id"]].merge(self.keys, on=["run_id", "prompt_id"], how="left")
        return merged["row"].to_numpy(dtype=np.int64)


@dataclass(frozen=True)
class Sample:
    """Opened runs, ready for queries: the connection, the clusters, and what to know of the runs."""

    connection: duckdb.DuckDBPyConnection
    clusters: Clusters
    notes: tuple[str, ...]
    draft_notes: tuple[str, ...] = ()
    """What is to know of the drafts wherever their numbers are shown, figures included."""

    def caption(self, text: str) -> str:
        """A caption with what is to know of the drafts."""
        return " ".join([text, *(f"Note: {note.rstrip('.')}." for note in self.draft_notes)])


@contextmanager
def open_sample(runs: Sequence[Run], by: By = "domain", *, pooled: bool = True) -> Iterator[Sample]:
    """Connect to the runs for the length of a `with` block.

    Args:
        runs: opened runs.
        by: what a group is.
        pooled: whether the analysis pools the runs, so that readers must know in what they differ.

    Raises:
        UsageError: no run, or the same run twice.
        RunError: a part cannot be read.
    """
    connection = queries.connect(runs, by=by)
    try:
        clusters = _clusters(connection, runs, by)
        yield Sample(connection, clusters, tuple(_notes(connection, runs, pooled)), _draft_notes(runs))
    finally:
        connection.close()


def _clusters(connection: duckdb.DuckDBPyConnection, runs: Sequence[Run], by: By) -> Clusters:
    keys = queries.prompt_groups(connection)
    rows = keys[["label", "prompt"]].drop_duplicates().sort_values(["label", "prompt"], ignore_index=True)
    rows["row"] = np.arange(len(rows))
    keys = keys.merge(rows, on=["label", "prompt"])[["run_id", "prompt_id", "row"]]
    labels = rows["label"].to_numpy(dtype=object)
    return Clusters(by, keys, labels, rows["prompt"].to_numpy(dtype=np.int64), _ordered(set(labels), runs))


def _ordered(labels: set[str], runs: Sequence[Run]) -> tuple[str, ...]:
    """Labels in the order in which the runs' configurations name the domains, then the others by name."""
    named = [str(domain) for run in runs for domain in _listed(run.config.get("domains"))]
    first = list(dict.fromkeys(name for name in named if name in labels))
    return (*first, *sorted(labels - set(first)))


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _draft_notes(runs: Sequence[Run]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(note) for run in runs if (note := run.config.get("draft_note"))))


def _notes(connection: duckdb.DuckDBPyConnection, runs: Sequence[Run], pooled: bool) -> Iterator[str]:
    """What a reader of any table must know of the runs behind it."""
    yield from _draft_notes(runs)
    for run in runs:
        if not run.is_complete:
            yield f"run {run.path} is incomplete: it was interrupted, and holds only its finished prompts"
        for fault in run.faults:
            yield f"left out: {fault}"
    mattering = ("pair", "target", "draft", "tree", "rule", "temperature", "top_k", "top_p", "stop")
    for key in mattering if pooled else ():
        found = list(dict.fromkeys(str(run.config.get(key)) for run in runs))
        if len(found) > 1:
            yield f"the runs differ in {key} ({', '.join(found)}) and are pooled; --by run keeps them apart"
    if not queries.has_nodes(connection):
        yield (
            "no node was drafted in these runs: accepted lengths cannot be measured, and lengths with the bonus "
            "token are 1 by definition"
        )
    skipped = int(queries.prompt_list(connection)["skip_reason"].notna().sum())
    if skipped:
        yield f"{skipped} {'prompt was' if skipped == 1 else 'prompts were'} skipped and count nowhere"


def put(row: dict[str, Any], estimates: dict[str, Estimate], **counts: Any) -> dict[str, Any]:
    """A table row: estimates as x, x_lo, x_hi, then the counts, the method and the reasons."""
    filled = dict(row)
    for name, estimate in estimates.items():
        filled |= {name: estimate.value, f"{name}_lo": estimate.lo, f"{name}_hi": estimate.hi}
    methods = dict.fromkeys(estimate.method for estimate in estimates.values())
    return {**filled, **counts, "method": "; ".join(methods), "reason": reasons(estimates)}


def reasons(estimates: dict[str, Estimate]) -> str | None:
    """Why values or intervals are missing: once where all share it, else by quantity; None where none is."""
    found = {name: estimate.reason for name, estimate in estimates.items()}
    missing = dict.fromkeys(reason for reason in found.values() if reason)
    if not missing:
        return None
    if len(missing) == 1 and all(found.values()):
        return next(iter(missing))
    by_reason = {reason: [name for name, why in found.items() if why == reason] for reason in missing}
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())


def to_frame(rows: Sequence[dict[str, Any]], whole: Sequence[str] = ("depth",)) -> pd.DataFrame:
    """Rows as a frame with stable types: floats for estimates, nullable integers for counts and `whole`."""
    frame = pd.DataFrame(list(rows))
    for name in frame.columns:
        if str(name).startswith("n_") or name in whole:
            frame[name] = frame[name].astype("Int64")
        elif (
            frame[name].map(lambda value: value is None or isinstance(value, float)).all()
            and name != "reason"
        ):
            frame[name] = frame[name].astype("float64")
        else:
            frame[name] = frame[name].astype("object").where(frame[name].notna(), None)
    return frame


def counted(numbers: Mapping[str, int]) -> str:
    """A caption's counts, such as `48 prompts, 384 drafted steps, 5,376 nodes`."""
    return ", ".join(f"{number:,} {name}" for name, number in numbers.items())
