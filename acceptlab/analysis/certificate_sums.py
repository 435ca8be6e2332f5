"""Counts of certified and accepted contexts by prompt and margin, and quantiles of the thresholds.

Contexts stream through once for the counts, in batches; for quantiles the thresholds of one rule at a time are sorted.
Boundary: a `Sample` in, arrays out; tables are made in `certificates`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Num

from acceptlab.analysis.base import ALL, Clusters, Sample
from acceptlab.analysis.certificate_checks import (
    DIRECTIONS,
    RULES,
    Columns,
    certified,
    margin_certified,
    margin_thresholds,
    nearness,
    proposal_outcomes,
)
from acceptlab.queries import certificates as queries
from acceptlab.resampling import Resampling
from acceptlab.stats import Estimate, ratio_of_sums

N_BINS = 10
"""Bins of the target's margin, of equal width."""

OUTCOMES = ("accepted", "rejected", "undecided")
KINDS = ("certified", "finite", "margin", "violations", "open")
"""certified: by the exact threshold; finite: by a finite one; margin: by the margin-only one; violations: by either,
and the proposal rejected; open: certified by either, and the proposal undecided."""

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles of the thresholds."""
WITH_INTERVAL = (0.05, 0.5)
"""Those that get an interval."""


@dataclass(frozen=True, eq=False)
class Counts:
    """Counts by prompt (row of the clusters) and margin bin; `nearest` by prompt."""

    contexts: Int[np.ndarray, "rows bins"]
    outcomes: Int[np.ndarray, "rules outcomes rows bins"]
    kinds: Int[np.ndarray, "rules directions kinds rows bins"]
    nearest: Float[np.ndarray, "rules directions rows"]
    """Least divergence over threshold among the rejected proposals; inf where none was rejected."""


def count_contexts(sample: Sample, scale: float = 1.0) -> Counts:
    """Stream all contexts of a sample and count.

    Args:
        sample: opened runs.
        scale: thresholds are multiplied by this before they certify; 1 but for tests of the check.

    Raises:
        RunError: a part cannot be read, or stores thresholds of other rules.
    """
    n_rows = len(sample.clusters.row_labels)
    queries.add_cluster_rows(sample.connection, sample.clusters.keys)
    sizes = (len(RULES), len(DIRECTIONS))
    counts = Counts(
        contexts=np.zeros((n_rows, N_BINS), dtype=np.int64),
        outcomes=np.zeros((len(RULES), len(OUTCOMES), n_rows, N_BINS), dtype=np.int64),
        kinds=np.zeros((*sizes, len(KINDS), n_rows, N_BINS), dtype=np.int64),
        nearest=np.full((*sizes, n_rows), np.inf),
    )
    for columns in queries.certificate_contexts(sample.connection):
        _add(counts, columns, scale)
    return counts


def _add(counts: Counts, columns: Columns, scale: float) -> None:
    """Add a batch to the counts, which are this module's own buffers."""
    rows = columns["row"].astype(np.int64)
    bins = np.clip(np.floor(columns["target_margin"] * N_BINS).astype(np.int64), 0, N_BINS - 1)
    cells = rows * N_BINS + bins
    shape = counts.contexts.shape

    def tally(mask: np.ndarray) -> Int[np.ndarray, "rows bins"]:
        return np.bincount(cells[mask], minlength=shape[0] * shape[1]).reshape(shape)

    counts.contexts[:] += tally(np.ones(len(cells), dtype=bool))
    for r, rule in enumerate(RULES):
        found = proposal_outcomes(columns, rule)
        undecided = ~(found.accepted | found.rejected)
        for o, mask in enumerate((found.accepted, found.rejected, undecided)):
            counts.outcomes[r, o] += tally(mask)
        bounds = margin_thresholds(columns, rule)
        for d, direction in enumerate(DIRECTIONS):
            exact = certified(columns, r, direction, scale)
            from_margin = margin_certified(columns, bounds, direction, scale)
            is_finite = np.isfinite(columns[f"thresholds_{direction}"][:, r])
            either = exact | from_margin
            masks = (exact, exact & is_finite, from_margin, either & found.rejected, either & undecided)
            for k, mask in enumerate(masks):
                counts.kinds[r, d, k] += tally(mask)
            near = nearness(columns, r, direction)
            known = found.rejected & ~np.isnan(near)
            np.minimum.at(counts.nearest[r, d], rows[known], near[known])


@dataclass(frozen=True)
class Quantiles:
    """Quantiles of the thresholds of one rule, direction and group, with intervals where there is one."""

    values: dict[float, float]
    ends: dict[float, tuple[float, float]]


def threshold_quantiles(
    sample: Sample, rule_index: int, resampling: Resampling
) -> dict[tuple[str, str], Quantiles]:
    """Quantiles of one rule's stored thresholds by direction and group, ALL included.

    A quantile is the smallest stored threshold that at least that share of the contexts does not exceed, so infinite
    ones count as the largest. Its interval inverts that of the share (Woodruff 1952): prompts are resampled for the
    share of contexts at most the quantile, and the quantiles at the ends of that interval are its ends.
    """
    rows, thresholds = queries.certificate_thresholds(sample.connection, rule_index)
    found: dict[tuple[str, str], Quantiles] = {}
    for d, direction in enumerate(DIRECTIONS):
        order = np.argsort(thresholds[:, d], kind="stable")
        sorted_rows, values = rows[order], thresholds[order, d]
        for group in (*sample.clusters.groups, ALL):
            is_member = _members(sample.clusters, group)[sorted_rows]
            of_group = sample.clusters.row_prompts[sorted_rows[is_member]]
            found[direction, group] = quantiles_of(values[is_member], of_group, resampling)
    return found


def quantiles_of(
    values: Float[np.ndarray, " contexts"], prompts: Int[np.ndarray, " contexts"], resampling: Resampling
) -> Quantiles:
    """Quantiles of sorted values, and intervals that resample the prompts they belong to."""
    if not len(values):
        return Quantiles({}, {})
    quantiles = {level: float(values[_place(level, len(values))]) for level in LEVELS}
    totals = np.bincount(prompts)
    has_any = totals > 0
    # sorted values: those that are at most a quantile stand before it
    ends_at = [int(np.searchsorted(values, values.dtype.type(quantiles[p]), "right")) for p in WITH_INTERVAL]
    below = np.stack([np.bincount(prompts[:end], minlength=len(totals)) for end in ends_at], axis=1)[has_any]
    shares = ratio_of_sums(below, np.repeat(totals[has_any, None], len(WITH_INTERVAL), axis=1), resampling)
    ends = {
        level: (float(values[low]), float(values[high]))
        for level, share in zip(WITH_INTERVAL, shares, strict=True)
        if (places := _interval(level, share, len(values))) is not None
        for low, high in (places,)
    }
    return Quantiles(quantiles, ends)


def _place(level: float, n: int) -> int:
    return min(max(int(np.ceil(level * n)) - 1, 0), n - 1)


def _interval(level: float, share: Estimate, n: int) -> tuple[int, int] | None:
    """Places of a quantile's ends: the level moved by as much as the share at the quantile may move."""
    if share.value is None or share.lo is None or share.hi is None:
        return None
    low, high = level - (share.hi - share.value), level + (share.value - share.lo)
    return _place(max(low, 0.0), n), _place(min(high, 1.0), n)


def _members(clusters: Clusters, group: str) -> np.ndarray:
    if group == ALL:
        return np.ones(len(clusters.row_labels), dtype=bool)
    return np.asarray(clusters.row_labels == group)


def of_group(
    clusters: Clusters, counts: Num[np.ndarray, "... rows bins"], group: str
) -> Float[np.ndarray, "... prompts bins"]:
    """The prompts of a group; for ALL, rows of one prompt are added up."""
    moved = np.moveaxis(counts, -2, 0)
    return np.moveaxis(clusters.select(moved.astype(np.float64), group), 0, -2)


def nearest_of(
    clusters: Clusters, nearest: Float[np.ndarray, "... rows"], group: str
) -> Float[np.ndarray, "..."]:
    """The least over the prompts of a group."""
    return np.asarray(nearest[..., _members(clusters, group)].min(axis=-1, initial=np.inf))


def all_groups(clusters: Clusters) -> Sequence[str]:
    """Labels in order, ALL last."""
    return (*clusters.groups, ALL)
