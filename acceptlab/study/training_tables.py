"""Measurements of trained drafters -> tables with intervals: lengths against the baseline, retention, costs.

Runs of one arm are averaged over their seeds; intervals resample prompts, the same ones for both sides of a
difference. Seeds are few, so their spread is shown as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from acceptlab.analysis.base import ALL, N_DOCS, AnalysisTable, put, to_frame
from acceptlab.resampling import DEFAULT, Resampling, Totals
from acceptlab.stats import Estimate, bootstrap, conditional_rates, paired_difference, product_length, ratio

START = "start"
_WINDOWS = "no window"

_LENGTH_COLUMNS = {
    "arm": "loss that the drafter was trained on from the common start",
    "domain": "domain of the prompts; all pools them",
    "length": "accepted length by the branch estimate, mean over seeds, no bonus (tokens per window)",
    "difference": "length less that of the baseline on the same prompts (tokens per window)",
    "seed_low": "smallest difference from the baseline of the same seed, over seeds (tokens per window)",
    "seed_high": "largest such difference (tokens per window)",
    "seed_sd": "standard deviation of the length over seeds (tokens per window)",
    "path": "accepted length by the path estimate (tokens per window)",
    "product": "sum of products of mean overlaps, as if positions were independent (tokens per window)",
    "overlap": "mean of the sum of min(target, draft) over tokens",
    "match": "share of tokens where both argmaxes are equal",
    "verdict": "higher or lower than the baseline where the interval and every seed agree on the sign",
    "n_seeds": "runs of the arm",
    "n_prompts": N_DOCS["n_prompts"],
    "method": N_DOCS["method"],
    "reason": N_DOCS["reason"],
}


def length_table(scores: pd.DataFrame, baseline: str, resampling: Resampling = DEFAULT) -> AnalysisTable:
    """One row per arm and domain, the longest first; the start stands among the arms."""
    domains = [*dict.fromkeys(scores["domain"]), ALL]
    rows = []
    for domain in [ALL, *domains[:-1]]:
        chosen = scores if domain == ALL else scores[scores["domain"] == domain]
        sums = {arm: ArmSums.of(chosen[chosen["arm"] == arm]) for arm in dict.fromkeys(chosen["arm"])}
        found = [_length_row(arm, domain, sums, baseline, resampling) for arm in sums]
        rows += sorted(found, key=lambda row: -row["length"])
    n_prompts = scores["item"].nunique()
    n_runs = scores["run"].nunique()
    return AnalysisTable(
        name="losses",
        title="Accepted length by loss, on the same held-out trajectories",
        caption=f"{n_runs} drafters on {n_prompts} prompts that none has seen, against {baseline} ({resampling}).",
        frame=to_frame(rows),
        columns=_LENGTH_COLUMNS,
    )


class ArmSums:
    """Sums of one arm's scores: arrays (prompts, positions) a seed, and their mean over seeds."""

    def __init__(self, seeds: dict[int, dict[str, Float[np.ndarray, "prompts gamma"]]]) -> None:
        self.seeds = seeds
        names = next(iter(seeds.values()))
        self.mean = {name: np.mean([found[name] for found in seeds.values()], axis=0) for name in names}

    @classmethod
    def of(cls, scores: pd.DataFrame) -> ArmSums:
        """Arrange the rows of one arm; prompts in the order of their numbers."""
        seeds = {}
        for seed, own in scores.groupby("seed"):
            wide = own.pivot(index="item", columns="position")
            names = ("n_windows", "branch", "path", "overlap", "match")
            seeds[int(str(seed))] = {name: wide[name].to_numpy(dtype=np.float64) for name in names}
        return cls(seeds)

    def lengths(self) -> Float[np.ndarray, " seeds"]:
        """Accepted length of every seed."""
        return np.array([s["branch"].sum() / s["n_windows"][:, 0].sum() for s in self.seeds.values()])

    def length_sums(self) -> Float[np.ndarray, "prompts 2"]:
        """Sum of branch terms and number of windows of every prompt."""
        return np.stack([self.mean["branch"].sum(axis=1), self.mean["n_windows"][:, 0]], axis=1)


def _mean_length(totals: Totals) -> Totals:
    return ratio(totals[:, :1], totals[:, 1:2])


def _length_row(
    arm: str, domain: str, sums: dict[str, ArmSums], baseline: str, resampling: Resampling
) -> dict[str, Any]:
    own, other = sums[arm], sums[baseline]
    windows = own.mean["n_windows"]
    (length,) = bootstrap(own.length_sums(), _mean_length, windows[:, :1], resampling, undefined=_WINDOWS)
    estimates: dict[str, Estimate] = {"length": length}
    spread: dict[str, Any] = dict.fromkeys(("seed_low", "seed_high"))
    verdict = None
    if arm != baseline:
        (difference,) = paired_difference(own.length_sums(), other.length_sums(), _mean_length, resampling)
        estimates["difference"] = difference
        by_seed = _seed_differences(own, other)
        spread = {"seed_low": min(by_seed), "seed_high": max(by_seed)}
        verdict = _verdict(difference, by_seed)
    else:
        estimates["difference"] = Estimate(None, None, None, length.n, length.n_prompts, length.method)
    lengths = own.lengths()
    rates = ratio(own.mean["overlap"].sum(axis=0, keepdims=True), windows.sum(axis=0, keepdims=True))
    row = put({"arm": arm, "domain": domain}, estimates)
    tail = {name: row.pop(name) for name in ("method", "reason")}
    return {
        **row,
        **spread,
        "seed_sd": float(lengths.std(ddof=1)) if len(lengths) > 1 else None,
        "path": float(own.mean["path"].sum() / windows[:, 0].sum()),
        "product": float(product_length(rates)[0]),
        "overlap": float(own.mean["overlap"].sum() / windows.sum()),
        "match": float(own.mean["match"].sum() / windows.sum()),
        "verdict": verdict,
        "n_seeds": len(own.seeds),
        "n_prompts": len(windows),
        **tail,
    }


def _seed_differences(own: ArmSums, other: ArmSums) -> list[float]:
    """Differences of length between runs of the same seed; an arm without seeds is compared with every run."""
    lengths = dict(zip(own.seeds, own.lengths(), strict=True))
    others = dict(zip(other.seeds, other.lengths(), strict=True))
    common = [seed for seed in lengths if seed in others]
    if common:
        return [float(lengths[seed] - others[seed]) for seed in common]
    return [float(next(iter(lengths.values())) - length) for length in others.values()]


def _verdict(difference: Estimate, by_seed: Sequence[float]) -> str:
    if difference.lo is None or difference.hi is None:
        return "too few prompts"
    if difference.lo > 0 and min(by_seed) > 0:
        return "higher"
    if difference.hi < 0 and max(by_seed) < 0:
        return "lower"
    return "not told apart"


def retention_table(scores: pd.DataFrame, resampling: Resampling = DEFAULT) -> AnalysisTable:
    """One row per arm and position: how many windows keep at least k tokens, and how many of those that kept k - 1."""
    rows = []
    for arm in dict.fromkeys(scores["arm"]):
        sums = ArmSums.of(scores[scores["arm"] == arm]).mean
        gamma = sums["branch"].shape[1]
        windows = sums["n_windows"][:, :1]

        def survival(totals: Totals) -> Totals:
            return ratio(totals[:, 1:], totals[:, :1])

        def conditional(totals: Totals) -> Totals:
            return conditional_rates(survival(totals))

        stacked = np.hstack([windows, sums["branch"]])
        counts = np.repeat(windows, gamma, axis=1)
        alive = bootstrap(stacked, survival, counts, resampling, undefined=_WINDOWS)
        kept = bootstrap(stacked, conditional, counts, resampling, undefined="no window keeps one token less")
        for k in range(gamma):
            rows.append(
                put({"arm": arm, "k": k + 1}, {"S_k": alive[k], "alpha_k": kept[k]}, n_prompts=len(windows))
            )
    return AnalysisTable(
        name="losses-retention",
        title="Retention by loss and position",
        caption=f"Branch estimates of survival, mean over seeds, {scores['item'].nunique()} prompts ({resampling}).",
        frame=to_frame(rows, whole=("k",)),
        columns={
            "arm": _LENGTH_COLUMNS["arm"],
            "k": "position in the window (from 1)",
            "S_k": "probability that at least k tokens are accepted, windows that ended earlier counted as failing",
            "alpha_k": "S_k / S_(k-1): one token more is kept, given that k - 1 are",
            **{name: N_DOCS[name] for name in ("n_prompts", "method", "reason")},
        },
    )
