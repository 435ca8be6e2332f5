"""Sums over the whole vocabulary that the measures of a step are made of, and the most probable tokens.

Boundary: logits of both models in, small numpy arrays out. A vocabulary is long and a pass over it in float64 is what a
measure costs, so each row is read from memory once: on a CPU row by row, in buffers that stay in its cache.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
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

    logits: Float[np.ndarray, "contexts head"]
    ids: Int[np.ndarray, "contexts head"]
    certain: Int[np.ndarray, " contexts"]


@dataclass(frozen=True)
class Sums:
    """What needs every token of the vocabulary: scalars of the contexts, and probabilities of single tokens.

    `head_probs` (contexts, 2, head) and `node_probs` (nodes, 2) hold model probabilities, the target's first;
    `rest` is the target's mass outside of its head.
    """

    scalars: dict[str, Any]
    head_probs: Float[np.ndarray, "contexts 2 head"]
    rest: Float[np.ndarray, " contexts"]
    node_probs: Float[np.ndarray, "nodes 2"]


def head_of(logits: Float[Tensor, "contexts vocab"]) -> Head:
    """The most probable tokens of every context."""
    values, ids = top(logits, min(HEAD, logits.shape[1]))
    on_cpu, id_rows = values.cpu().numpy(), ids.cpu().numpy()
    order = np.lexsort((id_rows, -on_cpu), axis=-1)
    certain = (on_cpu > on_cpu[:, -1:]).sum(axis=1)
    return Head(np.take_along_axis(on_cpu, order, -1), np.take_along_axis(id_rows, order, -1), certain)


@lru_cache(maxsize=4)
def _workspace(n_rows: int, vocab: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Buffers of a block: the logits and the weights of both models, and one more row each."""
    both = torch.empty((n_rows, 2, vocab), dtype=torch.float64, device=device)
    return both, torch.empty_like(both), torch.empty((n_rows, vocab), dtype=torch.float64, device=device)


def full_sums(
    logits: tuple[Tensor, ...],
    sampling: tuple[Tensor, ...] | None,
    heads: tuple[Head, ...],
    parent_index: Int[np.ndarray, " nodes"],
    token_ids: Int[Tensor, " nodes"],
) -> Sums:
    """All sums of the contexts of a step.

    Only raw sums are taken row by row; what follows from them is computed for all contexts together (`_scalars`).

    Args:
        logits: the target's and the draft's.
        sampling: their sampling distributions, for the overlap; None where they are the model distributions.
        heads: the most probable tokens of both.
        parent_index: row of the context of every node.
        token_ids: the nodes' tokens, on the CPU.

    Raises:
        RunError: logits that are nan or infinite.
    """
    n_rows, vocab = logits[TARGET].shape
    device = logits[TARGET].device
    width = heads[TARGET].ids.shape[1]
    places, wanted = _wanted_ids(heads, parent_index, token_ids.numpy())
    raw = _Raw.empty(n_rows, wanted.shape[2], device)
    tops = torch.from_numpy(np.stack([head.logits[:, :1] for head in heads], axis=1)).to(device).double()
    if not bool(tops.isfinite().all()):
        raise RunError("a model gave logits that are nan or infinite: try --dtype float32")
    ids = torch.from_numpy(wanted).to(device)
    size = 1 if device.type == "cpu" else max(n_rows, 1)
    for start in range(0, n_rows, size):
        block = slice(start, min(start + size, n_rows))
        _add_block(raw, logits, sampling, tops, ids, width, block, _workspace(size, vocab, device))
    on_cpu = raw.on_cpu()
    probs = on_cpu.weights / on_cpu.totals[:, :, None]
    return Sums(
        _scalars(on_cpu, logits, sampling is None),
        probs[:, :, :width],
        on_cpu.rest / on_cpu.totals[:, TARGET],
        probs[parent_index, :, places],
    )


def _wanted_ids(
    heads: tuple[Head, ...], parent_index: Int[np.ndarray, " nodes"], tokens: Int[np.ndarray, " nodes"]
) -> tuple[Int[np.ndarray, " nodes"], Int[np.ndarray, "contexts 2 ids"]]:
    """Tokens whose probabilities are wanted: each model's head, then the nodes' tokens; and the nodes' places there."""
    n_rows, width = heads[TARGET].ids.shape
    places = np.zeros(len(tokens), dtype=np.int64)
    seen = np.full(n_rows, width)
    for node, row in enumerate(parent_index.tolist()):
        places[node] = seen[row]
        seen[row] += 1
    ids = np.zeros((n_rows, 2, int(seen.max(initial=width))), dtype=np.int64)
    for side in (TARGET, DRAFT):
        ids[:, side, :width] = heads[side].ids
        ids[parent_index, side, places] = tokens
    return places, ids


@dataclass(frozen=True)
class _Raw:
    """Sums over the vocabulary of softmax weights exp(logit - largest logit), a row a context.

    `totals` [context, model]; `products` [context, whose shifted logits, under whose weights]; `affinity` is the sum
    of the root of both weights; `overlap` is over the draft's total where the distributions are not warped; `weights`
    are those of single tokens; `rest` is the target's without its head.
    """

    totals: Tensor
    products: Tensor
    affinity: Tensor
    overlap: Tensor
    rest: Tensor
    weights: Tensor

    @classmethod
    def empty(cls, n_rows: int, n_ids: int, device: torch.device) -> _Raw:
        shapes = ((n_rows, 2), (n_rows, 2, 2), (n_rows,), (n_rows,), (n_rows,), (n_rows, 2, n_ids))
        return cls(*(torch.empty(shape, dtype=torch.float64, device=device) for shape in shapes))

    def on_cpu(self) -> _RawOnCpu:
        """Everything in one transfer."""
        tensors = [getattr(self, field.name) for field in fields(self)]
        flat = torch.cat([tensor.flatten() for tensor in tensors]).cpu().numpy()
        bounds = np.cumsum([tensor.numel() for tensor in tensors])[:-1]
        parts = np.split(flat, bounds)
        return _RawOnCpu(*(part.reshape(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)))


@dataclass(frozen=True)
class _RawOnCpu:
    """The same as numpy arrays."""

    totals: Float[np.ndarray, "contexts 2"]
    products: Float[np.ndarray, "contexts 2 2"]
    affinity: Float[np.ndarray, " contexts"]
    overlap: Float[np.ndarray, " contexts"]
    rest: Float[np.ndarray, " contexts"]
    weights: Float[np.ndarray, "contexts 2 ids"]


def _add_block(
    raw: _Raw,
    logits: tuple[Tensor, ...],
    sampling: tuple[Tensor, ...] | None,
    tops: Float[Tensor, "contexts 2 1"],
    ids: Int[Tensor, "contexts 2 ids"],
    width: int,
    block: slice,
    workspace: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Write the sums of some contexts into `raw`, in buffers that are used again and again."""
    shifted, weights, spare = (buffer[: block.stop - block.start] for buffer in workspace)
    for side in (TARGET, DRAFT):
        shifted[:, side].copy_(logits[side][block])
    torch.exp(shifted.sub_(tops[block]), out=weights)
    totals = torch.sum(weights, dim=-1, out=raw.totals[block])
    torch.bmm(shifted, weights.transpose(1, 2), out=raw.products[block])
    torch.mul(weights[:, TARGET], weights[:, DRAFT], out=spare)
    torch.sum(spare.sqrt_(), dim=-1, out=raw.affinity[block])
    if sampling is None:
        torch.mul(weights[:, TARGET], totals[:, DRAFT:] / totals[:, :DRAFT], out=spare)
        torch.minimum(spare, weights[:, DRAFT], out=spare)
    else:
        torch.minimum(*(probs[block].to(spare.device) for probs in sampling), out=spare)
    torch.sum(spare, dim=-1, out=raw.overlap[block])
    torch.gather(weights, 2, ids[block], out=raw.weights[block])
    weights[:, TARGET].scatter_(1, ids[block, TARGET, :width], 0.0)
    torch.sum(weights[:, TARGET], dim=-1, out=raw.rest[block])


def _scalars(raw: _RawOnCpu, logits: tuple[Tensor, ...], unwarped: bool) -> dict[str, Any]:
    """Measures of the contexts from raw sums.

    With the largest logit taken off, log prob = logit - log total: every expectation of a log probability is one of
    logits less a number a row, and both divergences are differences of such expectations, with an absolute rounding
    error of some 1e-14 nats.
    """
    products = raw.products
    undefined = np.flatnonzero(np.isnan(products).any(axis=(1, 2)))
    if len(undefined):  # -inf under weight 0, which counts as 0
        products = products.copy()
        products[undefined] = _products_with_zeros(logits, undefined)
    log_totals = np.log(raw.totals)
    expected = products / raw.totals[:, None]
    entropies = [log_totals[:, side] - expected[:, side, side] for side in (TARGET, DRAFT)]
    cross = [log_totals[:, 1 - side] - expected[:, 1 - side, side] for side in (TARGET, DRAFT)]
    affinity = raw.affinity / np.sqrt(raw.totals.prod(axis=1))
    overlap = raw.overlap / raw.totals[:, DRAFT] if unwarped else raw.overlap
    with np.errstate(divide="ignore"):  # distributions without a common token
        renyi_half = -2.0 * np.log(np.minimum(affinity, 1.0))
    return {
        "target_entropy": entropies[TARGET],
        "draft_entropy": entropies[DRAFT],
        "overlap": np.minimum(overlap, 1.0),
        "kl_target_draft": np.maximum(cross[TARGET] - entropies[TARGET], 0.0),
        "kl_draft_target": np.maximum(cross[DRAFT] - entropies[DRAFT], 0.0),
        "renyi_half": renyi_half,
    }


def _products_with_zeros(
    logits: tuple[Tensor, ...], rows: Int[np.ndarray, " rows"]
) -> Float[np.ndarray, "rows 2 2"]:
    """`_Raw.products` of some contexts, term by term."""
    picked = torch.stack([side[torch.from_numpy(rows).to(side.device)] for side in logits], dim=1).double()
    shifted = picked - picked.amax(dim=-1, keepdim=True)
    weights = shifted.exp()
    terms = torch.where(weights[:, None] > 0, shifted[:, :, None] * weights[:, None], 0.0)
    sums: Float[np.ndarray, "rows 2 2"] = terms.sum(dim=-1).cpu().numpy()
    return sums
