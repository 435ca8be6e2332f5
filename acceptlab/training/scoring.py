"""Accepted length of drafters along the same trajectories, kept apart by prompt and place in the window.

What `evaluate` sums up, as one row a prompt and position, so that drafters can be compared prompt by prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float
from torch import Tensor

from acceptlab.drafters.base import Drafter
from acceptlab.training.chain_losses import branch_terms, path_terms
from acceptlab.training.corpus import Batch, Example, make_batch
from acceptlab.training.losses import Scores

SCORE_SCHEMA = pa.schema(
    [
        pa.field("item", pa.int32(), nullable=False),
        pa.field("domain", pa.string(), nullable=False),
        pa.field("position", pa.int32(), nullable=False),
        pa.field("n_windows", pa.int32(), nullable=False),
        pa.field("branch", pa.float64(), nullable=False),
        pa.field("path", pa.float64(), nullable=False),
        pa.field("overlap", pa.float64(), nullable=False),
        pa.field("accept", pa.float64(), nullable=False),
        pa.field("match", pa.float64(), nullable=False),
    ]
)
"""Sums over the windows of one prompt that reach a position (from 1): how many they are, the branch term
B_(k-1) a_k, the path term B_k, the overlap a_k, the acceptance b_k of the target's own token, and equal argmaxes.
The sum of the branch terms over positions, divided by the windows at position 1, estimates the accepted length."""

_TERMS = ("branch", "path", "overlap", "accept", "match")


@torch.inference_mode()
def score_positions(
    drafters: Mapping[str, Drafter],
    examples: Sequence[Example],
    output_weight: Float[Tensor, "vocab size"],
    *,
    gamma: int,
) -> dict[str, pa.Table]:
    """Measure several drafters at once on trajectories that the target sampled at temperature 1.

    The target's distributions are computed once for all drafters, over the whole vocabulary.

    Args:
        drafters: drafters by name.
        examples: the trajectories, one a prompt.
        output_weight: the target's output layer.
        gamma: window length; windows start at the first output token.

    Returns:
        A table of `SCORE_SCHEMA` for every drafter.
    """
    rows: dict[str, list[dict[str, object]]] = {name: [] for name in drafters}
    for example in examples:
        batch = make_batch([example], gamma=gamma, offsets=[0], with_features=True)
        target_logits = batch.features @ output_weight.T
        best = target_logits.argmax(dim=-1)
        target_probs = target_logits.softmax(dim=-1)
        for name, drafter in drafters.items():
            sums = _position_sums(drafter, batch, target_probs, best)
            for k in range(gamma):
                terms = dict(zip(("n_windows", *_TERMS), sums[:, k].tolist(), strict=True))
                rows[name].append(
                    {"item": example.item, "domain": example.domain, "position": k + 1}
                    | terms
                    | {"n_windows": int(terms["n_windows"])}
                )
    return {name: pa.Table.from_pylist(found, SCORE_SCHEMA) for name, found in rows.items()}


def _position_sums(
    drafter: Drafter, batch: Batch, target_probs: Tensor, best: Tensor
) -> Float[np.ndarray, "quantities gamma"]:
    """The windows that reach each position, then the sums of `_TERMS`."""
    draft_logits = drafter.output.expand(drafter.row_logits(batch.rows))
    scores = Scores(draft_logits, target_probs, batch.labels, batch.windows)
    match = (draft_logits.argmax(dim=-1) == best).float()
    accepts, overlaps, matches = map(scores.by_window, (scores.accepts, scores.overlaps, match))
    mask = scores.mask
    found = [
        mask.double(),
        branch_terms(accepts, overlaps, mask),
        path_terms(accepts, mask),
        overlaps,
        accepts,
        matches,
    ]
    return torch.stack([values.double().sum(dim=0) for values in found]).numpy()
