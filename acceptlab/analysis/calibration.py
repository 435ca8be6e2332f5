"""Does the draft know when it will be accepted: confidence against acceptance, reliability, ECE, Brier, AUROC.

Confidence is the draft's model probability of the drafted token. Three outcomes: acceptance among tested nodes, which
is censored, and two that every node has, is_target_argmax and accept_ratio.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from acceptlab.analysis.base import ALL, N_DOCS, AnalysisTable, Sample, counted, open_sample, put, to_frame
from acceptlab.errors import UsageError
from acceptlab.queries import By, labels
from acceptlab.resampling import DEFAULT, Resampling, Totals
from acceptlab.stats import Estimate, bootstrap, ratio
from acceptlab.store import Run

N_BINS = 10
N_LEVELS = 161
OUTCOMES = {
    "accepted": "whether the node was accepted, over tested nodes",
    "argmax": "is_target_argmax, over all nodes",
    "ratio": "accept_ratio, over all nodes",
}
_NOTHING = "no node of that kind"
_NO_CURVE = "accept_ratio is no yes/no outcome"

COLUMNS = {
    "outcome": "; ".join(f"{name}: {meaning}" for name, meaning in OUTCOMES.items()),
    "bin": "bin of the confidence, from 0 (0 to 0.1, ...); missing: all of them",
    "confidence": "mean confidence: the draft's model probability of the drafted token",
    "rate": "mean outcome of the same nodes",
    "overconfidence": "confidence - rate, resampled jointly",
    "ece": f"expected calibration error over {N_BINS} bins of equal width; above 0 by chance alone in small samples",
    "brier": "mean of (confidence - outcome)^2",
    "auroc": "probability that a node with the outcome has the larger confidence, ties half; log odds in eighths",
    "n_nodes": "nodes with that outcome known and that confidence",
    **{name: N_DOCS[name] for name in ("n_prompts", "method", "reason")},
}
_QUANTITIES = ("confidence", "rate", "overconfidence", "ece", "brier", "auroc")


@dataclass(frozen=True, eq=False)
class _Sums:
    """Of one group and outcome, one row a prompt: by bin n, confidence, outcome, squared error; by level yes and no."""

    bins: Float[np.ndarray, "4 prompts bins"]
    levels: Float[np.ndarray, "2 prompts levels"] | None


def calibration(runs: Sequence[Run], *, by: By = "domain", resampling: Resampling = DEFAULT) -> AnalysisTable:
    """One row per group, outcome and bin, and one for all bins with ECE, Brier score and AUROC.

    Args:
        runs: Opened runs; several are pooled if their sampling distributions are alike.
        by: What a group is.
        resampling: How intervals are made.

    Raises:
        UsageError: runs of different temperature or truncation.
    """
    listed = {_is_warped(run) for run in runs}
    if len(listed) > 1:
        raise UsageError(
            "calibration takes runs with and without temperature apart: name them in two commands"
        )
    with open_sample(runs, by) as sample:
        labels.add_confidence(sample.connection, listed=True in listed)
        bins = labels.calibration_bins(sample.connection, N_BINS)
        n_unknown = int(bins.loc[bins["bin"].isna(), "n_argmax"].sum())
        bins = bins[bins["bin"].notna()]
        levels = labels.confidence_levels(sample.connection)
        rows = []
        for outcome in OUTCOMES:
            columns = [f"{what}_{outcome}" for what in ("n", "conf", "label", "error")]
            by_bin = sample.clusters.dense_by(bins, "bin", columns, N_BINS)
            by_level = None
            if outcome != "ratio":
                names = (f"pos_{outcome}", f"neg_{outcome}")
                by_level = sample.clusters.dense_by(levels, "level", names, N_LEVELS)
            for group in (*sample.clusters.groups, ALL):
                sums = _select(sample, group, by_bin, by_level)
                rows += _rows({by: group, "outcome": outcome}, sums, resampling)
        notes = [*sample.notes, *_notes(True in listed, n_unknown)]
    pooled = next(row for row in rows if (row[by], row["outcome"], row["bin"]) == (ALL, "argmax", None))
    counts = counted({"prompts": pooled["n_prompts"], "nodes": pooled["n_nodes"]})
    return AnalysisTable(
        name="calibration",
        title=f"Calibration of the draft by {by}",
        caption=f"Confidence of the draft against acceptance, {counts} ({resampling}).",
        frame=to_frame(rows, whole=("bin",)),
        notes=notes,
        columns={by: "group of the prompts; all pools them", **COLUMNS},
    )


def _is_warped(run: Run) -> bool:
    config = run.config
    plain = config.get("temperature", 1) == 1 and not config.get("top_k")
    return not (plain and config.get("top_p") in (None, 1, 1.0))


def _notes(listed: bool, n_unknown: int) -> list[str]:
    notes = []
    if listed:
        notes.append(
            "the sampling distribution is warped, so the confidence comes from the stored lists of the draft's 32 most "
            "probable tokens, rounded down by at most 1 part in 128"
        )
    if n_unknown:
        notes.append(f"{n_unknown:,} nodes are outside those lists and left out")
    return notes


def _select(
    sample: Sample,
    group: str,
    by_bin: Float[np.ndarray, "4 prompts bins"],
    by_level: Float[np.ndarray, "2 prompts levels"] | None,
) -> _Sums:
    def of_group(arrays: Float[np.ndarray, "columns rows x"]) -> Float[np.ndarray, "columns prompts x"]:
        return np.stack([sample.clusters.select(values, group) for values in arrays])

    return _Sums(of_group(by_bin), None if by_level is None else of_group(by_level))


def _rows(key: dict[str, Any], sums: _Sums, resampling: Resampling) -> list[dict[str, Any]]:
    blank = {name: Estimate(None, None, None, 0, 0, str(resampling)) for name in _QUANTITIES}
    known = np.flatnonzero(sums.bins[0].sum(axis=0) > 0)
    whole, by_bin = _estimates(sums, known, resampling)
    rows = [_row({**key, "bin": None}, whole)]
    for number, found in zip(known, by_bin, strict=True):
        rows.append(_row({**key, "bin": int(number)}, blank | found))
    return rows


def _row(key: dict[str, Any], found: dict[str, Estimate]) -> dict[str, Any]:
    return put(key, found, n_nodes=found["rate"].n, n_prompts=found["rate"].n_prompts)


def _estimates(
    sums: _Sums, known: Int[np.ndarray, " bins"], resampling: Resampling
) -> tuple[dict[str, Estimate], list[dict[str, Estimate]]]:
    """The six quantities of all nodes, and the first three of every known bin, resampled in one go."""
    n, confidence, label, error = sums.bins
    parts = [n, confidence, label, error.sum(axis=1, keepdims=True)]
    parts += [] if sums.levels is None else list(sums.levels)
    edges = np.cumsum([part.shape[1] for part in parts])[:-1]

    def statistic(totals: Totals) -> Totals:
        n, confidence, label, error, *levels = np.split(totals, edges, axis=1)
        gap, everything = confidence - label, n.sum(axis=1, keepdims=True)
        whole = [ratio(values.sum(axis=1, keepdims=True), everything) for values in (confidence, label, gap)]
        whole += [expected_error(np.hstack([gap, everything])), ratio(error, everything)]
        whole += [area_under_curve(np.hstack(levels)) if levels else np.full_like(everything, np.nan)]
        by_bin = [ratio(values[:, known], n[:, known]) for values in (confidence, label, gap)]
        return np.hstack([*whole, *by_bin])

    no_curve = _NO_CURVE if sums.levels is None else "the outcome is the same in all nodes"
    reasons = [*[_NOTHING] * 5, no_curve, *[_NOTHING] * (3 * len(known))]
    counts = np.hstack([np.repeat(n.sum(axis=1, keepdims=True), 6, axis=1), *[n[:, known]] * 3])
    found = bootstrap(np.hstack(parts), statistic, counts, resampling, undefined=reasons)
    by_bin = np.array(found[6:], dtype=object).reshape(3, len(known)).T
    return (
        dict(zip(_QUANTITIES, found, strict=False)),
        [dict(zip(_QUANTITIES, row, strict=False)) for row in by_bin],
    )


def expected_error(totals: Totals) -> Totals:
    """Sum over bins of |sum of confidence - sum of outcome|, over the number of nodes (the last column)."""
    return ratio(np.abs(totals[:, :-1]).sum(axis=1), totals[:, -1])[:, None]


def area_under_curve(totals: Totals) -> Totals:
    """AUROC from counts of yes and no by level, the lowest first; within a level half of the pairs count."""
    yes, no = np.split(totals, 2, axis=1)
    below = np.cumsum(no, axis=1) - no
    wins = (yes * (below + 0.5 * no)).sum(axis=1)
    return ratio(wins, yes.sum(axis=1) * no.sum(axis=1))[:, None]
