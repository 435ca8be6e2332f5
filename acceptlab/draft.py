"""Growing a tree with the draft model: one pass a level, one transfer to the CPU a step.

Boundary: runs the draft model and chooses candidates; which tokens survive is decided in `verify`, what is committed
in `engine`. The leaves of a tree are never run through the draft model, so they are no contexts of the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from acceptlab.models import LanguageModel
from acceptlab.pairing import ProposalKind
from acceptlab.passes import Pass, Passes
from acceptlab.sampling import Warp, propose, ranked, warp
from acceptlab.tree import Tree


@dataclass(frozen=True)
class Proposal:
    """A drafted tree and what the draft model said in its contexts.

    `draft_probs` are the sampling distributions that candidates were drawn from; None where they were ranked.
    `context_rows[c]` is the context row (0 the root, i + 1 node i) of row c of `draft_logits` and `draft_probs`;
    `cached_nodes` are the nodes whose keys and values the draft's cache now holds, in slot order.
    """

    tree: Tree
    token_ids: Int[Tensor, " nodes"]
    context_rows: Int[np.ndarray, " contexts"]
    draft_logits: Float[Tensor, "contexts vocab"]
    draft_probs: Float[Tensor, "contexts vocab"] | None
    cached_nodes: tuple[int, ...]


@dataclass(frozen=True)
class _Level:
    """What the pass over one level needs, fixed by the shape."""

    nodes: tuple[int, ...]
    visible: Bool[Tensor, "rows slots"]
    depth: int


@lru_cache(maxsize=256)
def inner_levels(tree: Tree) -> tuple[_Level, ...]:
    """For every depth the nodes that have children, and which of the tree's slots each of them sees.

    The columns of `visible` are the inner nodes of the levels before, then those of this level.
    """
    levels = []
    before: list[int] = []
    for depth, nodes in enumerate(tree.levels, start=1):
        inner = tuple(node for node in nodes if tree.n_children[node + 1])
        if not inner:
            break
        rows = np.asarray(inner) + 1
        columns = np.asarray([*before, *inner]) + 1
        levels.append(_Level(inner, torch.from_numpy(tree.visible[np.ix_(rows, columns)]), depth))
        before.extend(inner)
    return tuple(levels)


def root_pass(draft: LanguageModel, committed: Sequence[int]) -> Pass:
    """The committed tokens that the draft has not seen yet; the last row's logits are those of the root."""
    start = draft.n_slots
    pending = torch.tensor(committed[start:])
    slots = torch.arange(len(committed))
    visible = slots[None, :] <= slots[start:, None]
    return Pass(draft, pending, slots[start:], visible)


def grow(
    draft: LanguageModel,
    committed: Sequence[int],
    shape: Tree,
    settings: Warp,
    kind: ProposalKind,
    uniforms: Float[np.ndarray, " nodes"],
    stop_entropy: float | None = None,
) -> Passes[Proposal]:
    """Draft a tree of a fixed shape below the last committed token.

    A generator (see `passes`): it yields one pass a level and returns the proposal.

    Args:
        draft: the draft model; its cache must be a dense prefix of `committed`, at least one token short.
        committed: the text so far, prompt included.
        shape: the wanted tree. Nodes for which the draft has no candidate are left out with all below them.
        settings: temperature and truncation of the sampling distribution.
        kind: how the candidates of a context are taken.
        uniforms: one uniform a node of the shape, for sampled candidates.
        stop_entropy: contexts whose draft entropy (model distribution, nats) is above this get no children. The
            entropy depends on the tokens drawn above a context, never on those below, so lossless rules stay so.
    """
    if shape.n_nodes == 0:
        return empty_proposal(draft)
    level_logits, level_probs, rows = [], [], [0]
    chosen = torch.full((shape.n_nodes,), -1, dtype=torch.int64, device=draft.device)
    logits = (yield root_pass(draft, committed))[-1:]
    level_rows: tuple[int, ...] = (0,)
    for level in (*inner_levels(shape), None):
        probs = None if kind is ProposalKind.RANKED else warp(logits, settings)
        level_logits.append(logits)
        if probs is not None:
            level_probs.append(probs)
        _choose_level(shape, level_rows, kind, logits, probs, uniforms, chosen)
        if stop_entropy is not None:
            _stop_level(shape, level_rows, logits, stop_entropy, chosen)
        if level is None or (stop_entropy is not None and bool((chosen[list(level.nodes)] < 0).all())):
            break
        prefix = torch.ones((len(level.nodes), len(committed)), dtype=torch.bool)
        positions = torch.full((len(level.nodes),), len(committed) - 1 + level.depth)
        # a missing candidate runs as token 0 and is pruned below: that keeps the loop free of transfers
        tokens = chosen[list(level.nodes)].clamp(min=0)
        logits = yield Pass(draft, tokens, positions, torch.cat([prefix, level.visible], dim=1))
        level_rows = tuple(node + 1 for node in level.nodes)
        rows.extend(level_rows)
    full = Proposal(
        tree=shape,
        token_ids=chosen.cpu(),
        context_rows=np.asarray(rows),
        draft_logits=torch.cat(level_logits),
        draft_probs=torch.cat(level_probs) if level_probs else None,
        cached_nodes=tuple(row - 1 for row in rows[1:]),
    )
    return full if bool((full.token_ids >= 0).all()) else _pruned(full)


def _choose_level(
    shape: Tree,
    level_rows: tuple[int, ...],
    kind: ProposalKind,
    logits: Tensor,
    probs: Tensor | None,
    uniforms: Float[np.ndarray, " nodes"],
    chosen: Tensor,
) -> None:
    """Write the candidates of one level into `chosen` (this function's own buffer of the step)."""
    families = [shape.children[row] for row in level_rows]
    widest = max(len(family) for family in families)
    n_children = torch.tensor([len(family) for family in families])
    if probs is None:
        ids = ranked(logits, n_children, floor=-torch.inf)
    else:
        level_uniforms = np.zeros((len(families), widest))
        for index, family in enumerate(families):
            level_uniforms[index, : len(family)] = uniforms[list(family)]
        ids = propose(kind, logits, probs, torch.from_numpy(level_uniforms), n_children)
    for index, family in enumerate(families):
        chosen[list(family)] = ids[index, : len(family)]


def _stop_level(
    shape: Tree, level_rows: tuple[int, ...], logits: Tensor, stop_entropy: float, chosen: Tensor
) -> None:
    """Take back the candidates of contexts in which the draft is too unsure."""
    probs = torch.softmax(logits, dim=-1, dtype=torch.float64)
    for row, entropy in zip(level_rows, torch.special.entr(probs).sum(-1).tolist(), strict=True):
        if entropy > stop_entropy:
            chosen[list(shape.children[row])] = -1


def empty_proposal(draft: LanguageModel) -> Proposal:
    """A proposal without nodes: the step is a plain target step."""
    nothing = torch.empty((0, draft.vocab_size), device=draft.device)
    none = torch.empty((0,), dtype=torch.int64)
    return Proposal(Tree(()), none, np.empty(0, dtype=np.int64), nothing, None, ())


def _pruned(full: Proposal) -> Proposal:
    """Leave out the nodes without a candidate, all below them, and the contexts of those."""
    tree = full.tree
    alive = (full.token_ids >= 0).numpy().copy()
    for node, parent in enumerate(tree.parents):
        alive[node] &= parent < 0 or alive[parent]
    renumbered = np.cumsum(alive) - 1
    kept = np.flatnonzero(alive)
    parents = tuple(-1 if tree.parents[i] < 0 else int(renumbered[tree.parents[i]]) for i in kept)
    row_alive = np.concatenate([[True], alive])
    has_distribution = torch.isfinite(full.draft_logits).any(dim=1).cpu().numpy()
    contexts = np.flatnonzero(row_alive[full.context_rows] & has_distribution)
    rows = full.context_rows[contexts]
    picked = torch.from_numpy(contexts).to(full.draft_logits.device)
    return Proposal(
        tree=Tree(parents),
        token_ids=full.token_ids[torch.from_numpy(kept)],
        context_rows=np.where(rows > 0, np.concatenate([[0], renumbered + 1])[rows], 0),
        draft_logits=full.draft_logits[picked],
        draft_probs=None
        if full.draft_probs is None
        else full.draft_probs[picked.to(full.draft_probs.device)],
        cached_nodes=tuple(int(renumbered[n]) if alive[n] else -1 for n in full.cached_nodes),
    )
