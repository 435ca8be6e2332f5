"""Nodes of many steps as one forest: reach, accepted length and its bounds, without a loop over steps.

The trees may differ from step to step (adaptive shapes, pruned branches). `walk` does the same for many steps of one
tree and is the reference. Boundary: flat arrays in, flat arrays out; no files, no frames.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float64, Int

NONE = -1
"""Stands for no node: the parent of a root's child, a missing sibling or child."""


@dataclass(frozen=True, eq=False)
class Forest:
    """Flat nodes, one row each, in step order and parents before children.

    `parent` is the row of the parent in these arrays, -1 below a root.
    """

    step: Int[np.ndarray, " nodes"]
    parent: Int[np.ndarray, " nodes"]
    child_rank: Int[np.ndarray, " nodes"]
    n_steps: int

    @property
    def n_nodes(self) -> int:
        """Number of rows."""
        return len(self.step)

    @cached_property
    def depth(self) -> Int[np.ndarray, " nodes"]:
        """Depth of every node; a root's child has depth 1."""
        depth = np.ones(self.n_nodes, dtype=np.int64)
        below = np.flatnonzero(self.parent >= 0)
        while len(below):  # a level a round: nodes whose parent is deeper than it was
            deeper = depth[self.parent[below]] + 1
            changed = deeper != depth[below]
            depth[below] = deeper
            below = below[changed]
        return depth

    @cached_property
    def before(self) -> Int[np.ndarray, " nodes"]:
        """The sibling before every node, -1 for first children."""
        context = np.where(self.parent < 0, self.step, self.n_steps + self.parent)
        order = np.lexsort((self.child_rank, context))
        same = context[order[1:]] == context[order[:-1]]
        found = np.full(self.n_nodes, NONE)
        found[order[1:][same]] = order[:-1][same]
        return found

    @cached_property
    def after(self) -> Int[np.ndarray, " nodes"]:
        """The next sibling of every node, -1 for last children."""
        found = np.full(self.n_nodes, NONE)
        has = np.flatnonzero(self.before >= 0)
        found[self.before[has]] = has
        return found

    @cached_property
    def first_child(self) -> Int[np.ndarray, " nodes"]:
        """The first child of every node, -1 for leaves."""
        found = np.full(self.n_nodes, NONE)
        first = np.flatnonzero((self.before < 0) & (self.parent >= 0))
        found[self.parent[first]] = first
        return found

    def subset(self, keep: Bool[np.ndarray, " nodes"]) -> Forest:
        """The forest of the kept rows; what is kept must be closed under parents and earlier siblings."""
        renumbered = np.cumsum(keep) - 1
        parent = self.parent[keep]
        inner = parent >= 0
        moved = np.where(inner, renumbered[np.where(inner, parent, 0)], NONE)
        return Forest(self.step[keep], moved, self.child_rank[keep], self.n_steps)

    def by_level(self) -> Iterator[Int[np.ndarray, " some"]]:
        """Rows by depth, from the roots down."""
        yield from _grouped(self.depth)

    def by_sibling(self) -> Iterator[Int[np.ndarray, " some"]]:
        """Rows that have an earlier sibling, by child_rank."""
        yield from list(_grouped(self.child_rank))[1:]


def _grouped(keys: Int[np.ndarray, " nodes"]) -> Iterator[Int[np.ndarray, " some"]]:
    order = np.argsort(keys, kind="stable")
    edges = np.flatnonzero(np.diff(keys[order])) + 1
    yield from (rows for rows in np.split(order, edges) if len(rows))


def forest_of(
    n_nodes: Int[np.ndarray, " steps"],
    parent: Int[np.ndarray, " nodes"],
    child_rank: Int[np.ndarray, " nodes"],
) -> Forest:
    """The forest of steps whose nodes stand one step after the other.

    Args:
        n_nodes: nodes of every step.
        parent: index of each node's parent within its step, -1 for the root.
        child_rank: order among the siblings.
    """
    step = np.repeat(np.arange(len(n_nodes)), n_nodes)
    start = np.repeat(np.cumsum(n_nodes) - n_nodes, n_nodes)
    rows = np.where(parent < 0, NONE, parent.astype(np.int64) + start)
    return Forest(step, rows, child_rank.astype(np.int64), len(n_nodes))


def reach(
    forest: Forest, accept_prob: Float64[np.ndarray, " nodes"]
) -> tuple[Float64[np.ndarray, " nodes"], Float64[np.ndarray, " nodes"]]:
    """Probability that each node is tested, and that it is on the accepted path (as `walk.reach_probs`).

    Args:
        forest: the nodes, without those that no rule tests.
        accept_prob: probability of acceptance once tested; no nan.
    """
    left = np.ones(forest.n_nodes)
    for rows in forest.by_sibling():
        earlier = forest.before[rows]
        left[rows] = left[earlier] * (1.0 - accept_prob[earlier])
    test, reached = np.zeros(forest.n_nodes), np.zeros(forest.n_nodes)
    for rows in forest.by_level():
        parents = forest.parent[rows]
        test[rows] = np.where(parents < 0, 1.0, reached[parents]) * left[rows]
        reached[rows] = test[rows] * accept_prob[rows]
    return test, reached


def below_end(forest: Forest, is_end: Bool[np.ndarray, " nodes"]) -> Bool[np.ndarray, " nodes"]:
    """Nodes that hang below a node that ends the text: no rule tests them."""
    below = np.zeros(forest.n_nodes, dtype=bool)
    if is_end.any():
        for rows in forest.by_level():
            parents = forest.parent[rows]
            below[rows] = (parents >= 0) & (is_end | below)[parents]
    return below


def length_bounds(
    forest: Forest, surely: Bool[np.ndarray, " nodes"], possibly: Bool[np.ndarray, " nodes"]
) -> tuple[Int[np.ndarray, " steps"], Int[np.ndarray, " steps"]]:
    """Least and largest accepted length of every step where some decisions are not known.

    A node passes if `surely`, fails if not `possibly`, and may do either in between. On a tree a further pass can
    shorten the path (the first sibling that passes is taken), so both ends are found from the leaves up: the value
    of standing before a sibling is 1 + what lies below it if it passes, else the value of standing before the next.
    """
    least, most = np.zeros(forest.n_nodes, dtype=np.int64), np.zeros(forest.n_nodes, dtype=np.int64)
    for level in reversed(list(forest.by_level())):
        for place in reversed(list(_grouped(forest.child_rank[level]))):
            rows = level[place]
            child, sibling = forest.first_child[rows], forest.after[rows]
            for bound, pick in ((least, np.minimum), (most, np.maximum)):
                taken = 1 + np.where(child < 0, 0, bound[child])
                passed_by = np.where(sibling < 0, 0, bound[sibling])
                open_ = pick(taken, passed_by)
                bound[rows] = np.where(surely[rows], taken, np.where(possibly[rows], open_, passed_by))
    first = np.flatnonzero((forest.parent < 0) & (forest.before < 0))
    found = np.zeros((2, forest.n_steps), dtype=np.int64)
    found[0, forest.step[first]] = least[first]
    found[1, forest.step[first]] = most[first]
    return found[0], found[1]
