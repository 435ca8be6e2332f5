"""Acceptance and residual arithmetic of the lossless rules: rejection, rejection-iid, onehot, block.

Pure functions of float64 probabilities; nothing mutates its inputs. Rows are contexts, column r of `tokens`
is the sibling of child_rank r. Loops run over child_rank only.

The lemma behind all of them (Leviathan et al., arXiv 2211.17192): draw x from the draft, accept it with
probability min(1, target(x)/draft(x)), otherwise emit from the normalised positive part of target - draft;
then the output follows the target. With siblings the residual becomes the target of the next test, and the
next candidate must have, given the history, exactly the law that its ratio divides by.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

Probs = Float64[Tensor, "contexts vocab"]
Tokens = Int64[Tensor, "contexts siblings"]
Accepts = Float64[Tensor, "contexts siblings"]


def sampled_siblings(
    target: Probs, draft: Probs, tokens: Tokens, *, replace: bool, final: bool = True
) -> tuple[Accepts, Probs]:
    """Recursive rejection over siblings drawn from the draft, with or without replacement.

    Sibling i is accepted with min(1, residual(x)/left(x)), where the residual starts as the target and
    becomes norm((residual - left)+), and `left` starts as the draft. Without replacement (recursive
    rejection sampling, arXiv 2402.14160) x then leaves the draft, which is renormalised. With replacement
    the draft stays; a duplicate of a rejected token has ratio 0 and still updates the residual.

    Rows that are one row repeated (`expand`) are computed once, as long as they stay the same.

    A residual that is zero everywhere means that the target nowhere exceeds the draft: rejection then has
    probability 0, and what rounding leaves of it is accepted.

    Args:
        target: sampling distribution of the target.
        draft: sampling distribution that the siblings were drawn from.
        tokens: the siblings in the order drawn.
        replace: whether they were drawn with replacement.
        final: whether the law of the correction is wanted, which costs a pass over the vocabulary.

    Returns:
        Acceptance probability of every sibling once tested, nan where the draft cannot have drawn it; and the
        residual after the last sibling, which says nothing unless it is `final`.
    """
    n_rows, n_siblings = tokens.shape
    if n_rows == 1 and not final and target.device.type == "cpu":
        found = _one_context(target[0].numpy(), draft[0].numpy(), tokens[0].tolist(), replace=replace)
        return target.new_tensor([found]), target
    accepts = []
    residual, left = _once(target), _once(draft)
    for rank in range(n_siblings):
        token = tokens[:, rank : rank + 1]
        wanted, offered = (probs.expand(n_rows, -1).gather(1, token) for probs in (residual, left))
        accept = (wanted / offered).clamp_(max=1.0).masked_fill_(offered == 0, torch.nan)
        if final or rank + 1 < n_siblings:
            excess = (residual - left).clamp_(min=0)
            mass = excess.sum(dim=-1, keepdim=True)
            empty = mass == 0
            accept = torch.where(empty & (wanted > 0), 1.0, accept)
            residual = torch.where(empty, residual, excess.div_(mass)) if empty.any() else excess.div_(mass)
            if not replace and rank + 1 < n_siblings:
                left = left.expand(n_rows, -1).scatter(1, token, 0.0)
                mass = left.sum(dim=-1, keepdim=True)
                left.div_(mass.masked_fill_(mass == 0, 1.0))
        accepts.append(accept)
    return torch.cat(accepts, dim=1), residual.expand(n_rows, -1)


def _one_context(
    residual: Float64[np.ndarray, " vocab"],
    left: Float64[np.ndarray, " vocab"],
    tokens: list[int],
    *,
    replace: bool,
) -> list[float]:
    """The acceptance probabilities of `sampled_siblings` in one context on the CPU.

    Most steps of a tree come here, and NumPy's calls cost a fraction of torch's on a single row.
    """
    accepts = []
    masses, removed = [1.0, 1.0], -1
    for rank, token in enumerate(tokens):
        wanted = float(residual[token]) / masses[0]
        offered = 0.0 if token == removed else float(left[token]) / masses[1]
        accept = min(wanted / offered, 1.0) if offered else np.nan
        n_left = len(tokens) - rank - 1
        if n_left:
            excess = residual - left
            mass = float(np.maximum(excess, 0.0, out=excess).sum())
            if mass:
                residual, masses[0] = (excess, mass) if n_left == 1 else (excess / mass, 1.0)
            elif wanted > 0:
                accept = 1.0
            if not replace and n_left == 1:  # one number is all that is read of what is left
                removed, masses[1] = token, float(left[:token].sum() + left[token + 1 :].sum()) or 1.0
            elif not replace:
                left = left.copy()
                left[token] = 0.0
                left /= float(left.sum()) or 1.0
        accepts.append(accept)
    return accepts


def _once(probs: Probs) -> Float64[Tensor, "rows vocab"]:
    """The one row of a row repeated, else all rows."""
    return probs[:1] if len(probs) > 1 and probs.stride(0) == 0 else probs


def deterministic_siblings(target: Probs, tokens: Tokens, *, final: bool = True) -> tuple[Accepts, Probs]:
    """Candidates chosen without looking at the target's randomness, in any order, all different.

    Sibling i is accepted with its target probability over what the earlier siblings left; the correction is
    the target without them. The output equals drawing from the target and looking whether the draw was
    proposed. Masses are summed directly: 1 minus the earlier ones would cancel where the siblings cover the
    support.

    Args:
        target: sampling distribution of the target.
        tokens: the candidates in the order in which they are tried.
        final: whether the residual after the last one is wanted.

    Returns:
        Acceptance probability of every sibling once tested; and the residual, unnormalised.
    """
    accepts = []
    residual = target
    n_siblings = tokens.shape[1]
    for rank in range(n_siblings):
        token = tokens[:, rank : rank + 1]
        mass = residual.sum(dim=-1, keepdim=True)
        wanted = residual.gather(1, token)
        accepts.append((wanted / mass.masked_fill(mass == 0, 1.0)).clamp_(max=1.0))
        if rank == 0 and (final or n_siblings > 1):
            residual = residual.scatter(1, token, 0.0)
        elif final or rank + 1 < n_siblings:
            residual.scatter_(1, token, 0.0)  # a copy of our own by now
    return torch.cat(accepts, dim=1), residual


def block_weights(ratios: Float64[Tensor, " length"]) -> Float64[Tensor, " length"]:
    """P_i = min(P_(i-1) * target(x_i)/draft(x_i), 1), P_0 = 1: the weight of a chain's first i tokens."""
    weights = []
    weight = torch.ones_like(ratios[:1])
    for index in range(len(ratios)):
        weight = (weight * ratios[index : index + 1]).clamp(max=1.0)
        weights.append(weight)
    return torch.cat(weights)


def block_excess(target: Probs, draft: Probs, weights: Float64[Tensor, " contexts"]) -> Probs:
    """(P_i * target - draft)+ : the law of the correction after i tokens of a block, unnormalised."""
    return (weights[:, None] * target).sub_(draft).clamp_(min=0)


def block_accepts(
    weights: Float64[Tensor, " length"], excess_mass: Float64[Tensor, " inner"]
) -> Float64[Tensor, " length"]:
    """Acceptance probability of every token of a chain once tested: block verification (arXiv 2403.10444).

    h_i = R_i / (R_i + 1 - P_i), with 0/0 = 0, at the inner positions and h_K = P_K at the end; the accepted
    length is the longest i whose own draw passes h_i, so it is at least i with s_i = 1 - prod_(j >= i)(1 -
    h_j). Testing token i given that i - 1 are accepted therefore succeeds with s_i / s_(i-1), and a walk
    gives the same law.

    Args:
        weights: P_1 .. P_K.
        excess_mass: R_1 .. R_(K-1), the sums of `block_excess`.
    """
    room = excess_mass + (1.0 - weights[:-1])
    stops = torch.cat([excess_mass / room.masked_fill(room == 0, 1.0), weights[-1:]]).clamp_(max=1.0)
    # 1 - prod(1 - h) from the end, without cancellation for small h
    at_least = -torch.expm1(torch.log1p(-stops).flip(0).cumsum(0).flip(0))
    before = torch.cat([torch.ones_like(at_least[:1]), at_least[:-1]])
    return (at_least / before.masked_fill(before == 0, 1.0)).clamp_(max=1.0)
