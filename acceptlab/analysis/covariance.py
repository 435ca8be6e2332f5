"""What products of mean acceptance miss: the covariances C_k of the path so far with the next overlap.

J, the expected accepted length, is the sum of S_k; W is the sum of products of mean overlaps. They differ by exactly
the covariances C_k = S_k - S_(k-1) * mean a_k, each times what later positions make of it. Windows have a fixed
length and are 0 below an EOS. The arithmetic is in `theory.chains`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from acceptlab.analysis.base import ALL, N_DOCS, AnalysisTable, counted, open_sample, put, to_frame
from acceptlab.analysis.covariance_sums import SUMS, scored_windows, windows_of
from acceptlab.queries import By
from acceptlab.resampling import DEFAULT, Resampling, Totals
from acceptlab.stats import Estimate, bootstrap, ratio
from acceptlab.store import Run
from acceptlab.theory.chains import ChainMeans, gap_of_means

COLUMNS = {
    "temperature": "sampling temperature of the runs; pooled runs of one temperature share rows",
    "k": "position in the window, from 1 (tokens)",
    "S_k": "mean of B_(k-1) a_k: at least k tokens of the window are accepted; B is the product of ratios b",
    "mean_overlap": "mean a_k over all windows, whether or not the path is still alive",
    "C_k": "S_k - S_(k-1) * mean a_k, the covariance of the path's survival with the next overlap",
    "contribution": "C_k * (1 + a_(k+1) + a_(k+1) a_(k+2) + ...) with mean overlaps: its share of J - W (tokens)",
    "J_k": "S_1 + ... + S_k: expected accepted length of a window of k tokens, no bonus (tokens)",
    "W_k": "sum of the products of the first 1, 2, ..., k mean overlaps (tokens)",
    "gap_k": "J_k - W_k (tokens); at the last k it is the sum of the contributions",
    "path_covariance": "sample covariance of B_(k-1) and a_k",
    "remainder": "C_k - path_covariance = (mean B_(k-1) - S_(k-1)) * mean a_k; it vanishes with the sample size",
    "S_path": "mean B_k, the path estimate of S_k; noisier than S_k, which takes the mean over the last token",
    "wtv": "mean of a_1 a_2 ... a_k, the trajectory WTV of k; its sum over k is biased for J from k = 2 on",
    "adjacent_covariance": "Cov(b_(k-1), a_k), the diagnostic of REAL; not the gap for windows of 3 or more",
    **{name: N_DOCS[name] for name in ("n_steps", "n_prompts", "method", "reason")},
}
QUANTITIES = tuple(list(COLUMNS)[2:14])

REAL_NOTE = (
    "adjacent_covariance is the diagnostic of the REAL paper, Cov(b_(k-1), a_k) of neighbours. Only in windows of 2 is "
    "it the gap J - W; in longer ones the path before the neighbour counts too, which C_k holds"
)
_NOTHING = "nothing drafted"
_FIRST = "pairs begin at the second position"


def covariance(
    runs: Sequence[Run], *, by: By = "domain", scores: str | None = None, resampling: Resampling = DEFAULT
) -> AnalysisTable:
    """One row per temperature, group and position k of the window; the group `all` pools every prompt.

    Args:
        runs: Opened runs; those of one temperature are pooled.
        by: What a group is.
        scores: File of scored texts of the one run (`acceptlab audit roads`): windows are then the text that the
            target wrote after every root, instead of what the draft proposed there.
        resampling: How intervals are made.

    Returns:
        C_k with what it is made of and what it explains; every quantity has an interval of its own.

    Raises:
        UsageError: rules or trees without fixed windows, or runs of one temperature whose windows differ.
    """
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    largest, n_windows, n_prompts = 0.0, 0, 0
    for temperature, part in by_temperature(runs):
        with open_sample(part, by) as sample:
            windows = scored_windows(sample, part, Path(scores)) if scores else windows_of(sample, part)
            notes += [*sample.notes, *windows.notes]
            for group in (*sample.clusters.groups, ALL):
                sums = np.stack([sample.clusters.select(one, group) for one in windows.sums])
                rows += _rows({by: group, "temperature": temperature}, sums, resampling)
                largest = max(largest, _identity_error(sums))
        n_windows += int(windows.sums[0, :, 0].sum()) if windows.n_positions else 0
        n_prompts += int(sums.any(axis=(0, 2)).sum())
    notes = list(dict.fromkeys([*notes, _identity_note(largest), REAL_NOTE]))
    return AnalysisTable(
        name="covariance",
        title=f"Covariance of path and overlap by {by}",
        caption=f"Joint length, product of mean overlaps and the covariances between them, "
        f"{counted({'prompts': n_prompts, 'windows': n_windows})} ({resampling}).",
        frame=to_frame(rows, whole=("k",)),
        notes=notes,
        columns={by: "group of the prompts; all pools them", **COLUMNS},
    )


def by_temperature(runs: Sequence[Run]) -> Iterator[tuple[float | None, list[Run]]]:
    """Runs by their temperature, lowest first; None where a run does not say."""
    found: dict[float | None, list[Run]] = {}
    for run in runs:
        given = run.config.get("temperature")
        found.setdefault(None if given is None else float(given), []).append(run)
    known = sorted(value for value in found if value is not None)
    for temperature in [*known, *([None] if None in found else [])]:
        yield temperature, found[temperature]


def means_of(totals: Float[np.ndarray, "*batch sums positions"]) -> ChainMeans:
    """Means over windows from sums in the order of SUMS; NaN where there is no window."""
    n, overlaps, branch, weights, ratios, pairs = np.moveaxis(totals[..., :6, :], -2, 0)
    return ChainMeans(
        branch=ratio(branch, n),
        overlaps=ratio(overlaps, n),
        weights=ratio(weights, n),
        ratios=ratio(ratios, n)[..., 1:],
        pairs=ratio(pairs, n)[..., 1:],
    )


def quantities(
    totals: Float[np.ndarray, "*batch sums positions"],
) -> dict[str, Float[np.ndarray, "*batch positions"]]:
    """The columns of the table, by position, from sums in the order of SUMS."""
    gap = gap_of_means(means_of(totals))
    n, path, wtv = totals[..., 0, :], totals[..., 6, :], totals[..., 7, :]
    joint = np.cumsum(gap.survival, axis=-1)
    product = np.cumsum(np.cumprod(gap.mean_overlaps, axis=-1), axis=-1)
    undefined = np.full_like(gap.survival[..., :1], np.nan)
    found = (
        gap.survival,
        gap.mean_overlaps,
        gap.covariances,
        gap.contributions,
        joint,
        product,
        joint - product,
        gap.path_covariances,
        gap.remainders,
        ratio(path, n),
        ratio(wtv, n),
        np.concatenate([undefined, gap.adjacent_covariances], axis=-1),
    )
    return dict(zip(QUANTITIES, found, strict=True))


def _rows(
    key: dict[str, Any], sums: Float[np.ndarray, "sums prompts positions"], resampling: Resampling
) -> list[dict[str, Any]]:
    n_positions = sums.shape[2]
    if n_positions == 0:
        method = str(resampling)
        blank = Estimate(None, None, None, 0, 0, method, _NOTHING)
        return [put({**key, "k": 1}, dict.fromkeys(QUANTITIES, blank), n_steps=0, n_prompts=0)]
    estimates = _estimates(sums, resampling)
    n_steps, n_prompts = int(sums[0, :, 0].sum()), int((sums[0, :, 0] > 0).sum())
    return [
        put(
            {**key, "k": k + 1},
            {name: estimates[i * n_positions + k] for i, name in enumerate(QUANTITIES)},
            n_steps=n_steps,
            n_prompts=n_prompts,
        )
        for k in range(n_positions)
    ]


def _estimates(sums: Float[np.ndarray, "sums prompts positions"], resampling: Resampling) -> list[Estimate]:
    """All quantities of one group by position, resampled jointly."""
    n_prompts, n_positions = sums.shape[1:]

    def statistic(totals: Totals) -> Totals:
        found = quantities(totals.reshape(len(totals), len(SUMS), n_positions))
        return np.hstack(list(found.values()))

    rows = np.moveaxis(sums, 0, 1).reshape(n_prompts, -1)
    counts = np.tile(sums[0], (1, len(QUANTITIES)))
    undefined = [_NOTHING] * (len(QUANTITIES) * n_positions)
    if sums[0].any():
        undefined[-n_positions] = _FIRST
    return bootstrap(rows, statistic, counts, resampling, undefined=undefined)


def _identity_error(sums: Float[np.ndarray, "sums prompts positions"]) -> float:
    """How far the contributions of a group are from its gap; 0 where it has no window."""
    if not sums[0].any():
        return 0.0
    found = gap_of_means(means_of(sums.sum(axis=1)))
    return float(abs(found.contributions.sum() - found.gap))


def _identity_note(largest: float) -> str:
    return f"the contributions of a group sum to its gap J - W; the largest difference in this table is {largest:.1e}"
