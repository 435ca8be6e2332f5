"""Verifiers drawn again and again in the same contexts, right ones and broken ones.

Candidates, tests and corrections are drawn anew each time; what the verifier computes for one list of candidates is
computed once and used for all draws that have that list. The arithmetic is the verifier's own.

Boundary: distributions and uniforms in, emitted tokens out.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from acceptlab.audit.controls import ContextVerifier
from acceptlab.errors import UsageError
from acceptlab.pairing import ProposalKind
from acceptlab.rules import parse_rule
from acceptlab.sampling import ranked
from acceptlab.tree import Tree
from acceptlab.verify import Drafted, Target, verify

Row = Float64[Tensor, " vocab"]
Tokens = Int64[np.ndarray, " draws"]

_CELLS_AT_ONCE = 100_000
"""Probabilities computed together: few enough that they stay in the processor's cache."""


def draw_many(weights: Row, uniforms: Float64[np.ndarray, " draws"]) -> Tokens:
    """Many tokens of one distribution by inverse CDF, as `sampling.inverse_cdf` draws one; weights need no norm."""
    cumulative = weights.cumsum(dim=-1)
    points = torch.from_numpy(np.ascontiguousarray(uniforms)) * cumulative[-1]
    last = int(torch.nonzero(weights)[-1])
    return np.asarray(torch.searchsorted(cumulative, points, right=True).clamp(max=last).numpy())


def draw_rows(
    weights: Float64[Tensor, "rows vocab"],
    row_of: Int64[np.ndarray, " draws"],
    uniforms: Float64[np.ndarray, " draws"],
) -> Tokens:
    """Tokens of several distributions, each draw from the row that is named for it, as `draw_many` draws from one.

    The cumulative sums of all rows are laid one behind the other, each scaled to length 1, and searched at once: the
    ends of a token's stretch move by some 1e-14, and a token without weight keeps none.
    """
    cumulative = weights.cumsum(dim=-1).numpy()
    places = np.arange(len(cumulative), dtype=np.float64)[:, None]
    line = (cumulative / cumulative[:, -1:] + places).reshape(-1)
    found = np.searchsorted(line, row_of + uniforms, side="right")
    # a uniform near 1 may round to the end of its row: the last token with weight is meant
    last = np.searchsorted(line, np.arange(1.0, len(cumulative) + 1.0), side="left")
    return np.asarray(np.minimum(found, last[row_of]) - row_of * cumulative.shape[1])


def emit_many(
    verifier: ContextVerifier, target: Row, draft: Row, uniforms: Float64[np.ndarray, "draws columns"]
) -> Tokens:
    """Tokens that a verifier emits in one context, one a draw; with the uniforms of `controls.emit` the same ones.

    Args:
        verifier: a right or a broken one.
        target: sampling distribution of the target.
        draft: sampling distribution of the draft, after the same warp.
        uniforms: 2 * n_siblings + 1 a draw: proposals, tests, correction.

    Raises:
        UsageError: the draft has fewer tokens than siblings are wanted.
    """
    k = verifier.n_siblings
    if int((draft > 0).sum()) < k:
        raise UsageError(
            f"verifier '{verifier.name}' needs {k} tokens with draft probability in every context"
        )
    candidates = _candidates(verifier, draft, uniforms[:, :k])
    emitted = np.empty(len(uniforms), dtype=np.int64)
    waiting = np.arange(len(uniforms))  # draws whose siblings so far were rejected
    for rank in range(k):
        if not len(waiting):
            break
        # a sibling is tested by what was rejected before it: those behind it need not be known
        lists, list_of = _distinct(candidates[waiting, : rank + 1], len(draft))
        is_rejected = np.zeros(len(waiting), dtype=bool)
        for first, mine in _packs(list_of, len(lists), len(draft)):
            row_of = list_of[mine] - first
            some = torch.from_numpy(lists[first : first + int(row_of.max()) + 1])
            accepts, residual = verifier.siblings(
                target.expand(len(some), -1), draft.expand(len(some), -1), some
            )
            draws = waiting[mine]
            passed = uniforms[draws, k + rank] < accepts[:, rank].numpy()[row_of]
            emitted[draws[passed]] = candidates[draws[passed], rank]
            is_rejected[mine[~passed]] = True
            if rank + 1 == k and not passed.all():
                rows, places = np.unique(row_of[~passed], return_inverse=True)
                laws = residual if len(rows) == len(residual) else residual[torch.from_numpy(rows)]
                emitted[draws[~passed]] = draw_rows(laws, places.reshape(-1), uniforms[draws[~passed], 2 * k])
        waiting = waiting[is_rejected]
    return emitted


def _candidates(
    verifier: ContextVerifier, draft: Row, uniforms: Float64[np.ndarray, "draws siblings"]
) -> Int64[np.ndarray, "draws siblings"]:
    n_draws, k = uniforms.shape
    if verifier.proposal is ProposalKind.RANKED:
        return np.tile(ranked(draft[None], torch.tensor([k])).numpy(), (n_draws, 1))
    columns = [draw_many(draft, uniforms[:, rank]) for rank in range(k)]
    if verifier.proposal is ProposalKind.WITH_REPLACEMENT or k == 1:
        return np.stack(columns, axis=1)
    candidates = np.empty((n_draws, k), dtype=np.int64)
    candidates[:, 0] = columns[0]
    for rank in range(1, k):
        # draws with the same siblings so far draw the next one from the same distribution
        before, group_of = _distinct(candidates[:, :rank], len(draft))
        for first, draws in _packs(group_of, len(before), len(draft)):
            row_of = group_of[draws] - first
            gone = torch.from_numpy(before[first : first + int(row_of.max()) + 1])
            left = draft.expand(len(gone), -1).scatter(1, gone, 0.0)
            candidates[draws, rank] = draw_rows(left, row_of, uniforms[draws, rank])
    return candidates


def _distinct(
    lists: Int64[np.ndarray, "draws siblings"], vocab: int
) -> tuple[Int64[np.ndarray, "lists siblings"], Int64[np.ndarray, " draws"]]:
    """The different lists, and which of them every draw has."""
    names = lists[:, 0]
    for column in lists.T[1:]:
        # numbered anew at every sibling, so that names stay below draws * vocab
        names = np.unique(names, return_inverse=True)[1].reshape(-1) * vocab + column
    _, first, list_of = np.unique(names, return_index=True, return_inverse=True)
    return lists[first], list_of.reshape(-1)


def _packs(
    group_of: Int64[np.ndarray, " draws"], n_groups: int, vocab: int
) -> Iterator[tuple[int, Int64[np.ndarray, " some"]]]:
    """Groups by the pack, as many as fit the cache: the first group of a pack, and the draws of all of them."""
    order = np.argsort(group_of, kind="stable")
    size = max(1, _CELLS_AT_ONCE // vocab)
    starts = np.arange(0, n_groups, size)
    ends = np.searchsorted(group_of[order], starts[1:])
    yield from zip(starts.tolist(), np.split(order, ends), strict=True)


def emit_chains(
    target: Float64[Tensor, "depths vocab"],
    draft: Float64[Tensor, "depths vocab"],
    uniforms: Float64[np.ndarray, "draws columns"],
) -> Int64[np.ndarray, "draws depths"]:
    """Block verification of a chain through all but the last context, many times.

    What a step leaves out is drawn from the target alone, so that every draw gives one token a depth: looking only
    at tokens that a step emitted would condition on acceptance.

    Args:
        target: sampling distributions at the depths.
        draft: the draft's; that of the last depth is not used.
        uniforms: 3 * (depths - 1) + 1 a draw: proposals, tests and the next token, and the rest of the text.
    """
    depth = len(target) - 1
    chain = Tree(tuple(range(-1, depth - 1)))
    rule, side = parse_rule("block"), Target(probs=target)
    rows = np.arange(depth + 1)
    drafted = np.stack([draw_many(draft[place], uniforms[:, place]) for place in range(depth)], axis=1)
    rest = np.stack(
        [draw_many(target[place + 1], uniforms[:, 2 * depth + 1 + place]) for place in range(depth)], axis=1
    )
    emitted = np.empty((len(uniforms), depth + 1), dtype=np.int64)
    for draw, tokens in enumerate(_steps(drafted)):
        verdict = verify(
            rule, Drafted(chain, tokens, rows, draft), side, uniforms[draw, depth : 2 * depth + 1]
        )
        n_accepted = verdict.accepted_len
        emitted[draw, :n_accepted] = tokens[:n_accepted]
        emitted[draw, n_accepted] = -1 if verdict.next_token is None else verdict.next_token
        emitted[draw, n_accepted + 1 :] = rest[draw, n_accepted:]
    return emitted


def _steps(drafted: Int64[np.ndarray, "draws depth"]) -> Iterator[Int64[np.ndarray, " depth"]]:
    for row in drafted:
        yield np.ascontiguousarray(row)
