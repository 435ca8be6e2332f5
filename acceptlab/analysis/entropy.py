"""Does entropy predict acceptance: Spearman's coefficient by domain, by depth within a domain, and pooled.

Three outcomes are correlated: acceptance among tested nodes, which is censored (a node is tested only where
its ancestors were accepted), and two labels that every node has, is_target_argmax and accept_ratio.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd

from acceptlab.analysis.base import ALL, N_DOCS, AnalysisTable, Sample, counted, open_sample, put, to_frame
from acceptlab.analysis.entropy_sums import ENTROPIES, OUTCOMES, EntropyRanks
from acceptlab.queries import By
from acceptlab.ranks import spearman_of_each
from acceptlab.resampling import DEFAULT, Resampling
from acceptlab.store import Run

COLUMNS = {
    "depth": "depth of the nodes; missing where all depths are pooled",
    "entropy": "entropy of the draft's or the target's model distribution in the parent's context (nats)",
    "outcome": "; ".join(f"{name}: {meaning}" for name, meaning in OUTCOMES.items()),
    "rho": "Spearman's rank correlation of the entropy with the outcome, mid-ranks for ties",
    "n_nodes": "nodes correlated: tested ones for `accepted`, else all",
    **{name: N_DOCS[name] for name in ("n_prompts", "method", "reason")},
}


def entropy(runs: Sequence[Run], *, by: By = "domain", resampling: Resampling = DEFAULT) -> AnalysisTable:
    """One row per group, depth (missing: pooled), entropy and outcome; the group `all` pools every prompt.

    Args:
        runs: Opened runs; several are pooled.
        by: What a group is.
        resampling: How intervals are made.

    Returns:
        Coefficients with n; null with the reason where the input is constant or tiny. The notes hold the
        Simpson
        check: whether pooled signs hold within groups and depths.
    """
    with open_sample(runs, by) as sample:
        rows = sorted(_rows(sample, by, resampling), key=_order(sample))
        notes = list(sample.notes)
    frame = to_frame(rows)
    pooled = frame[(frame[by] == ALL) & frame["depth"].isna() & (frame["outcome"] == "accept_ratio")]
    n_nodes, n_prompts = (int(pooled[name].iloc[0]) for name in ("n_nodes", "n_prompts"))
    counts = counted({"prompts": n_prompts, "nodes": n_nodes})
    return AnalysisTable(
        name="entropy",
        title=f"Entropy and acceptance by {by}",
        caption=sample.caption(
            f"Rank correlation of entropy with acceptance, {counts} ({resampling}; ranks fixed)."
        ),
        frame=frame,
        notes=[*notes, *simpson_notes(frame, by)],
        columns={by: "group of the prompts; all pools them", **COLUMNS},
    )


def _rows(sample: Sample, by: By, resampling: Resampling) -> Iterator[dict[str, Any]]:
    # a group's scopes come one after the other, and share its prompts, so that they are resampled at one go
    for group, found in groupby(EntropyRanks(sample).sums(), key=lambda one: one[0].group or ALL):
        prompts = sample.clusters.prompts(group)
        keys, names, sums = [], [], []
        for scope, outcome, which, of_scope in found:
            keys.append({by: group, "depth": scope.depth, "entropy": which, "outcome": outcome})
            names.append((f"the {which} entropy", outcome))
            sums.append(of_scope[prompts])
        for key, rho in zip(
            keys, spearman_of_each(np.stack(sums, axis=1), resampling, names=names), strict=True
        ):
            yield put(key, {"rho": rho}, n_nodes=rho.n, n_prompts=rho.n_prompts)


def _order(sample: Sample) -> Any:
    groups = (*sample.clusters.groups, ALL)

    def key(row: dict[str, Any]) -> tuple[int, ...]:
        group = groups.index(row[sample.clusters.by])
        outcome = list(OUTCOMES).index(row["outcome"])
        return outcome, ENTROPIES.index(row["entropy"]), group, row["depth"] or 0

    return key


def simpson_notes(frame: pd.DataFrame, by: str) -> list[str]:
    """Whether the pooled sign of rho holds in every group and depth, one sentence an entropy and outcome."""
    notes = []
    for (outcome, which), part in frame.groupby(["outcome", "entropy"], sort=False):
        pooled = part[(part[by] == ALL) & part["depth"].isna()]["rho"].iloc[0]
        cells = part[(part[by] != ALL) & part["depth"].notna() & part["rho"].notna()]
        if pd.isna(pooled) or cells.empty:
            continue
        against = cells[np.sign(cells["rho"]) != np.sign(pooled)]
        clear = against[(against["rho_lo"] > 0) | (against["rho_hi"] < 0)]
        notes.append(
            f"Simpson check, {which} entropy with {outcome}: pooled rho {pooled:.3f}; the sign is the other "
            f"in {len(against)} of {len(cells)} cells of {by} and depth, {len(clear)} of them clear of 0"
        )
    return notes
