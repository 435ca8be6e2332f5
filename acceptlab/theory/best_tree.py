"""The best static tree for a node budget, by dynamic programming over an acceptance table (Sequoia).

The table holds, for every depth and child rank, the probability that the child of that rank is the accepted one,
given that its parent is accepted. Siblings exclude each other, so the expected accepted length of a tree is the sum
over its nodes of the product of the table along the node's path (Sequoia, arXiv 2402.12374, section 4.1). Boundary:
numbers in, a tree out; where the table comes from is a question for `analysis`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from acceptlab.errors import UsageError
from acceptlab.tree import Tree

Table = Float[np.ndarray, "depths ranks"]


@dataclass(frozen=True)
class BestTree:
    """A tree and its expected accepted length under the table, without the bonus token."""

    tree: Tree
    expected_len: float


def expected_tree_len(tree: Tree, acceptance: Table) -> float:
    """Expected accepted length of a static tree under an acceptance table.

    Raises:
        UsageError: the tree is deeper or wider than the table.
    """
    table = _checked(acceptance)
    if tree.n_nodes and (tree.depth > table.shape[0] or int(tree.child_ranks.max()) >= table.shape[1]):
        raise UsageError(
            f"the acceptance table covers depth {table.shape[0]} and {table.shape[1]} siblings, the tree needs "
            f"depth {tree.depth} and {int(tree.child_ranks.max()) + 1}: measure with a larger tree"
        )
    reach = np.ones(tree.n_nodes + 1)
    for node, row in enumerate(tree.parent_rows):
        reach[node + 1] = reach[row] * table[tree.depths[node] - 1, tree.child_ranks[node]]
    return float(reach[1:].sum())


def best_trees(acceptance: Table, n_nodes: int, max_depth: int | None = None) -> list[BestTree]:
    """The best tree for every budget from 1 to `n_nodes`, at most `max_depth` deep.

    With G_d[m] the best expected length below an accepted node of depth d with m nodes there, and F_d[m, b] the same
    with exactly b children, the first b ranks: F_d[m, b] = max over y of F_d[m - y, b - 1] + P[d + 1, b]
    (1 + G_(d+1)[y - 1]), and G_d[m] is the largest of them.

    Args:
        acceptance: probability that the child of a depth and rank is the accepted one, given its parent is.
        n_nodes: largest budget.
        max_depth: deepest level; None for the depth of the table.

    Raises:
        UsageError: a table that is no table of probabilities, or too small a budget.
    """
    table = _checked(acceptance)
    if n_nodes < 1:
        raise UsageError(f"a budget of {n_nodes} nodes is no tree: give at least 1")
    depth = table.shape[0] if max_depth is None else min(max_depth, table.shape[0])
    below = np.full(n_nodes + 1, -np.inf)
    below[0] = 0.0
    choices: list[_Choice] = []
    for level in range(depth - 1, -1, -1):
        below, chosen = _level(table[level], below, n_nodes)
        choices.insert(0, chosen)
    found = []
    for budget in range(1, n_nodes + 1):
        if not np.isfinite(below[budget]):
            break
        found.append(BestTree(_rebuild(choices, budget), float(below[budget])))
    return found


def best_tree(acceptance: Table, n_nodes: int, max_depth: int | None = None) -> BestTree:
    """The best tree with exactly `n_nodes` nodes (see `best_trees`).

    Raises:
        UsageError: no tree within the table's depths and ranks has that many nodes.
    """
    found = best_trees(acceptance, n_nodes, max_depth)
    if len(found) < n_nodes:
        raise UsageError(
            f"the acceptance table covers depth {len(acceptance)} and {np.shape(acceptance)[1]} siblings, too little "
            f"for {n_nodes} nodes: measure with a larger tree, or ask for at most {len(found)}"
        )
    return found[-1]


@dataclass(frozen=True)
class _Choice:
    """How a node of one depth best uses each budget: how many children, and the nodes of the last of b children."""

    n_children: Int[np.ndarray, " budgets"]
    share: Int[np.ndarray, "counts budgets"]


def _level(
    rates: Float[np.ndarray, " ranks"], below: Float[np.ndarray, " budgets"], n_nodes: int
) -> tuple[Float[np.ndarray, " budgets"], _Choice]:
    """One level of the programme: the best value below a node of this depth for every budget."""
    exactly = np.full((len(rates) + 1, n_nodes + 1), -np.inf)
    exactly[0, 0] = 0.0
    share = np.zeros(exactly.shape, dtype=np.int64)
    for count, rate in enumerate(rates, start=1):
        for size in range(1, n_nodes + 1):
            if not np.isfinite(below[size - 1]):
                continue
            value = exactly[count - 1, : n_nodes + 1 - size] + rate * (1.0 + below[size - 1])
            better = value > exactly[count, size:]
            exactly[count, size:][better] = value[better]
            share[count, size:][better] = size
    return exactly.max(axis=0), _Choice(exactly.argmax(axis=0), share)


def _rebuild(choices: list[_Choice], budget: int) -> Tree:
    """Follow the choices from the root down, level by level, so that parents come before children."""
    parents: list[int] = []
    queue = [(-1, 0, budget)]
    while queue:
        parent, level, left = queue.pop(0)
        if left == 0:
            continue
        shares: list[int] = []
        for count in range(int(choices[level].n_children[left]), 0, -1):
            shares.insert(0, int(choices[level].share[count, left]))
            left -= shares[0]
        for share in shares:
            parents.append(parent)
            queue.append((len(parents) - 1, level + 1, share - 1))
    return Tree(tuple(parents))


def _checked(acceptance: Table) -> Table:
    table = np.asarray(acceptance, dtype=np.float64)
    if table.ndim != 2 or table.size == 0 or not ((table >= 0) & (table <= 1)).all():
        raise UsageError("an acceptance table needs one probability for every depth and child rank")
    return table
