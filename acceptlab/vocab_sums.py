"""Sums over the whole vocabulary that the measures of a step are made of, and the most probable tokens.

Boundary: logits of both models in, small numpy arrays out. A vocabulary is long and a pass over it in float64 is what a
measure costs, so each row is read from memory once: on a CPU row by row, in buffers that stay in its cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from acceptlab.errors import RunError
from acceptlab.top import top

HEAD = 64
"""Most probable tokens that go to the CPU: enough for almost every exact certificate threshold."""

TARGET, DRAFT = 0, 1
"""Places of the models where an axis holds both."""


@dataclass(frozen=True)
class Head:
    """The most probable tokens of every context on the CPU, most probable first, lower ids first among equals.

    `certain` says how many of them are ranked for certain: a logit that ties with the last one may also stand outside.
    """

    ids: Int[np.ndarray, "contexts head"]
    probs: Float[np.ndarray, "contexts head"]
    certain: Int[np.ndarray, " contexts"]


@dataclass(frozen=True)
class Sums:
    """What needs every token of the vocabulary: scalars of the contexts, and model probabilities of single tokens.

    `heads` holds the target's first, as do the columns of `node_probs`; `rest` is the target's mass outside of its
    head.
    """

    scalars: dict[str, Any]
    heads: tuple[Head, ...]
    rest: Float[np.ndarray, " contexts"]
    node_probs: Float[np.ndarray, "nodes 2"]


def full_sums(
    logits: tuple[Tensor, Tensor],
    sampling: tuple[Tensor, Tensor] | None,
    parent_index: Int[np.ndarray, " nodes"],
    token_ids: Int[Tensor, " nodes"],
) -> Sums:
    """All sums of the contexts of a step.

    Only raw sums are taken row by row; what follows from them is computed for all contexts together (`_scalars`).

    Args:
        logits: the target's and the draft's.
        sampling: their sampling distributions, for the overlap; None where they are the model distributions.
        parent_index: row of the context of every node.
        token_ids: the nodes' tokens, on the CPU.

    Raises:
        RunError: logits that are nan or infinite.
    """
    vocab, device = logits[TARGET].shape[1], logits[TARGET].device
    tops = [top(side, min(HEAD, vocab)) for side in logits]
    values, ids = _ordered(*(torch.stack(each, dim=1).cpu().numpy() for each in zip(*tops, strict=True)))
    largest = values[:, :, :1]
    if not np.isfinite(largest).all():
        raise RunError("a model gave logits that are nan or infinite: try --dtype float32")
    raw = _Raw.of(_sums(logits, sampling, tops).cpu().numpy())
    probs = np.exp(values - largest) / raw.totals[:, :, None]
    certain = (values > values[:, :, -1:]).sum(axis=-1)
    places = torch.from_numpy(parent_index * vocab).add_(token_ids).to(device)
    of_nodes = torch.stack([side.take(places) for side in logits], dim=1).cpu().numpy().astype(np.float64)
    return Sums(
        _scalars(raw, logits, sampling is None),
        tuple(Head(ids[:, side], probs[:, side], certain[:, side]) for side in (TARGET, DRAFT)),
        raw.rest / raw.totals[:, TARGET],
        np.exp(of_nodes - largest[parent_index, :, 0]) / raw.totals[parent_index],
    )


@lru_cache(maxsize=4)
def _workspace(n_rows: int, vocab: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Buffers of a block, for both models."""
    both = torch.empty((n_rows, 2, vocab), dtype=torch.float64, device=device)
    return both, torch.empty_like(both)


def _ordered(
    values: Float[np.ndarray, "contexts 2 head"], ids: Int[np.ndarray, "contexts 2 head"]
) -> tuple[Float64[np.ndarray, "contexts 2 head"], Int[np.ndarray, "contexts 2 head"]]:
    """Sorted values in float64, with equal ones by lower id."""
    values = values.astype(np.float64)
    if not ((values[..., 1:] == values[..., :-1]) & (ids[..., 1:] < ids[..., :-1])).any():
        return values, ids
    order = np.lexsort((ids, -values), axis=-1)
    return np.take_along_axis(values, order, -1), np.take_along_axis(ids, order, -1)


@dataclass(frozen=True)
class _Raw:
    """Sums over the vocabulary of softmax weights exp(logit - largest logit), a row a context.

    `totals` [context, model]; `products` [context, whose shifted logits, under whose weights]; `affinity` is the sum
    of the root of both weights; `overlap` is over the draft's total where the distributions are not warped; `rest` is
    the sum of the target's weights without its head.
    """

    totals: Float[np.ndarray, "contexts 2"]
    products: Float[np.ndarray, "contexts 2 2"]
    affinity: Float[np.ndarray, " contexts"]
    overlap: Float[np.ndarray, " contexts"]
    rest: Float[np.ndarray, " contexts"]

    @classmethod
    def of(cls, sums: Float[np.ndarray, "contexts 9"]) -> _Raw:
        """Name what `_sums` wrote."""
        return cls(sums[:, :2], sums[:, 2:6].reshape(-1, 2, 2), sums[:, 6], sums[:, 7], sums[:, 8])


def _sums(
    logits: tuple[Tensor, Tensor],
    sampling: tuple[Tensor, Tensor] | None,
    tops: Sequence[tuple[Tensor, Tensor]],
) -> Float[Tensor, "contexts 9"]:
    """What `_Raw` names, in that order.

    On a CPU row by row in buffers that are used again and again, each part of a row as soon as it is there: it is
    still in the cache.
    """
    n_rows, vocab = logits[TARGET].shape
    device = logits[TARGET].device
    sums = torch.empty((n_rows, 9), dtype=torch.float64, device=device)
    size = 1 if device.type == "cpu" else max(n_rows, 1)
    shifted, weights = _workspace(size, vocab, device)
    spare = shifted[:, TARGET]  # where the logits are done with
    of_target, of_draft = weights[:, TARGET], weights[:, DRAFT]
    for start in range(0, n_rows, size):
        block = slice(start, start + size)
        found = sums[block]
        for side in (TARGET, DRAFT):
            own = shifted[:, side]
            own.copy_(logits[side][block]).sub_(tops[side][0][block, :1])
            torch.exp(own, out=weights[:, side])
        totals = torch.sum(weights, dim=-1, out=found[:, :2])
        torch.bmm(shifted, weights.transpose(1, 2), out=found[:, 2:6].view(-1, 2, 2))
        torch.mul(of_target, of_draft, out=spare)
        torch.sum(spare.sqrt_(), dim=-1, out=found[:, 6])
        if sampling is None:
            torch.mul(of_target, totals[:, DRAFT:] / totals[:, :DRAFT], out=spare)
            torch.minimum(spare, of_draft, out=spare)
        else:
            torch.minimum(*(probs[block].to(device) for probs in sampling), out=spare)
        torch.sum(spare, dim=-1, out=found[:, 7])
        of_target.scatter_(1, tops[TARGET][1][block], 0.0)
        torch.sum(of_target, dim=-1, out=found[:, 8])
    return sums


def _scalars(raw: _Raw, logits: tuple[Tensor, Tensor], unwarped: bool) -> dict[str, Any]:
    """Measures of the contexts from raw sums.

    With the largest logit taken off, log prob = logit - log total: every expectation of a log probability is one of
    logits less a number a row, and both divergences are differences of such expectations, with an absolute rounding
    error of some 1e-14 nats.
    """
    products = raw.products
    if np.isnan(products).any():  # -inf under weight 0, which counts as 0
        undefined = np.flatnonzero(np.isnan(products).any(axis=(1, 2)))
        products = products.copy()
        products[undefined] = _products_with_zeros(logits, undefined)
    # [context, whose log probabilities, under whose probabilities]
    cross = np.log(raw.totals)[:, :, None] - products / raw.totals[:, None]
    target_entropy, draft_entropy = cross[:, TARGET, TARGET], cross[:, DRAFT, DRAFT]
    affinity = raw.affinity / np.sqrt(raw.totals.prod(axis=1))
    overlap = raw.overlap / raw.totals[:, DRAFT] if unwarped else raw.overlap
    with np.errstate(divide="ignore"):  # distributions without a common token
        renyi_half = -2.0 * np.log(np.minimum(affinity, 1.0))
    return {
        "target_entropy": target_entropy,
        "draft_entropy": draft_entropy,
        "overlap": np.minimum(overlap, 1.0),
        "kl_target_draft": np.maximum(cross[:, DRAFT, TARGET] - target_entropy, 0.0),
        "kl_draft_target": np.maximum(cross[:, TARGET, DRAFT] - draft_entropy, 0.0),
        "renyi_half": renyi_half,
    }


def _products_with_zeros(
    logits: tuple[Tensor, Tensor], rows: Int[np.ndarray, " rows"]
) -> Float[np.ndarray, "rows 2 2"]:
    """`_Raw.products` of some contexts, term by term."""
    picked = torch.stack([side[torch.from_numpy(rows).to(side.device)] for side in logits], dim=1).double()
    shifted = picked - picked.amax(dim=-1, keepdim=True)
    weights = shifted.exp()
    terms = torch.where(weights[:, None] > 0, shifted[:, :, None] * weights[:, None], 0.0)
    sums: Float[np.ndarray, "rows 2 2"] = terms.sum(dim=-1).cpu().numpy()
    return sums
