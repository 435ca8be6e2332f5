"""Trees that follow the draft's confidence: dynamic (EAGLE-2) and opt (OPT-Tree).

Both score a node by V, the product of the draft's model probabilities along its path, expand promising nodes level by
level, one draft pass a level, and keep the best nodes by V. A parent's V is never below its child's, so what is kept
is a tree. Since the kept siblings depend on their probabilities, such trees are lossless only for deterministic
candidates (`pairing`). Boundary: runs the draft model and chooses nodes; `draft` does the same for fixed shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from acceptlab.draft import Proposal, root_pass
from acceptlab.models import LanguageModel
from acceptlab.passes import Pass, Passes
from acceptlab.top import top
from acceptlab.tree import Adaptive, Tree


@dataclass
class _Candidates:
    """All nodes considered in a step, parents before children; `expanded` are those that the draft ran, in order."""

    log_value: list[float] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    token: list[int] = field(default_factory=list)
    depth: list[int] = field(default_factory=list)
    expanded: list[int] = field(default_factory=list)

    def add(
        self, parents: Sequence[int], log_probs: Float[np.ndarray, "rows k"], ids: Int[np.ndarray, "rows k"]
    ) -> None:
        """Add the children of some nodes (-1 the root); tokens that the draft excludes are no candidates."""
        for row, parent in enumerate(parents):
            above = self.log_value[parent] if parent >= 0 else 0.0
            depth = self.depth[parent] + 1 if parent >= 0 else 1
            for log_prob, token in zip(log_probs[row], ids[row], strict=True):
                if np.isfinite(log_prob):
                    self.log_value.append(above + float(log_prob))
                    self.parent.append(parent)
                    self.token.append(int(token))
                    self.depth.append(depth)

    def best(self, n_nodes: int) -> list[int]:
        """The best nodes by V; on equal V the one added first, so that a parent comes before its child."""
        order = np.argsort(-np.asarray(self.log_value), kind="stable")
        return sorted(int(node) for node in order[:n_nodes])

    def value(self, nodes: Sequence[int]) -> float:
        """Sum of V: what OPT-Tree takes for the expected accepted length of a set of nodes."""
        return float(np.exp(np.asarray(self.log_value)[list(nodes)]).sum()) if nodes else 0.0


def grow_adaptive(draft: LanguageModel, committed: Sequence[int], shape: Adaptive) -> Passes[Proposal]:
    """Draft an adaptive tree below the last committed token: a generator of passes, one a level.

    dynamic: each level expands its `topk` best nodes with `topk` children each, `depth` levels deep; the global best
    `nodes` stay (EAGLE-2, arXiv 2406.16858, section 4). opt: every node of the last level that is among the best
    `nodes` so far is expanded; it goes deeper while the sum of V over the best `nodes` grows by more than
    `threshold` (OPT-Tree, arXiv 2406.17276, algorithm 1).

    Args:
        draft: the draft model; its cache must be a dense prefix of `committed`, at least one token short.
        committed: the text so far, prompt included.
        shape: which tree, and its parameters.
    """
    found = _Candidates()
    logits = [(yield root_pass(draft, committed))[-1:]]
    width = shape.nodes if shape.topk is None else shape.topk
    found.add([-1], *_top(logits[0], width))
    level = list(range(len(found.token)))
    total = found.value(found.best(shape.nodes))
    for depth in range(1, shape.depth):
        frontier = _frontier(found, level, shape)
        if not frontier:
            break
        logits.append((yield _expand(draft, committed, found, frontier, depth)))
        first = len(found.token)
        found.add(frontier, *_top(logits[-1], width))
        level = list(range(first, len(found.token)))
        grown = found.value(found.best(shape.nodes))
        if shape.threshold is not None and grown - total <= shape.threshold:
            break
        total = grown
    return _assemble(found, torch.cat(logits), shape.nodes)


def _top(logits: Float[Tensor, "rows vocab"], width: int) -> tuple[np.ndarray, np.ndarray]:
    """Log probabilities and ids of the best tokens of every row, equal ones by lower id."""
    log_probs = torch.log_softmax(logits, dim=-1, dtype=torch.float64)
    values, ids = top(log_probs, min(width, logits.shape[1]))
    on_cpu, id_rows = values.cpu().numpy(), ids.cpu().numpy()
    order = np.lexsort((id_rows, -on_cpu), axis=-1)
    return np.take_along_axis(on_cpu, order, -1), np.take_along_axis(id_rows, order, -1)


def _frontier(found: _Candidates, level: list[int], shape: Adaptive) -> list[int]:
    if shape.topk is not None:
        order = np.argsort(-np.asarray([found.log_value[node] for node in level]), kind="stable")
        return sorted(level[int(i)] for i in order[: shape.topk])
    best = set(found.best(shape.nodes))
    return [node for node in level if node in best]


def _expand(
    draft: LanguageModel, committed: Sequence[int], found: _Candidates, frontier: list[int], depth: int
) -> Pass:
    """The draft pass over the nodes to expand; each sees the text and its own ancestors."""
    found.expanded.extend(frontier)
    slot_of = {node: slot for slot, node in enumerate(found.expanded)}
    visible = torch.zeros((len(frontier), len(committed) + len(found.expanded)), dtype=torch.bool)
    visible[:, : len(committed)] = True
    for row, node in enumerate(frontier):
        at = node
        while at >= 0:
            visible[row, len(committed) + slot_of[at]] = True
            at = found.parent[at]
    tokens = torch.tensor([found.token[node] for node in frontier])
    positions = torch.full((len(frontier),), len(committed) - 1 + depth)
    return Pass(draft, tokens, positions, visible)


def _assemble(found: _Candidates, logits: Float[Tensor, "contexts vocab"], n_nodes: int) -> Proposal:
    """Number the kept nodes level by level, siblings by falling V, and keep the contexts that are theirs."""
    kept = sorted(found.best(n_nodes), key=lambda node: found.depth[node])
    new_index = {-1: -1, **{node: index for index, node in enumerate(kept)}}
    rows = [0, *(slot + 1 for slot, node in enumerate(found.expanded) if node in new_index)]
    nodes = [-1, *(node for node in found.expanded if node in new_index)]
    has_distribution = bool(torch.isfinite(logits[0]).any())
    picked = torch.tensor(rows if has_distribution else [], dtype=torch.int64, device=logits.device)
    here = logits[picked]
    return Proposal(
        tree=Tree(tuple(new_index[found.parent[node]] for node in kept)),
        token_ids=torch.tensor([found.token[node] for node in kept], dtype=torch.int64),
        context_rows=np.asarray([new_index[node] + 1 for node in nodes], dtype=np.int64)[: len(picked)],
        draft_logits=here,
        draft_probs=None,
        cached_nodes=tuple(new_index.get(node, -1) for node in found.expanded),
    )
