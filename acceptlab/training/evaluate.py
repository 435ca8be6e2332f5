"""How well a drafter follows the target on held-out trajectories, exactly, over the whole vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from acceptlab.drafters.base import Drafter
from acceptlab.training.chain_losses import branch_value, path_value, wtv_value
from acceptlab.training.corpus import Batch, Example, make_batch
from acceptlab.training.losses import Scores

_COVER = 4


@dataclass(frozen=True)
class HeldOut:
    """Means over held-out rows; lengths are means over windows of gamma tokens, without the bonus token.

    `overlap` is the mean of the sum of min(target, draft), `match` the share of equal argmaxes, `cover` the
    share of the target's argmax among the draft's four best, `kl` the mean KL(target || draft) in nats.
    `branch`, `path` and `product` estimate the accepted length: the last one from the mean overlaps, as if
    steps were independent. `overlap_by_place` is the mean overlap at every place of a window, from the first:
    heads see less of the target at later ones. `covariances` are those of adjacent positions, of b_i and
    a_(i+1), i = 1..gamma-1, over complete windows.
    """

    overlap: float
    match: float
    cover: float
    kl: float
    branch: float
    path: float
    product: float
    trajectory: float
    overlap_by_place: list[float]
    covariances: list[float]
    n_tokens: int
    n_items: int


@torch.inference_mode()
def evaluate(
    drafter: Drafter,
    examples: Sequence[Example],
    output_weight: Float[Tensor, "vocab size"],
    *,
    gamma: int,
    batch_items: int = 4,
) -> HeldOut:
    """Measure a drafter along trajectories that the target sampled.

    Args:
        drafter: the drafter; its own mode is left as it is (it has no dropout).
        examples: held-out trajectories.
        output_weight: the target's output layer.
        gamma: window length; windows start at the first output token.
        batch_items: trajectories per forward pass.
    """
    sums = torch.zeros(4, dtype=torch.float64)
    accepts, overlaps, masks = [], [], []
    n_tokens = 0
    for start in range(0, len(examples), batch_items):
        group = examples[start : start + batch_items]
        batch = make_batch(group, gamma=gamma, offsets=[0] * len(group), with_features=drafter.needs_features)
        scores, rows = _score(drafter, batch, output_weight)
        sums += rows.double().sum(dim=0)
        n_tokens += batch.n_tokens
        accepts.append(scores.by_window(scores.accepts))
        overlaps.append(scores.by_window(scores.overlaps))
        masks.append(scores.mask)
    b, a, mask = torch.cat(accepts), torch.cat(overlaps), torch.cat(masks)
    overlap, match, cover, kl = (sums / n_tokens).tolist()
    mean_steps = a.sum(dim=0) / mask.sum(dim=0)
    whole = mask.all(dim=1)
    pairs = ((b[whole, :-1] - b[whole, :-1].mean(0)) * (a[whole, 1:] - a[whole, 1:].mean(0))).mean(0)
    return HeldOut(
        overlap=overlap,
        match=match,
        cover=cover,
        kl=kl,
        branch=float(branch_value(b, a, mask).mean()),
        path=float(path_value(b, mask).mean()),
        product=float(mean_steps.cumprod(0).sum()),
        trajectory=float(wtv_value(a, mask).mean()),
        overlap_by_place=mean_steps.tolist(),
        covariances=pairs.tolist(),
        n_tokens=n_tokens,
        n_items=len(examples),
    )


def _score(drafter: Drafter, batch: Batch, output_weight: Tensor) -> tuple[Scores, Float[Tensor, "rows 4"]]:
    draft_logits = drafter.output.expand(drafter.row_logits(batch.rows))
    target_logits = batch.features @ output_weight.T
    target_probs = target_logits.softmax(dim=-1)
    scores = Scores(draft_logits, target_probs, batch.labels, batch.windows)
    best = target_logits.argmax(dim=-1, keepdim=True)
    top = draft_logits.topk(_COVER, dim=-1).indices
    kl = (target_probs * (target_logits.log_softmax(dim=-1) - draft_logits.log_softmax(dim=-1))).sum(dim=-1)
    rows = [scores.overlaps, (top[:, :1] == best)[:, 0].float(), (top == best).any(dim=-1).float(), kl]
    return scores, torch.stack(rows, dim=1)
