"""Sampling distributions and candidates: the warp that both models share, and draws with uniforms passed in.

Boundary: logits and probabilities in, probabilities and token ids out. No models, no random state. Rows are
contexts, columns the vocabulary. Probabilities are float64. A row without any probability means that there is
no proposal, and every draw from it is -1.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from acceptlab.errors import RunError, UsageError
from acceptlab.pairing import ProposalKind
from acceptlab.top import top
from acceptlab.warping import Warp as Warp  # noqa: PLC0414  (part of what this module offers)

NOTHING = -1
"""Stands for a candidate that the draft does not have."""


def warp(logits: Float[Tensor, "contexts vocab"], settings: Warp) -> Float64[Tensor, "contexts vocab"]:
    """The sampling distribution of every context: temperature, then top-k, then top-p, as in transformers.

    Top-k keeps the tokens that tie with the k-th; top-p keeps the smallest set of most probable tokens whose
    mass reaches top_p, ties by lower id, at least one token.

    Args:
        logits: any float type; -inf is allowed, and a row of nothing else gives a row of zeros.
        settings: temperature and truncation.

    Raises:
        RunError: a row holds nan or +inf.
    """
    logits = where_float64(logits)
    if settings.is_greedy:
        return _one_hot_argmax(logits)
    scaled = logits if settings.temperature == 1 else logits.double() / settings.temperature
    k = settings.top_k or 0
    probs = _top_k(scaled, k) if 0 < k < scaled.shape[-1] else _softmax(scaled)
    return probs if settings.top_p == 1 else _nucleus(probs, settings.top_p)


def where_float64(logits: Float[Tensor, "*rows"]) -> Float[Tensor, "*rows"]:
    """The same numbers on a device that has float64: Apple's GPUs have not, so theirs go to the CPU."""
    return logits.cpu() if logits.device.type == "mps" else logits


def _one_hot_argmax(logits: Float[Tensor, "contexts vocab"]) -> Float64[Tensor, "contexts vocab"]:
    top, ids = logits.max(dim=-1, keepdim=True)  # the first of equal maxima, that is the lowest id
    _refuse_bad_logits(top)
    probs = torch.zeros(logits.shape, dtype=torch.float64, device=logits.device)
    return probs.scatter_(1, ids, (top > -torch.inf).double())


def _softmax(logits: Float[Tensor, "contexts tokens"]) -> Float64[Tensor, "contexts tokens"]:
    """Softmax in float64; zeros where there is no finite logit."""
    probs = torch.softmax(logits, dim=-1, dtype=torch.float64)
    is_nan = probs[:, :1].isnan()  # then the whole row is
    if not is_nan.any():
        return probs
    _refuse_bad_logits(logits.amax(dim=-1))
    return probs.masked_fill(is_nan, 0.0)


def _top_k(logits: Float[Tensor, "contexts vocab"], k: int) -> Float64[Tensor, "contexts vocab"]:
    """Softmax over the k largest logits and what ties with the k-th."""
    values, ids = logits.topk(k + 1)
    if bool(((values[:, k - 1] == values[:, k]) & (values[:, k] > -torch.inf)).any()):
        return _softmax(logits.masked_fill(logits < values[:, k - 1 : k], -torch.inf))
    probs = torch.zeros(logits.shape, dtype=torch.float64, device=logits.device)
    return probs.scatter_(1, ids[:, :k], _softmax(values[:, :k]))


def _refuse_bad_logits(top: Float[Tensor, " *rows"]) -> None:
    if not (top < torch.inf).all():
        raise RunError("the model gave logits that are nan or infinite: try --dtype float32")


def _nucleus(
    probs: Float64[Tensor, "contexts vocab"], top_p: float, size: int = 256
) -> Float64[Tensor, "contexts vocab"]:
    """Keep the smallest set of most probable tokens with a mass of at least top_p, and renormalise.

    A nucleus is small as a rule, and sorting the vocabulary is slow: looks at the `size` most probable tokens, and
    at more in the rows that need them.
    """
    vocab = probs.shape[-1]
    values, ids = probs.topk(min(size, vocab))
    kept = (values.cumsum(dim=-1) - values < top_p) & (values > 0)
    n_kept = kept.sum(dim=-1, keepdim=True)
    is_wide = (n_kept[:, 0] >= size) if size < vocab else torch.zeros_like(n_kept[:, 0], dtype=torch.bool)
    if bool(is_wide.any()):
        result = torch.empty_like(probs)
        result[is_wide] = _nucleus(probs[is_wide], top_p, 16 * size)
        result[~is_wide] = _nucleus(probs[~is_wide], top_p, size)
        return result
    last = values.gather(1, (n_kept - 1).clamp(min=0))
    after = values.gather(1, n_kept.clamp(max=values.shape[1] - 1))
    if bool(((last == after) & (last > 0) & (n_kept < vocab)).any()):
        # which of the tokens tied at the edge topk put first is not defined: take the lower ids
        above, tied = probs > last, probs == last
        room = n_kept - above.sum(dim=-1, keepdim=True)
        truncated = probs * (above | (tied & (tied.cumsum(dim=-1) <= room)))
    else:
        truncated = torch.zeros_like(probs).scatter_(1, ids, values * kept)
    total = truncated.sum(dim=-1, keepdim=True)
    return truncated.div_(total.masked_fill_(total == 0, 1.0))


def propose(
    kind: ProposalKind,
    draft_logits: Float[Tensor, "contexts vocab"],
    draft_probs: Float64[Tensor, "contexts vocab"],
    uniforms: Float64[Tensor, "contexts siblings"],
    n_children: Int64[Tensor, " contexts"],
) -> Int64[Tensor, "contexts widest"]:
    """The candidates of every context, in the order in which a rule tries them; -1 where there is none.

    The result is as wide as the largest of `n_children`, which must not exceed the uniforms a context.

    Ranked candidates follow the logits: a temperature of 0 or a truncation leaves the siblings of a tree in
    place. Sampled candidates follow `draft_probs`, the distribution after the warp.
    """
    if kind is ProposalKind.WITHOUT_REPLACEMENT:
        return without_replacement(draft_probs, uniforms, n_children).to(draft_logits.device)
    if kind is ProposalKind.WITH_REPLACEMENT:
        return with_replacement(draft_probs, uniforms, n_children).to(draft_logits.device)
    return ranked(draft_logits, n_children, floor=-torch.inf)


def ranked(
    scores: Float[Tensor, "contexts vocab"], n_children: Int64[Tensor, " contexts"], *, floor: float = 0.0
) -> Int64[Tensor, "contexts siblings"]:
    """The tokens of highest score, best first, exact ties by lower id.

    Args:
        scores: probabilities, or logits together with `floor=-inf`.
        n_children: how many candidates each context wants.
        floor: a token with this score or less is no candidate.
    """
    width = int(n_children.max()) if len(n_children) else 0
    if width == 0:
        return _padding(scores, width)
    size = min(width, scores.shape[-1])
    if (
        size == 1 and scores.device.type == "cpu"
    ):  # NumPy takes the first of equal ones, in a tenth of the time
        ids = torch.from_numpy(scores.numpy().argmax(axis=-1).reshape(-1, 1))
        ids = ids.masked_fill(scores.gather(1, ids) <= floor, NOTHING)
        return _trimmed(torch.nn.functional.pad(ids, (0, width - size), value=NOTHING), n_children)
    values, ids = top(scores, min(size + 1, scores.shape[-1]))
    # which of two equal values top puts first is not defined
    if bool((values[:, 1:] == values[:, :-1]).any()):
        values, ids = _ranked_by_argmax(scores, size)
    ids = ids[:, :size].masked_fill(values[:, :size] <= floor, NOTHING)
    return _trimmed(torch.nn.functional.pad(ids, (0, width - size), value=NOTHING), n_children)


def _ranked_by_argmax(
    scores: Float[Tensor, "contexts vocab"], size: int
) -> tuple[Float[Tensor, "contexts size"], Int64[Tensor, "contexts size"]]:
    left = scores.clone()
    values, ids = [], []
    for _ in range(size):
        value, token = left.max(dim=-1, keepdim=True)
        left.scatter_(1, token, -torch.inf)
        values.append(value)
        ids.append(token)
    return torch.cat(values, dim=1), torch.cat(ids, dim=1)


def without_replacement(
    draft_probs: Float64[Tensor, "contexts vocab"],
    uniforms: Float64[Tensor, "contexts siblings"],
    n_children: Int64[Tensor, " contexts"],
) -> Int64[Tensor, "contexts widest"]:
    """Siblings drawn one after the other from what the earlier ones left, in the order drawn.

    Where the support has fewer tokens than children are wanted, the rest is -1.
    """
    left = draft_probs
    columns: list[Tensor] = []
    for rank in range(_width(uniforms, n_children)):
        if columns:
            taken = columns[-1].clamp(min=0)[:, None]
            # a copy of our own from the first time on
            left = left.scatter(1, taken, 0.0) if len(columns) == 1 else left.scatter_(1, taken, 0.0)
        columns.append(inverse_cdf(left, uniforms[:, rank]))
    return _trimmed(torch.stack(columns, dim=1), n_children) if columns else _padding(draft_probs, 0)


def with_replacement(
    draft_probs: Float64[Tensor, "contexts vocab"],
    uniforms: Float64[Tensor, "contexts siblings"],
    n_children: Int64[Tensor, " contexts"],
) -> Int64[Tensor, "contexts widest"]:
    """Siblings drawn independently; the same token may come twice, and each counts as a node of its own."""
    columns = [inverse_cdf(draft_probs, uniforms[:, rank]) for rank in range(_width(uniforms, n_children))]
    return _trimmed(torch.stack(columns, dim=1), n_children) if columns else _padding(draft_probs, 0)


def inverse_cdf(
    weights: Float64[Tensor, "contexts vocab"], uniforms: Float64[Tensor, " contexts"]
) -> Int64[Tensor, " contexts"]:
    """One token a row, the first whose cumulative weight exceeds uniform * total; -1 in a row of zeros.

    A token of weight 0 is never given, whatever the uniform and whatever the rounding of the sum.
    """
    cumulative = weights.cumsum(dim=-1)
    total = cumulative[:, -1:]
    points = uniforms.to(weights.device)[:, None] * total
    tokens = torch.searchsorted(cumulative, points, right=True).clamp(max=weights.shape[-1] - 1)
    has_weight = weights.gather(1, tokens) > 0
    if not bool(has_weight.all()):  # a row of zeros, a uniform of 1, or a parallel sum that is not monotone
        tokens = torch.where(has_weight, tokens, _first_beyond(weights, cumulative > points))
    return tokens[:, 0]


def _first_beyond(
    weights: Float64[Tensor, "contexts vocab"], beyond: Bool[Tensor, "contexts vocab"]
) -> Int64[Tensor, "contexts 1"]:
    """The first token with weight beyond the point, else the last one with weight, else -1."""
    ids = torch.arange(weights.shape[-1], device=weights.device)
    positive = weights > 0
    last = ids.masked_fill(~positive, NOTHING).amax(dim=-1, keepdim=True)
    first = ids.masked_fill(~(positive & beyond), weights.shape[-1]).amin(dim=-1, keepdim=True)
    return torch.minimum(first, last)


def draw(probs: Float64[Tensor, " vocab"], uniform: float) -> int:
    """One token by inverse CDF; the weights need not sum to 1.

    Raises:
        RunError: all weights are 0.
    """
    point = torch.tensor([uniform], dtype=torch.float64, device=probs.device)
    token = int(inverse_cdf(probs[None, :], point))
    if token == NOTHING:
        raise RunError("cannot draw a token where all probabilities are 0: a context has no finite logit")
    return token


def _width(uniforms: Float64[Tensor, "contexts siblings"], n_children: Int64[Tensor, " contexts"]) -> int:
    width = int(n_children.max()) if len(n_children) else 0
    if width > uniforms.shape[1]:
        raise UsageError(f"{width} candidates need {width} uniforms a context, not {uniforms.shape[1]}")
    return width


def _padding(scores: Float[Tensor, "contexts vocab"], width: int) -> Int64[Tensor, "contexts siblings"]:
    return torch.full((scores.shape[0], width), NOTHING, dtype=torch.int64, device=scores.device)


def _trimmed(
    ids: Int64[Tensor, "contexts siblings"], n_children: Int64[Tensor, " contexts"]
) -> Int64[Tensor, "contexts siblings"]:
    """Blank what a context did not ask for."""
    ranks = torch.arange(ids.shape[1], device=ids.device)
    return ids.masked_fill(ranks[None, :] >= n_children.to(ids.device)[:, None], NOTHING)
