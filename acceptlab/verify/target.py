"""Reading off the target's logits exactly what a rule needs, and nothing more.

Greedy needs one argmax a context and no probability at all; the relaxed rules need a softmax of the
contexts that have children; only the lossless rules need the whole sampling distribution.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from acceptlab.errors import RunError
from acceptlab.rules import Rule, RuleKind
from acceptlab.sampling import Warp, warp
from acceptlab.verify.drafted import Drafted, Target


def read_target(
    rule: Rule, drafted: Drafted, logits: Float[Tensor, "contexts vocab"], settings: Warp
) -> Target:
    """The parts of the target's side that `rule` reads.

    Args:
        rule: the verification rule.
        drafted: tree and tokens.
        logits: the target's logits in every context, the root first.
        settings: temperature and truncation; read by lossless rules only.
    """
    if not rule.is_argmax:
        return Target(probs=warp(logits, settings))
    top, argmax = logits.max(dim=-1)  # the first of equal maxima, that is the lowest id
    if not bool((top < torch.inf).all()):
        raise RunError("the target gave logits that are nan or infinite: try --dtype float32")
    ids = argmax.cpu().numpy()
    if rule.kind is RuleKind.GREEDY or drafted.tree.n_nodes == 0:
        return Target(argmax=ids)
    tokens = torch.from_numpy(drafted.token_ids).clamp(min=0).to(logits.device)
    parent_rows = torch.from_numpy(drafted.tree.parent_rows).to(logits.device)
    if rule.kind is RuleKind.TOP:
        return Target(argmax=ids, node_rank=_ranks(logits, parent_rows, tokens).cpu().numpy())
    rows = torch.from_numpy(np.flatnonzero(drafted.tree.n_children)).to(logits.device)
    shifted = logits[rows].double() - top[rows, None]
    log_mass = shifted.logsumexp(dim=-1)
    entropy = _entropy(shifted, log_mass) if rule.kind is RuleKind.TYPICAL else None
    log_mass_of = torch.zeros(len(logits), dtype=torch.float64, device=logits.device).scatter(
        0, rows, log_mass
    )
    node_log_prob = (logits[parent_rows, tokens].double() - top[parent_rows]) - log_mass_of[parent_rows]
    return Target(
        argmax=ids,
        node_prob=node_log_prob.exp().cpu().numpy(),
        top_prob=(-log_mass_of).exp().cpu().numpy(),
        entropy=None
        if entropy is None
        else torch.zeros_like(log_mass_of).scatter(0, rows, entropy).cpu().numpy(),
    )


def _ranks(
    logits: Float[Tensor, "contexts vocab"], rows: Int64[Tensor, " nodes"], tokens: Int64[Tensor, " nodes"]
) -> Int64[Tensor, " nodes"]:
    """Rank of a token among the logits of its row, 0 the largest, exact ties by lower id."""
    here = logits[rows]
    own = here.gather(1, tokens[:, None])
    ids = torch.arange(logits.shape[1], device=logits.device)
    return ((here > own) | ((here == own) & (ids < tokens[:, None]))).sum(dim=-1)


def _entropy(
    shifted: Float64[Tensor, "rows vocab"], log_mass: Float64[Tensor, " rows"]
) -> Float64[Tensor, " rows"]:
    """Entropy in nats of softmax(shifted): log Z - E[logit], with 0 * -inf taken as 0."""
    weights = (shifted - log_mass[:, None]).exp_()
    return log_mass - (weights * shifted.clamp(min=-1e4)).sum(dim=-1)
