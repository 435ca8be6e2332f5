"""Real decoding with trained drafters: accepted lengths by loss, serving and domain, beside the baseline's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from acceptlab.analysis.base import ALL, N_DOCS, AnalysisTable, put, to_frame
from acceptlab.resampling import DEFAULT, Resampling, Totals
from acceptlab.stats import Estimate, paired_difference, ratio, ratio_of_sums
from acceptlab.store import Run

_SUMS = ["accepted_len", "expected_accepted_len", "n_steps"]


def served_arms(names: list[str], arms: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """Arm and serving of the collections that are called ARM-SERVING, by name."""
    split = {name: name.rpartition("-") for name in names}
    return {name: (arm, serving) for name, (arm, _, serving) in split.items() if arm in arms}


def decoding_table(
    runs: Mapping[str, Run],
    served: Mapping[str, tuple[str, str]],
    baseline: str,
    resampling: Resampling = DEFAULT,
) -> AnalysisTable:
    """One row per serving, arm and domain.

    Args:
        runs: the study's runs by name.
        served: arm and serving of those that decoded with a trained drafter.
        baseline: arm that others are compared with, on the same prompts.
        resampling: how intervals are made.
    """
    sums = {key: prompt_sums(runs[name]) for name, key in served.items()}
    rows = [
        row
        for serving in dict.fromkeys(serving for _, serving in sums)
        for row in _serving_rows(
            {arm: found for (arm, own), found in sums.items() if own == serving},
            serving,
            baseline,
            resampling,
        )
    ]
    n_steps = int(sum(found["n_steps"].sum() for found in sums.values()))
    return AnalysisTable(
        name="losses-decoding",
        title="Real decoding by loss and serving",
        caption=f"{len(sums)} runs, {n_steps:,} drafted steps, prompts that no drafter has seen ({resampling}).",
        frame=to_frame(rows),
        columns={
            "serving": "how drafts are made and verified",
            "arm": "loss that the drafter was trained on from the common start",
            "domain": "domain of the prompts; all pools them",
            "accepted_len": "drafted tokens accepted, no bonus (tokens per drafted step)",
            "expected_len": "its expectation given what was drafted, which varies less (tokens per drafted step)",
            "difference": f"expected_len less that of {baseline} on the same prompts (tokens per drafted step)",
            **{name: N_DOCS[name] for name in ("n_steps", "n_prompts", "method", "reason")},
        },
    )


def prompt_sums(run: Run) -> pd.DataFrame:
    """Sums over the drafted steps of every prompt, by prompt_id, with its domain."""
    columns = ["prompt_id", "domain", "n_nodes", "accepted_len", "expected_accepted_len"]
    steps = run.read("steps", columns).to_pandas()
    drafted = steps[steps["n_nodes"] > 0].assign(n_steps=1)
    drafted["domain"] = drafted["domain"].astype(str)
    grouped = drafted.groupby("prompt_id", observed=True)
    return pd.DataFrame(grouped.agg({"domain": "first", **dict.fromkeys(_SUMS, "sum")}))


def _serving_rows(
    arms: Mapping[str, pd.DataFrame], serving: str, baseline: str, resampling: Resampling
) -> list[dict[str, Any]]:
    domains = list(dict.fromkeys(next(iter(arms.values()))["domain"]))
    rows = []
    for domain in [ALL, *domains]:
        chosen = {arm: own if domain == ALL else own[own["domain"] == domain] for arm, own in arms.items()}
        for arm, own in chosen.items():
            steps = own[["n_steps", "n_steps"]].to_numpy()
            accepted, expected = ratio_of_sums(own[_SUMS[:2]].to_numpy(), steps, resampling)
            found = {"accepted_len": accepted, "expected_len": expected}
            found["difference"] = _difference(own, chosen.get(baseline), resampling, is_other=arm != baseline)
            key = {"serving": serving, "arm": arm, "domain": domain}
            rows.append(put(key, found, n_steps=int(own["n_steps"].sum()), n_prompts=len(own)))
    return rows


def _difference(
    own: pd.DataFrame, other: pd.DataFrame | None, resampling: Resampling, *, is_other: bool
) -> Estimate:
    if other is None or not is_other:
        return Estimate(None, None, None, 0, 0, str(resampling))
    common = own.index.intersection(other.index)
    pair = [frame.loc[common, ["expected_accepted_len", "n_steps"]].to_numpy() for frame in (own, other)]

    def mean(totals: Totals) -> Totals:
        return ratio(totals[:, :1], totals[:, 1:])

    (found,) = paired_difference(pair[0], pair[1], mean, resampling)
    return found
