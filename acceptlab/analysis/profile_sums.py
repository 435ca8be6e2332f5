"""Per-prompt sums behind depth profiles and lengths, as arrays by prompt and depth. No statistics."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from acceptlab import queries
from acceptlab.analysis.base import Sample

_NODE_COLUMNS = ("n_nodes", "n_tested", "n_accepted", "n_ratio", "sum_ratio")


@dataclass(frozen=True)
class ProfileSums:
    """Sums of one group, one row a prompt; depth 1 is column 0.

    `survivors` counts the drafted steps that accepted at least d tokens, `drafted` all drafted steps.
    """

    drafted: Float[np.ndarray, " prompts"]
    survivors: Float[np.ndarray, "prompts depths"]
    n_nodes: Float[np.ndarray, "prompts depths"]
    n_tested: Float[np.ndarray, "prompts depths"]
    n_accepted: Float[np.ndarray, "prompts depths"]
    n_ratio: Float[np.ndarray, "prompts depths"]
    sum_ratio: Float[np.ndarray, "prompts depths"]

    @property
    def n_depths(self) -> int:
        """Depths with a drafted node."""
        return int(self.survivors.shape[1])


def profile_sums(sample: Sample, groups: tuple[str, ...]) -> dict[str, ProfileSums]:
    """Profile sums of the groups; a group reaches as deep as its nodes do."""
    lengths, depths = queries.accepted_lengths(sample.connection), queries.depth_sums(sample.connection)
    n_depths = int(depths["depth"].max()) if len(depths) else 0
    n_lengths = max(n_depths, int(lengths["accepted_len"].max()) if len(lengths) else 0) + 1
    clusters = sample.clusters
    (steps,) = clusters.dense_by(lengths, "accepted_len", ("n_steps",), n_lengths)
    # steps that accepted at least d tokens: sum the distribution from the far end
    survivors = np.cumsum(steps[:, ::-1], axis=1)[:, ::-1]
    nodes = clusters.dense_by(depths.assign(level=depths["depth"] - 1), "level", _NODE_COLUMNS, n_depths)
    found = {}
    for group in groups:
        by_depth = [clusters.select(values, group) for values in nodes]
        deepest = int((by_depth[0].sum(axis=0) > 0).sum())
        cut = dict(zip(_NODE_COLUMNS, (values[:, :deepest] for values in by_depth), strict=True))
        alive = clusters.select(survivors, group)
        found[group] = ProfileSums(
            drafted=alive[:, 0],
            survivors=alive[:, 1 : deepest + 1],
            n_nodes=cut["n_nodes"],
            n_tested=cut["n_tested"],
            n_accepted=cut["n_accepted"],
            n_ratio=cut["n_ratio"],
            sum_ratio=cut["sum_ratio"],
        )
    return found
