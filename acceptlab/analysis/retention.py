"""How many tokens a step keeps: the histogram of the accepted length, survival, and the length at every cut-off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from acceptlab.analysis.base import ALL, N_DOCS, AnalysisTable, counted, open_sample, put, to_frame
from acceptlab.analysis.profile_sums import ProfileSums, profile_sums
from acceptlab.queries import By
from acceptlab.resampling import DEFAULT, Resampling, Totals
from acceptlab.stats import Estimate, bootstrap, conditional_rates, ratio
from acceptlab.store import Run

QUANTITIES = ("length_share", "S_k", "alpha_k", "J_k")
_NOTHING = "nothing drafted"

COLUMNS = {
    "k": "accepted drafted tokens, from 0 (tokens)",
    "length_share": "share of drafted steps whose accepted_len is exactly k",
    "S_k": "share of drafted steps whose accepted_len is at least k",
    "alpha_k": "S_k / S_(k-1): one token more is kept, given that k - 1 are",
    "J_k": "S_1 + ... + S_k: mean accepted_len if a step kept at most k tokens, no bonus (tokens)",
    **{name: N_DOCS[name] for name in ("n_steps", "n_prompts", "method", "reason")},
}


def retention(runs: Sequence[Run], *, by: By = "domain", resampling: Resampling = DEFAULT) -> AnalysisTable:
    """One row per group and k from 0 to the deepest drafted node: histogram, S_k, alpha_k and J_k.

    Args:
        runs: Opened runs; several are pooled.
        by: What a group is.
        resampling: How intervals are made; `simultaneous` covers all k of one quantity in one group.

    Returns:
        Shares are ratios of sums over prompts. J at the last k is the mean accepted_len.
    """
    with open_sample(runs, by) as sample:
        groups = (*sample.clusters.groups, ALL)
        sums = profile_sums(sample, groups)
        rows = [row for group in groups for row in _rows({by: group}, sums[group], resampling)]
        notes = list(sample.notes)
    drafted = sums[ALL].drafted
    counts = counted({"prompts": int((drafted > 0).sum()), "drafted steps": int(drafted.sum())})
    return AnalysisTable(
        name="retention",
        title=f"Retention by {by}",
        caption=f"Accepted length of a step and what is kept at every cut-off, {counts} ({resampling}).",
        frame=to_frame(rows, whole=("k",)),
        notes=notes,
        columns={by: "group of the prompts; all pools them", **COLUMNS},
    )


def _rows(key: dict[str, Any], sums: ProfileSums, resampling: Resampling) -> list[dict[str, Any]]:
    found = estimate(sums, resampling)
    n_prompts = int((sums.drafted > 0).sum())
    return [
        put(
            {**key, "k": k},
            {name: found[name][k] for name in QUANTITIES},
            n_steps=int(sums.drafted.sum()),
            n_prompts=n_prompts,
        )
        for k in range(sums.n_depths + 1)
    ]


def estimate(sums: ProfileSums, resampling: Resampling = DEFAULT) -> dict[str, list[Estimate]]:
    """Estimates of one group by quantity, one a k from 0; S_0 is 1, J_0 is 0, alpha_0 has no meaning."""
    at_least = np.hstack([sums.drafted[:, None], sums.survivors])
    width = at_least.shape[1]
    steps = np.repeat(sums.drafted[:, None], width, axis=1)

    def survival(totals: Totals) -> Totals:
        return ratio(totals, totals[:, :1])

    def shares(totals: Totals) -> Totals:
        alive = survival(totals)
        return np.asarray(alive - np.hstack([alive[:, 1:], np.zeros((len(alive), 1))]))

    def lengths(totals: Totals) -> Totals:
        alive = survival(totals)
        return np.asarray(np.cumsum(alive, axis=1) - alive[:, :1])

    def conditional(totals: Totals) -> Totals:
        alive = survival(totals)
        return np.hstack([np.full((len(alive), 1), np.nan), conditional_rates(alive[:, 1:])])

    before = np.hstack([np.zeros((len(at_least), 1)), at_least[:, :-1]])
    lost = ["the rate begins at 1", *["no step keeps one token less"] * (width - 1)]
    return {
        "length_share": bootstrap(at_least, shares, steps, resampling, undefined=_NOTHING),
        "S_k": bootstrap(at_least, survival, steps, resampling, undefined=_NOTHING),
        "alpha_k": bootstrap(at_least, conditional, before, resampling, undefined=lost),
        "J_k": bootstrap(at_least, lengths, steps, resampling, undefined=_NOTHING),
    }
