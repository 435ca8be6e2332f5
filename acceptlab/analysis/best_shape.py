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
from acceptlab.analysis.costs import Costs, costs_from
from acceptlab.errors import UsageError
from acceptlab.pairing import ADAPTIVE_TREES
from acceptlab.queries import trees
from acceptlab.store import Run, open_run
from acceptlab.theory.best_tree import BestTree, best_trees, expected_tree_len
from acceptlab.tree import MAX_NODES, Tree, TreeShape, parse_tree

EXAMPLE = "dp:nodes=16,from=data/runs/NAME"
_OPTIONS = ("nodes", "depth", "width", "domain", "costs")
_BEST = "best"
_BEST_NODES = 64
"""Largest tree that nodes=best looks at."""


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


def acceptance_table(runs: Sequence[Run], domain: str | None = None) -> AcceptanceTable:
    """The table of whole runs, or of one of their domains.

    Raises:
        UsageError: a run whose tree followed the draft's confidence, which offers a child only where it is likely;
            or a domain that the runs do not have.
    """
    refuse_adaptive(runs)
    connection = queries.connect(runs)
    try:
        sums = trees.rank_sums(connection)
    finally:
        connection.close()
    if domain is None:
        return table_of(sums)
    if domain not in set(sums["domain"]):
        raise UsageError(
            f"'{runs[0].path}' measured nothing in domain '{domain}': it has "
            f"{', '.join(sorted(set(sums['domain']))) or 'none'}"
        )
    return table_of(sums[sums["domain"] == domain])


def predicted_lens(
    chosen: Sequence[Tree],
    accepted: Float[np.ndarray, "*batch depths ranks"],
    offered: Float[np.ndarray, "*batch depths ranks"],
) -> Float[np.ndarray, "*batch trees"]:
    """Expected accepted length of fixed trees: the sum over nodes of the product of rates along the node's path.

    A place that was never offered counts as never accepted: a resample of prompts may lack a rare place altogether.
    """
    rates = np.divide(accepted, offered, out=np.zeros_like(offered), where=offered > 0)
    lens = []
    for tree in chosen:
        reach = np.ones((*rates.shape[:-2], tree.n_nodes + 1))
        for node, row in enumerate(tree.parent_rows):
            reach[..., node + 1] = reach[..., row] * rates[..., tree.depths[node] - 1, tree.child_ranks[node]]
        lens.append(reach[..., 1:].sum(axis=-1))
    return np.stack(lens, axis=-1) if lens else np.zeros((*rates.shape[:-2], 0))


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


@dataclass(frozen=True)
class DpRequest:
    """What `--tree dp:...` says. `nodes` None stands for the number that measured costs favour."""

    folder: Path
    nodes: int | None
    depth: int | None = None
    """Deepest level; None for what was measured."""
    width: int | None = None
    """Most children of a node; 1 gives chains."""
    domain: str | None = None
    costs_file: Path | None = None


def tree_from_run(run: Run, wanted: DpRequest) -> TreeShape:
    """The static tree with the largest expected accepted length for its nodes, or the fastest of all.

    Its text says how many nodes it has, so that it is the same tree wherever the costs come from. Source: Sequoia
    (arXiv 2402.12374: the dynamic programme, and the hardware-aware choice of size and depth).

    Raises:
        UsageError: the run is too narrow or too shallow for so many nodes, or does not measure static trees; no
            times are known for nodes=best.
    """
    nodes = _BEST_NODES if wanted.nodes is None else wanted.nodes
    if not 1 <= nodes <= MAX_NODES:
        raise UsageError(f"a dp tree of {nodes} nodes is not possible: ask for 1 to {MAX_NODES}")
    table = acceptance_table([run], wanted.domain)
    table = AcceptanceTable(table.n_accepted[:, : wanted.width], table.n_offered[:, : wanted.width])
    where = "" if wanted.width is None else f"width={wanted.width},"
    where += "" if wanted.domain is None else f"domain={wanted.domain},"
    if wanted.nodes is None:
        tree = fastest_tree(table, _costs(run, wanted.costs_file), nodes, wanted.depth)
        if tree is None:
            raise _too_narrow(run, 0, 1)
        text = f"dp:nodes={tree.n_nodes},depth={tree.depth},{where}from={run.run_id}"
        return TreeShape(text, "dp", tree)
    found = measured_trees(table, nodes, wanted.depth)
    if len(found) < nodes:
        raise _too_narrow(run, len(found), nodes)
    limit = "" if wanted.depth is None else f"depth={wanted.depth},"
    return TreeShape(f"dp:nodes={nodes},{limit}{where}from={run.run_id}", "dp", found[-1].tree)


def fastest_tree(
    table: AcceptanceTable, costs: Costs, n_nodes: int, max_depth: int | None = None
) -> Tree | None:
    """The tree of at most `n_nodes` nodes that emits most tokens a second; None where nothing was measured."""
    deepest = table.n_offered.shape[0] if max_depth is None else min(max_depth, table.n_offered.shape[0])
    found = [best for depth in range(1, deepest + 1) for best in measured_trees(table, n_nodes, depth)]
    if not found:
        return None
    return max(found, key=lambda best: costs.tokens_per_s(best.expected_len, best.tree)).tree


def _costs(run: Run, costs_file: Path | None) -> Costs:
    connection = queries.connect([run])
    try:
        costs = costs_from(trees.pass_costs(connection), costs_file)
    finally:
        connection.close()
    if costs is None:
        raise UsageError(f"run '{run.path}' has no times of drafted steps: name a number of nodes")
    if costs_file is None and len(costs.verify_tokens) == 1:
        raise UsageError(
            f"run '{run.path}' verified trees of one size only, so it does not say what larger ones cost: add "
            "costs=FILE (columns n, ms), or name a number of nodes"
        )
    return costs


def _too_narrow(run: Run, n_found: int, nodes: int) -> UsageError:
    return UsageError(
        f"run '{run.path}' (tree {run.config.get('tree')}) measured acceptance for trees of at most "
        f"{n_found} nodes, not {nodes}: collect with a deeper or wider tree, for example "
        f"--tree kary:depth=4,branch=4, or ask for dp:nodes={max(1, n_found)}"
    )


def parse_dp(text: str) -> TreeShape:
    """Read `dp:nodes=N,from=RUN`, where RUN is a run's folder.

    Before `from`, which comes last, may stand `depth=D` (at most so deep), `width=W` (at most so many children; 1 for
    chains), `domain=NAME` (acceptance of that domain only) and `costs=FILE` (verification times); `nodes=best` takes
    the size and depth that these costs favour.

    Raises:
        UsageError: malformed, no such run, or see `tree_from_run`.
    """
    head, comma, folder = text.strip().partition(",from=")
    kind, _, rest = head.partition(":")
    options = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    nodes = options.get("nodes", "")
    limits = {name: options[name] for name in ("depth", "width") if name in options}
    numbers_fit = nodes == _BEST or nodes.isdecimal()
    numbers_fit &= all(value.isdecimal() and int(value) > 0 for value in limits.values())
    known = set(options) <= set(_OPTIONS) and all(options.values())
    if kind != "dp" or not comma or not folder.strip() or not numbers_fit or not known:
        raise UsageError(
            f"tree '{text}' needs nodes and from: write, for example, {EXAMPLE}; nodes=best, depth=D, width=W, "
            "domain=NAME and costs=FILE may stand before from"
        )
    wanted = DpRequest(
        folder=Path(folder.strip()),
        nodes=None if nodes == _BEST else int(nodes),
        **{name: int(value) for name, value in limits.items()},
        domain=options.get("domain"),
        costs_file=Path(options["costs"]) if "costs" in options else None,
    )
    return tree_from_run(open_run(wanted.folder), wanted)


def parse_any(text: str) -> TreeShape:
    """Read any tree: `dp:` from its run, all others by `tree.parse_tree`."""
    return parse_dp(text) if text.strip().startswith("dp:") else parse_tree(text)
