"""Is the branch estimate's gradient quieter than the path's? Measured per position, on real trajectories.

Both estimate the same expected length with the same expected gradient. Each branch term B_(k-1) a_k is the
path term B_k with its last step summed out, so its gradient varies no more; the sum over positions has no
such guarantee.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from acceptlab.drafters.base import Drafter
from acceptlab.training.chain_losses import branch_terms, path_terms
from acceptlab.training.corpus import Example, make_batch
from acceptlab.training.losses import Scores


@dataclass(frozen=True)
class GradientVariance:
    """Variance of the gradient in the final norm's gain, summed over its entries, over windows.

    `path` and `branch` have one entry a position of the window; `ratios` is branch / path, None where the
    path's variance is 0. `aggregate_*` are the variances of the whole window's gradient.
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
    gradients: list[Tensor] = []
    for example in examples:
        if len(gradients) >= max_windows:
            break
        gradients.extend(_window_gradients(drafter, example, gamma, max_windows - len(gradients)))
    stacked = torch.stack(gradients).double()
    variances = stacked.var(dim=0, correction=1).sum(dim=-1)
    total = stacked.sum(dim=2).var(dim=0, correction=1).sum(dim=-1)
    path, branch = variances[0].tolist(), variances[1].tolist()
    return GradientVariance(
        path=path,
        branch=branch,
        ratios=[b / p if p > 0 else None for p, b in zip(path, branch, strict=True)],
        aggregate_path=float(total[0]),
        aggregate_branch=float(total[1]),
        n_windows=len(gradients),
    )


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
