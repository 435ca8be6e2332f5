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
from acceptlab.sampling import Warp, warp, where_float64
from acceptlab.verify.drafted import Drafted, Target, rows_of


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
        return _sampling(drafted, logits, settings)
    if rule.kind is RuleKind.GREEDY and _is_plain(logits):
        return _greedy(drafted, logits.numpy())
    logits = logits if rule.kind in {RuleKind.GREEDY, RuleKind.TOP} else where_float64(logits)
    top, argmax = _largest(logits)
    _refuse_infinite(bool((top < torch.inf).all()))
    ids = argmax.cpu().numpy()
    if rule.kind is RuleKind.GREEDY or drafted.tree.n_nodes == 0:
        return Target(argmax=ids)
    tokens = torch.from_numpy(drafted.token_ids).clamp(min=0).to(logits.device)
    parent_rows = torch.from_numpy(drafted.tree.parent_rows).to(logits.device)
    if rule.kind is RuleKind.TOP:
        return Target(argmax=ids, node_rank=_ranks(logits, parent_rows, tokens).cpu().numpy())
    inner = np.flatnonzero(drafted.tree.n_children)
    rows, here = torch.from_numpy(inner).to(logits.device), rows_of(logits, inner)
    probs = torch.softmax(here, dim=-1, dtype=torch.float64)
    # the token's and the largest probability come from one array: a tie with the argmax is an exact tie
    of_node = torch.searchsorted(rows, parent_rows)
    top_prob = probs.gather(1, argmax[rows, None])[:, 0]
    nowhere = torch.zeros(len(logits), dtype=torch.float64, device=logits.device)
    entropy = None
    if rule.kind is RuleKind.TYPICAL:
        entropy = nowhere.scatter(0, rows, _entropy(probs, top_prob, here, top[rows])).cpu().numpy()
    return Target(
        argmax=ids,
        node_prob=probs[of_node, tokens].cpu().numpy(),
        top_prob=nowhere.scatter(0, rows, top_prob).cpu().numpy(),
        entropy=entropy,
    )


def _greedy(drafted: Drafted, logits: Float[np.ndarray, "contexts vocab"]) -> Target:
    """The argmax where a node has to be judged; those of the leaves when they are asked for."""

    def of(context: int) -> int:
        row = logits[context]
        token = int(row.argmax())
        _refuse_infinite(bool(row[token] < np.inf))
        return token

    argmax = np.full(len(logits), -1, dtype=np.int64)
    for context in np.flatnonzero(drafted.tree.n_children).tolist():
        argmax[context] = of(context)
    return Target(argmax=argmax, late_argmax=of)


def _refuse_infinite(is_finite: bool) -> None:
    if not is_finite:
        raise RunError("the target gave logits that are nan or infinite: try --dtype float32")


def _sampling(drafted: Drafted, logits: Float[Tensor, "contexts vocab"], settings: Warp) -> Target:
    """Sampling distributions of the contexts that the rules or the records need anyway; the others when asked for."""
    needed = (drafted.draft_rows >= 0) | (drafted.tree.n_children > 0)
    if needed.all():
        return Target(probs=warp(logits, settings))
    contexts = np.flatnonzero(needed)
    prob_rows = np.full(len(logits), -1, dtype=np.int64)
    prob_rows[contexts] = np.arange(len(contexts))
    return Target(
        probs=warp(rows_of(logits, contexts), settings),
        prob_rows=prob_rows,
        late=lambda context: warp(logits[context : context + 1], settings),
    )


def _largest(
    logits: Float[Tensor, "contexts vocab"],
) -> tuple[Float[Tensor, " contexts"], Int64[Tensor, " contexts"]]:
    """The largest logit of every context and its token: the first of equal ones, that is the lowest id."""
    if _is_plain(logits):  # torch takes ten times as long on the CPU
        ids = torch.from_numpy(logits.numpy().argmax(axis=-1).reshape(-1))
        return logits.gather(1, ids[:, None])[:, 0], ids
    top, ids = logits.max(dim=-1)
    return top, ids


def _ranks(
    logits: Float[Tensor, "contexts vocab"], rows: Int64[Tensor, " nodes"], tokens: Int64[Tensor, " nodes"]
) -> Int64[Tensor, " nodes"]:
    """Rank of a token among the logits of its row, 0 the largest, exact ties by lower id."""
    if _is_plain(logits):  # counting is slow in torch on the CPU, and so is copying rows
        table = logits.numpy()
        places = zip(rows.tolist(), tokens.tolist(), strict=True)
        return torch.tensor([_rank(table[row], token) for row, token in places], dtype=torch.int64)
    here = logits[rows]
    own = here.gather(1, tokens[:, None])
    above = (here > own).sum(dim=-1, dtype=torch.int32)
    tied = here == own
    if bool((tied.sum(dim=-1, dtype=torch.int32) > 1).any()):
        ids = torch.arange(logits.shape[1], device=logits.device)
        above = above + (tied & (ids < tokens[:, None])).sum(dim=-1, dtype=torch.int32)
    return above.long()


def _rank(logits: Float[np.ndarray, " vocab"], token: int) -> int:
    own = logits[token]
    return int(np.count_nonzero(logits > own) + np.count_nonzero(logits[:token] == own))


def _is_plain(logits: Float[Tensor, "contexts vocab"]) -> bool:
    """Whether NumPy reads the logits where they are."""
    return logits.device.type == "cpu" and logits.dtype in {torch.float32, torch.float64}


def _entropy(
    probs: Float64[Tensor, "rows vocab"],
    top_prob: Float64[Tensor, " rows"],
    logits: Float[Tensor, "rows vocab"],
    top: Float[Tensor, " rows"],
) -> Float64[Tensor, " rows"]:
    """Entropy in nats: top logit - log(top prob) - E[logit], with 0 * -inf taken as 0."""
    lowest = torch.finfo(torch.float32).min
    # row by row: a row stays in the processor's cache
    mean = torch.stack(
        [row.dot(own.clamp(min=lowest).double()) for row, own in zip(probs, logits, strict=True)]
    )
    return top.double() - top_prob.log() - mean
