"""The randomised probability-integral transform of emitted tokens: uniform and independent iff lossless.

In a context let the target's sampling distribution be laid out on [0, 1], one stretch a token, in an order that
depends on the context only. A token that was emitted there becomes a uniform point of its own stretch. If, given
all tokens before it, the token follows the target, the point is uniform on [0, 1] whatever came before; so the
points of a text, and of texts one after the other, are uniform and independent, although its tokens depend on each
other. The converse holds for the law within the order's resolution: a biased token puts too much on some stretches.
Any order fixed before the draw is valid. Descending target/draft is the powerful one: a decoder that leans towards
the draft, as broken verifiers do, emits too few tokens at the front and too many at the back.

Where texts end: a text stops at an end-of-text token, which counts as emitted, or at a limit of tokens. Both are
known from the tokens up to there, never from those to come, so the next point is uniform given all points before
it, also where it opens the next text. The first n points of texts in a fixed order are therefore exactly uniform
and independent. Cutting at n in this way matters: dropping texts by how they end, or stopping between two
speculative steps, would look ahead (accepted tokens are not target-distributed given that they were accepted).

Boundary: distributions, tokens and uniforms in, points out. The distributions come from `plain`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from acceptlab.sampling import Warp, warp

Probs = Float64[Tensor, "contexts vocab"]


def order_scores(target: Probs, draft: Probs) -> Probs:
    """What the vocabulary of every context is ordered by: target/draft, 0 where the target has nothing."""
    return torch.where(target > 0, target / draft, torch.zeros_like(target))


def mass_before(target: Probs, draft: Probs) -> Probs:
    """Where every token's stretch of [0, 1] begins: the target's mass of the tokens ordered before it.

    Descending target/draft, equal ratios by lower id. The tokens that were drawn are no argument.
    """
    order = torch.sort(order_scores(target, draft), dim=-1, descending=True, stable=True).indices
    ordered = target.gather(1, order)
    before = ordered.cumsum(dim=-1) - ordered
    return torch.zeros_like(target).scatter_(1, order, before)


def mass_before_tokens(
    target: Probs, draft: Probs, tokens: Int64[Tensor, " contexts"]
) -> Float64[Tensor, " contexts"]:
    """`mass_before` of one token a context, by adding up what is ordered before it: no sorting of the vocabulary."""
    scores = order_scores(target, draft)
    own = scores.gather(1, tokens[:, None])
    lower = torch.arange(scores.shape[1]) < tokens[:, None]
    is_before = (scores > own) | ((scores == own) & lower)
    return (target * is_before).sum(dim=-1)


def transform(
    target: Probs,
    draft: Probs,
    tokens: Int64[Tensor, " contexts"],
    uniforms: Float64[Tensor, " contexts"],
) -> Float64[np.ndarray, " contexts"]:
    """The point of every context's token.

    Args:
        target: sampling distributions of the target, rows that sum to 1.
        draft: sampling distributions of the draft; they only choose the order.
        tokens: what was emitted.
        uniforms: one a context, independent of everything else.

    Returns:
        Points in [0, 1]. A token that the target cannot emit has no stretch: its point is nan.
    """
    width = target.gather(1, tokens[:, None])[:, 0]
    points = mass_before_tokens(target, draft, tokens) + uniforms * width
    # the cumulative sum may end a few 1e-16 above 1
    return points.clamp(0.0, 1.0).masked_fill(width <= 0, torch.nan).numpy()


def transform_logits(
    target_logits: Float[Tensor, "contexts vocab"],
    draft_logits: Float[Tensor, "contexts vocab"],
    tokens: Int64[Tensor, " contexts"],
    uniforms: Float64[Tensor, " contexts"],
    settings: Warp,
) -> Float64[np.ndarray, " contexts"]:
    """`transform` after the warp that both models share, a few contexts at a time."""
    parts = [
        transform(
            warp(target_logits[some], settings),
            warp(draft_logits[some], settings),
            tokens[some],
            uniforms[some],
        )
        for some in torch.split(torch.arange(len(tokens)), 4)
    ]
    return np.concatenate(parts) if parts else np.empty(0)


def first_points(
    texts: Iterable[Float64[np.ndarray, " n"]], n_tokens: int
) -> list[Float64[np.ndarray, " n"]]:
    """The first n_tokens points of texts in their order, still by text; fewer where the texts have fewer."""
    kept, left = [], n_tokens
    for points in texts:
        if left <= 0:
            break
        kept.append(points[:left])
        left -= len(kept[-1])
    return kept
