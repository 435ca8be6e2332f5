"""Acceptance by domain: rates, accepted lengths (joint, product and their gap), entropies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from acceptlab import queries
from acceptlab.analysis.base import ALL, N_DOCS, AnalysisTable, counted, open_sample, put, to_frame
from acceptlab.analysis.profile_sums import ProfileSums, profile_sums
from acceptlab.queries import By
from acceptlab.resampling import DEFAULT, Resampling, Totals
from acceptlab.stats import Estimate, bootstrap, product_length, ratio, ratio_of_sums
from acceptlab.store import Run

_NOTHING = "nothing drafted"
_LACKING = {
    **dict.fromkeys(("mean_accept_ratio", "EL_product", "EL_gap"), "no node with a defined accept_ratio"),
    **dict.fromkeys(("draft_entropy", "target_entropy"), "the run does not hold it"),
}
_STEP_COLUMNS = ("accepted_len", "expected_len", "n_drafted", "emitted_len", "n_steps")
_CONTEXT_COLUMNS = ("sum_draft_entropy", "n_draft_entropy", "sum_target_entropy", "n_target_entropy")

COLUMNS = {
    "acceptance": "accepted nodes / tested nodes",
    "mean_accept_ratio": "mean accept_ratio = min(1, target_prob/draft_prob) over all nodes, tested or not",
    "mean_accepted_len": "mean accepted_len of drafted steps, without the bonus token (tokens)",
    "EL_joint": "E[L] joint: sum of S_d, which is the mean accepted_len (tokens)",
    "EL_product": "E[L] product: sum over d of the product of mean_ratio_1..d, no bonus (tokens)",
    "EL_gap": "EL_joint - EL_product, resampled jointly (tokens)",
    "expected_accepted_len": "mean expectation of accepted_len under the rule, given the trees (tokens)",
    "emitted_per_step": "emitted tokens / target passes, bonus included, cut at EOS and the limit (tokens)",
    "draft_entropy": "mean entropy of the draft's model distribution where it proposed (nats)",
    "target_entropy": "mean entropy of the target's model distribution in the same contexts (nats)",
    **N_DOCS,
}


def domains(runs: Sequence[Run], *, by: By = "domain", resampling: Resampling = DEFAULT) -> AnalysisTable:
    """One row per group, and the pooled group `all`: acceptance, accepted lengths, entropies.

    Args:
        runs: Opened runs; several are pooled.
        by: What a group is.
        resampling: How intervals are made.

    Returns:
        Rates and means are ratios of sums over prompts; a group that drafted nothing has nulls, not zeros.
    """
    with open_sample(runs, by) as sample:
        groups = (*sample.clusters.groups, ALL)
        profiles = profile_sums(sample, groups)
        steps = sample.clusters.dense(queries.step_sums(sample.connection), _STEP_COLUMNS)
        contexts = sample.clusters.dense(queries.context_sums(sample.connection), _CONTEXT_COLUMNS)
        rows = []
        for group in groups:
            of_steps, of_contexts = (sample.clusters.select(values, group) for values in (steps, contexts))
            rows.append(_row({by: group}, profiles[group], of_steps, of_contexts, resampling))
        notes = list(sample.notes)
    pooled = rows[-1]
    counts = counted(
        {"prompts": pooled["n_prompts"], "drafted steps": pooled["n_steps"], "nodes": pooled["n_nodes"]}
    )
    return AnalysisTable(
        name="domains",
        title=f"Acceptance by {by}",
        caption=sample.caption(f"Acceptance and accepted length, {counts} ({resampling})."),
        frame=to_frame(rows),
        notes=notes,
        columns={by: "group of the prompts; all pools them", **COLUMNS},
    )


def _row(
    key: dict[str, Any],
    profile: ProfileSums,
    steps: Float[np.ndarray, "prompts 5"],
    contexts: Float[np.ndarray, "prompts 4"],
    resampling: Resampling,
) -> dict[str, Any]:
    accepted_len, expected_len, n_drafted, emitted_len, n_steps = steps.T
    nodes = [profile.n_accepted, profile.n_tested, profile.sum_ratio, profile.n_ratio]
    n_accepted, n_tested, sum_ratio, n_ratio = (values.sum(axis=1) for values in nodes)
    fractions = {
        "acceptance": (n_accepted, n_tested),
        "mean_accept_ratio": (sum_ratio, n_ratio),
        "mean_accepted_len": (accepted_len, n_drafted),
        "expected_accepted_len": (expected_len, n_drafted),
        "emitted_per_step": (emitted_len, n_steps),
        "draft_entropy": (contexts[:, 0], contexts[:, 1]),
        "target_entropy": (contexts[:, 2], contexts[:, 3]),
    }
    numerators = np.stack([numerator for numerator, _ in fractions.values()], axis=1)
    denominators = np.stack([denominator for _, denominator in fractions.values()], axis=1)
    undefined = [_why(name, profile) for name in fractions]
    estimates = ratio_of_sums(numerators, denominators, resampling, undefined=undefined)
    found = dict(zip(fractions, estimates, strict=True))
    found |= lengths(profile, resampling)
    return put(
        key,
        {name: found[name] for name in COLUMNS if name in found},
        n_nodes=int(profile.n_nodes.sum()),
        n_tested=int(n_tested.sum()),
        n_steps=int(n_drafted.sum()),
        n_prompts=len(n_steps),
    )


def _why(quantity: str, profile: ProfileSums) -> str:
    """Why a quantity is undefined where it is."""
    if profile.drafted.sum() == 0:
        return _NOTHING
    return {"acceptance": "no node tested", **_LACKING}.get(quantity, _NOTHING)


def lengths(profile: ProfileSums, resampling: Resampling = DEFAULT) -> dict[str, Estimate]:
    """E[L] joint, E[L] product and their gap, resampled jointly; n counts drafted steps."""
    depths = profile.n_depths

    def statistic(totals: Totals) -> Totals:
        survivors, sums, counts = np.split(totals[:, 1:], [depths, 2 * depths], axis=1)
        joint = np.where(totals[:, 0] > 0, ratio(survivors, totals[:, :1]).sum(axis=1), np.nan)
        product = np.where(counts.sum(axis=1) > 0, product_length(ratio(sums, counts)), np.nan)
        return np.stack([joint, product, joint - product], axis=1)

    sums = np.hstack([profile.drafted[:, None], profile.survivors, profile.sum_ratio, profile.n_ratio])
    counts = np.repeat(profile.drafted[:, None], 3, axis=1)
    names = ("EL_joint", "EL_product", "EL_gap")
    undefined = [_why(name, profile) for name in names]
    found = bootstrap(sums, statistic, counts, resampling, undefined=undefined)
    return dict(zip(names, found, strict=True))
