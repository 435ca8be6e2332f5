"""Tables of group by depth for one outcome, and the same tables under chance: permuted groups, exchanged depths.

Groups are permuted across prompts outright. Depths are exchanged within steps: the sums by depth are drawn from their
normal limit with the exact mean and covariance, so that no pass over the nodes is needed (Hoeffding 1951, a
combinatorial central limit theorem). Boundary: sums in, tables out; no frames but the query's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float

from acceptlab.analysis.factors import Cells

N_PERMUTATIONS = 500


@dataclass(frozen=True, eq=False)
class Outcome:
    """One outcome: sums by cluster row and depth, the rows' groups, and the moments of an exchange of depths."""

    n: Float[np.ndarray, "rows depths"]
    total: Float[np.ndarray, "rows depths"]
    squares: Float[np.ndarray, " rows"]
    group: Float[np.ndarray, " rows"]
    means: Float[np.ndarray, "groups depths"]
    covariances: Float[np.ndarray, "groups depths depths"]

    @property
    def n_groups(self) -> int:
        """Levels of the first factor."""
        return len(self.means)

    def cells(self, group: Float[np.ndarray, " *perm_rows"] | None = None) -> Cells:
        """The table of group by depth; with permuted groups, one table a permutation."""
        labelled = self.group if group is None else group
        member = np.stack([(labelled == g).astype(np.float64) for g in range(self.n_groups)], axis=-2)
        shape = labelled.shape[:-1]
        return Cells(member @ self.n, member @ self.total, np.broadcast_to(self.squares.sum(), shape))


def moments(
    patterns: pd.DataFrame, groups: Sequence[str], n_depths: int
) -> tuple[Float[np.ndarray, "groups depths"], Float[np.ndarray, "groups depths depths"]]:
    """Exact mean and covariance of the sums by depth when the nodes of every step exchange their depths.

    A step of n nodes, n_d of them at depth d, whose outcomes have mean m and variance s2 (n - 1 in the denominator):
    the sum at d has mean n_d m, and the sums at d and e have covariance s2 (n_d [d = e] - n_d n_e / n). Steps are
    independent of each other.
    """
    means, covariances = np.zeros((len(groups), n_depths)), np.zeros((len(groups), n_depths, n_depths))
    number = {name: place for place, name in enumerate(groups)}
    for row in patterns.to_dict("records"):
        sizes = np.zeros(n_depths)
        sizes[np.asarray(row["depths"], dtype=np.int64) - 1] = np.asarray(row["sizes"], dtype=np.float64)
        group = number[str(row["label"])]
        means[group] += sizes * float(row["sum_mean"])
        spread = np.diag(sizes) - np.outer(sizes, sizes) / sizes.sum()
        covariances[group] += spread * float(row["sum_variance"])
    return means, covariances


def permuted(found: Outcome, seed: int) -> tuple[Cells, Cells]:
    """Tables with groups permuted across prompts, and with depths exchanged within steps."""
    rng = np.random.default_rng([seed, 1])
    groups = np.stack([rng.permutation(found.group) for _ in range(N_PERMUTATIONS)])
    real = found.cells()
    drawn = np.empty((N_PERMUTATIONS, *found.means.shape))
    for g, (mean, covariance) in enumerate(zip(found.means, found.covariances, strict=True)):
        values, vectors = np.linalg.eigh(covariance)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        drawn[:, g] = mean + rng.standard_normal((N_PERMUTATIONS, len(mean))) @ root.T
    return found.cells(groups), Cells(
        np.broadcast_to(real.n, drawn.shape),
        np.clip(drawn, 0.0, real.n),  # every outcome is from 0 to 1
        np.broadcast_to(real.squares, (N_PERMUTATIONS,)),
    )
