"""One reinforcement update: contexts, rollouts of the draft, the target's judgement, the loss.

Rollouts are batched: a context is run once by each model and its cache copied for the group. All arithmetic
on the resulting probabilities is in `grpo`.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from acceptlab.drafters.base import Rows
from acceptlab.drafters.causal import CausalDrafter
from acceptlab.drafters.llama import LlamaStack
from acceptlab.training.corpus import Batch
from acceptlab.training.generate import draw_rows
from acceptlab.training.grpo import advantages, expected_length, grpo_loss, simulated_length
from acceptlab.training.static_cache import StaticDecoder


@dataclass(frozen=True)
class GrpoOptions:
    """The reward is an accepted length drawn with uniforms, without `simulate` its mean given the rollout."""

    contexts: int = 8
    group: int = 4
    clip: float = 0.2
    kl_weight: float = 0.02
    simulate: bool = True


@dataclass(frozen=True)
class Rollouts:
    """Windows drafted at contexts; the group of a context lies in consecutive rows."""

    contexts: list[list[int]]
    token_ids: Int[Tensor, "rollouts gamma"]
    mask: Bool[Tensor, "rollouts gamma"]
    draft_log_probs: Float[Tensor, "rollouts gamma"]
    target_log_probs: Float[Tensor, "rollouts gamma"]


def choose_contexts(batch: Batch, n_contexts: int, rng: np.random.Generator) -> list[list[int]]:
    """Texts up to the anchors of randomly chosen complete windows."""
    whole = batch.windows[(batch.windows >= 0).all(dim=1)]
    chosen = rng.permutation(len(whole))[:n_contexts]
    contexts = []
    for row in whole[torch.from_numpy(np.sort(chosen)), 0].tolist():
        end = int(batch.rows.position[row]) + 1
        contexts.append(batch.rows.token_ids[batch.rows.sequence[row], :end].tolist())
    return contexts


@torch.no_grad()
def roll_out(
    drafter: CausalDrafter,
    target: LlamaStack,
    contexts: list[list[int]],
    uniforms: Float[Tensor, "rollouts gamma"],
    *,
    group: int,
    eos_id: int,
) -> Rollouts:
    """Draft `group` windows at every context and score them with the target.

    Args:
        drafter: the draft, in the state whose rollouts are wanted.
        target: the target.
        contexts: token ids, at least two tokens each and the first in common.
        uniforms: draws of the draft; rows of one context are consecutive.
        group: rollouts a context.
        eos_id: token behind which a window counts no more.
    """
    places = torch.tensor([len(ids) - 1 for ids in contexts])
    copies = torch.arange(len(contexts)).repeat_interleave(group)
    decoders, hidden = [], []
    for model in (drafter, target):
        decoder = StaticDecoder(model)
        start = decoder.prefill(contexts, shared_len=1, room=uniforms.shape[1])
        decoder.select(copies)
        decoders.append(decoder)
        hidden.append(start[torch.arange(len(contexts)), places][copies])
    weight = drafter.output.stack_weight(drafter.kept_weight)
    tokens, draft_logs, target_logs = [], [], []
    for step in range(uniforms.shape[1]):
        drawn = draw_rows(drafter.output.expand(drafter.output(hidden[0], weight)), uniforms[:, step])
        logits = hidden[1] @ target.output_weight.T
        own = logits.gather(1, drawn.token_ids[:, None])[:, 0]
        tokens.append(drawn.token_ids)
        draft_logs.append(drawn.log_probs)
        target_logs.append(own - logits.logsumexp(dim=-1))
        if step + 1 < uniforms.shape[1]:
            hidden = [decoder.step(drawn.token_ids) for decoder in decoders]
    ids = torch.stack(tokens, dim=1)
    ended = (ids == eos_id).long()
    mask = ended.cumsum(dim=1) - ended == 0
    return Rollouts(contexts, ids, mask, torch.stack(draft_logs, dim=1), torch.stack(target_logs, dim=1))


def rollout_log_probs(
    drafter: CausalDrafter, rollouts: Rollouts, group: int
) -> Float[Tensor, "rollouts gamma"]:
    """Log probabilities of the rollouts' tokens under a drafter, with gradients."""
    n_rollouts, gamma = rollouts.token_ids.shape
    length = max(len(ids) for ids in rollouts.contexts) + gamma - 1
    sequences = torch.zeros(n_rollouts, length, dtype=torch.long)
    position = torch.empty(n_rollouts, gamma, dtype=torch.long)
    for row in range(n_rollouts):
        context = rollouts.contexts[row // group]
        n = len(context)
        sequences[row, :n] = torch.tensor(context)
        sequences[row, n : n + gamma - 1] = rollouts.token_ids[row, :-1]
        position[row] = torch.arange(n - 1, n - 1 + gamma)
    sequence = torch.arange(n_rollouts).repeat_interleave(gamma)
    depth = torch.arange(gamma).repeat(n_rollouts)
    logits = drafter.row_logits(Rows(sequences, sequence, position.flatten(), depth))
    labels = rollouts.token_ids.flatten()
    classes = drafter.output.classes(labels)
    logs = logits.gather(1, classes[:, None])[:, 0] - logits.logsumexp(dim=-1)
    shares = drafter.output.rest_log_shares[labels]
    logs = logs + torch.where(classes == drafter.output.n_kept, shares, torch.zeros_like(shares))
    return logs.view(n_rollouts, gamma)


class GrpoStage:
    """The reinforcement stage of one training run; keeps a copy of the drafter that it started from."""

    def __init__(self, drafter: CausalDrafter, target: LlamaStack, options: GrpoOptions, eos_id: int) -> None:
        self.target = target
        self.options = options
        self.eos_id = eos_id
        self.start = copy.deepcopy(drafter).eval().requires_grad_(False)

    def loss(self, drafter: CausalDrafter, batch: Batch, rng: np.random.Generator) -> Float[Tensor, ""]:
        """Roll out at contexts of this batch and give the loss of the update."""
        options, gamma = self.options, batch.windows.shape[1]
        contexts = choose_contexts(batch, options.contexts, rng)
        draws = torch.from_numpy(rng.random((2, len(contexts) * options.group, gamma)))
        rollouts = roll_out(
            drafter, self.target, contexts, draws[0].float(), group=options.group, eos_id=self.eos_id
        )
        target_logs, draft_logs = rollouts.target_log_probs, rollouts.draft_log_probs
        if options.simulate:
            lens = simulated_length(target_logs, draft_logs, rollouts.mask, draws[1].float())
        else:
            lens = expected_length(target_logs, draft_logs, rollouts.mask)
        gains = advantages(lens.float().view(-1, options.group)).flatten()
        with torch.no_grad():
            start_logs = rollout_log_probs(self.start, rollouts, options.group)
        logs = rollout_log_probs(drafter, rollouts, options.group)
        return grpo_loss(
            logs,
            draft_logs,
            start_logs,
            gains,
            rollouts.mask,
            clip=options.clip,
            kl_weight=options.kl_weight,
        )
