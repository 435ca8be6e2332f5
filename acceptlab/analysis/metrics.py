"""The crosswalk of metrics: what published tools print under similar names, computed from one run.

One row per definition. A length with the bonus token is about 1 larger than one without; pooled means differ
from means over requests; survival differs from conditional rates: so the table says of each what it is and
how it differs from this package's own quantities.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from acceptlab.analysis import definitions as known
from acceptlab.analysis.base import ALL, N_DOCS, AnalysisTable, counted, open_sample, put, to_frame
from acceptlab.analysis.definitions import Definition
from acceptlab.analysis.depth_profile import estimate as profile_estimates
from acceptlab.analysis.domains import lengths
from acceptlab.analysis.metrics_sums import Column, MetricSums, metric_sums
from acceptlab.analysis.timed import Timed, dflash, read_timed, spec_bench
from acceptlab.queries import By
from acceptlab.resampling import DEFAULT, Resampling, Totals
from acceptlab.stats import Estimate, bootstrap, mean_of_prompt_means, product_length, ratio, ratio_of_sums
from acceptlab.store import Run

_NOTHING = "nothing drafted"

COLUMNS = {
    "metric": "name of the quantity, as its source uses it",
    "source": "who prints it",
    "value": "its value on this run, with a 95% interval",
    "unit": "tokens, or a share between 0 and 1",
    "bonus": "whether the bonus or correction token is counted",
    "definition": "the formula in words",
    "differs": "what to mind when it is compared with this package's own quantities",
    "n": "units of the denominator",
    **{name: N_DOCS[name] for name in ("n_nodes", "n_prompts", "method", "reason")},
}


def metrics(
    runs: Sequence[Run],
    *,
    by: By | None = None,
    resampling: Resampling = DEFAULT,
    timed_file: Path | str | None = None,
) -> AnalysisTable:
    """One row per published definition, for all prompts pooled, or for every group too where `by` is given.

    Args:
        runs: Opened runs; several are pooled.
        by: Groups to add; None gives the pooled values only.
        resampling: How intervals are made.
        timed_file: The samples of `acceptlab bench speedup` for the same pair and tree, which give the speed-ups;
            those of a group are given by domain only.

    Returns:
        Values from the same run side by side; null with a reason where the run lacks what a definition needs.
    """
    timed = None if timed_file is None else read_timed(Path(timed_file), runs)
    with open_sample(runs, by or "domain") as sample:
        groups = (*sample.clusters.groups, ALL) if by else (ALL,)
        sums = metric_sums(sample, groups)
        rows = [
            _row({by: group} if by else {}, definition, found, int(sums[group].steps["n_nodes"].sum()))
            for group in groups
            for definition, found in crosswalk(sums[group], resampling, _timed_of(timed, by, group))
        ]
        notes = list(sample.notes)
    steps = sums[ALL].steps
    n_steps, n_nodes = int(steps["n_steps"].sum()), int(steps["n_nodes"].sum())
    counts = counted({"prompts": len(steps["n_steps"]), "steps": n_steps, "nodes": n_nodes})
    return AnalysisTable(
        name="metrics",
        title="Published definitions of acceptance, on the same run",
        caption=sample.caption(f"Metrics side by side, {counts} ({resampling})."),
        frame=to_frame(rows),
        notes=notes,
        columns={**({by: "group of the prompts; all pools them"} if by else {}), **COLUMNS},
    )


def _row(key: Mapping[Any, str], definition: Definition, found: Estimate, n_nodes: int) -> dict[str, Any]:
    row = put({**key, "metric": definition.metric, "source": definition.source}, {"value": found})
    method, reason = row.pop("method"), row.pop("reason")
    return {
        **row,
        "unit": definition.unit,
        "bonus": definition.bonus,
        "definition": definition.formula,
        "differs": definition.differs,
        "n": found.n,
        "n_nodes": n_nodes,
        "n_prompts": found.n_prompts,
        "method": method if found.value is not None else None,
        "reason": reason,
    }


@dataclass(frozen=True)
class _Pool:
    """Estimates from named columns of one group."""

    sums: MetricSums
    resampling: Resampling

    def pooled(self, numerator: Column, denominator: Column) -> Estimate:
        """Ratio of sums."""
        return ratio_of_sums(numerator[:, None], denominator[:, None], self.resampling, undefined=_NOTHING)[0]

    def by_request(self, numerator: Column, denominator: Column) -> Estimate:
        """Mean of per-prompt ratios."""
        return mean_of_prompt_means(
            numerator[:, None], denominator[:, None], self.resampling, undefined=_NOTHING
        )[0]

    def missing(self, reason: str) -> Estimate:
        """A quantity that the run cannot give."""
        return Estimate(None, None, None, 0, 0, str(self.resampling), reason)


def _timed_of(timed: Timed | None, by: By | None, group: str) -> Timed | None:
    """The timed prompts of a group, where they can be told."""
    if timed is None or group == ALL:
        return timed
    return timed.of(group) if by == "domain" else None


def crosswalk(
    sums: MetricSums, resampling: Resampling = DEFAULT, timed: Timed | None = None
) -> Iterator[tuple[Definition, Estimate]]:
    """Every definition with its estimate, for one group; speed-ups only from timed decodes."""
    yield from _own(sums, resampling)
    yield from _lengths_with_bonus(_Pool(sums, resampling))
    yield from _rates(_Pool(sums, resampling))
    yield from _products(sums, resampling)
    for definition, speed_up in zip(known.SPEED_UPS, (spec_bench, dflash), strict=True):
        missing = _Pool(sums, resampling).missing(known.NEEDS_BASELINE)
        yield definition, missing if timed is None else speed_up(timed, resampling)


def _own(sums: MetricSums, resampling: Resampling) -> Iterator[tuple[Definition, Estimate]]:
    pool, steps = _Pool(sums, resampling), sums.steps
    yield known.NODE_RATE, pool.pooled(sums.n_accepted, sums.n_tested)
    yield known.PATH_RATE, pool.pooled(steps["accepted_len"], sums.tree_depth)
    yield known.STEP_RATE, pool.pooled(steps["n_accepting"], steps["n_drafted"])
    found = lengths(sums.profile, resampling)
    yield known.EL_JOINT, found["EL_joint"]
    yield known.EXPECTED, pool.pooled(steps["expected_len"], steps["n_drafted"])
    yield known.EMITTED, pool.pooled(steps["emitted_len"], steps["n_steps"])
    profile = profile_estimates(sums.profile, resampling)
    for name in ("S_d", "alpha_d", "node_rate_d"):
        for depth, found_at in enumerate(profile[name], start=1):
            yield known.at_depth(name, depth), found_at


def _lengths_with_bonus(pool: _Pool) -> Iterator[tuple[Definition, Estimate]]:
    steps = pool.sums.steps
    emitted, uncut, n_steps = steps["emitted_len"], steps["uncut_len"], steps["n_steps"]
    yield known.SPEC_BENCH, pool.pooled(emitted, n_steps)
    yield known.EAGLE_TAU, pool.pooled(emitted, n_steps)
    yield known.VLLM_LENGTH, pool.pooled(steps["accepted_len"] + steps["n_drafted"], steps["n_drafted"])
    yield known.SGLANG_POOLED, pool.pooled(emitted, n_steps)
    yield known.SGLANG_REQUESTS, pool.by_request(emitted, n_steps)
    yield known.SEQUOIA, pool.pooled(uncut, n_steps)
    yield known.DEEPSPEC, pool.pooled(uncut, n_steps)
    yield known.DFLASH, pool.by_request(steps["accepted_len"] + n_steps, n_steps)
    yield known.SPECDEC_BENCH, pool.by_request(emitted, n_steps)


def _rates(pool: _Pool) -> Iterator[tuple[Definition, Estimate]]:
    steps, profile = pool.sums.steps, pool.sums.profile
    yield known.VLLM_RATE, pool.pooled(steps["accepted_len"], steps["n_nodes"])
    for depth in range(profile.n_depths):
        yield known.vllm_position(depth), pool.pooled(profile.survivors[:, depth], profile.drafted)
    yield known.LAYERSKIP, pool.pooled(steps["accepted_len"], steps["n_nodes"])
    yield known.LAYERSKIP_REQUESTS, pool.by_request(steps["accepted_len"], steps["n_nodes"])


def _products(sums: MetricSums, resampling: Resampling) -> Iterator[tuple[Definition, Estimate]]:
    profile = sums.profile
    for depth, found in enumerate(profile_estimates(profile, resampling)["mean_ratio_d"], start=1):
        yield known.dynamics_alpha(depth), found
    yield known.DYNAMICS_LENGTH, lengths(profile, resampling)["EL_product"]
    yield known.SPECULATORS_EAL, _product(sums, resampling)
    blocks = sums.path_nodes[:, 0] if sums.path_nodes.shape[1] else np.zeros(len(sums.tree_depth))
    pool = _Pool(sums, resampling)
    yield known.DSPARK, pool.pooled(sums.path_overlap + blocks, blocks)


def _product(sums: MetricSums, resampling: Resampling) -> Estimate:
    """Sum over depths of the product of argmax accuracies along first children."""
    depths = sums.path_nodes.shape[1]

    def statistic(totals: Totals) -> Totals:
        hits, nodes = totals[:, :depths], totals[:, depths:]
        found = np.where(nodes.sum(axis=1) > 0, product_length(ratio(hits, nodes)), np.nan)
        return np.asarray(found[:, None])

    columns = np.hstack([sums.path_argmax, sums.path_nodes])
    counts = sums.path_nodes.sum(axis=1, keepdims=True)
    return bootstrap(columns, statistic, counts, resampling, undefined=_NOTHING)[0]
