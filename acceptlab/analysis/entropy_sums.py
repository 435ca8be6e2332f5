"""Rank sums of entropies with the three outcomes, by scope and prompt. All nodes in memory, in narrow columns.

A scope is a group, a depth, a group at a depth, or everything; ranks are taken within it. Every variable is sorted
once, over all nodes; a scope then only counts. Ten million nodes take about a gigabyte.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from acceptlab import queries
from acceptlab.analysis.base import Sample
from acceptlab.ranks import Codes

OUTCOMES = {
    "accepted": "whether the node was accepted, over tested nodes",
    "is_target_argmax": "whether the token is the target's argmax, over all nodes",
    "accept_ratio": "min(1, target_prob/draft_prob), over all nodes",
}
ENTROPIES = ("draft", "target")

Rows = slice | Int[np.ndarray, " rows"]
Sums = Float[np.ndarray, "prompts 6"]


class Scope(NamedTuple):
    """Within what ranks are taken; None pools."""

    group: str | None
    depth: int | None


@dataclass(frozen=True, eq=False)
class _Outcome:
    """Nodes that have the outcome (None: all have it), and their values: codes to rank, or a label less 1/2."""

    has: Bool[np.ndarray, " nodes"] | None
    values: Codes | Float[np.ndarray, " nodes"]


class EntropyRanks:
    """The nodes of a sample, sorted by group and depth, with every variable coded."""

    def __init__(self, sample: Sample) -> None:
        groups = sample.clusters.groups
        nodes = queries.entropy_nodes(sample.connection, groups)
        self.n_prompts = int(sample.clusters.row_prompts.max(initial=-1)) + 1
        depths, places = np.unique(nodes["depth"], return_inverse=True)
        cells = nodes.pop("group_index").astype(np.int32) * max(len(depths), 1) + places
        order = np.argsort(cells, kind="stable")
        edges = np.searchsorted(cells[order], np.arange(len(groups) * len(depths) + 1))
        self._groups, self._depths, self._edges = groups, [int(depth) for depth in depths], edges
        del nodes["depth"], cells, places
        nodes = {name: column[order] for name, column in nodes.items()}
        self._prompts = nodes["prompt"]
        self._entropies = {name: Codes.of(nodes.pop(f"{name}_entropy")) for name in ENTROPIES}
        tested, known = nodes["accepted"] >= 0, nodes["is_target_argmax"] >= 0
        has_ratio = ~np.isnan(nodes["accept_ratio"])
        self._outcomes = {
            "accepted": _Outcome(_unless_all(tested), nodes["accepted"] - 0.5),
            "is_target_argmax": _Outcome(_unless_all(known), nodes["is_target_argmax"] - 0.5),
            "accept_ratio": _Outcome(_unless_all(has_ratio), Codes.of(nodes["accept_ratio"])),
        }

    def sums(self) -> Iterator[tuple[Scope, str, str, Sums]]:
        """Scope, outcome, entropy and the sums (`ranks.RANK_SUMS`) of every prompt, by number of the prompt.

        Depths without a node that has the outcome are left out.
        """
        for scope, rows in self._scopes():
            everywhere: dict[str, Float[np.ndarray, " rows"]] = {}
            for name, outcome in self._outcomes.items():
                chosen = rows if outcome.has is None else _narrowed(rows, outcome.has)
                prompts = self._prompts[chosen]
                if scope.depth is not None and len(prompts) == 0:
                    continue
                ranks = everywhere if outcome.has is None else {}
                if not ranks:
                    ranks |= {which: codes.scaled_ranks(chosen) for which, codes in self._entropies.items()}
                values = outcome.values
                y = values.scaled_ranks(chosen) if isinstance(values, Codes) else values[chosen]
                for which, sums in self._by_prompt(prompts, ranks, y):
                    yield scope, name, which, sums

    def _scopes(self) -> Iterator[tuple[Scope, Rows]]:
        """Every scope with its rows: groups and the cells in them are stretches of rows, depths join cells."""
        n_depths = len(self._depths)
        edges = [int(edge) for edge in self._edges]
        for g, group in enumerate(self._groups):
            yield Scope(group, None), slice(edges[g * n_depths], edges[(g + 1) * n_depths])
            for d, depth in enumerate(self._depths, start=g * n_depths):
                yield Scope(group, depth), slice(edges[d], edges[d + 1])
        yield Scope(None, None), slice(0, len(self._prompts))
        for d, depth in enumerate(self._depths):
            cells = range(d, len(edges) - 1, n_depths)
            yield Scope(None, depth), np.concatenate([np.arange(edges[c], edges[c + 1]) for c in cells])

    def _by_prompt(
        self,
        prompts: Int[np.ndarray, " rows"],
        ranks: dict[str, Float[np.ndarray, " rows"]],
        y: Float[np.ndarray, " rows"],
    ) -> Iterator[tuple[str, Sums]]:
        index = prompts.astype(np.intp)

        def total(values: Float[np.ndarray, " rows"] | None = None) -> Float[np.ndarray, " prompts"]:
            return np.bincount(index, weights=values, minlength=self.n_prompts).astype(np.float64)

        n, sum_y, sum_yy = total(), total(y), total(y * y)
        for which, x in ranks.items():
            yield which, np.stack([n, total(x), sum_y, total(x * x), sum_yy, total(x * y)], axis=1)


def _unless_all(has: Bool[np.ndarray, " nodes"]) -> Bool[np.ndarray, " nodes"] | None:
    return None if has.all() else has


def _narrowed(rows: Rows, has: Bool[np.ndarray, " nodes"]) -> Int[np.ndarray, " rows"]:
    """The rows that have the outcome."""
    if isinstance(rows, slice):
        return np.asarray(np.flatnonzero(has[rows]) + rows.start)
    return np.asarray(rows[has[rows]])
