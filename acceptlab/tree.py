"""Tree shapes: parsing, and the fixed structure that drafting and verification share.

No probabilities of a run and no models here. A tree hangs below a root (the last committed token), which is not a
node itself and is written as parent -1. Rows of per-context arrays have the root first: row 0 is the root, row
i + 1 is node i.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int

from acceptlab.errors import UsageError

MAX_NODES = 4096


@dataclass(frozen=True)
class Tree:
    """A rooted ordered tree over drafted nodes.

    `parents[i]` is the parent of node i (-1 the root) and is smaller than i; siblings appear in the order in which
    the rule tries them (`child_rank`).
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        for node, parent in enumerate(self.parents):
            if not -1 <= parent < node:
                raise UsageError(
                    f"tree node {node} has parent {parent}: a parent must come before its children"
                )

    @property
    def n_nodes(self) -> int:
        """Number of drafted nodes."""
        return len(self.parents)

    @cached_property
    def depths(self) -> Int[np.ndarray, " nodes"]:
        """Depth of every node; a child of the root has depth 1."""
        depths = np.zeros(self.n_nodes, dtype=np.int64)
        for node, parent in enumerate(self.parents):
            depths[node] = 1 if parent < 0 else depths[parent] + 1
        return depths

    @cached_property
    def child_ranks(self) -> Int[np.ndarray, " nodes"]:
        """Position of every node among its siblings, from 0."""
        seen: dict[int, int] = {}
        ranks = np.zeros(self.n_nodes, dtype=np.int64)
        for node, parent in enumerate(self.parents):
            ranks[node] = seen.get(parent, 0)
            seen[parent] = int(ranks[node]) + 1
        return ranks

    @cached_property
    def parent_rows(self) -> Int[np.ndarray, " nodes"]:
        """Context row of every node's parent: 0 the root, i + 1 node i."""
        return np.asarray(self.parents, dtype=np.int64).reshape(-1) + 1

    @cached_property
    def n_children(self) -> Int[np.ndarray, " contexts"]:
        """Number of children of every context row (root first)."""
        return np.bincount(self.parent_rows, minlength=self.n_nodes + 1)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Children of every context row (root first), in child_rank order."""
        lists: list[list[int]] = [[] for _ in range(self.n_nodes + 1)]
        for node, row in enumerate(self.parent_rows):
            lists[int(row)].append(node)
        return tuple(tuple(nodes) for nodes in lists)

    @property
    def depth(self) -> int:
        """Depth of the deepest node; 0 for an empty tree."""
        return int(self.depths.max()) if self.parents else 0

    @cached_property
    def visible(self) -> Bool[np.ndarray, "contexts contexts"]:
        """Entry [i, j]: may row i attend to row j, that is, is j an ancestor of i or i itself (root first)."""
        mask = np.eye(self.n_nodes + 1, dtype=bool)
        for node, row in enumerate(self.parent_rows):
            mask[node + 1] |= mask[row]
        return mask

    @cached_property
    def levels(self) -> tuple[tuple[int, ...], ...]:
        """Nodes by depth: `levels[0]` holds the root's children."""
        return tuple(
            tuple(int(i) for i in np.flatnonzero(self.depths == level + 1)) for level in range(self.depth)
        )

    def path(self, node: int) -> tuple[int, ...]:
        """Nodes from the root's child down to `node`, inclusive; empty for -1."""
        nodes: list[int] = []
        while node >= 0:
            nodes.append(node)
            node = self.parents[node]
        return tuple(reversed(nodes))


def from_branches(branches: Sequence[int]) -> Tree:
    """The tree in which every node at depth d has `branches[d]` children (level order)."""
    parents: list[int] = []
    level = [-1]
    for branch in branches:
        following = []
        for parent in level:
            for _ in range(branch):
                following.append(len(parents))
                parents.append(parent)
            if len(parents) > MAX_NODES:
                raise UsageError(f"the tree has more than {MAX_NODES} nodes: lower its depth or branching")
        level = following
    return Tree(tuple(parents))


@dataclass(frozen=True)
class Adaptive:
    """A tree that follows the draft's confidence: at most `nodes` nodes, at most `depth` levels.

    dynamic expands the `topk` best nodes of a level (EAGLE-2); opt has no `topk` and deepens while the sum of path
    probabilities grows by more than `threshold` (OPT-Tree).
    """

    nodes: int
    depth: int
    topk: int | None = None
    threshold: float | None = None


@dataclass(frozen=True)
class TreeShape:
    """A parsed `--tree`; `text` is the canonical form that runs store. Either `static` or `adaptive` is set."""

    text: str
    kind: str
    static: Tree | None = None
    adaptive: Adaptive | None = None

    @property
    def depth(self) -> int:
        """Largest depth that a step may reach."""
        if self.static is not None:
            return self.static.depth
        return self.adaptive.depth if self.adaptive is not None else 0


_GRAMMAR = (
    "chain:K, kary:depth=D,branch=B, branches:4,2,1, dynamic:nodes=N,depth=D,topk=K, opt:nodes=N,threshold=T "
    "or file:tree.json"
)
_OPT_DEPTH = 16
"""Deepest opt tree; the threshold ends it long before."""


def parse_tree(text: str) -> TreeShape:
    """Read a static `--tree` value.

    Raises:
        UsageError: unknown shape, malformed or missing parameter, unreadable file.
    """
    kind, _, rest = text.strip().partition(":")
    if kind == "chain":
        length = _whole(text, rest)
        return TreeShape(f"chain:{length}", kind, from_branches([1] * length))
    if kind == "kary":
        pairs = _keyed(text, rest, "kary:depth=3,branch=2")
        depth, branch = _whole(text, pairs["depth"]), _whole(text, pairs["branch"])
        return TreeShape(f"kary:depth={depth},branch={branch}", kind, from_branches([branch] * depth))
    if kind == "branches":
        branches = [_whole(text, part) for part in rest.split(",")]
        return TreeShape("branches:" + ",".join(map(str, branches)), kind, from_branches(branches))
    if kind == "file":
        return TreeShape(f"file:{rest}", kind, _from_file(Path(rest)))
    if kind in {"dynamic", "opt"}:
        return _adaptive(text, kind, rest)
    raise UsageError(f"unknown tree '{text}': use {_GRAMMAR}")


def _adaptive(text: str, kind: str, rest: str) -> TreeShape:
    if kind == "dynamic":
        pairs = _keyed(text, rest, "dynamic:nodes=16,depth=5,topk=4")
        nodes, depth, topk = (_whole(text, pairs[name]) for name in ("nodes", "depth", "topk"))
        return TreeShape(
            f"dynamic:nodes={nodes},depth={depth},topk={topk}", kind, adaptive=Adaptive(nodes, depth, topk)
        )
    pairs = _keyed(text, rest, "opt:nodes=16,threshold=0.1")
    nodes = _whole(text, pairs["nodes"])
    try:
        threshold = float(pairs["threshold"])
    except ValueError:
        threshold = -1.0
    if not 0 <= threshold < nodes:
        raise UsageError(
            f"tree '{text}': the threshold '{pairs['threshold']}' is not a number from 0 to {nodes}"
        )
    shape = Adaptive(nodes, min(nodes, _OPT_DEPTH), threshold=threshold)
    return TreeShape(f"opt:nodes={nodes},threshold={threshold:g}", kind, adaptive=shape)


def _keyed(text: str, rest: str, example: str) -> dict[str, str]:
    """Read `name=value,name=value` with the names of the example."""
    pairs = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    wanted = [part.partition("=")[0] for part in example.partition(":")[2].split(",")]
    if set(pairs) != set(wanted):
        raise UsageError(f"tree '{text}' needs {' and '.join(wanted)}: write, for example, {example}")
    return pairs


def _whole(text: str, value: str) -> int:
    if not value.strip().isdecimal() or int(value) < 1 or int(value) > MAX_NODES:
        raise UsageError(f"tree '{text}': '{value}' is not a whole number from 1 to {MAX_NODES} ({_GRAMMAR})")
    return int(value)


def _from_file(path: Path) -> Tree:
    """Read `{"parents": [-1, -1, 0, ...]}`: the parent of every node, -1 for the root."""
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UsageError(f"cannot read the tree file '{path}': {error.strerror}") from None
    except ValueError as error:
        raise UsageError(
            f"tree file '{path}' is not JSON ({error}); write {{\"parents\": [-1, 0, ...]}}"
        ) from None
    parents = content.get("parents") if isinstance(content, dict) else None
    if not isinstance(parents, list) or not parents or not all(type(p) is int for p in parents):
        raise UsageError(
            f"tree file '{path}' needs a key 'parents' with a list of whole numbers, -1 for the root"
        )
    if len(parents) > MAX_NODES:
        raise UsageError(f"tree file '{path}' has {len(parents)} nodes, more than {MAX_NODES}")
    return Tree(tuple(parents))
