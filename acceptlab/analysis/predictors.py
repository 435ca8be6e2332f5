"""Does the domain or the depth of a node predict its acceptance more: three measures, less what chance gives.

Chance permutes domains across prompts and depths within steps (`exchange`); the measures are those of `factors`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from acceptlab.analysis.base import ALL, N_DOCS, AnalysisTable, Sample, counted, open_sample, to_frame
from acceptlab.analysis.exchange import N_PERMUTATIONS, Outcome, moments, permuted
from acceptlab.analysis.factors import Cells, Measures, deviance_share, explained_variance, mutual_information
from acceptlab.queries import By, labels
from acceptlab.resampling import DEFAULT, MIN_PROMPTS, Resampling, bounds, replicates
from acceptlab.store import Run

OUTCOMES = {
    "accepted": "whether the node was accepted, over tested nodes",
    "argmax": "is_target_argmax, over all nodes",
    "ratio": "accept_ratio, over all nodes",
}
MEASURES: dict[str, Callable[[Cells], Measures]] = {
    "explained_variance": explained_variance,
    "mutual_information": mutual_information,
    "deviance_share": deviance_share,
}
_BINARY_ONLY = frozenset({"mutual_information", "deviance_share"})
_PERMUTED_FIRST, _PERMUTED_SECOND = (0, 3), (1, 4)
"""Places of PREDICTORS whose chance permutes the first factor, and the second."""
_GROUP_PLACES = (0, 2, 3)
"""Places of PREDICTORS that say nothing where there is one group only."""
_DEPTH_PLACES = (1, 2, 4)
"""Places of PREDICTORS whose chance needs the depth to be exchangeable within steps."""
_SELECTED = (
    "chance: whether a node is tested follows from acceptance above it, so its depth cannot be permuted"
)
"""Why tested nodes have no chance for depth: exchanged depths would mark the steps that got far."""


def columns(by: str) -> dict[str, str]:
    """Meaning of the table's columns."""
    found = {
        "outcome": "; ".join(f"{name}: {meaning}" for name, meaning in OUTCOMES.items()),
        "predictor": f"{by}, depth, their difference, each given the other, or both",
        "explained_variance": "share of the outcome's variance between levels; both: additive linear model",
        "mutual_information": "mutual information with the outcome (nats a node); given: conditional",
        "deviance_share": "share of deviance (McFadden) of nested logistic models without interaction",
        "p_value": f"share of {N_PERMUTATIONS} permutations with at least the explained variance, one added to both",
    }
    for name in MEASURES:
        found[f"{name}_chance"] = f"mean {name} when {by} is permuted across prompts, or depth within steps"
        found[f"{name}_excess"] = (
            f"{name} less chance; the interval's replicates are centred, since resampling adds "
        )
        found[f"{name}_excess"] += "chance once more"
    return found | {name: N_DOCS[name] for name in ("n_nodes", "n_prompts", "method", "reason")}


def predictors(runs: Sequence[Run], *, by: By = "domain", resampling: Resampling = DEFAULT) -> AnalysisTable:
    """One row per outcome and predictor: explained variance, mutual information and deviance, less chance.

    Args:
        runs: Opened runs; several are pooled.
        by: What is set against depth: the prompts' domain, source or run.
        resampling: How intervals are made; its seed also drives the permutations.
    """
    with open_sample(runs, by) as sample:
        cells = labels.predictor_cells(sample.connection)
        rows: list[dict[str, Any]] = []
        for outcome in OUTCOMES:
            found = _outcome(sample, cells, outcome, labels.step_patterns(sample.connection, outcome))
            rows += _rows(sample, outcome, by, found, resampling)
        notes = [*sample.notes, *_verdicts(rows, by)]
    whole = next(row for row in rows if row["outcome"] == "argmax")
    counts = counted({"prompts": whole["n_prompts"], "nodes": whole["n_nodes"]})
    return AnalysisTable(
        name="predictors",
        title=f"Does {by} or depth predict acceptance more",
        caption=f"What {by} and depth explain of acceptance, {counts} ({resampling}).",
        frame=to_frame(rows),
        notes=notes,
        columns=columns(by),
    )


def _outcome(sample: Sample, cells: pd.DataFrame, outcome: str, patterns: pd.DataFrame) -> Outcome:
    clusters = sample.clusters
    n_depths = int(cells["depth"].max()) if len(cells) else 0
    names = (f"n_{outcome}", f"sum_{outcome}", f"sq_{outcome}")
    n, total, squares = clusters.dense_by(cells.assign(level=cells["depth"] - 1), "level", names, n_depths)
    used = int((n.sum(axis=0) > 0).sum())  # depths without such nodes are no level
    means, covariances = moments(patterns, clusters.groups, used)
    number = {name: place for place, name in enumerate(clusters.groups)}
    return Outcome(
        n[:, :used],
        total[:, :used],
        squares.sum(axis=1),
        np.array([number[label] for label in clusters.row_labels], dtype=np.float64),
        means,
        covariances,
    )


def _rows(
    sample: Sample, outcome: str, by: str, found: Outcome, resampling: Resampling
) -> list[dict[str, Any]]:
    names = (by, "depth", f"{by} less depth", f"{by} given depth", f"depth given {by}", "both")
    n_nodes = int(found.n.sum())
    n_prompts = int((sample.clusters.select(found.n, ALL).sum(axis=1) > 0).sum())
    method = f"{resampling}, centred; {N_PERMUTATIONS} permutations"
    counts: dict[str, Any] = {"n_nodes": n_nodes, "n_prompts": n_prompts, "method": method}
    reason = _why_not(found, n_nodes)
    measured: dict[str, list[dict[str, Any]]] = {}
    if reason is None:
        measured = {
            name: _measured(sample, found, measure, resampling, n_prompts, outcome == "accepted")
            for name, measure in MEASURES.items()
            if outcome != "ratio" or name not in _BINARY_ONLY
        }
    is_one = reason is None and found.n_groups < 2
    why = reason or ("too few prompts for intervals" if n_prompts < MIN_PROMPTS else None)
    if why is None and outcome == "ratio":
        why = "mutual_information, deviance_share: the outcome is not yes or no"
    rows: list[dict[str, Any]] = []
    for place, predictor in enumerate(names):
        values: dict[str, Any] = {}
        for name in MEASURES:
            is_known = name in measured and not (is_one and place in _GROUP_PLACES)
            values |= measured[name][place] if is_known else _blank(name)
        by_measure = [values.pop(f"{name}_p") for name in MEASURES]
        rows.append(
            {
                "outcome": outcome,
                "predictor": predictor,
                **values,
                "p_value": by_measure[0],
                **counts,
                "reason": f"the prompts have one {by} only"
                if is_one and place in _GROUP_PLACES
                else why or (_SELECTED if outcome == "accepted" and place in _DEPTH_PLACES else None),
            }
        )
    return rows


def _why_not(found: Outcome, n_nodes: int) -> str | None:
    if n_nodes == 0:
        return "nothing drafted"
    if found.n.shape[1] < 2:
        return "all nodes have one depth"
    return None if np.isfinite(explained_variance(found.cells())[0]) else "all outcomes are the same"


def _blank(name: str) -> dict[str, Any]:
    keys = (name, f"{name}_chance", f"{name}_excess", f"{name}_excess_lo", f"{name}_excess_hi", f"{name}_p")
    return dict.fromkeys(keys)


def _measured(
    sample: Sample,
    found: Outcome,
    measure: Callable[[Cells], Measures],
    resampling: Resampling,
    n_prompts: int,
    is_selected: bool,
) -> list[dict[str, Any]]:
    """Value, chance, excess with interval and p-value of one measure for the six predictors.

    `is_selected`: the outcome decided which nodes are looked at, so depth has no chance (nan).
    """
    name = next(name for name, function in MEASURES.items() if function is measure)
    value = measure(found.cells())
    by_group, by_depth = (measure(cells) for cells in permuted(found, resampling.seed))
    chance, p_value = np.full(6, np.nan), np.full(6, np.nan)
    for places, null in ((_PERMUTED_FIRST, by_group), (_PERMUTED_SECOND, by_depth)):
        for place in places:
            chance[place] = null[:, place].mean()
            as_large = (null[:, place] >= value[place] - 1e-12).sum()
            p_value[place] = (1 + as_large) / (1 + N_PERMUTATIONS)
    chance[2] = chance[0] - chance[1]
    if is_selected:
        chance[list(_DEPTH_PLACES)] = np.nan
        p_value[list(_DEPTH_PLACES)] = np.nan
    excess = value - chance
    ends = np.full((6, 2), np.nan)
    if n_prompts >= MIN_PROMPTS:
        draws = replicates(*_resampled(sample, found, measure), resampling)
        centred = draws - (np.nanmean(draws, axis=0) - value) - chance
        ends = bounds(centred, excess, np.full(6, n_prompts), resampling)
    return [
        {
            name: _none(value[i]),
            f"{name}_chance": _none(chance[i]),
            f"{name}_excess": _none(excess[i]),
            f"{name}_excess_lo": _none(ends[i, 0]),
            f"{name}_excess_hi": _none(ends[i, 1]),
            f"{name}_p": _none(p_value[i]),
        }
        for i in range(6)
    ]


def _resampled(
    sample: Sample, found: Outcome, measure: Callable[[Cells], Measures]
) -> tuple[Float[np.ndarray, "prompts columns"], Callable[[Float[np.ndarray, "r c"]], Measures]]:
    """Sums by prompt, with a column a cell, and the measure as a statistic of their totals."""
    groups, depths = found.means.shape
    member = np.stack([found.group == g for g in range(groups)], axis=1).astype(np.float64)
    wide = [
        (member[:, :, None] * values[:, None, :]).reshape(len(member), -1)
        for values in (found.n, found.total)
    ]
    sums = sample.clusters.select(np.hstack([*wide, found.squares[:, None]]), ALL)
    size = groups * depths

    def statistic(totals: Float[np.ndarray, "rows columns"]) -> Measures:
        shape = (len(totals), groups, depths)
        return measure(
            Cells(totals[:, :size].reshape(shape), totals[:, size : 2 * size].reshape(shape), totals[:, -1])
        )

    return sums, statistic


def _none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _verdicts(rows: Sequence[dict[str, Any]], by: str) -> list[str]:
    """Which of the two explains more of each outcome's variance, and whether that is clear."""
    notes = []
    for outcome, meaning in OUTCOMES.items():
        found = {row["predictor"]: row for row in rows if row["outcome"] == outcome}
        if found[f"{by} less depth"]["explained_variance"] is None:
            continue
        if outcome == "accepted":
            shares = [found[name]["explained_variance"] for name in (by, "depth")]
            notes.append(
                f"accepted ({meaning}): {by} {shares[0]:.4f} against depth {shares[1]:.4f} of the variance, chance not "
                "taken off: a step reaches a depth only by acceptances above it, so exchanging depths among its "
                "tested nodes makes depth look predictive by itself; the outcomes over all nodes are free of this"
            )
            continue
        gap = found[f"{by} less depth"]
        value, low, high = (gap[f"explained_variance_excess{end}"] for end in ("", "_lo", "_hi"))
        more, less = (by, "depth") if value > 0 else ("depth", by)
        clear = "no interval" if low is None else "clear" if low > 0 or high < 0 else "not clear"
        shares = [found[name]["explained_variance_excess"] for name in (more, less)]
        notes.append(
            f"{outcome} ({meaning}): {more} explains more of the variance than {less}, {shares[0]:.4f} against "
            f"{shares[1]:.4f} beyond chance ({clear})"
        )
    return notes
