"""Is the branch estimate's gradient quieter than the path's? Measured per position, on real trajectories.

Both estimate the same expected length with the same expected gradient. Each branch term B_(k-1) a_k is the
path term B_k with its last step summed out, so its gradient varies no more; the sum over positions has no
such guarantee.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from acceptlab.drafters.base import Drafter
from acceptlab.drafters.causal import CausalDrafter
from acceptlab.drafters.llama import LlamaStack
from acceptlab.training.chain_losses import branch_terms, path_terms
from acceptlab.training.corpus import Batch, Example, make_batch
from acceptlab.training.grpo import expected_length
from acceptlab.training.grpo_stage import roll_out
from acceptlab.training.losses import Scores


@dataclass(frozen=True)
class GradientVariance:
    """Variance of the gradient in the final norm's gain, summed over its entries, over windows.

    `path` and `branch` have one entry a position of the window; `ratios` is branch / path, None where the
    path's variance is 0. `aggregate_*` are the variances of the whole window's gradient. A ratio of expected
    variances is at most 1 at every position; one of sampled variances may exceed it by chance, where few
    windows have a large gradient.
    """

    path: list[float]
    branch: list[float]
    ratios: list[float | None]
    aggregate_path: float
    aggregate_branch: float
    n_windows: int


def gradient_variance(
    drafter: Drafter, examples: Sequence[Example], *, gamma: int, max_windows: int = 200
) -> GradientVariance:
    """Measure the gradient variance of both estimates on complete windows.

    Args:
        drafter: the drafter; its parameters get no gradient.
        examples: trajectories sampled from the target at temperature 1.
        gamma: window length.
        max_windows: stop after so many.
    """
    found = window_gradients(drafter, examples, gamma=gamma, max_windows=max_windows)
    stacked = torch.cat(found)
    variances = stacked.var(dim=0, correction=1).sum(dim=-1)
    total = stacked.sum(dim=2).var(dim=0, correction=1).sum(dim=-1)
    path, branch = variances[0].tolist(), variances[1].tolist()
    return GradientVariance(
        path=path,
        branch=branch,
        ratios=[b / p if p > 0 else None for p, b in zip(path, branch, strict=True)],
        aggregate_path=float(total[0]),
        aggregate_branch=float(total[1]),
        n_windows=len(stacked),
    )


def window_gradients(
    drafter: Drafter, examples: Sequence[Example], *, gamma: int, max_windows: int, per_example: int = 10**9
) -> list[Float[Tensor, "windows 2 gamma size"]]:
    """Gradients of the path and the branch terms of complete windows in the final norm's gain, by example.

    Args:
        drafter: the drafter; its parameters get no gradient.
        examples: trajectories sampled from the target at temperature 1.
        gamma: window length.
        max_windows: stop after so many.
        per_example: take at most so many of one example.
    """
    found: list[Tensor] = []
    n_windows = 0
    for example in examples:
        if n_windows >= max_windows:
            break
        own = _window_gradients(drafter, example, gamma, min(per_example, max_windows - n_windows))
        if own:
            found.append(torch.stack(own).double())
            n_windows += len(own)
    return found


def _window_gradients(
    drafter: Drafter, example: Example, gamma: int, limit: int
) -> list[Float[Tensor, "2 gamma size"]]:
    batch = make_batch([example], gamma=gamma, offsets=[0], with_features=drafter.needs_features)
    gain = drafter.norm.weight.detach().clone().requires_grad_()
    with torch.no_grad():
        hidden = drafter.row_hidden(batch.rows)
        # what the final norm's gain multiplies
        plain = hidden / drafter.norm.weight
        target_probs = drafter.output.merge(batch.features, batch.log_norms, drafter.kept_weight)
        weight = drafter.output.stack_weight(drafter.kept_weight)
    labels = drafter.output.classes(batch.labels)
    found = []
    for window in batch.windows[(batch.windows >= 0).all(dim=1)][:limit]:
        logits = drafter.output(plain[window] * gain, weight)
        scores = Scores(logits, target_probs[window], labels[window], torch.arange(gamma)[None])
        accepts, overlaps = scores.by_window(scores.accepts), scores.by_window(scores.overlaps)
        terms = [path_terms(accepts, scores.mask)[0], branch_terms(accepts, overlaps, scores.mask)[0]]
        rows = [
            torch.stack([torch.autograd.grad(term, gain, retain_graph=True)[0] for term in estimate])
            for estimate in terms
        ]
        found.append(torch.stack(rows))
    return found


@dataclass(frozen=True)
class RolloutLength:
    """Accepted length at the same contexts, estimated both ways; means over contexts, without the bonus token.

    `teacher_forced` is the branch estimate along the target's own tokens, `rollout` the expected length of
    windows that the draft wrote itself. Both estimate the same number; they differ by chance only, or there
    is a fault. `difference_se` is the standard error of rollout - teacher_forced over contexts.
    """

    teacher_forced: float
    rollout: float
    rollout_se: float
    difference_se: float
    n_contexts: int


def _teacher_forced(
    drafter: CausalDrafter, target: LlamaStack, batch: Batch, window: Int[Tensor, " gamma"]
) -> float:
    """Branch estimate of one window over the whole vocabulary, as rollouts are judged.

    Merging the ids that share one logit would overrate the overlap.
    """
    logits = drafter.output.expand(drafter.row_logits(batch.rows)[window])
    probs = (batch.features[window] @ target.output_weight.T).softmax(dim=-1)
    scores = Scores(logits, probs, batch.labels[window], torch.arange(len(window))[None])
    accepts, overlaps = scores.by_window(scores.accepts), scores.by_window(scores.overlaps)
    return float(branch_terms(accepts, overlaps, scores.mask).sum())


@torch.no_grad()
def rollout_length(
    drafter: CausalDrafter,
    target: LlamaStack,
    examples: Sequence[Example],
    *,
    gamma: int,
    eos_id: int,
    max_contexts: int = 24,
    group: int = 4,
    seed: int = 0,
) -> RolloutLength | None:
    """Compare teacher-forced and rolled-out acceptance at one window an example; None with fewer than two.

    Args:
        drafter: a plain causal drafter.
        target: the target.
        examples: trajectories sampled from the target at temperature 1.
        gamma: window length.
        eos_id: token behind which a window counts no more.
        max_contexts: examples that are looked at.
        group: rollouts a context.
        seed: of the contexts and rollouts.
    """
    rng = np.random.default_rng(seed)
    contexts, values = [], []
    for example in [e for e in examples if e.output_len >= gamma][:max_contexts]:
        batch = make_batch([example], gamma=gamma, offsets=[0])
        whole = batch.windows[(batch.windows >= 0).all(dim=1)]
        window = whole[int(rng.integers(len(whole)))]
        values.append(_teacher_forced(drafter, target, batch, window))
        contexts.append(example.token_ids[: int(batch.rows.position[window[0]]) + 1].tolist())
    if len(contexts) < 2:
        return None
    draws = torch.from_numpy(rng.random((len(contexts) * group, gamma))).float()
    rollouts = roll_out(drafter, target, contexts, draws, group=group, eos_id=eos_id)
    lens = expected_length(rollouts.target_log_probs, rollouts.draft_log_probs, rollouts.mask)
    per_context = lens.view(-1, group).mean(dim=1).double()
    differences = per_context - torch.tensor(values, dtype=torch.float64)
    return RolloutLength(
        teacher_forced=float(np.mean(values)),
        rollout=float(per_context.mean()),
        rollout_se=float(per_context.std() / len(contexts) ** 0.5),
        difference_se=float(differences.std() / len(contexts) ** 0.5),
        n_contexts=len(contexts),
    )
