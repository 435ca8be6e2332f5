"""What the records say about a context and a node, in one vectorised pass on the models' device.

Boundary: logits and probabilities in, numpy columns of `records.CONTEXTS` and `records.NODES` out, in full precision:
the store rounds. No models, no files. Two families, never mixed: the *model distribution* is the softmax of the logits; the *sampling distribution*
is what temperature, top-k and top-p leave of it (`sampling.warp`). The arithmetic is float64; `theory.divergences`
holds the plain numpy forms that the tests compare with.
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
    """

    target_logits: Float[Tensor, "contexts vocab"]
    draft_logits: Float[Tensor, "contexts vocab"]
    target_probs: Float[Tensor, "contexts vocab"]
    draft_probs: Float[Tensor, "contexts vocab"]


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
    target_log = torch.log_softmax(contexts.target_logits.double(), dim=-1)
    draft_log = torch.log_softmax(contexts.draft_logits.double(), dim=-1)
    target, draft = target_log.exp(), draft_log.exp()
    scalars = _scalars(contexts, target, draft, target_log, draft_log)
    target_head, target_ids = _head(target)
    draft_head, draft_ids = _head(draft)
    columns = _on_cpu(scalars)
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
    nodes = _node_columns(contexts, columns, parent_index, token_ids, tree)
    return Measured(columns, nodes)


def _scalars(
    contexts: Contexts, target: Tensor, draft: Tensor, target_log: Tensor, draft_log: Tensor
) -> dict[str, Tensor]:
    """Measures that need every token of the vocabulary, one number a context."""
    log_ratio = target_log - draft_log
    # a token that both models exclude (a padded id) has log ratio nan, and no part in any sum
    target_part = torch.where(target > 0, target * log_ratio, 0.0)
    draft_part = torch.where(draft > 0, -draft * log_ratio, 0.0)
    root_mean = (target * draft).sqrt_().sum(-1).clamp(max=1.0)
    return {
        "target_entropy": torch.special.entr(target).sum(-1),
        "draft_entropy": torch.special.entr(draft).sum(-1),
        "overlap": torch.minimum(contexts.target_probs, contexts.draft_probs).sum(-1).clamp(max=1.0),
        "kl_target_draft": target_part.sum(-1).clamp(min=0.0),
        "kl_draft_target": draft_part.sum(-1).clamp(min=0.0),
        "renyi_half": -2.0 * root_mean.log(),
    }


def _head(probs: Float[Tensor, "contexts vocab"]) -> tuple[np.ndarray, np.ndarray]:
    """The most probable tokens, most probable first, lower ids first among equals; on the CPU."""
    values, ids = probs.topk(min(HEAD, probs.shape[1]), dim=-1)
    top_probs, top_ids = values.cpu().numpy(), ids.cpu().numpy()
    order = np.lexsort((top_ids, -top_probs), axis=-1)
    return np.take_along_axis(top_probs, order, -1), np.take_along_axis(top_ids, order, -1)


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
) -> Columns:
    device = contexts.target_logits.device
    rows, tokens = torch.from_numpy(parent_index).to(device), token_ids.to(device)
    numbers = torch.stack(
        [
            contexts.draft_probs[rows, tokens],
            contexts.target_probs[rows, tokens],
            _ranks(contexts.draft_logits, rows, tokens).double(),
            _ranks(contexts.target_logits, rows, tokens).double(),
        ]
    )
    draft_prob, target_prob, draft_rank, target_rank = numbers.cpu().numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(draft_prob > 0, np.minimum(1.0, target_prob / draft_prob), np.nan)
    path = draft_prob.copy()
    for node, parent in enumerate(tree.parents):
        if parent >= 0:
            path[node] *= path[parent]
    return {
        "draft_prob": draft_prob,
        "target_prob": target_prob,
        "accept_ratio": ratio,
        "draft_rank": draft_rank.astype(np.int32),
        "target_rank": target_rank.astype(np.int32),
        "is_target_argmax": target_rank == 0,
        "path_draft_prob": path,
        **{name: columns[name][parent_index] for name in MEASURES},
    }


def _ranks(logits: Float[Tensor, "contexts vocab"], rows: Tensor, tokens: Tensor) -> Int[Tensor, " nodes"]:
    """How many tokens come before each node's token: larger logit, or the same logit and a lower id."""
    own = logits[rows, tokens]
    by_context = logits[rows]
    larger = (by_context > own[:, None]).sum(-1)
    before = torch.arange(logits.shape[1], device=logits.device)[None, :] < tokens[:, None]
    return larger + ((by_context == own[:, None]) & before).sum(-1)
