"""Objectives of a whole drafted window: accepted length along a trajectory, by path, branch and relatives.

Pure functions on (windows, gamma) tensors of per-position quantities: `accepts` is b = min(1, draft / target)
at the token that the target sampled, `overlaps` is a = sum of min(target, draft). Masks are prefix-
contiguous: a window that ends early (behind an EOS, which itself counts) is false from there on. The anchor,
the last committed token, is context and no position. Every value is a sum over positions and excludes the
bonus token; losses divide by gamma, the fixed width of the window, never by the number of valid positions.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from acceptlab.errors import UsageError

Steps = Float[Tensor, "windows gamma"]
Mask = Bool[Tensor, "windows gamma"]
Values = Float[Tensor, " windows"]


def check_mask(mask: Mask) -> None:
    """Refuse a mask with a hole.

    Raises:
        UsageError: a valid position behind a masked one.
    """
    if mask.shape[-1] > 1 and bool((mask[..., 1:] & ~mask[..., :-1]).any()):
        raise UsageError("the mask has a valid position behind a masked one: masks must be prefix-contiguous")


def mask_after_eos(is_eos: Mask) -> Mask:
    """Positions up to and including the first EOS of each window."""
    earlier = is_eos.long().cumsum(dim=-1) - is_eos.long()
    return earlier == 0


def accept_probs(draft_log_probs: Steps, target_log_probs: Steps) -> Steps:
    """Acceptance min(1, draft / target) of tokens drawn from that target; no gradient where it is 1.

    The target's log probabilities are detached. Tokens drawn in any other way (greedily, from a truncated
    target) make every estimate below biased.
    """
    ratio = draft_log_probs - target_log_probs.detach()
    return torch.where(ratio < 0, ratio, torch.zeros_like(ratio)).exp()


def _before(values: Steps) -> Steps:
    """Product of the positions before each one: 1, v_1, v_1 v_2, ..."""
    return torch.cat([torch.ones_like(values[..., :1]), values[..., :-1]], dim=-1).cumprod(dim=-1)


def path_terms(accepts: Steps, mask: Mask) -> Steps:
    """B_k of every position: the product of b_1..b_k, 0 behind the window's end."""
    return torch.where(mask, accepts, torch.zeros_like(accepts)).cumprod(dim=-1)


def path_value(accepts: Steps, mask: Mask) -> Values:
    """Sum over k of B_k (REAL, path form): unbiased for the expected accepted length."""
    return path_terms(accepts, mask).sum(dim=-1)


def branch_terms(accepts: Steps, overlaps: Steps, mask: Mask, *, detach_prefix: bool = False) -> Steps:
    """B_(k-1) a_k of every position; `detach_prefix` drops the gradient through B_(k-1), an ablation."""
    prefix = _before(torch.where(mask, accepts, torch.zeros_like(accepts)))
    prefix = prefix.detach() if detach_prefix else prefix
    return torch.where(mask, prefix * overlaps, torch.zeros_like(overlaps))


def branch_value(accepts: Steps, overlaps: Steps, mask: Mask, *, detach_prefix: bool = False) -> Values:
    """Sum over k of B_(k-1) a_k (REAL): unbiased too, no term varies more than its path counterpart.

    The aggregate has no such guarantee.
    """
    return branch_terms(accepts, overlaps, mask, detach_prefix=detach_prefix).sum(dim=-1)


def wtv_value(overlaps: Steps, mask: Mask) -> Values:
    """Sum over k of a_1 ...

    A_k along a trajectory (WTV): biased for the accepted length unless steps do not covary.
    """
    return torch.where(mask, overlaps, torch.zeros_like(overlaps)).cumprod(dim=-1).sum(dim=-1)


def eal_value(token_probs: Steps, mask: Mask) -> Values:
    """Sum over k of the product of draft probabilities of the greedy target's tokens (EAL).

    The expected length if the draft sampled against a greedy target; an argmax draft accepts all or nothing.
    """
    return torch.where(mask, token_probs, torch.zeros_like(token_probs)).cumprod(dim=-1).sum(dim=-1)


def truncate_mask(mask: Mask, depth: int) -> Mask:
    """Only the first `depth` positions (REAL-K)."""
    return mask & (torch.arange(mask.shape[-1], device=mask.device) < depth)


def length_loss(values: Values, gamma: int, *, variance_weight: float = 0.0) -> Float[Tensor, ""]:
    """1 - mean(value) / gamma, plus a penalty on the variance of value / gamma over windows (REAL-V)."""
    scaled = values / gamma
    loss = 1 - scaled.mean()
    if variance_weight:
        loss = loss + variance_weight * scaled.var(correction=0)
    return loss


def vsd_loss(accepts: Steps, cross_entropies: Steps, mask: Mask) -> Float[Tensor, ""]:
    """Cross-entropy of each window weighted by the chance that it passes whole; our reading of VSD.

    VSD (arXiv 2602.05774) maximises E[log kappa] - KL(draft || target), kappa being the probability that the
    whole proposal is accepted. Along target-sampled trajectories we weight by the detached path acceptance of
    the window, normalised over the windows of the batch that have a valid position, and divide by gamma.
    """
    kept = torch.where(mask, accepts.detach(), torch.ones_like(accepts)).prod(dim=-1)
    weights = kept * mask.any(dim=-1)
    total = weights.sum()
    weights = torch.where(total > 0, weights / total.clamp_min(torch.finfo(total.dtype).tiny), 0 * weights)
    per_window = torch.where(mask, cross_entropies, torch.zeros_like(cross_entropies)).sum(dim=-1)
    return (weights * per_window).sum() / mask.shape[-1]


def dblast_value(
    draft_log_probs: Steps, target_log_probs: Steps, mask: Mask, *, threshold: float = -4.0
) -> Values:
    """Sum of prefix products of b, cut where the log ratio falls under `threshold`; our reading of DBLast.

    DBLast (arXiv 2608.05448) builds a surrogate of the accepted length from prefix products of the log
    importance ratios min(0, log draft - log target), with a threshold under which the suffix is dropped. The
    threshold's value and the hard cut are ours.
    """
    ratio = draft_log_probs - target_log_probs.detach()
    logs = torch.where(mask & (ratio < 0), ratio, torch.zeros_like(ratio)).cumsum(dim=-1)
    kept = mask & (logs.detach() >= threshold)
    kept = kept.long().cumprod(dim=-1).bool()
    return torch.where(kept, logs.exp(), torch.zeros_like(logs)).sum(dim=-1)
