"""Three roads, one number: accepted, expected and branch length at the same roots, with paired differences.

A disagreement would mean a fault in the sampling, in the recorded probabilities or in the theory. Beside them the mean
over all positions of the text, which is another quantity, since steps begin after rejections, and its reweighting by
the expected number of steps that begin at every position, which recovers the mean over steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from acceptlab.analysis.base import ALL, N_DOCS, AnalysisTable, Sample, counted, open_sample, put, to_frame
from acceptlab.analysis.roads_sums import SUMS, ScoredText, last_start, text_sums
from acceptlab.errors import UsageError
from acceptlab.queries.windows import chain_roots
from acceptlab.records import StopReason
from acceptlab.resampling import Resampling, Totals, bounds, replicates
from acceptlab.rules import RuleKind, parse_rule
from acceptlab.stats import Estimate, bootstrap, ratio
from acceptlab.store import Run
from acceptlab.tree import parse_tree

QUANTITIES = {
    "accepted": "accepted drafted tokens of a step, no bonus",
    "expected": "their expectation, given the drafted chain",
    "branch": "sum of B_(k-1) a_k along the text written after the root, by plain forwards of both models",
    "accepted - expected": "first road less the second at the same roots",
    "expected - branch": "second road less the third at the same roots",
    "positions": "branch sum, mean over all positions of the text instead of roots: another quantity",
    "branch - positions": "how far that is from the mean over roots",
    "reweighted": "branch sum over all positions, weighted by the expected number of steps that begin there",
    "branch - reweighted": "how far that is from the mean over roots",
}
"""Quantities of the table in order, all in tokens."""

NARROW = ("accepted - expected", "expected - branch")
"""Differences that must be 0 within an interval of limited width."""

JOINT = (*NARROW, "branch - reweighted")
"""Differences whose intervals hold for all groups at once."""

COLUMNS = {
    "quantity": "; ".join(f"{name}: {meaning}" for name, meaning in QUANTITIES.items()),
    "mean": "ratio of sums over the group's roots or positions (tokens)",
    "half_width": "half of the interval (tokens)",
    "verdict": "of differences that ought to be 0: agree, differ (0 is outside), or too wide to tell",
    "n_roots": "steps at which a whole window fits before the length limit",
    **{name: N_DOCS[name] for name in ("n_prompts", "method", "reason")},
}
ROADS_RESAMPLING = Resampling(n_resamples=10_000)


@dataclass(frozen=True)
class Roads:
    """The table, and the rows of it that are not as they should be."""

    table: AnalysisTable
    failures: tuple[str, ...]


def roads(
    run: Run,
    scores: pd.DataFrame,
    *,
    widest: float | None = 0.05,
    resampling: Resampling = ROADS_RESAMPLING,
) -> Roads:
    """Compare the three roads by domain.

    Args:
        run: an opened run of chains under rule rejection.
        scores: rows of `store.scores` for the texts of the run.
        widest: largest half-width that counts as agreement, in tokens; None for any.
        resampling: how intervals are made; those of the differences in JOINT are simultaneous over the domains
            (max-t), one difference at a time. The other ones hold one by one.

    Raises:
        UsageError: another rule or tree, texts cut by the models' length, or texts without scores.
    """
    window, last = chain_window(run)
    with open_sample([run], "domain") as sample:
        sums = _sums_by_prompt(sample, run, scores, window, last)
        groups = (*sample.clusters.groups, ALL)
        by_group = {group: sample.clusters.select(sums, group) for group in groups}
        notes = list(sample.notes)
    rows = [row for group in groups for row in _rows(group, by_group[group], resampling)]
    joint = _joint(by_group, resampling)
    rows = [joint.get((row["domain"], row["quantity"]), row) for row in rows]
    for row in rows:
        row["half_width"] = None if row["mean_lo"] is None else (row["mean_hi"] - row["mean_lo"]) / 2
        row["verdict"] = _verdict(row, widest)
    n_roots, n_prompts = int(by_group[ALL][:, 0].sum()), int((by_group[ALL][:, 0] > 0).sum())
    table = AnalysisTable(
        name="roads",
        title="Three roads to the accepted length",
        caption=f"{counted({'prompts': n_prompts, 'roots': n_roots})}, chains of {window} at temperature "
        f"{run.config.get('temperature')} ({resampling}; differences simultaneous over the domains).",
        frame=to_frame([{name: row[name] for name in _ORDER} for row in rows], whole=()),
        notes=[
            *notes,
            f"a root counts where at most {last} tokens were written before it, so that {window} more fit",
        ],
        columns={"domain": "group of the prompts; all pools them", **COLUMNS},
    )
    failures = [
        f"{row['domain']}: {row['quantity']} is {row['mean']:.4f} [{row['mean_lo']:.4f}, {row['mean_hi']:.4f}], "
        f"{row['verdict']}"
        for row in rows
        if row["verdict"] in ("differ", "too wide")
    ]
    return Roads(table, tuple(failures))


_ORDER = (
    "domain",
    "quantity",
    "mean",
    "mean_lo",
    "mean_hi",
    "half_width",
    "verdict",
    "n_roots",
    "n_prompts",
    "method",
    "reason",
)


def chain_window(run: Run) -> tuple[int, int]:
    """Tokens a window, and the last place at which a root counts.

    Raises:
        UsageError: not chains under rule rejection, or a length limit below the window.
    """
    rule, shape = parse_rule(str(run.config.get("rule"))), parse_tree(str(run.config.get("tree")))
    if rule.kind not in {RuleKind.REJECTION, RuleKind.REJECTION_IID} or shape.kind != "chain":
        raise UsageError(
            f"'{run.path}' has rule {rule} on tree {shape.text}: the three roads need --rule rejection --tree chain:K"
        )
    if run.config.get("stop"):
        raise UsageError(f"'{run.path}' stops its chains early: collect it without --stop")
    last = last_start(int(run.config.get("max_new_tokens") or 0), shape.depth)
    if last < 0:
        raise UsageError(
            f"'{run.path}' writes fewer tokens than a chain has: collect it with more --max-new-tokens"
        )
    return shape.depth, last


def scored_texts(
    sample: Sample, run: Run, scores: pd.DataFrame, window: int
) -> dict[tuple[str, str], ScoredText]:
    """Texts of a run with their scores and steps, by run_id and prompt_id.

    Raises:
        UsageError: texts without scores, or texts that the models' length cut.
    """
    prompts = run.read("prompts", columns=["run_id", "prompt_id", "n_new_tokens", "stop_reason"]).to_pandas()
    cut = prompts[prompts["stop_reason"] == StopReason.CONTEXT.value]
    if len(cut):
        raise UsageError(
            f"the text of {cut['prompt_id'].iloc[0]} filled the models' positions, so that its last windows are cut: "
            "leave out such prompts"
        )
    by_prompt = {str(name): rows.sort_values("position") for name, rows in scores.groupby("prompt_id")}
    steps = dict(iter(chain_roots(sample.connection, window).groupby(["run_id", "prompt_id"])))
    found = {}
    for run_id, prompt_id, n_tokens, _ in prompts.itertuples(index=False):
        if not n_tokens:
            continue
        rows = by_prompt.get(str(prompt_id))
        if rows is None or len(rows) != n_tokens:
            raise UsageError(
                f"the scores lack tokens of {prompt_id}: make them again with `acceptlab audit roads {run.path}`"
            )
        found[str(run_id), str(prompt_id)] = _scored(rows, steps.get((run_id, prompt_id)))
    return found


def _scored(scores: pd.DataFrame, steps: pd.DataFrame | None) -> ScoredText:
    starts, accepted, expected = (
        np.empty(0) if steps is None else steps[name].to_numpy(dtype=np.float64)
        for name in ("start", "accepted_len", "expected_len")
    )
    overlaps, ratios = (scores[name].to_numpy(dtype=np.float64) for name in ("overlap", "ratio"))
    return ScoredText(overlaps, ratios, starts.astype(np.int64), accepted, expected)


def _sums_by_prompt(
    sample: Sample, run: Run, scores: pd.DataFrame, window: int, last: int
) -> Float[np.ndarray, "rows sums"]:
    rows = [
        {
            "run_id": run_id,
            "prompt_id": prompt_id,
            **dict(zip(SUMS, text_sums(text, window, last), strict=True)),
        }
        for (run_id, prompt_id), text in scored_texts(sample, run, scores, window).items()
    ]
    return sample.clusters.dense(pd.DataFrame(rows, columns=["run_id", "prompt_id", *SUMS]), SUMS)


def statistic(totals: Totals) -> Totals:
    """The quantities in order from totals of SUMS; NaN where a group has no root."""
    n, accepted, expected, branch, n_positions, positions, starts, weighted = totals.T
    first, second, third = ratio(accepted, n), ratio(expected, n), ratio(branch, n)
    everywhere, reweighted = ratio(positions, n_positions), ratio(weighted, starts)
    found = {
        "accepted": first,
        "expected": second,
        "branch": third,
        "accepted - expected": first - second,
        "expected - branch": second - third,
        "positions": everywhere,
        "branch - positions": third - everywhere,
        "reweighted": reweighted,
        "branch - reweighted": third - reweighted,
    }
    return np.stack([found[name] for name in QUANTITIES], axis=1)


def _rows(
    group: str, sums: Float[np.ndarray, "prompts sums"], resampling: Resampling
) -> list[dict[str, Any]]:
    counts = np.repeat(sums[:, :1], len(QUANTITIES), axis=1)
    estimates = bootstrap(sums, statistic, counts, resampling, undefined="no root")
    return [
        put(
            {"domain": group, "quantity": name},
            {"mean": estimate},
            n_roots=estimate.n,
            n_prompts=estimate.n_prompts,
        )
        for name, estimate in zip(QUANTITIES, estimates, strict=True)
    ]


def _joint(
    by_group: Mapping[str, Float[np.ndarray, "prompts sums"]], resampling: Resampling
) -> dict[tuple[str, str], dict[str, Any]]:
    """Rows of the differences in JOINT, each with intervals that hold for all groups but ALL at once."""
    together = replace(resampling, kind="percentile", simultaneous=True)
    groups = [group for group in by_group if group != ALL]
    values = np.concatenate([statistic(by_group[group].sum(axis=0, keepdims=True)) for group in groups])
    n_prompts = np.array([(by_group[group][:, 0] > 0).sum() for group in groups])
    if np.isnan(values).any() or (n_prompts < 2).any():
        return {}
    # domains have prompts of their own, so each is resampled by itself
    draws = np.stack(
        [replicates(by_group[group], statistic, together, i) for i, group in enumerate(groups)], axis=1
    )
    found = {}
    for name in JOINT:
        i = list(QUANTITIES).index(name)
        ends = bounds(draws[:, :, i], values[:, i], n_prompts, together)
        for group, value, n, (lo, hi) in zip(groups, values[:, i], n_prompts, ends, strict=True):
            known = not np.isnan(lo)
            estimate = Estimate(
                value=float(value),
                lo=float(lo) if known else None,
                hi=float(hi) if known else None,
                n=int(by_group[group][:, 0].sum()),
                n_prompts=int(n),
                method=f"{together}, over {len(groups)} domains",
                reason="" if known else "too few prompts",
            )
            found[group, name] = put(
                {"domain": group, "quantity": name},
                {"mean": estimate},
                n_roots=estimate.n,
                n_prompts=estimate.n_prompts,
            )
    return found


def _verdict(row: Mapping[str, Any], widest: float | None) -> str | None:
    if row["quantity"] not in JOINT or row["half_width"] is None:
        return None
    if not row["mean_lo"] <= 0.0 <= row["mean_hi"]:
        return "differ"
    is_wide = widest is not None and row["quantity"] in NARROW and row["half_width"] > widest
    return "too wide" if is_wide and row["domain"] != ALL else "agree"
