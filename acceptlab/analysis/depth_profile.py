"""How acceptance falls with depth: survival, its conditional rate, and two per-node rates, by group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from acceptlab.analysis.base import ALL, N_DOCS, AnalysisTable, counted, open_sample, put, to_frame
from acceptlab.analysis.profile_sums import ProfileSums, profile_sums
from acceptlab.queries import By
from acceptlab.resampling import DEFAULT, Resampling, Totals
from acceptlab.stats import Estimate, bootstrap, conditional_rates, ratio, ratio_of_sums
from acceptlab.store import Run

QUANTITIES = ("S_d", "alpha_d", "node_rate_d", "mean_ratio_d")
_NOTHING = "nothing drafted"

COLUMNS = {
    "depth": "distance from the root, from 1 (tokens)",
    "S_d": "survival: share of drafted steps in which at least d drafted tokens are accepted",
    "alpha_d": "S_d / S_(d-1): some child is accepted, given that the parent was",
    "node_rate_d": "accepted nodes / tested nodes at depth d; on trees not the same as alpha_d",
    "mean_ratio_d": "mean of min(1, target_prob/draft_prob) over all nodes at depth d, tested or not",
    **N_DOCS,
}


def depth_profile(
    runs: Sequence[Run], *, by: By = "domain", resampling: Resampling = DEFAULT
) -> AnalysisTable:
    """One row per group and depth, and the pooled group `all`: S_d, alpha_d, node_rate_d, mean_ratio_d.

    Args:
        runs: Opened runs; several are pooled.
        by: What a group is.
        resampling: How intervals are made; `simultaneous` covers all depths of one quantity in one group.

    Returns:
        Rates are ratios of sums over prompts. A group that drafted nothing has one row of nulls.
    """
    with open_sample(runs, by) as sample:
        groups = (*sample.clusters.groups, ALL)
        sums = profile_sums(sample, groups)
        rows = [row for group in groups for row in _rows(by, group, sums[group], resampling)]
        notes = list(sample.notes)
    pooled = sums[ALL]
    n_steps, n_nodes = int(pooled.drafted.sum()), int(pooled.n_nodes.sum())
    counts = counted({"prompts": len(pooled.drafted), "drafted steps": n_steps, "nodes": n_nodes})
    return AnalysisTable(
        name="depth-profile",
        title=f"Depth profile by {by}",
        caption=sample.caption(f"Acceptance by depth, {counts} ({resampling})."),
        frame=to_frame(rows),
        notes=notes,
        columns={by: "group of the prompts; all pools them", **COLUMNS},
    )


def _rows(by: By, group: str, sums: ProfileSums, resampling: Resampling) -> list[dict[str, Any]]:
    if sums.n_depths == 0:
        nothing = Estimate(None, None, None, 0, 0, str(resampling), _NOTHING)
        counts = dict.fromkeys(("n_nodes", "n_tested", "n_steps", "n_prompts"), 0)
        return [put({by: group, "depth": 1}, dict.fromkeys(QUANTITIES, nothing), **counts)]
    estimates = estimate(sums, resampling)
    return [
        put(
            {by: group, "depth": depth + 1},
            {name: estimates[name][depth] for name in QUANTITIES},
            n_nodes=int(sums.n_nodes[:, depth].sum()),
            n_tested=int(sums.n_tested[:, depth].sum()),
            n_steps=int(sums.drafted.sum()),
            n_prompts=int((sums.n_nodes[:, depth] > 0).sum()),
        )
        for depth in range(sums.n_depths)
    ]


def estimate(sums: ProfileSums, resampling: Resampling = DEFAULT) -> dict[str, list[Estimate]]:
    """Estimates of one group by quantity, one a depth."""
    steps = np.repeat(sums.drafted[:, None], sums.n_depths, axis=1)
    survivors = np.hstack([sums.drafted[:, None], sums.survivors])
    before = survivors[:, :-1]

    def alpha(totals: Totals) -> Totals:
        return conditional_rates(ratio(totals[:, 1:], totals[:, :1]))

    return {
        "S_d": ratio_of_sums(sums.survivors, steps, resampling, undefined=_NOTHING),
        "alpha_d": bootstrap(
            survivors, alpha, before, resampling, undefined="no step survives to the depth above"
        ),
        "node_rate_d": ratio_of_sums(
            sums.n_accepted, sums.n_tested, resampling, undefined="no node tested at this depth"
        ),
        "mean_ratio_d": ratio_of_sums(
            sums.sum_ratio, sums.n_ratio, resampling, undefined="no node with a defined accept_ratio"
        ),
    }
