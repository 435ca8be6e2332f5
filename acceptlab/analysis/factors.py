"""Two factors and one outcome, from a table of sums: explained variance, mutual information, nested logistic models.

Arrays have any leading axes (resamples, permutations), then the levels of the first and the second factor. Boundary:
sums in, measures out; no resampling, no frames.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

PREDICTORS = ("first", "second", "first less second", "first given second", "second given first", "both")
"""What each measure is given for, in the order of the arrays."""

_ITERATIONS = 30
_FLAT = 1e-9
"""Ridge on the normal equations, per node: levels that a resample lacks get no weight instead of an error."""

Measures = Float[np.ndarray, "*rows six"]


@dataclass(frozen=True, eq=False)
class Cells:
    """Sums of the outcome by levels of both factors; `squares` is the total sum of its squares."""

    n: Float[np.ndarray, "*rows first second"]
    total: Float[np.ndarray, "*rows first second"]
    squares: Float[np.ndarray, " *rows"]


def explained_variance(cells: Cells) -> Measures:
    """Share of the outcome's variance by factor: between levels, and of the additive linear model of both."""
    n, total = cells.n.sum(axis=(-2, -1)), cells.total.sum(axis=(-2, -1))
    overall = _ratio(total**2, n)
    spread = cells.squares - overall
    first = _ratio(cells.total.sum(-1) ** 2, cells.n.sum(-1), empty=0.0).sum(-1) - overall
    second = _ratio(cells.total.sum(-2) ** 2, cells.n.sum(-2), empty=0.0).sum(-1) - overall
    design = _design(cells)
    flat_n, flat_total = _flat(cells.n), _flat(cells.total)
    moments = (flat_total[..., None, :] @ design)[..., 0, :]
    beta = _solve(design, flat_n, moments)
    both = (beta * moments).sum(-1) - overall
    return _six(*(_ratio(part, np.where(spread > 0, spread, 0.0)) for part in (first, second, both)))


def mutual_information(cells: Cells) -> Measures:
    """Mutual information of a yes/no outcome with each factor, in nats a node; given the other: conditional.

    `both` is the information of the pair of levels, so its parts add up by the chain rule.
    """
    n = cells.n.sum(axis=(-2, -1))
    whole = _surprise(cells.n.sum(axis=(-2, -1)), cells.total.sum(axis=(-2, -1)))
    first = whole - _surprise(cells.n.sum(-1), cells.total.sum(-1)).sum(-1)
    second = whole - _surprise(cells.n.sum(-2), cells.total.sum(-2)).sum(-1)
    both = whole - _surprise(cells.n, cells.total).sum(axis=(-2, -1))
    return _six(*(_ratio(part, n) for part in (first, second, both)))


def deviance_share(cells: Cells) -> Measures:
    """McFadden's share of deviance of nested logistic models: one factor, the other, both without interaction."""
    whole = _surprise(cells.n.sum(axis=(-2, -1)), cells.total.sum(axis=(-2, -1)))
    first = whole - _surprise(cells.n.sum(-1), cells.total.sum(-1)).sum(-1)
    second = whole - _surprise(cells.n.sum(-2), cells.total.sum(-2)).sum(-1)
    both = whole - additive_logistic(cells)
    return _six(*(_ratio(part, np.where(whole > 0, whole, 0.0)) for part in (first, second, both)))


def additive_logistic(cells: Cells) -> Float[np.ndarray, " *rows"]:
    """Negative log likelihood of the logistic model with both factors and no interaction, by Newton's method."""
    design, n, total = _design(cells), _flat(cells.n), _flat(cells.total)
    rate = np.clip(_ratio(total.sum(-1), n.sum(-1), empty=0.5), 1e-6, 1 - 1e-6)
    beta = np.zeros((*n.shape[:-1], design.shape[1]))
    beta[..., 0] = np.log(rate / (1 - rate))
    best = _nll(design, beta, n, total)
    for _ in range(_ITERATIONS):
        prob = 1.0 / (1.0 + np.exp(-np.clip(beta @ design.T, -30, 30)))
        step = _solve(design, n * prob * (1 - prob), ((total - n * prob)[..., None, :] @ design)[..., 0, :])
        size = np.ones(beta.shape[:-1])
        for _ in range(5):  # halve where a full step overshoots
            trial = beta + size[..., None] * step
            worse = _nll(design, trial, n, total) > best + 1e-12
            if not worse.any():
                break
            size = np.where(worse, size / 2, size)
        trial = beta + size[..., None] * step
        value = _nll(design, trial, n, total)
        better = value < best
        beta = np.where(better[..., None], trial, beta)
        gain = np.where(better, best - value, 0.0)
        best = np.where(better, value, best)
        if (gain <= 1e-10 * (1 + best)).all():
            break
    return best


def _nll(
    design: Float[np.ndarray, "cells terms"],
    beta: Float[np.ndarray, "*rows terms"],
    n: Float[np.ndarray, "*rows cells"],
    total: Float[np.ndarray, "*rows cells"],
) -> Float[np.ndarray, " *rows"]:
    eta = np.clip(beta @ design.T, -30, 30)
    return np.asarray((n * np.logaddexp(0.0, eta) - total * eta).sum(-1))


def _design(cells: Cells) -> Float[np.ndarray, "cells terms"]:
    """Intercept and indicators of all levels but the first of each factor."""
    first, second = cells.n.shape[-2:]
    a, b = np.divmod(np.arange(first * second), second)
    columns = [np.ones(len(a)), *(a == i for i in range(1, first)), *(b == j for j in range(1, second))]
    return np.stack([np.asarray(column, dtype=np.float64) for column in columns], axis=1)


def _solve(
    design: Float[np.ndarray, "cells terms"],
    weights: Float[np.ndarray, "*rows cells"],
    right: Float[np.ndarray, "*rows terms"],
) -> Float[np.ndarray, "*rows terms"]:
    normal = np.einsum("...c,ci,cj->...ij", weights, design, design, optimize=True)
    ridge = _FLAT * (weights.sum(-1)[..., None, None] + 1e-300) * np.eye(design.shape[1])
    return np.asarray(np.linalg.solve(normal + ridge, right[..., None])[..., 0])


def _surprise(n: Float[np.ndarray, " *x"], total: Float[np.ndarray, " *x"]) -> Float[np.ndarray, " *x"]:
    """Negative log likelihood of n outcomes with `total` yes at their own rate, in nats."""
    no = n - total
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = [np.where(part > 0, part * np.log(part / n), 0.0) for part in (total, no)]
    return np.asarray(-(parts[0] + parts[1]))


def _flat(values: Float[np.ndarray, "*rows first second"]) -> Float[np.ndarray, "*rows cells"]:
    return values.reshape(*values.shape[:-2], -1)


def _six(
    first: Float[np.ndarray, " *rows"], second: Float[np.ndarray, " *rows"], both: Float[np.ndarray, " *rows"]
) -> Measures:
    return np.stack([first, second, first - second, both - second, both - first, both], axis=-1)


def _ratio(
    above: Float[np.ndarray, " *x"], below: Float[np.ndarray, " *x"], empty: float = np.nan
) -> Float[np.ndarray, " *x"]:
    filled = np.full(np.broadcast_shapes(np.shape(above), np.shape(below)), empty)
    np.divide(above, below, out=filled, where=np.asarray(below) > 0)
    return filled
