"""Group-relative reinforcement of a drafter: rewards are accepted lengths of its own rollouts.

After GRPO (arXiv 2402.03300): at every context the draft rolls out a group of windows, the reward of a
rollout is the accepted length that the chain rule gives it on both models' stored probabilities, its
advantage is the reward standardised within the group, and the clipped ratio is pushed up, held by a KL to the
starting draft. Pure arithmetic here; `grpo_stage` runs the models.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

_EPS = 1e-6
"""Keeps groups in which every rollout earned the same from dividing by 0: their advantage is 0."""


def expected_length(
    target_log_probs: Float[Tensor, "*rollouts gamma"],
    draft_log_probs: Float[Tensor, "*rollouts gamma"],
    mask: Bool[Tensor, "*rollouts gamma"],
) -> Float[Tensor, "*rollouts"]:
    """Expected accepted length of rollouts: sum over k of the product of min(1, target / draft) up to k.

    The tokens come from the draft, so the ratio is target / draft, unlike on target-sampled trajectories.
    """
    ratio = (target_log_probs - draft_log_probs).clamp_max(0).exp()
    return torch.where(mask, ratio, torch.zeros_like(ratio)).cumprod(dim=-1).sum(dim=-1)


def simulated_length(
    target_log_probs: Float[Tensor, "*rollouts gamma"],
    draft_log_probs: Float[Tensor, "*rollouts gamma"],
    mask: Bool[Tensor, "*rollouts gamma"],
    uniforms: Float[Tensor, "*rollouts gamma"],
) -> Int[Tensor, "*rollouts"]:
    """Accepted length of given rollouts under these uniforms.

    Tokens before the first u >= min(1, target / draft).
    """
    ratio = (target_log_probs - draft_log_probs).clamp_max(0).exp()
    passed = mask & (uniforms < ratio)
    return passed.long().cumprod(dim=-1).sum(dim=-1)


def advantages(rewards: Float[Tensor, "contexts group"]) -> Float[Tensor, "contexts group"]:
    """Rewards standardised within their group (population deviation); 0 where all are equal."""
    centred = rewards - rewards.mean(dim=-1, keepdim=True)
    return centred / (centred.square().mean(dim=-1, keepdim=True).sqrt() + _EPS)


def grpo_loss(
    log_probs: Float[Tensor, "rollouts gamma"],
    old_log_probs: Float[Tensor, "rollouts gamma"],
    start_log_probs: Float[Tensor, "rollouts gamma"],
    rollout_advantages: Float[Tensor, " rollouts"],
    mask: Bool[Tensor, "rollouts gamma"],
    *,
    clip: float = 0.2,
    kl_weight: float = 0.02,
) -> Float[Tensor, ""]:
    """Clipped surrogate with a KL penalty, summed over a window and divided by its fixed width.

    The KL to the starting draft is the estimate exp(d) - d - 1 with d = start - now, which is never negative.

    Args:
        log_probs: of the rollouts' tokens under the draft that is trained.
        old_log_probs: the same under the draft that rolled them out.
        start_log_probs: the same under the draft that the stage started from.
        rollout_advantages: one number a rollout.
        mask: valid positions, up to and including an EOS.
        clip: largest change of the ratio that is rewarded.
        kl_weight: weight of the penalty.
    """
    ratio = (log_probs - old_log_probs.detach()).exp()
    gain = rollout_advantages.detach()[:, None]
    surrogate = torch.minimum(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain)
    difference = start_log_probs.detach() - log_probs
    penalty = difference.exp() - difference - 1
    return (torch.where(mask, kl_weight * penalty - surrogate, torch.zeros_like(ratio))).sum() / mask.numel()
