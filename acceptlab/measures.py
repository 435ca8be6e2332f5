"""What the records say about a context and a node, in one vectorised pass on the models' device.

Boundary: logits and probabilities in, numpy columns of `records.CONTEXTS` and `records.NODES` out, in full
precision: the store rounds. No models, no files. Two families, never mixed: the *model distribution* is the softmax
of the logits; the *sampling distribution* is what temperature, top-k and top-p leave of it (`sampling.warp`). The
arithmetic is float64; `theory.divergences` holds the plain numpy forms that the tests compare with.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from acceptlab.errors import RunError, UsageError
from acceptlab.records import CERTIFICATE_RULES, MEASURES, TOP_N
from acceptlab.rules import Rule, parse_rule
from acceptlab.sampling import where_float64
from acceptlab.theory.certificates import thresholds_from_head
from acceptlab.top import top
from acceptlab.tree import Tree

HEAD = 64
"""Most probable tokens that go to the CPU: enough for almost every exact certificate threshold."""

Columns = dict[str, Any]
_TARGET, _DRAFT = 0, 1


@dataclass(frozen=True)
class Contexts:
    """Both models in the contexts of one step, row by row: the inputs of all measures.

    The logits give the model distributions. `target_probs` and `draft_probs` are sampling distributions (float64);
    with `unwarped` (temperature 1, nothing cut off) they are the same, and None saves making them.
    """

    target_logits: Float[Tensor, "contexts vocab"]
    draft_logits: Float[Tensor, "contexts vocab"]
    target_probs: Float[Tensor, "contexts vocab"] | None
    draft_probs: Float[Tensor, "contexts vocab"] | None
    unwarped: bool = False

    def __post_init__(self) -> None:
        if not self.unwarped and (self.target_probs is None or self.draft_probs is None):
            raise UsageError("warped contexts need both sampling distributions")


@dataclass(frozen=True)
class Measured:
    """Columns of the contexts table, and of the nodes table where they come from full distributions."""

    contexts: Columns
    nodes: Columns


@dataclass(frozen=True)
class _Head:
    """The most probable tokens of every context on the CPU, most probable first, lower ids first among equals.

    `certain` says how many of them are ranked for certain: a logit that ties with the last one may also stand outside.
    """

    logits: Float[np.ndarray, "contexts head"]
    ids: Int[np.ndarray, "contexts head"]
    certain: Int[np.ndarray, " contexts"]


@dataclass(frozen=True)
class _Sums:
    """What needs every token of the vocabulary: scalars of the contexts, and probabilities of single tokens.

    `head_probs` (contexts, 2, head) and `node_probs` (nodes, 2) hold model probabilities, the target's first;
    `rest` is the target's mass outside of its head.
    """

    scalars: Columns
    head_probs: Float[np.ndarray, "contexts 2 head"]
    rest: Float[np.ndarray, " contexts"]
    node_probs: Float[np.ndarray, "nodes 2"]


@lru_cache(maxsize=1)
def certificate_rules() -> tuple[Rule, ...]:
    """The rules of `CERTIFICATE_RULES`, parsed."""
    return tuple(parse_rule(text) for text in CERTIFICATE_RULES)


@torch.inference_mode()
def measure(
    contexts: Contexts, parent_index: Int[np.ndarray, " nodes"], token_ids: Int[Tensor, " nodes"], tree: Tree
) -> Measured:
    """Measure every context, and every node in the context of its parent.

    Args:
        contexts: both models' logits and sampling distributions.
        parent_index: row of `contexts` that holds the distribution from which each node was drafted.
        token_ids: the drafted tokens, on the CPU.
        tree: the drafted tree, for the products along its paths.

    Raises:
        RunError: logits that are nan or infinite.
    """
    logits = (where_float64(contexts.target_logits), where_float64(contexts.draft_logits))
    heads = tuple(_head(each) for each in logits)
    sums = _full_sums(contexts, logits, heads, parent_index, token_ids)
    columns = sums.scalars
    for side, name in ((_TARGET, "target"), (_DRAFT, "draft")):
        probs = sums.head_probs[:, side]
        columns[f"{name}_margin"] = probs[:, 0] - probs[:, 1] if probs.shape[1] > 1 else probs[:, 0]
        columns[f"{name}_top_prob"] = probs[:, 0]
        columns[f"{name}_argmax"] = heads[side].ids[:, 0]
        columns[f"{name}_token_ids"] = heads[side].ids[:, :TOP_N]
        columns[f"{name}_probs"] = probs[:, :TOP_N]
    columns["thresholds_forward"], columns["thresholds_reverse"] = thresholds_from_head(
        sums.head_probs[:, _TARGET],
        columns["target_entropy"],
        logits[_TARGET].shape[1],
        lambda rows: _softmax_rows(logits[_TARGET], rows),
        certificate_rules(),
        rest_sum=sums.rest,
    )
    tokens = token_ids.numpy()
    ranks = [_ranks(logits[side], heads[side], parent_index, tokens) for side in (_DRAFT, _TARGET)]
    node_probs = _sampling_probs(contexts, sums, parent_index, token_ids)
    return Measured(columns, _node_columns(columns, parent_index, tree, node_probs, ranks))


def _head(logits: Float[Tensor, "contexts vocab"]) -> _Head:
    values, ids = top(logits, min(HEAD, logits.shape[1]))
    on_cpu, id_rows = values.cpu().numpy(), ids.cpu().numpy()
    order = np.lexsort((id_rows, -on_cpu), axis=-1)
    certain = (on_cpu > on_cpu[:, -1:]).sum(axis=1)
    return _Head(np.take_along_axis(on_cpu, order, -1), np.take_along_axis(id_rows, order, -1), certain)


@lru_cache(maxsize=4)
def _workspace(n_rows: int, vocab: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Buffers of a block: the logits and the weights of both models, and one more row each."""
    both = torch.empty((n_rows, 2, vocab), dtype=torch.float64, device=device)
    return both, torch.empty_like(both), torch.empty((n_rows, vocab), dtype=torch.float64, device=device)


def _full_sums(
    contexts: Contexts,
    logits: tuple[Tensor, ...],
    heads: tuple[_Head, ...],
    parent_index: Int[np.ndarray, " nodes"],
    token_ids: Int[Tensor, " nodes"],
) -> _Sums:
    """Go over the rows block by block: on a CPU one row a block, so that what is made of it stays in its cache."""
    n_rows, vocab = logits[_TARGET].shape
    device = logits[_TARGET].device
    size = 1 if device.type == "cpu" else max(n_rows, 1)
    tops = torch.from_numpy(np.stack([head.logits[:, :1] for head in heads], axis=1)).to(device).double()
    if not bool(tops.isfinite().all()):
        raise RunError("a model gave logits that are nan or infinite: try --dtype float32")
    ids = torch.from_numpy(np.stack([head.ids for head in heads], axis=1)).to(device)
    node_probs = torch.empty((len(parent_index), 2), dtype=torch.float64, device=device)
    blocks = []
    for start in range(0, n_rows, size):
        block = slice(start, min(start + size, n_rows))
        weights, totals, scalars = _block_sums(contexts, logits, tops, block, _workspace(size, vocab, device))
        nodes = torch.from_numpy(np.flatnonzero((parent_index >= block.start) & (parent_index < block.stop)))
        rows = torch.from_numpy(parent_index)[nodes] - block.start
        node_probs[nodes] = weights[rows.to(device), :, token_ids[nodes].to(device)] / totals[rows.to(device)]
        head_probs = weights.gather(2, ids[block]) / totals[..., None]
        weights[:, _TARGET].scatter_(1, ids[block, _TARGET], 0.0)
        rest = weights[:, _TARGET].sum(dim=-1) / totals[:, _TARGET]
        blocks.append((torch.stack([*scalars.values(), rest]), head_probs))
    stacked = torch.cat([block[0] for block in blocks], dim=1).cpu().numpy()
    head_rows = torch.cat([block[1] for block in blocks]).cpu().numpy()
    return _Sums(dict(zip(scalars, stacked, strict=False)), head_rows, stacked[-1], node_probs.cpu().numpy())


def _block_sums(
    contexts: Contexts,
    logits: tuple[Tensor, ...],
    tops: Float[Tensor, "contexts 2 1"],
    block: slice,
    workspace: tuple[Tensor, Tensor, Tensor],
) -> tuple[Float[Tensor, "rows 2 vocab"], Float[Tensor, "rows 2"], dict[str, Tensor]]:
    """Softmax weights of both models (a view of the workspace), their totals, and the scalars of some contexts.

    With the largest logit taken off, log prob = logit - log total: every expectation of a log probability is one of
    logits less a number a row, and both divergences are differences of such expectations, with an absolute rounding
    error of some 1e-14 nats.
    """
    n_rows = block.stop - block.start
    shifted, weights, spare = (buffer[:n_rows] for buffer in workspace)
    for side in (_TARGET, _DRAFT):
        shifted[:, side].copy_(logits[side][block])
    torch.exp(shifted.sub_(tops[block]), out=weights)
    totals = weights.sum(dim=-1)
    log_totals = totals.log()
    expected = _expected(shifted, weights) / totals[:, None]  # [context, whose logits, under which model]
    entropies = [log_totals[:, side] - expected[:, side, side] for side in (_TARGET, _DRAFT)]
    cross = [log_totals[:, 1 - side] - expected[:, 1 - side, side] for side in (_TARGET, _DRAFT)]
    torch.mul(weights[:, _TARGET], weights[:, _DRAFT], out=spare)
    affinity = spare.sqrt_().sum(dim=-1) / totals.prod(dim=-1).sqrt_()
    if contexts.unwarped:
        share = totals[:, _DRAFT] / totals[:, _TARGET]
        torch.mul(weights[:, _TARGET], share[:, None], out=spare)
        overlap = torch.minimum(spare, weights[:, _DRAFT], out=spare).sum(dim=-1) / totals[:, _DRAFT]
    else:
        assert contexts.target_probs is not None
        assert contexts.draft_probs is not None
        target_probs, draft_probs = (
            p[block].to(spare.device) for p in (contexts.target_probs, contexts.draft_probs)
        )
        overlap = torch.minimum(target_probs, draft_probs, out=spare).sum(dim=-1)
    scalars = {
        "target_entropy": entropies[_TARGET],
        "draft_entropy": entropies[_DRAFT],
        "overlap": overlap.clamp_(max=1.0),
        "kl_target_draft": (cross[_TARGET] - entropies[_TARGET]).clamp_(min=0.0),
        "kl_draft_target": (cross[_DRAFT] - entropies[_DRAFT]).clamp_(min=0.0),
        "renyi_half": -2.0 * affinity.clamp_(max=1.0).log(),
    }
    return weights, totals, scalars


def _expected(
    shifted: Float[Tensor, "rows 2 vocab"], weights: Float[Tensor, "rows 2 vocab"]
) -> Float[Tensor, "rows 2 2"]:
    """Sum of each model's logits under each model's weights; -inf under weight 0 counts as 0."""
    sums = torch.bmm(shifted, weights.transpose(1, 2))
    if bool(sums.isnan().any()):
        products = shifted[:, :, None] * weights[:, None]
        sums = torch.where(weights[:, None] > 0, products, 0.0).sum(dim=-1)
    return sums


def _softmax_rows(
    logits: Float[Tensor, "contexts vocab"], rows: Int[np.ndarray, " rows"]
) -> Float[np.ndarray, "rows vocab"]:
    picked = logits[torch.from_numpy(rows).to(logits.device)]
    probs: Float[np.ndarray, "rows vocab"] = torch.softmax(picked, dim=-1, dtype=torch.float64).cpu().numpy()
    return probs


def _sampling_probs(
    contexts: Contexts, sums: _Sums, parent_index: Int[np.ndarray, " nodes"], token_ids: Int[Tensor, " nodes"]
) -> tuple[Float[np.ndarray, " nodes"], Float[np.ndarray, " nodes"]]:
    """The draft's and the target's sampling probability of every node's token; given distributions come first."""
    found = []
    for side, given in ((_DRAFT, contexts.draft_probs), (_TARGET, contexts.target_probs)):
        if given is None:
            found.append(sums.node_probs[:, side])
        else:
            rows, tokens = torch.from_numpy(parent_index).to(given.device), token_ids.to(given.device)
            found.append(given[rows, tokens].cpu().numpy())
    return found[0], found[1]


def _node_columns(
    columns: Columns,
    parent_index: Int[np.ndarray, " nodes"],
    tree: Tree,
    probs: tuple[Float[np.ndarray, " nodes"], Float[np.ndarray, " nodes"]],
    ranks: list[Int[np.ndarray, " nodes"]],
) -> Columns:
    draft_prob, target_prob = probs
    ratio = np.full(len(draft_prob), np.nan)
    np.divide(target_prob, draft_prob, out=ratio, where=draft_prob > 0)
    path = draft_prob.copy()
    for node, parent in enumerate(tree.parents):
        if parent >= 0:
            path[node] *= path[parent]
    draft_rank, target_rank = ranks
    return {
        "draft_prob": draft_prob,
        "target_prob": target_prob,
        "accept_ratio": np.minimum(1.0, ratio),
        "draft_rank": draft_rank,
        "target_rank": target_rank,
        "is_target_argmax": target_rank == 0,
        "path_draft_prob": path,
        **{name: columns[name][parent_index] for name in MEASURES},
    }


def _ranks(
    logits: Float[Tensor, "contexts vocab"],
    head: _Head,
    rows: Int[np.ndarray, " nodes"],
    tokens: Int[np.ndarray, " nodes"],
) -> Int[np.ndarray, " nodes"]:
    """How many tokens come before each node's token: larger logit, or the same logit and a lower id.

    Nearly every drafted token stands in the head, which is in that order; only for the others is the whole row read.
    """
    found = head.ids[rows] == tokens[:, None]
    ranks: Int[np.ndarray, " nodes"] = found.argmax(axis=1)
    outside = np.flatnonzero(~found.any(axis=1) | (ranks >= head.certain[rows]))
    for node in outside.tolist():
        row, token = logits[int(rows[node])], int(tokens[node])
        own = row[token]
        ranks[node] = int((row > own).count_nonzero() + (row[:token] == own).count_nonzero())
    return ranks
