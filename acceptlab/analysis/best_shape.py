"""Acceptance by depth and child rank measured on a run, and the static tree that is best under it (Sequoia).

The table holds, for every depth and rank, accepted children of that rank / accepted parents (or roots) that had a
child of that rank drafted; the dynamic programme is `theory.best_tree`. A shape made here is static, of kind `dp`,
and remembers the run that it came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from acceptlab import queries
from acceptlab.errors import UsageError
from acceptlab.pairing import ADAPTIVE_TREES
from acceptlab.queries import trees
from acceptlab.store import Run, open_run
from acceptlab.theory.best_tree import BestTree, best_trees, expected_tree_len
from acceptlab.tree import MAX_NODES, Tree, TreeShape, parse_tree

EXAMPLE = "dp:nodes=16,from=data/runs/NAME"


@dataclass(frozen=True, eq=False)
class AcceptanceTable:
    """Counts by depth (row 0 is depth 1) and child rank; cells that were never offered are not measured."""

    n_accepted: Int[np.ndarray, "depths ranks"]
    n_offered: Int[np.ndarray, "depths ranks"]

    @property
    def rates(self) -> Float[np.ndarray, "depths ranks"]:
        """Accepted / offered; nan where nothing was offered."""
        offered = np.where(self.n_offered == 0, np.nan, self.n_offered)
        return np.asarray(self.n_accepted / offered)

    def covers(self, tree: Tree) -> bool:
        """Whether every depth and rank of the tree was measured."""
        if tree.n_nodes == 0:
            return True
        depths, ranks = tree.depths - 1, tree.child_ranks
        if depths.max() >= self.n_offered.shape[0] or ranks.max() >= self.n_offered.shape[1]:
            return False
        return bool((self.n_offered[depths, ranks] > 0).all())


def table_of(sums: pd.DataFrame) -> AcceptanceTable:
    """The table of the rows of `queries.trees.rank_sums`, prompts pooled as ratios of sums."""
    shape = (0, 0) if sums.empty else (int(sums["depth"].max()), int(sums["child_rank"].max()) + 1)
    accepted, offered = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    cells = (sums["depth"].to_numpy(dtype=np.int64) - 1, sums["child_rank"].to_numpy(dtype=np.int64))
    np.add.at(accepted, cells, sums["n_accepted"].to_numpy(dtype=np.int64))
    np.add.at(offered, cells, sums["n_offered"].to_numpy(dtype=np.int64))
    return AcceptanceTable(accepted, offered)


def acceptance_table(runs: Sequence[Run]) -> AcceptanceTable:
    """The table of whole runs.

    Raises:
        UsageError: a run whose tree followed the draft's confidence, which offers a child only where it is likely.
    """
    refuse_adaptive(runs)
    connection = queries.connect(runs)
    try:
        return table_of(trees.rank_sums(connection))
    finally:
        connection.close()


def refuse_adaptive(runs: Sequence[Run]) -> None:
    """Raise UsageError for runs in which confidence decided what was offered."""
    for run in runs:
        kind = str(run.config.get("tree")).partition(":")[0]
        if kind in ADAPTIVE_TREES or run.config.get("stop"):
            raise UsageError(
                f"run '{run.path}' offered children only where the draft was confident ({_reason(run)}), so it does "
                "not measure static trees: collect with, for example, --tree kary:depth=4,branch=4 and no --stop"
            )


def _reason(run: Run) -> str:
    stop = run.config.get("stop")
    return f"--stop {stop}" if stop else f"tree {run.config.get('tree')}"


def measured_trees(table: AcceptanceTable, n_nodes: int, max_depth: int | None = None) -> list[BestTree]:
    """The best tree for every budget from 1 to `n_nodes`, as far as the measured depths and ranks reach.

    What was never measured counts as never accepted. A tree that takes such a place gains nothing by it, so the best
    tree of one node less, with any measured place more, is as good.
    """
    if table.n_offered.sum() == 0:
        return []
    rates = np.nan_to_num(table.rates)
    found: list[BestTree] = []
    for best in best_trees(rates, n_nodes, max_depth):
        tree: Tree | None = best.tree
        if not table.covers(best.tree):
            tree = _extended(table, found[-1].tree if found else Tree(()), max_depth)
        if tree is None:
            break
        found.append(BestTree(tree, expected_tree_len(tree, rates)))
    return found


def _extended(table: AcceptanceTable, tree: Tree, max_depth: int | None) -> Tree | None:
    """The tree with one measured place more, worth nothing like all that are left; None where there is none."""
    for row in range(tree.n_nodes + 1):
        larger = Tree((*tree.parents, row - 1))
        if table.covers(larger) and larger.depth <= (max_depth or larger.depth):
            return larger
    return None


def tree_from_run(run: Run, nodes: int) -> TreeShape:
    """The static tree of exactly `nodes` nodes with the largest expected accepted length under the run's table.

    Source: Sequoia (arXiv 2402.12374, section 4.1), acceptance by child rank and depth.

    Raises:
        UsageError: the run is too narrow or too shallow for so many nodes, or does not measure static trees.
    """
    if not 1 <= nodes <= MAX_NODES:
        raise UsageError(f"a dp tree of {nodes} nodes is not possible: ask for 1 to {MAX_NODES}")
    table = acceptance_table([run])
    found = measured_trees(table, nodes)
    if len(found) < nodes:
        raise UsageError(
            f"run '{run.path}' (tree {run.config.get('tree')}) measured acceptance for trees of at most "
            f"{len(found)} nodes, not {nodes}: collect with a deeper or wider tree, for example "
            f"--tree kary:depth=4,branch=4, or ask for dp:nodes={max(1, len(found))}"
        )
    return TreeShape(f"dp:nodes={nodes},from={run.run_id}", "dp", found[-1].tree)


def parse_dp(text: str) -> TreeShape:
    """Read `dp:nodes=N,from=RUN`, where RUN is a run's folder.

    Raises:
        UsageError: malformed, no such run, or see `tree_from_run`.
    """
    kind, _, rest = text.strip().partition(":")
    nodes, comma, source = rest.partition(",")
    nodes_key, _, count = nodes.partition("=")
    from_key, _, folder = source.partition("=")
    wanted = (kind, nodes_key.strip(), from_key.strip()) == ("dp", "nodes", "from") and comma
    if not wanted or not count.strip().isdecimal() or not folder.strip():
        raise UsageError(f"tree '{text}' needs nodes and from: write, for example, {EXAMPLE}")
    return tree_from_run(open_run(Path(folder.strip())), int(count))


def parse_any(text: str) -> TreeShape:
    """Read any tree: `dp:` from its run, all others by `tree.parse_tree`."""
    return parse_dp(text) if text.strip().startswith("dp:") else parse_tree(text)
