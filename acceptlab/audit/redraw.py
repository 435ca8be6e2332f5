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

_LISTS_AT_ONCE = 4
"""Lists of candidates computed together: few enough that their rows stay in the processor's cache."""


def draw_many(weights: Row, uniforms: Float64[np.ndarray, " draws"]) -> Tokens:
    """Many tokens of one distribution by inverse CDF, as `sampling.inverse_cdf` draws one; weights need no norm."""
    cumulative = weights.cumsum(dim=-1)
    points = torch.from_numpy(np.ascontiguousarray(uniforms)) * cumulative[-1]
    last = int(torch.nonzero(weights)[-1])
    return np.asarray(torch.searchsorted(cumulative, points, right=True).clamp(max=last).numpy())


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
    lists, list_of = np.unique(candidates, axis=0, return_inverse=True)
    members = _members(list_of.reshape(-1), len(lists))
    emitted = np.empty(len(uniforms), dtype=np.int64)
    for start in range(0, len(lists), _LISTS_AT_ONCE):
        some = torch.from_numpy(lists[start : start + _LISTS_AT_ONCE])
        rows = len(some)
        accepts, residual = verifier.siblings(target.expand(rows, -1), draft.expand(rows, -1), some)
        for offset in range(rows):
            draws = members[start + offset]
            passed = uniforms[draws, k : 2 * k] < accepts[offset].numpy()
            taken = passed.any(axis=1)
            emitted[draws] = lists[start + offset][passed.argmax(axis=1)]
            if not taken.all():
                rest = draws[~taken]
                emitted[rest] = draw_many(residual[offset], uniforms[rest, 2 * k])
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
    for rank in range(
        1, k
    ):  # draws with the same siblings so far draw the next one from the same distribution
        before, group = np.unique(candidates[:, :rank], axis=0, return_inverse=True)
        for members, gone in zip(_members(group.reshape(-1), len(before)), before, strict=True):
            left = draft.clone()
            left[torch.from_numpy(gone)] = 0.0
            candidates[members, rank] = draw_many(left, uniforms[members, rank])
    return candidates


def _members(group_of: Int64[np.ndarray, " draws"], n_groups: int) -> list[Int64[np.ndarray, " some"]]:
    """The draws of every group."""
    order = np.argsort(group_of, kind="stable")
    return np.split(order, np.searchsorted(group_of[order], np.arange(1, n_groups)))


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
