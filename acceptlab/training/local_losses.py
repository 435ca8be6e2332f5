"""Losses of one position: what a draft distribution loses against the target's, whatever comes around it.

Pure functions on logits and probabilities; every one returns one value a row, in nats where it is a
logarithm, and lets gradients flow into `draft_logits` only. The target is data. Sequence-level objectives are
in `chain_losses`.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

Rows = Float[Tensor, "*rows"]
Logits = Float[Tensor, "*rows vocab"]
Tokens = Int[Tensor, "*rows"]


def token_log_probs(draft_logits: Logits, token_ids: Tokens) -> Rows:
    """Log probability that the draft gives to these tokens."""
    return draft_logits.log_softmax(dim=-1).gather(-1, token_ids[..., None])[..., 0]


def cross_entropy(draft_logits: Logits, token_ids: Tokens) -> Rows:
    """Negative log likelihood of the tokens; gradient in the logits: draft - onehot."""
    return -token_log_probs(draft_logits, token_ids)


def kl_forward(draft_logits: Logits, target_probs: Logits) -> Rows:
    """KL(target || draft).

    The distillation loss of DistillSpec (arXiv 2310.08461); gradient: draft - target.
    """
    draft_logs = draft_logits.log_softmax(dim=-1)
    return (torch.xlogy(target_probs, target_probs) - target_probs * draft_logs).sum(dim=-1)


def kl_reverse(draft_logits: Logits, target_probs: Logits) -> Rows:
    """KL(draft || target); infinite, as it must be, where the draft proposes what the target excludes."""
    draft_logs = draft_logits.log_softmax(dim=-1)
    draft_probs = draft_logs.exp()
    return (draft_probs * draft_logs - torch.xlogy(draft_probs, target_probs)).sum(dim=-1)


def overlap(draft_logits: Logits, target_probs: Logits) -> Rows:
    """Sum of min(target, draft): the probability that lossless verification accepts a sampled token.

    Its gradient in the draft is 1 where the draft is below the target and 0 elsewhere; at equality 0 is
    taken, so that a draft equal to the target is a stationary point.
    """
    draft_probs = draft_logits.softmax(dim=-1)
    return torch.where(draft_probs < target_probs, draft_probs, target_probs).sum(dim=-1)


def total_variation(draft_logits: Logits, target_probs: Logits) -> Rows:
    """1 - overlap, the TV++ direction of DistillSpec and the TV term of LK losses."""
    return 1 - overlap(draft_logits, target_probs)


def log_acceptance(draft_logits: Logits, target_probs: Logits) -> Rows:
    """-log overlap (LK-alpha). Gradient: that of the total variation, divided by the overlap.

    The overlap is kept away from 0 by the smallest normal number of its type: disjoint supports give a large
    finite loss whose gradient is 0, because no small step of the logits changes their overlap.
    """
    value = overlap(draft_logits, target_probs)
    return -value.clamp_min(torch.finfo(value.dtype).tiny).log()


def renyi_half(draft_logits: Logits, target_probs: Logits) -> Rows:
    """Renyi divergence of order 1/2: -2 log of the sum of sqrt(target * draft). Gradient: draft - tilted.

    `tilted` is sqrt(target * draft), normalised. Summed as logarithms, so that a draft that almost excludes
    the target's tokens keeps a finite gradient.
    """
    draft_logs = draft_logits.log_softmax(dim=-1)
    return -2 * torch.logsumexp(0.5 * (draft_logs + target_probs.log()), dim=-1)


def static_lk(
    draft_logits: Logits, target_probs: Logits, token_ids: Tokens, *, ce_weight: float = 0.1
) -> Rows:
    """Fixed mixture of cross-entropy and total variation, 0.1 CE + 0.9 TV by default.

    A step down its gradient may raise the total variation: the two terms can disagree.
    """
    ce = cross_entropy(draft_logits, token_ids)
    return ce_weight * ce + (1 - ce_weight) * total_variation(draft_logits, target_probs)


def adaptive_lk(draft_logits: Logits, target_probs: Logits, *, eta: float = 3.0) -> Rows:
    """LK-lambda: mix * KL + (1 - mix) * TV with mix = exp(-eta * overlap), detached, for each position.

    The schedule is the published one; that KL and TV are mixed convexly by it is our reading.
    """
    mix = adaptive_mix(overlap(draft_logits, target_probs), eta=eta)
    return mix * kl_forward(draft_logits, target_probs) + (1 - mix) * total_variation(
        draft_logits, target_probs
    )


def adaptive_mix(overlaps: Rows, *, eta: float = 3.0) -> Rows:
    """The weight of the KL term in `adaptive_lk`, detached."""
    return torch.exp(-eta * overlaps.detach())


def overlap_bounds(divergence: Rows) -> tuple[Rows, Rows]:
    """Lower and upper bound of the overlap given the Renyi-1/2 divergence; both are attained.

    Between 1 - sqrt(1 - exp(-D)) and exp(-D / 2); the lower one is written without cancellation, D = inf
    gives 0, 0.
    """
    decay = torch.exp(-divergence)
    return decay / (1 + torch.sqrt(-torch.expm1(-divergence))), torch.exp(-divergence / 2)


class _SoftCrossEntropy(torch.autograd.Function):
    """Cross-entropy against soft labels in few passes over memory.

    The output layer dominates a training step.
    """

    @staticmethod
    def forward(ctx: Any, draft_logits: Tensor, target_probs: Tensor) -> Tensor:
        log_norm = draft_logits.logsumexp(dim=-1)
        ctx.save_for_backward(draft_logits, target_probs, log_norm)
        return log_norm - torch.einsum("nv,nv->n", target_probs, draft_logits)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        draft_logits, target_probs, log_norm = ctx.saved_tensors
        draft_probs = (draft_logits - log_norm[:, None]).exp_()
        return draft_probs.sub_(target_probs).mul_(grads[0][:, None]), None


def soft_cross_entropy(
    draft_logits: Float[Tensor, "rows vocab"], target_probs: Float[Tensor, "rows vocab"]
) -> Float[Tensor, " rows"]:
    """KL(target || draft) plus the target's entropy: the gradient of `kl_forward` at a fraction of the time.

    Rows of `target_probs` must sum to 1.
    """
    out: Tensor = _SoftCrossEntropy.apply(draft_logits, target_probs)  # type: ignore[no-untyped-call]
    return out
