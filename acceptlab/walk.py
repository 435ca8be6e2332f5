"""From acceptance probabilities to outcomes: which nodes are tested, how often, and how long the path gets.

NumPy only, so that the replay of stored records shares it with the collector. Arrays end in a node axis and
may have any leading axes (steps of the same tree); node order is the tree's. Every rule ends here: a rule
only says with which probability it accepts a node *once it tests it*.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Float, Float64, Int, Int8

from acceptlab.records import Outcome
from acceptlab.tree import Tree

OUTCOMES = tuple(Outcome)
"""What the codes of an outcome array stand for: `OUTCOMES[code]`."""
ACCEPTED, REJECTED, UNTESTED = (np.int8(OUTCOMES.index(outcome)) for outcome in Outcome)


@dataclass(frozen=True)
class _Plan:
    """A tree's recursion as index arrays: siblings by child_rank, then nodes by depth."""

    siblings: tuple[tuple[Int[np.ndarray, " _"], Int[np.ndarray, " _"]], ...]
    """For every child_rank from 1: the nodes of that rank, and for each the sibling before it."""
    levels: tuple[tuple[Int[np.ndarray, " _"], Int[np.ndarray, " _"]], ...]
    """For every depth from 1: its nodes, and for each the context row of its parent."""


@lru_cache(maxsize=1024)
def _plan(tree: Tree) -> _Plan:
    siblings = []
    widest = max((len(family) for family in tree.children), default=0)
    for rank in range(1, widest):
        families = [family for family in tree.children if len(family) > rank]
        siblings.append((np.array([f[rank] for f in families]), np.array([f[rank - 1] for f in families])))
    levels = tuple((np.array(nodes), tree.parent_rows[list(nodes)]) for nodes in tree.levels)
    return _Plan(tuple(siblings), levels)


def blocked_below(tree: Tree, is_end: Bool[np.ndarray, " nodes"]) -> Bool[np.ndarray, " nodes"]:
    """Nodes that hang below a node that ends the text: no rule tests them."""
    if not is_end.any():
        return np.zeros(tree.n_nodes, dtype=bool)
    ancestors = tree.visible[1:, 1:] & ~np.eye(tree.n_nodes, dtype=bool)
    below: Bool[np.ndarray, " nodes"] = (ancestors & is_end).any(axis=1)
    return below


def reach_probs(
    tree: Tree,
    accept_prob: Float[np.ndarray, "*batch nodes"],
    blocked: Bool[np.ndarray, "*batch nodes"] | None = None,
) -> tuple[Float64[np.ndarray, "*batch nodes"], Float64[np.ndarray, "*batch nodes"]]:
    """Probability that each node is tested, and that it is on the accepted path, given the drafted tree.

    test(child i) = reach(parent) * product over earlier siblings of (1 - accept); reach = test * accept.

    Args:
        tree: the drafted tree.
        accept_prob: probability of acceptance once tested; nan (undefined) counts as 0.
        blocked: nodes that are never tested.
    """
    accept = np.where(np.isnan(accept_prob), 0.0, accept_prob).astype(np.float64)
    if blocked is not None:
        accept = np.where(blocked, 0.0, accept)
    plan = _plan(tree)
    left = np.ones_like(accept)  # probability that all earlier siblings are rejected
    for nodes, before in plan.siblings:
        left[..., nodes] = left[..., before] * (1.0 - accept[..., before])
    reach_rows = np.ones((*accept.shape[:-1], tree.n_nodes + 1))  # the root first
    test = np.zeros_like(accept)
    for nodes, parent_rows in plan.levels:
        test[..., nodes] = reach_rows[..., parent_rows] * left[..., nodes]
        reach_rows[..., nodes + 1] = test[..., nodes] * accept[..., nodes]
    if blocked is not None:
        test = np.where(blocked, 0.0, test)
    return test, reach_rows[..., 1:]


def walk(
    tree: Tree,
    accept_prob: Float[np.ndarray, "*batch nodes"],
    uniforms: Float64[np.ndarray, "*batch nodes"],
    blocked: Bool[np.ndarray, "*batch nodes"] | None = None,
) -> Int8[np.ndarray, "*batch nodes"]:
    """Outcome codes of every node: siblings in child_rank order, the first that passes is taken, no way back.

    A tested node is accepted if its uniform is below its acceptance probability; so 0 never and 1 always
    passes.
    """
    passes = uniforms < accept_prob
    if passes.ndim == 1:
        return _walk_one(tree, passes, blocked)
    test, reach = reach_probs(tree, passes.astype(np.float64), blocked)
    return np.where(reach > 0, ACCEPTED, np.where(test > 0, REJECTED, UNTESTED)).astype(np.int8)


def _walk_one(
    tree: Tree, passes: Bool[np.ndarray, " nodes"], blocked: Bool[np.ndarray, " nodes"] | None
) -> Int8[np.ndarray, " nodes"]:
    """The same for one step, along its path only."""
    outcome = np.full(tree.n_nodes, UNTESTED, dtype=np.int8)
    siblings = list(tree.children[0])
    while siblings:
        node = siblings.pop(0)
        if blocked is not None and blocked[node]:
            continue
        outcome[node] = ACCEPTED if passes[node] else REJECTED
        if passes[node]:
            siblings = list(tree.children[node + 1])
    return outcome


def accepted_path(outcome: Int8[np.ndarray, " nodes"]) -> tuple[int, ...]:
    """The accepted nodes from the root's child to the leaf; parents come before children in every tree."""
    return tuple(int(node) for node in np.flatnonzero(outcome == ACCEPTED))


def expected_len(reach: Float64[np.ndarray, "*batch nodes"]) -> Float64[np.ndarray, " *batch"]:
    """Expected number of accepted nodes, given the drafted tree, without the bonus token."""
    return np.asarray(reach.sum(axis=-1))


def survival(tree: Tree, reach: Float64[np.ndarray, "*batch nodes"]) -> Float64[np.ndarray, "*batch depths"]:
    """Probability that at least d tokens are accepted, for d from 1 to the tree's depth."""
    columns = [reach[..., list(nodes)].sum(axis=-1) for nodes in tree.levels]
    return np.stack(columns, axis=-1) if columns else np.zeros((*reach.shape[:-1], 0))


def length_law(
    tree: Tree, reach: Float64[np.ndarray, "*batch nodes"]
) -> Float64[np.ndarray, "*batch lengths"]:
    """Probability of every accepted length from 0 to the tree's depth."""
    at_least = survival(tree, reach)
    edges = np.ones((*at_least.shape[:-1], 1))
    return np.asarray(np.concatenate([edges, at_least], -1) - np.concatenate([at_least, 0 * edges], -1))
