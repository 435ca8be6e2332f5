"""Per-prompt sums behind the metrics crosswalk, as named columns. No statistics."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from acceptlab import queries
from acceptlab.analysis.base import Sample
from acceptlab.analysis.profile_sums import ProfileSums, profile_sums

_STEPS = (
    "n_steps",
    "n_drafted",
    "n_nodes",
    "accepted_len",
    "expected_len",
    "emitted_len",
    "uncut_len",
    "n_accepting",
)
_PATH = ("n_nodes", "n_argmax", "sum_path_overlap")

Column = Float[np.ndarray, " prompts"]


@dataclass(frozen=True)
class MetricSums:
    """Sums of one group, one row a prompt. `path_*` run along first children; depth 1 is column 0."""

    profile: ProfileSums
    steps: dict[str, Column]
    tree_depth: Column
    path_nodes: Float[np.ndarray, "prompts depths"]
    path_argmax: Float[np.ndarray, "prompts depths"]
    path_overlap: Column
    """Sum over steps and depths of the product of overlaps down the first path."""

    @property
    def n_accepted(self) -> Column:
        """Accepted nodes."""
        return np.asarray(self.profile.n_accepted.sum(axis=1))

    @property
    def n_tested(self) -> Column:
        """Tested nodes."""
        return np.asarray(self.profile.n_tested.sum(axis=1))


def metric_sums(sample: Sample, groups: tuple[str, ...]) -> dict[str, MetricSums]:
    """Metric sums of the groups."""
    connection, clusters = sample.connection, sample.clusters
    profiles = profile_sums(sample, groups)
    steps = clusters.dense(queries.step_sums(connection), _STEPS)
    trees = clusters.dense(queries.tree_depth_sums(connection), ("sum_tree_depth",))
    path = queries.first_path_sums(connection)
    n_depths = int(path["depth"].max()) if len(path) else 0
    by_depth = clusters.dense_by(path.assign(level=path["depth"] - 1), "level", _PATH, n_depths)
    found = {}
    for group in groups:
        nodes, argmax, overlap = (clusters.select(values, group) for values in by_depth)
        found[group] = MetricSums(
            profile=profiles[group],
            steps=dict(zip(_STEPS, clusters.select(steps, group).T, strict=True)),
            tree_depth=clusters.select(trees, group)[:, 0],
            path_nodes=nodes,
            path_argmax=argmax,
            path_overlap=overlap.sum(axis=1),
        )
    return found
