"""Certificates on real contexts: how many proposals are proved acceptable, how many accepted, does a proof ever fail.

One row per group, rule and direction, and per bin of the target's margin. Certified and rejected must never happen:
`check_certificates` turns such a table into an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from acceptlab.analysis.base import ALL, AnalysisTable, Sample, counted, open_sample, put, to_frame
from acceptlab.analysis.certificate_checks import DIRECTIONS, RULES
from acceptlab.analysis.certificate_sums import (
    KINDS,
    LEVELS,
    OUTCOMES,
    WITH_INTERVAL,
    Counts,
    Quantiles,
    all_groups,
    count_contexts,
    nearest_of,
    of_group,
    threshold_quantiles,
)
from acceptlab.analysis.certificate_words import (
    COLUMNS,
    NEVER_NOTE,
    PAPER,
    PAPER_NOTE,
    QUANTILES,
    SOUND_NOTE,
)
from acceptlab.errors import RunError, UsageError
from acceptlab.queries import By
from acceptlab.resampling import DEFAULT, Resampling, Totals
from acceptlab.stats import Estimate, bootstrap, ratio
from acceptlab.store import Run

QUANTITIES = ("coverage", "gain", "margin_coverage", "acceptance", "tightness", "margin_tightness")
_NOTHING_CHECKED = "there is no context with both distributions, so nothing was checked: name another run"
_UNDEFINED = (
    "no context",
    "no context",
    "no context",
    "no decided proposal",
    "no accepted proposal",
    "no certified proposal",
)


def certificates(
    runs: Sequence[Run],
    *,
    by: By = "domain",
    all_bins: bool = False,
    scale_thresholds: float = 1.0,
    resampling: Resampling = DEFAULT,
) -> AnalysisTable:
    """Coverage, acceptance and thresholds by group, rule and direction; bins of the margin for all groups pooled.

    Args:
        runs: opened runs; several are pooled.
        by: what a group is.
        all_bins: also give every group's bins.
        scale_thresholds: a test of the check: thresholds times this certify, which above 1 must give violations.
        resampling: how intervals are made.

    Raises:
        UsageError: a scale that is not positive.
        RunError: no prompt, a run that stores thresholds of other rules, or a part that cannot be read.
    """
    if not 0.0 < scale_thresholds < float("inf"):
        raise UsageError(
            f"thresholds cannot be multiplied by {scale_thresholds:g}: give a positive number, such as 3"
        )
    with open_sample(runs, by) as sample:
        if not len(sample.clusters.row_labels):
            raise RunError(_NOTHING_CHECKED)
        counts = count_contexts(sample, scale_thresholds)
        rows = _overall(sample, counts, by, resampling)
        for group in all_groups(sample.clusters) if all_bins else (ALL,):
            rows += _binned(sample, counts, by, group, resampling)
        notes = [*sample.notes, SOUND_NOTE, NEVER_NOTE, PAPER_NOTE]
    pooled = next(row for row in rows if row[by] == ALL)
    numbers = counted({"prompts": pooled["n_prompts"], "contexts": pooled["n_contexts"]})
    if scale_thresholds != 1.0:
        notes.insert(
            0, f"thresholds are multiplied by {scale_thresholds:g} to test the check: this proves nothing"
        )
    return AnalysisTable(
        name="certificates",
        title=f"Certificates by {by}",
        caption=sample.caption(f"Certified and accepted proposals, {numbers} ({resampling})."),
        frame=to_frame(rows, whole=("margin_bin",)),
        notes=notes,
        columns={by: "group of the prompts; all pools them", **COLUMNS},
    )


def check_certificates(table: AnalysisTable, scale_thresholds: float = 1.0) -> None:
    """Refuse a table with violations.

    Raises:
        RunError: a certified proposal was rejected, or there is nothing to check.
    """
    frame = table.frame
    if not frame["n_contexts"].sum():
        raise RunError(_NOTHING_CHECKED)
    is_pooled = (frame.iloc[:, 0] == ALL) & frame["margin_bin"].isna() & (frame["n_violations"] > 0)
    found = frame[is_pooled].to_dict("records")
    if not found:
        return
    worst = max(found, key=lambda row: int(row["n_violations"]))
    most = f"{int(worst['n_violations']):,} under {worst['rule']}, {worst['direction']}"
    total = (
        f"{sum(int(row['n_violations']) for row in found):,} certified proposals were rejected (most: {most})"
    )
    if scale_thresholds != 1.0:
        raise RunError(
            f"{total} with thresholds times {scale_thresholds:g}: the check can fail, as this was to show"
        )
    raise RunError(
        f"{total}: these thresholds prove nothing; collect the run again, and report it if it stays"
    )


def _overall(sample: Sample, counts: Counts, by: By, resampling: Resampling) -> list[dict[str, Any]]:
    """One row per group, rule and direction."""
    quantiles = [threshold_quantiles(sample, r, resampling) for r in range(len(RULES))]
    rows = []
    for group in all_groups(sample.clusters):
        sums = _sums(sample, counts, group).sum(axis=-1)
        keys = [
            {by: group, "rule": str(RULES[r]), "direction": DIRECTIONS[d], "margin_bin": None}
            for r, d in _PAIRS
        ]
        for (r, d), row in zip(_PAIRS, _rows(keys, sums, resampling), strict=True):
            nearest = float(nearest_of(sample.clusters, counts.nearest[r, d], group))
            paper = PAPER.get(row["rule"], (None, None)) if row["direction"] == "forward" else (None, None)
            more = {
                "nearest_rejection": nearest if np.isfinite(nearest) else None,
                **_quantile_columns(quantiles[r][DIRECTIONS[d], group]),
                "paper_p5": paper[0],
                "paper_median": paper[1],
            }
            rows.append(_in_order(row | more, by))
    return rows


def _binned(
    sample: Sample, counts: Counts, by: By, group: str, resampling: Resampling
) -> list[dict[str, Any]]:
    """One row per rule, direction and bin of the margin that has contexts."""
    sums = _sums(sample, counts, group)
    known = np.flatnonzero(sums[0, :, 0].sum(axis=0) > 0)
    keys = [
        {by: group, "rule": str(RULES[r]), "direction": DIRECTIONS[d], "margin_bin": int(number)}
        for r, d in _PAIRS
        for number in known
    ]
    chosen = sums[..., known].reshape(*sums.shape[:2], -1)
    return [_in_order(row, by) for row in _rows(keys, chosen, resampling)] if keys else []


_PAIRS = tuple((r, d) for r in range(len(RULES)) for d in range(len(DIRECTIONS)))
"""Rules and directions, in the order of the table."""


def _sums(sample: Sample, counts: Counts, group: str) -> Float[np.ndarray, "counts prompts pairs bins"]:
    """Contexts, outcomes, kinds, and what greedy certifies: one row a prompt of the group."""
    certified = KINDS.index("certified")
    stacked = [
        of_group(
            sample.clusters,
            np.concatenate(
                [
                    counts.contexts[None],
                    counts.outcomes[r],
                    counts.kinds[r, d],
                    counts.kinds[_GREEDY, d, certified][None],
                ]
            ),
            group,
        )
        for r, d in _PAIRS
    ]
    return np.stack(stacked, axis=2)


_PLACE = {name: i for i, name in enumerate(("contexts", *OUTCOMES, *KINDS, "greedy"))}
_USED = ("contexts", "accepted", "rejected", "certified", "margin", "greedy")
_GREEDY = [str(rule) for rule in RULES].index("greedy")


def _rows(
    keys: Sequence[dict[str, Any]], sums: Float[np.ndarray, "counts prompts keys"], resampling: Resampling
) -> list[dict[str, Any]]:
    """Rows of several rules, directions or bins, resampled jointly."""
    n_keys = sums.shape[-1]
    parts = {name: sums[_PLACE[name]] for name in _USED}
    decided = parts["accepted"] + parts["rejected"]
    n_contexts = parts["contexts"]
    denominators = (n_contexts, n_contexts, n_contexts, decided, parts["accepted"], parts["certified"])

    def statistic(totals: Totals) -> Totals:
        n, accepted, rejected, proved, margin, greedy = np.split(totals, len(_USED), axis=1)
        tops = (proved, proved - greedy, margin, accepted, proved, margin)
        bottoms = (n, n, n, accepted + rejected, accepted, proved)
        return np.hstack([ratio(top, bottom) for top, bottom in zip(tops, bottoms, strict=True)])

    found = bootstrap(
        np.hstack([parts[name] for name in _USED]),
        statistic,
        np.hstack(denominators),
        resampling,
        undefined=[reason for reason in _UNDEFINED for _ in range(n_keys)],
    )
    return [_row(key, found[k::n_keys], sums[..., k]) for k, key in enumerate(keys)]


def _row(
    key: dict[str, Any], estimates: Sequence[Estimate], sums: Float[np.ndarray, "counts prompts"]
) -> dict[str, Any]:
    n = {name: int(sums[place].sum()) for name, place in _PLACE.items()}
    return put(
        key,
        dict(zip(QUANTITIES, estimates, strict=True)),
        n_contexts=n["contexts"],
        n_certified=n["certified"],
        n_finite=n["finite"],
        n_margin=n["margin"],
        n_accepted=n["accepted"],
        n_rejected=n["rejected"],
        n_undecided=n["undecided"],
        n_violations=n["violations"],
        n_prompts=int((sums[_PLACE["contexts"]] > 0).sum()),
    )


def _quantile_columns(found: Quantiles) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for level in LEVELS:
        name = f"threshold_{QUANTILES[level]}"
        columns[name] = found.values.get(level)
        if level in WITH_INTERVAL:
            columns[f"{name}_lo"], columns[f"{name}_hi"] = found.ends.get(level, (None, None))
    return columns


_ORDER = (
    *(name for quantity in QUANTITIES for name in (quantity, f"{quantity}_lo", f"{quantity}_hi")),
    "nearest_rejection",
    *(
        column
        for level in LEVELS
        for column in (
            f"threshold_{QUANTILES[level]}",
            *(f"threshold_{QUANTILES[level]}_{end}" for end in ("lo", "hi") if level in WITH_INTERVAL),
        )
    ),
    "paper_p5",
    "paper_median",
)


def _in_order(row: dict[str, Any], by: By) -> dict[str, Any]:
    """Keys, quantities, then counts; rows of bins have no quantiles."""
    keys = (by, "rule", "direction", "margin_bin")
    first = {name: row.get(name) for name in (*keys, *_ORDER)}
    return {**first, **{name: value for name, value in row.items() if name not in first}}
