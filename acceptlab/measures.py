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

from acceptlab.records import CERTIFICATE_RULES, MEASURES, TOP_N
from acceptlab.rules import Rule, parse_rule
from acceptlab.theory.certificates import thresholds_from_head
from acceptlab.tree import Tree

HEAD = 64
"""Most probable tokens that go to the CPU: enough for almost every exact certificate threshold."""

Columns = dict[str, Any]


@dataclass(frozen=True)
class Contexts:
    """Both models in the contexts of one step, row by row: the inputs of all measures.

    `target_probs` and `draft_probs` are sampling distributions (float64); the logits give the model distributions.
    `unwarped` says that both are the same (temperature 1, nothing cut off), which saves two softmaxes.
    """

    target_logits: Float[Tensor, "contexts vocab"]
    draft_logits: Float[Tensor, "contexts vocab"]
    target_probs: Float[Tensor, "contexts vocab"]
    draft_probs: Float[Tensor, "contexts vocab"]
    unwarped: bool = False


@dataclass(frozen=True)
class Measured:
    """Columns of the contexts table, and of the nodes table where they come from full distributions."""

    contexts: Columns
    nodes: Columns


@lru_cache(maxsize=1)
def certificate_rules() -> tuple[Rule, ...]:
    """The rules of `CERTIFICATE_RULES`, parsed."""
    return tuple(parse_rule(text) for text in CERTIFICATE_RULES)


def measure(
    contexts: Contexts, parent_index: Int[np.ndarray, " nodes"], token_ids: Int[Tensor, " nodes"], tree: Tree
) -> Measured:
    """Measure every context, and every node in the context of its parent.

    Args:
        contexts: both models' logits and sampling distributions.
        parent_index: row of `contexts` that holds the distribution from which each node was drafted.
        token_ids: the drafted tokens, on the CPU.
        tree: the drafted tree, for the products along its paths.
    """
    target = _model_probs(contexts.target_logits, contexts.target_probs, contexts.unwarped)
    draft = _model_probs(contexts.draft_logits, contexts.draft_probs, contexts.unwarped)
    columns = _on_cpu(_scalars(contexts, target, draft))
    target_head, target_ids, target_edge = _head(contexts.target_logits, target)
    draft_head, draft_ids, draft_edge = _head(contexts.draft_logits, draft)
    for name, head in (("target", target_head), ("draft", draft_head)):
        columns[f"{name}_margin"] = head[:, 0] - head[:, 1] if head.shape[1] > 1 else head[:, 0]
        columns[f"{name}_top_prob"] = head[:, 0]
    forward, reverse = thresholds_from_head(
        target_head,
        columns["target_entropy"],
        contexts.target_logits.shape[1],
        lambda rows: target[torch.from_numpy(rows).to(target.device)].cpu().numpy(),
        certificate_rules(),
    )
    columns.update(
        target_argmax=target_ids[:, 0],
        draft_argmax=draft_ids[:, 0],
        target_token_ids=target_ids[:, :TOP_N],
        draft_token_ids=draft_ids[:, :TOP_N],
        target_probs=target_head[:, :TOP_N],
        draft_probs=draft_head[:, :TOP_N],
        thresholds_forward=forward,
        thresholds_reverse=reverse,
    )
    ranks = [
        _ranks(logits, ids, edge, parent_index, token_ids.numpy())
        for logits, ids, edge in (
            (contexts.draft_logits, draft_ids, draft_edge),
            (contexts.target_logits, target_ids, target_edge),
        )
    ]
    nodes = _node_columns(contexts, columns, parent_index, token_ids, tree, ranks)
    return Measured(columns, nodes)


def _model_probs(logits: Tensor, sampling_probs: Tensor, unwarped: bool) -> Float[Tensor, "contexts vocab"]:
    return sampling_probs if unwarped else torch.softmax(logits, dim=-1, dtype=torch.float64)


def _scalars(contexts: Contexts, target: Tensor, draft: Tensor) -> dict[str, Tensor]:
    """Measures that need every token of the vocabulary, one number a context.

    log prob = logit - log sum exp, so every expectation of a log probability is one of logits less a number a row;
    both divergences are differences of such expectations, with an absolute rounding error of some 1e-14 nats.
    """
    target_logits, draft_logits = contexts.target_logits.double(), contexts.draft_logits.double()
    target_mass, draft_mass = _log_mass(target_logits, target), _log_mass(draft_logits, draft)
    target_entropy = target_mass - _expected(target, target_logits)
    draft_entropy = draft_mass - _expected(draft, draft_logits)
    target_cross = draft_mass - _expected(target, draft_logits)
    draft_cross = target_mass - _expected(draft, target_logits)
    return {
        "target_entropy": target_entropy,
        "draft_entropy": draft_entropy,
        "overlap": torch.minimum(contexts.target_probs, contexts.draft_probs).sum(-1).clamp(max=1.0),
        "kl_target_draft": (target_cross - target_entropy).clamp(min=0.0),
        "kl_draft_target": (draft_cross - draft_entropy).clamp(min=0.0),
        "renyi_half": -2.0 * (target * draft).sqrt_().sum(-1).clamp_(max=1.0).log(),
    }


def _log_mass(logits: Float[Tensor, "contexts vocab"], probs: Float[Tensor, "contexts vocab"]) -> Tensor:
    """Log sum exp of every row, read off its most probable token."""
    top = probs.argmax(dim=-1, keepdim=True)
    return (logits.gather(1, top) - probs.gather(1, top).log())[:, 0]


def _expected(probs: Float[Tensor, "contexts vocab"], values: Float[Tensor, "contexts vocab"]) -> Tensor:
    """Expectation of `values`, row by row; a value of -inf under probability 0 counts as 0."""
    sums: Tensor = torch.linalg.vecdot(probs, values)
    if bool(sums.isnan().any()):
        sums = torch.where(probs > 0, probs * values, 0.0).sum(-1)
    return sums


def _head(
    logits: Float[Tensor, "contexts vocab"], probs: Float[Tensor, "contexts vocab"]
) -> tuple[
    Float[np.ndarray, "contexts head"], Int[np.ndarray, "contexts head"], Int[np.ndarray, " contexts"]
]:
    """The most probable tokens on the CPU, most probable first, lower ids first among equal logits.

    Returns:
        Their probabilities, their ids, and how many of them are ranked for certain: a logit that ties with the last
        one may also stand outside of the head.
    """
    values, ids = logits.topk(min(HEAD, logits.shape[1]), dim=-1)
    top_logits, top_ids, top_probs = (
        values.cpu().numpy(),
        ids.cpu().numpy(),
        probs.gather(1, ids).cpu().numpy(),
    )
    order = np.lexsort((top_ids, -top_logits), axis=-1)
    certain = (top_logits > top_logits[:, -1:]).sum(axis=1)
    return np.take_along_axis(top_probs, order, -1), np.take_along_axis(top_ids, order, -1), certain


def _on_cpu(scalars: dict[str, Tensor]) -> Columns:
    """Move all scalars in one transfer."""
    stacked = torch.stack(list(scalars.values())).cpu().numpy()
    return dict(zip(scalars, stacked, strict=True))


def _node_columns(
    contexts: Contexts,
    columns: Columns,
    parent_index: Int[np.ndarray, " nodes"],
    token_ids: Int[Tensor, " nodes"],
    tree: Tree,
    ranks: list[Int[np.ndarray, " nodes"]],
) -> Columns:
    device = contexts.target_logits.device
    rows, tokens = torch.from_numpy(parent_index).to(device), token_ids.to(device)
    both = torch.stack([contexts.draft_probs[rows, tokens], contexts.target_probs[rows, tokens]])
    draft_prob, target_prob = both.cpu().numpy()
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
    head_ids: Int[np.ndarray, "contexts head"],
    certain: Int[np.ndarray, " contexts"],
    rows: Int[np.ndarray, " nodes"],
    tokens: Int[np.ndarray, " nodes"],
) -> Int[np.ndarray, " nodes"]:
    """How many tokens come before each node's token: larger logit, or the same logit and a lower id.

    Nearly every drafted token stands in the head, which is in that order; only for the others is the whole row read.
    """
    found = head_ids[rows] == tokens[:, None]
    ranks: Int[np.ndarray, " nodes"] = found.argmax(axis=1)
    outside = np.flatnonzero(~found.any(axis=1) | (ranks >= certain[rows]))
    if len(outside):
        here = logits[torch.from_numpy(rows[outside]).to(logits.device)]
        token = torch.from_numpy(tokens[outside]).to(logits.device)[:, None]
        own = here.gather(1, token)
        before = torch.arange(logits.shape[1], device=logits.device)[None, :] < token
        larger = (here > own).sum(-1) + ((here == own) & before).sum(-1)
        ranks[outside] = larger.cpu().numpy()
    return ranks
