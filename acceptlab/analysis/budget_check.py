"""Was the prediction of `budget` right? Trees that were run again, against what the first run said of them.

The first run measures acceptance by depth and child rank and so predicts the accepted length of any static tree
that it covers; every other run used one. Prompts of both are resampled together: what a prompt does to the
prediction and to the outcome cancels where the prompts are the same, and both variances count where they are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from acceptlab import queries
from acceptlab.analysis.base import ALL, N_DOCS, AnalysisTable, Clusters, counted, open_sample, put, to_frame
from acceptlab.analysis.best_shape import AcceptanceTable, predicted_lens, refuse_adaptive, table_of
from acceptlab.analysis.costs import Costs, costs_from
from acceptlab.errors import UsageError
from acceptlab.queries import By, trees
from acceptlab.resampling import DEFAULT, Resampling, Totals
from acceptlab.stats import Estimate, bootstrap, ratio
from acceptlab.store import Run
from acceptlab.tree import Tree

COLUMNS = {
    "tree": "the tree of the run again, as its configuration names it",
    "run": "folder of the run again",
    "budget": "drafted nodes of that tree",
    "depth": "its levels",
    "predicted_len": "expected accepted length of the tree under the acceptance that the first run measured (tokens)",
    "realised_len": "mean accepted_len of drafted steps of the run again, E[L] joint, no bonus (tokens)",
    "len_difference": "realised_len - predicted_len, resampled jointly (tokens)",
    "verdict": "agrees: the interval of len_difference holds 0; else longer or shorter than predicted",
    "predicted_tokens_per_s": "1 + predicted_len over the predicted time of a step; that time is held fixed",
    "realised_tokens_per_s": "accepted_len + 1 over the time of drafted steps of the run again, recording left out",
    "speed_difference": "realised_tokens_per_s - predicted_tokens_per_s (tokens/s)",
    "speed_verdict": "agrees, faster or slower than predicted, as verdict",
    "choice": "whose tokens_per_s is largest among the trees of the group: predicted, realised or both",
    "n_shared": "prompts that are in both runs",
    **{name: N_DOCS[name] for name in ("n_steps", "n_prompts", "method", "reason")},
}
_LENGTHS = ("predicted_len", "realised_len", "len_difference")
_SPEEDS = ("predicted_tokens_per_s", "realised_tokens_per_s", "speed_difference")
_SAME = ("target", "draft", "rule", "proposal", "temperature", "top_k", "top_p")
_ROUNDING = 1e-9
"""Differences that sums of products leave where prediction and outcome are equal."""
_WORDS = ("verdict", "speed_verdict", "choice")
_UNMEASURED = "the first run offered no child at some depth and rank of this tree"


@dataclass(frozen=True, eq=False)
class _Measured:
    """Per-prompt counts of the first run, on the clusters of all runs."""

    accepted: Float[np.ndarray, "rows depths ranks"]
    offered: Float[np.ndarray, "rows depths ranks"]
    costs: Costs | None


@dataclass(frozen=True, eq=False)
class _Again:
    """One run again: its tree, and per-prompt sums (drafted steps, accepted_len, ms) on the same clusters."""

    tree: Tree
    text: str
    folder: str
    sums: Float[np.ndarray, "rows 3"]


def budget_check(
    runs: Sequence[Run],
    *,
    by: By = "domain",
    resampling: Resampling = DEFAULT,
    costs_file: Path | None = None,
) -> AnalysisTable:
    """One row per group and run again: predicted and realised length and speed, and their differences.

    Args:
        runs: the run that measured acceptance first, then the runs whose trees it predicts.
        by: what a group is: domain or source.
        resampling: how intervals are made.
        costs_file: verification times by tokens; see `costs_from`.

    Raises:
        UsageError: fewer than two runs; runs of another pair, rule or sampling distribution than the first; a run
            whose tree is no static one, or is not covered by the first.
    """
    if len(runs) < 2:
        raise UsageError("name two runs or more: first the one that measured acceptance, then those to check")
    if by == "run":
        raise UsageError("budget-check compares runs: group by domain or source")
    refuse_adaptive(runs)
    for run in runs[1:]:
        _refuse_other(runs[0], run)
    with open_sample(runs, by, pooled=False) as sample:
        measured = _measure(runs[0], sample.clusters, costs_file)
        again = [_read(run, sample.clusters, runs[0], measured) for run in runs[1:]]
        rows = [row for one in again for row in _rows(sample.clusters, measured, one, by, resampling)]
        notes = [*sample.notes, *_notes(measured.costs, rows)]
    _choose(rows, by)
    order = {group: place for place, group in enumerate((*sample.clusters.groups, ALL))}
    rows.sort(key=lambda row: order[row[by]])
    counts = {"prompts": max(row["n_prompts"] for row in rows), "runs again": len(again)} if rows else {}
    return AnalysisTable(
        name="budget-check",
        title=f"Trees run again against the prediction of {runs[0].path.name}, by {by}",
        caption=sample.caption(f"Accepted length and speed, {counted(counts)} ({resampling})."),
        frame=_frame(rows),
        notes=notes,
        columns={by: "group of the prompts; all pools the groups that both runs have", **COLUMNS},
    )


def _refuse_other(first: Run, other: Run) -> None:
    for key in _SAME:
        was, now = first.config.get(key), other.config.get(key)
        if was != now:
            raise UsageError(
                f"'{other.path}' has {key} {now!r}, and '{first.path}' measured with {was!r}: a prediction holds for "
                "one pair, rule and sampling distribution"
            )


def _measure(run: Run, clusters: Clusters, costs_file: Path | None) -> _Measured:
    connection = queries.connect([run])
    try:
        sums, costs = trees.rank_sums(connection), costs_from(trees.pass_costs(connection), costs_file)
    finally:
        connection.close()
    shape = table_of(sums).n_offered.shape
    cells = sums.assign(cell=(sums["depth"].astype(int) - 1) * shape[1] + sums["child_rank"].astype(int))
    dense = clusters.dense_by(cells, "cell", ("n_accepted", "n_offered"), shape[0] * shape[1])
    accepted, offered = (values.reshape(len(values), *shape) for values in dense)
    return _Measured(accepted, offered, costs)


def _read(run: Run, clusters: Clusters, first: Run, measured: _Measured) -> _Again:
    connection = queries.connect([run])
    try:
        tree = Tree(trees.largest_tree(connection))
        sums = trees.drafted_sums(connection)
    finally:
        connection.close()
    if tree.n_nodes == 0:
        raise UsageError(f"'{run.path}' drafted nothing: there is no tree to check")
    if not _table(measured.accepted, measured.offered).covers(tree):
        raise UsageError(
            f"'{first.path}' (tree {first.config.get('tree')}) does not measure every place of tree "
            f"'{run.config.get('tree')}': collect the first run with a deeper or wider tree"
        )
    dense = clusters.dense(sums, ("n_drafted", "accepted_len", "step_ms"))
    return _Again(tree, str(run.config.get("tree")), run.path.name, dense)


def _table(
    accepted: Float[np.ndarray, "rows depths ranks"], offered: Float[np.ndarray, "rows depths ranks"]
) -> AcceptanceTable:
    return AcceptanceTable(accepted.sum(axis=0).astype(np.int64), offered.sum(axis=0).astype(np.int64))


def _rows(
    clusters: Clusters, measured: _Measured, one: _Again, by: By, resampling: Resampling
) -> list[dict[str, Any]]:
    """A row for every group that the run again has, and one for all where it has several."""
    rows = []
    for group in clusters.groups:
        counts = [clusters.select(v, group) for v in (measured.accepted, measured.offered, one.sums)]
        if counts[2][:, 0].any():
            rows.append(_row({by: group}, measured.costs, one, counts, resampling))
    if len(rows) > 1:
        shared = np.isin(clusters.row_labels, [row[by] for row in rows])
        kept = (np.where(shared.reshape(-1, *[1] * (v.ndim - 1)), v, 0.0) for v in _all(measured, one))
        counts = [clusters.select(values, ALL) for values in kept]
        rows.append(_row({by: ALL}, measured.costs, one, counts, resampling))
    return rows


def _all(measured: _Measured, one: _Again) -> tuple[Float[np.ndarray, "rows *rest"], ...]:
    return measured.accepted, measured.offered, one.sums


def _row(
    key: dict[str, Any],
    costs: Costs | None,
    one: _Again,
    counts: Sequence[Float[np.ndarray, "prompts *rest"]],
    resampling: Resampling,
) -> dict[str, Any]:
    accepted, offered, sums = counts
    estimates = _estimates(costs, one.tree, accepted, offered, sums, resampling)
    row: dict[str, Any] = {
        **key,
        "tree": one.text,
        "run": one.folder,
        "budget": one.tree.n_nodes,
        "depth": one.tree.depth,
    }
    row = put(
        row,
        estimates,
        choice=None,
        n_steps=int(sums[:, 0].sum()),
        n_prompts=int((sums[:, 0] > 0).sum()),
        n_shared=int(((sums[:, 0] > 0) & (offered[:, 0, 0] > 0)).sum()),
    )
    verdicts = {
        "len_difference_hi": ("verdict", _verdict(estimates["len_difference"], "shorter", "longer")),
        "speed_difference_hi": ("speed_verdict", _verdict(estimates["speed_difference"], "slower", "faster")),
    }
    placed: dict[str, Any] = {}
    for name, value in row.items():  # a verdict stands right behind its interval
        placed[name] = value
        if name in verdicts:
            placed.update([verdicts[name]])
    return placed


def _estimates(
    costs: Costs | None,
    tree: Tree,
    accepted: Float[np.ndarray, "prompts depths ranks"],
    offered: Float[np.ndarray, "prompts depths ranks"],
    sums: Float[np.ndarray, "prompts 3"],
    resampling: Resampling,
) -> dict[str, Estimate]:
    shape, n_cells = accepted.shape[1:], accepted[0].size
    is_covered = _table(accepted, offered).covers(tree)
    step_ms = np.nan if costs is None else costs.step_ms(tree.n_nodes, tree.depth)

    def statistic(totals: Totals) -> Totals:
        cells = [totals[:, part * n_cells : (part + 1) * n_cells].reshape(-1, *shape) for part in (0, 1)]
        predicted = predicted_lens([tree], *cells)[:, 0]
        if not is_covered:
            predicted = np.full(len(totals), np.nan)
        n_steps, length, ms = totals[:, 2 * n_cells :].T
        realised = ratio(length, n_steps)
        speeds = 1000.0 * (1.0 + predicted) / step_ms, 1000.0 * ratio(length + n_steps, ms)
        columns = [predicted, realised, realised - predicted, *speeds, speeds[1] - speeds[0]]
        return np.stack(columns, axis=1)

    flat = [values.reshape(len(values), -1) for values in (accepted, offered)]
    n_predicted, n_realised = offered[:, 0, 0], sums[:, 0]
    fewer = min(n_predicted, n_realised, key=lambda counts: int((counts > 0).sum()))
    counts = np.stack([n_predicted, n_realised, fewer] * 2, axis=1)
    no_speed = "the first run has no times of drafted steps" if costs is None else _UNMEASURED
    reasons = [_UNMEASURED, "nothing drafted", _UNMEASURED, no_speed, "no times", no_speed]
    found = bootstrap(np.hstack([*flat, sums]), statistic, counts, resampling, undefined=reasons)
    return dict(zip((*_LENGTHS, *_SPEEDS), found, strict=True))


def _verdict(difference: Estimate, below: str, above: str) -> str | None:
    if difference.lo is None or difference.hi is None:
        return None
    if difference.lo <= _ROUNDING and difference.hi >= -_ROUNDING:
        return "agrees"
    return f"{below if difference.hi < 0 else above} than predicted"


def _choose(rows: list[dict[str, Any]], by: By) -> None:
    """Mark the fastest tree of a group, by prediction and by outcome, where there are several to choose from."""
    frame = pd.DataFrame(rows)
    for group in dict.fromkeys(frame[by]) if len(frame) else ():
        of_group = [row for row in rows if row[by] == group]
        names = {"predicted": "predicted_tokens_per_s", "realised": "realised_tokens_per_s"}
        if len(of_group) < 2 or any(row[name] is None for row in of_group for name in names.values()):
            continue
        for word, name in names.items():
            best = max(of_group, key=lambda row: row[name])
            best["choice"] = "both" if best["choice"] else word


def _frame(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    frame = to_frame(rows, whole=("budget", "depth"))
    for name in _WORDS if len(frame) else ():  # words also where all of them are missing
        frame[name] = frame[name].astype("object").where(frame[name].notna(), None)
    return frame


def _notes(costs: Costs | None, rows: Sequence[dict[str, Any]]) -> list[str]:
    notes = ["choosing the best of many trees makes its own prediction a little high"]
    if any(row["n_shared"] < row["n_prompts"] for row in rows):
        notes.append("the runs have different prompts, so a difference holds the variance of both samples")
    if costs is not None:
        notes.append(costs.source)
        notes.append("speeds compare only where both runs had the machine to themselves; lengths always do")
    return notes
