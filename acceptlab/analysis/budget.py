"""The best static tree for every node budget and the best chain, by domain: predicted length and speed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from acceptlab.analysis.base import ALL, N_DOCS, AnalysisTable, counted, open_sample, put, to_frame
from acceptlab.analysis.best_shape import AcceptanceTable, measured_trees, predicted_lens, refuse_adaptive
from acceptlab.analysis.costs import Costs, costs_from
from acceptlab.errors import UsageError
from acceptlab.queries import By, trees
from acceptlab.resampling import DEFAULT, Resampling, Totals
from acceptlab.stats import Estimate, bootstrap
from acceptlab.store import Run
from acceptlab.tree import Tree, from_branches

_NONE, _CHAIN, _TREE, _FAST = "none", "chain", "tree", "fast tree"

COLUMNS = {
    "shape": "none: no speculation; chain: chain:K; tree: the largest predicted length for its nodes; fast tree: "
    "the largest predicted speed for its nodes, where a shallower tree is faster",
    "budget": "drafted nodes",
    "depth": "levels, each a draft pass",
    "expected_len": "predicted accepted length a step, without the bonus token (tokens)",
    "step_ms": "predicted time of a step: draft passes, target pass, bookkeeping (ms)",
    "tokens_per_s": "predicted emitted tokens a second, the bonus token counted",
    "speed_up": "tokens_per_s / that of no speculation",
    "choice": "best: the largest tokens_per_s of the group; best chain: the largest among chains",
    "parents": 'parent of every node, -1 the root; as {"parents": ...} in a file it is --tree file:FILE',
    **{name: N_DOCS[name] for name in ("n_steps", "n_prompts", "method", "reason")},
}


@dataclass(frozen=True)
class _Shape:
    name: str
    tree: Tree
    step_ms: float | None


def budget(
    runs: Sequence[Run],
    *,
    by: By = "domain",
    resampling: Resampling = DEFAULT,
    nodes: int = 16,
    costs_file: Path | None = None,
) -> AnalysisTable:
    """One row per group, shape and node budget: predicted accepted length, and speed where times are known.

    Acceptance by depth and child rank is measured on the runs; trees come from the dynamic programme over it.
    Intervals resample prompts with the tree held fixed.

    Args:
        runs: Opened runs with static trees, at least as deep and wide as the wanted shapes.
        by: What a group is.
        resampling: How intervals are made.
        nodes: Largest node budget.
        costs_file: Verification times by tokens; see `costs_from`.

    Raises:
        UsageError: a run that does not measure static trees; a budget below 1; a bad file of costs.
    """
    if nodes < 1:
        raise UsageError(f"a budget of {nodes} nodes is no tree: ask for at least 1")
    refuse_adaptive(runs)
    with open_sample(runs, by) as sample:
        sums = trees.rank_sums(sample.connection)
        shape = (0, 0) if sums.empty else (int(sums["depth"].max()), int(sums["child_rank"].max()) + 1)
        cell = (sums["depth"].astype(int) - 1) * shape[1] + sums["child_rank"].astype(int)
        dense = sample.clusters.dense_by(
            sums.assign(cell=cell), "cell", ("n_accepted", "n_offered"), shape[0] * shape[1]
        )
        costs = costs_from(trees.pass_costs(sample.connection), costs_file)
        rows: list[dict[str, Any]] = []
        for group in (*sample.clusters.groups, ALL):
            accepted, offered = (sample.clusters.select(values, group) for values in dense)
            rows += _rows({by: group}, accepted, offered, shape, nodes, costs, resampling)
        notes = list(sample.notes)
    if rows and max(row["budget"] for row in rows) < nodes:
        largest = max(row["budget"] for row in rows)
        notes.append(
            f"the runs measured acceptance for at most {largest} nodes, so larger budgets are missing: collect with "
            "a deeper or wider tree"
        )
    notes.append(
        "intervals hold the tree fixed: choosing the best of many makes its own prediction a little high"
    )
    if costs is not None:
        notes.append(costs.source)
    return AnalysisTable(
        name="budget",
        title=f"Best static trees by node budget and {by}",
        caption=f"Predicted accepted length and speed, "
        f"{counted({'prompts': rows[-1]['n_prompts'], 'drafted steps': rows[-1]['n_steps']})} ({resampling}).",
        frame=to_frame(rows, whole=("budget", "depth")),
        notes=notes,
        columns={by: "group of the prompts; all pools them", **COLUMNS},
    )


def _rows(
    key: dict[str, Any],
    accepted: Float[np.ndarray, "prompts cells"],
    offered: Float[np.ndarray, "prompts cells"],
    shape: tuple[int, int],
    nodes: int,
    costs: Costs | None,
    resampling: Resampling,
) -> list[dict[str, Any]]:
    table = AcceptanceTable(
        accepted.sum(axis=0).reshape(shape).astype(np.int64),
        offered.sum(axis=0).reshape(shape).astype(np.int64),
    )
    shapes = list(_shapes(table, nodes, costs))
    lengths = _lengths([one.tree for one in shapes], accepted, offered, shape, resampling)
    rows = [_row(key, one, length) for one, length in zip(shapes, lengths, strict=True)]
    if costs is None:
        return rows
    base = rows[0]["tokens_per_s"]
    for row in rows:
        row["speed_up"] = row["tokens_per_s"] / base
    chains = [row for row in rows if row["shape"] == _CHAIN]
    if chains:
        max(chains, key=lambda row: row["tokens_per_s"])["choice"] = "best chain"
    max(rows, key=lambda row: row["tokens_per_s"])["choice"] = "best"
    return rows


def _shapes(table: AcceptanceTable, nodes: int, costs: Costs | None) -> Iterator[_Shape]:
    """No speculation, the chains, and for every budget the longest tree and, if it is another, the fastest."""

    def shaped(name: str, tree: Tree) -> _Shape:
        return _Shape(name, tree, None if costs is None else costs.step_ms(tree.n_nodes, tree.depth))

    yield shaped(_NONE, Tree(()))
    for length in range(1, nodes + 1):
        chain = from_branches([1] * length)
        if not table.covers(chain):
            break
        yield shaped(_CHAIN, chain)
    deepest = measured_trees(table, nodes)
    limited = [measured_trees(table, nodes, depth) for depth in range(1, table.n_offered.shape[0] + 1)]
    for place, best in enumerate(deepest):
        yield shaped(_TREE, best.tree)
        if costs is None:
            continue
        others = [found[place] for found in limited if place < len(found)]
        speed = [costs.tokens_per_s(one.expected_len, one.tree) for one in others]
        fastest = others[int(np.argmax(speed))].tree
        if fastest.depth != best.tree.depth:
            yield shaped(_FAST, fastest)


def _lengths(
    chosen: Sequence[Tree],
    accepted: Float[np.ndarray, "prompts cells"],
    offered: Float[np.ndarray, "prompts cells"],
    shape: tuple[int, int],
    resampling: Resampling,
) -> list[Estimate]:
    """Predicted length of fixed trees, with intervals that resample prompts."""
    n_cells = shape[0] * shape[1]

    def statistic(totals: Totals) -> Totals:
        return predicted_lens(
            chosen,
            totals[:, :n_cells].reshape(len(totals), *shape),
            totals[:, n_cells:].reshape(len(totals), *shape),
        )

    steps = offered[:, :1] if n_cells else np.zeros((len(offered), 1))
    return bootstrap(
        np.hstack([accepted, offered]), statistic, np.repeat(steps, len(chosen), axis=1), resampling
    )


def _row(key: dict[str, Any], one: _Shape, length: Estimate) -> dict[str, Any]:
    row = put(
        {**key, "shape": one.name, "budget": one.tree.n_nodes, "depth": one.tree.depth},
        {"expected_len": length},
    )
    speed = None
    if one.step_ms is not None and length.value is not None:
        speed = 1000.0 * (1.0 + length.value) / one.step_ms
    timed = {"step_ms": one.step_ms, "tokens_per_s": speed, "speed_up": None, "choice": None}
    method, reason = row.pop("method"), row.pop("reason")
    parents = json.dumps(list(one.tree.parents), separators=(",", ":"))
    return {
        **row,
        **timed,
        "n_steps": length.n,
        "n_prompts": length.n_prompts,
        "parents": parents,
        "method": method,
        "reason": reason,
    }
