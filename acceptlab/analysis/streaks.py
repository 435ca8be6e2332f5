"""Steps within a text: variance of the accepted length within and between prompts, and runs of poor steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from acceptlab.analysis.base import ALL, N_DOCS, AnalysisTable, Sample, counted, open_sample, put, to_frame
from acceptlab.queries import By, labels
from acceptlab.resampling import DEFAULT, Resampling, Totals
from acceptlab.stats import bootstrap, ratio
from acceptlab.store import Run

LOW = 1
"""A step is low if it accepts at most this many drafted tokens."""

SUMS = (
    "n_texts",
    "n_steps",
    "n_steps_sq",
    "sum_len",
    "sum_len_sq",
    "mean_part",
    "n_low",
    "n_streaks",
    "longest_low",
)

COLUMNS = {
    "mean_len": "mean accepted_len of drafted steps, without the bonus token (tokens)",
    "variance_within": "variance of accepted_len between the steps of one text (tokens^2)",
    "variance_between": "variance of the texts' true means, freed of the steps' own scatter; may fall below 0 by "
    "chance (tokens^2)",
    "icc": "variance_between / (variance_between + variance_within)",
    "low_share": f"share of drafted steps that accept at most {LOW} token",
    "longest_low": f"mean over texts of the longest run of consecutive steps that accept at most {LOW} token (steps)",
    "mean_streak": "mean length of such runs (steps)",
    "streak_excess": "mean_streak over what it would be if low steps fell independently in texts of these lengths: "
    "above 1 they cluster",
    "longest_low_max": "the longest run of all texts (steps)",
    **{name: N_DOCS[name] for name in ("n_steps", "n_prompts", "method", "reason")},
}
_ESTIMATES = tuple(COLUMNS)[:8]


def streaks(runs: Sequence[Run], *, by: By = "domain", resampling: Resampling = DEFAULT) -> AnalysisTable:
    """One row per group: variance of the accepted length within and between texts, and runs of low steps.

    The variances are those of the one-way random effects model with texts of different length (Searle, Casella and
    McCulloch, Variance Components, section 3.6).

    Args:
        runs: Opened runs; several are pooled.
        by: What a group is.
        resampling: How intervals are made.
    """
    with open_sample(runs, by) as sample:
        frame = labels.step_streaks(sample.connection, LOW)
        sums = sample.clusters.dense(frame, SUMS)
        longest = _longest(sample, frame)
        rows = [
            _row({by: group}, sample.clusters.select(sums, group), longest.get(group), resampling)
            for group in (*sample.clusters.groups, ALL)
        ]
        notes = list(sample.notes)
    counts = counted({"prompts": rows[-1]["n_prompts"], "drafted steps": rows[-1]["n_steps"]})
    return AnalysisTable(
        name="streaks",
        title=f"Streaks and variance by {by}",
        caption=f"Accepted length within and between texts, and runs of steps with at most {LOW} accepted token, "
        f"{counts} ({resampling}).",
        frame=to_frame(rows, whole=("longest_low_max",)),
        notes=notes,
        columns={by: "group of the prompts; all pools them", **COLUMNS},
    )


def _longest(sample: Sample, frame: pd.DataFrame) -> dict[str, int]:
    """The longest run of all texts, by group."""
    if frame.empty:
        return {}
    rows = frame.merge(sample.clusters.keys, on=["run_id", "prompt_id"])
    group = sample.clusters.row_labels[rows["row"].to_numpy()]
    found = {str(name): int(value) for name, value in rows["longest_low"].groupby(group).max().items()}
    return {**found, ALL: max(found.values())}


def _row(
    key: dict[str, Any], sums: Float[np.ndarray, "prompts sums"], longest: int | None, resampling: Resampling
) -> dict[str, Any]:
    total = dict(zip(SUMS, sums.T, strict=True))
    steps, texts = total["n_steps"], total["n_texts"]
    counts = np.stack([steps, steps, texts, steps, steps, texts, total["n_streaks"], steps], axis=1)
    reasons = ["nothing drafted"] * 8
    reasons[1:4] = ["no text has two steps", "fewer than two texts", "fewer than two texts"]
    reasons[6:] = ["no low step"] * 2
    found = bootstrap(sums, statistic, counts, resampling, undefined=reasons)
    row = put(
        key,
        dict(zip(_ESTIMATES, found, strict=True)),
        longest_low_max=longest,
        n_steps=int(steps.sum()),
        n_prompts=int((steps > 0).sum()),
    )
    return row


def statistic(totals: Totals) -> Totals:
    """The eight estimates from totals of SUMS."""
    texts, steps, steps_sq, length, length_sq, mean_part, low, n_streaks, longest = totals.T
    within = ratio(length_sq - mean_part, steps - texts)
    groups_less_one = np.where(texts > 1, texts - 1, np.nan)
    between_ms = (mean_part - ratio(length**2, steps)) / groups_less_one
    typical_size = (steps - ratio(steps_sq, steps)) / groups_less_one
    between = ratio(between_ms - within, typical_size)
    low_share, mean_streak = ratio(low, steps), ratio(low, n_streaks)
    columns = [ratio(length, steps), within, between, ratio(between, between + within), low_share]
    # independent steps: a streak begins at a low step that opens the text or follows one that is not low
    independent = ratio(steps, texts + (steps - texts) * (1.0 - low_share))
    columns += [ratio(longest, texts), mean_streak, mean_streak / independent]
    return np.stack(columns, axis=1)
