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

from acceptlab.errors import UsageError
from acceptlab.records import CERTIFICATE_RULES, MEASURES, TOP_N
from acceptlab.rules import Rule, parse_rule
from acceptlab.sampling import where_float64
from acceptlab.theory.certificates import thresholds_from_head
from acceptlab.tree import Tree
from acceptlab.vocab_sums import DRAFT, TARGET, Head, Sums, full_sums

Columns = dict[str, Any]


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
    sampling = None if contexts.unwarped else _both(contexts)
    sums = full_sums(logits, sampling, parent_index, token_ids)
    columns = sums.scalars
    for side, name in ((TARGET, "target"), (DRAFT, "draft")):
        ids, probs = sums.heads[side].ids, sums.heads[side].probs
        columns[f"{name}_margin"] = probs[:, 0] - probs[:, 1] if probs.shape[1] > 1 else probs[:, 0]
        columns[f"{name}_top_prob"] = probs[:, 0]
        columns[f"{name}_argmax"] = ids[:, 0]
        columns[f"{name}_token_ids"] = ids[:, :TOP_N]
        columns[f"{name}_probs"] = probs[:, :TOP_N]
    columns["thresholds_forward"], columns["thresholds_reverse"] = thresholds_from_head(
        sums.heads[TARGET].probs,
        columns["target_entropy"],
        logits[TARGET].shape[1],
        lambda rows: _whole_rows(contexts, logits[TARGET], rows),
        certificate_rules(),
        rest_sum=sums.rest,
    )
    tokens = token_ids.numpy()
    ranks = [_ranks(logits[side], sums.heads[side], parent_index, tokens) for side in (DRAFT, TARGET)]
    node_probs = _sampling_probs(contexts, sums, parent_index, token_ids)
    return Measured(columns, _node_columns(columns, parent_index, tree, node_probs, ranks))


def _both(contexts: Contexts) -> tuple[Tensor, Tensor]:
    assert contexts.target_probs is not None
    assert contexts.draft_probs is not None
    return contexts.target_probs, contexts.draft_probs


def _whole_rows(
    contexts: Contexts, target_logits: Float[Tensor, "contexts vocab"], rows: Int[np.ndarray, " rows"]
) -> Float[np.ndarray, "rows vocab"]:
    """The target's model distributions in some contexts; a lossless rule may have made them already."""
    given = contexts.target_probs if contexts.unwarped else None
    table = target_logits if given is None else given
    picked = table[torch.from_numpy(rows).to(table.device)]
    whole = torch.softmax(picked, dim=-1, dtype=torch.float64) if given is None else picked
    probs: Float[np.ndarray, "rows vocab"] = whole.cpu().numpy()
    return probs


def _sampling_probs(
    contexts: Contexts, sums: Sums, parent_index: Int[np.ndarray, " nodes"], token_ids: Int[Tensor, " nodes"]
) -> tuple[Float[np.ndarray, " nodes"], Float[np.ndarray, " nodes"]]:
    """The draft's and the target's sampling probability of every node's token; given distributions come first."""
    found = []
    for side, given in ((DRAFT, contexts.draft_probs), (TARGET, contexts.target_probs)):
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
    head: Head,
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
        row, token = logits[int(rows[node])].cpu().numpy(), int(tokens[node])
        own = row[token]
        ranks[node] = np.count_nonzero(row > own) + np.count_nonzero(row[:token] == own)
    return ranks
