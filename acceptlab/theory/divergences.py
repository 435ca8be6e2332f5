"""Entropy, divergences between target and draft, overlap and margins, in float64.

Every function takes probabilities with the vocabulary on the last axis, [V] or [C, V], and gives one number a
context. Rows must be nonnegative and sum to 1; nothing is renormalised. Boundary: no certificates, no
estimators.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from acceptlab.theory.floatforms import entropic_excess

Probs = Float[np.ndarray, "*contexts vocab"]
Scalars = Float[np.ndarray, "*contexts"]


def entropy(probs: Probs) -> Scalars:
    """Shannon entropy in nats; 0 log 0 counts as 0."""
    probs = np.asarray(probs, dtype=np.float64)
    logs = np.log(np.where(probs > 0.0, probs, 1.0))
    # one certain token gives -0.0, which prints as a negative entropy
    return np.asarray(np.maximum(-(probs * logs).sum(axis=-1), 0.0))


def kl_target_draft(target_probs: Probs, draft_probs: Probs) -> Scalars:
    """KL(target || draft) in nats over the full vocabulary; +inf where the draft excludes a possible
    token.
    """
    return _kl(np.asarray(target_probs, dtype=np.float64), np.asarray(draft_probs, dtype=np.float64))


def kl_draft_target(target_probs: Probs, draft_probs: Probs) -> Scalars:
    """KL(draft || target) in nats over the full vocabulary; +inf where the target excludes a possible
    token.
    """
    return _kl(np.asarray(draft_probs, dtype=np.float64), np.asarray(target_probs, dtype=np.float64))


def _kl(first: Probs, second: Probs) -> Scalars:
    """Sum of first log(first/second) - first + second: nonnegative terms, equal to the KL as both rows sum to
    1.
    """
    first, second = np.broadcast_arrays(first, second)
    both = (first > 0.0) & (second > 0.0)
    safe_first, safe_second = np.where(both, first, 1.0), np.where(both, second, 1.0)
    with np.errstate(over="ignore"):
        offset = (safe_first - safe_second) / safe_second
    is_near = np.abs(offset) <= 0.5
    near = safe_second * entropic_excess(np.where(is_near, offset, 0.0))
    # logarithms apart: the quotient may overflow where the second probability is subnormal
    far = safe_first * (np.log(safe_first) - np.log(safe_second)) - (safe_first - safe_second)
    terms = np.where(both, np.where(is_near, near, far), second)
    return np.asarray(np.where((first > 0.0) & (second <= 0.0), np.inf, terms).sum(axis=-1))


def total_variation(target_probs: Probs, draft_probs: Probs) -> Scalars:
    """Half the sum of absolute differences, 1 - overlap."""
    difference = np.asarray(target_probs, dtype=np.float64) - np.asarray(draft_probs, dtype=np.float64)
    return np.asarray(0.5 * np.abs(difference).sum(axis=-1))


def overlap(target_probs: Probs, draft_probs: Probs) -> Scalars:
    """Sum of min(target, draft): the probability that lossless verification accepts one sampled token.

    Source: Leviathan et al., Fast Inference from Transformers via Speculative Decoding (2023), corollary 3.6.
    """
    target, draft = np.asarray(target_probs, dtype=np.float64), np.asarray(draft_probs, dtype=np.float64)
    return np.asarray(np.minimum(target, draft).sum(axis=-1))


def renyi_half(target_probs: Probs, draft_probs: Probs) -> Scalars:
    """Renyi divergence of order 1/2, -2 log sum sqrt(target * draft), in nats; +inf on disjoint supports.

    Near equality the affinity is 1 minus half the squared Hellinger distance, which is summed without
    cancellation.
    """
    target_root = np.sqrt(np.asarray(target_probs, dtype=np.float64))
    draft_root = np.sqrt(np.asarray(draft_probs, dtype=np.float64))
    root_sum = target_root + draft_root
    difference = np.asarray(target_probs, dtype=np.float64) - np.asarray(draft_probs, dtype=np.float64)
    root_difference = difference / np.where(root_sum > 0.0, root_sum, 1.0)
    loss = 0.5 * np.square(root_difference).sum(axis=-1)
    affinity = (target_root * draft_root).sum(axis=-1)
    with np.errstate(divide="ignore"):
        far = -2.0 * np.log(affinity)
    return np.asarray(np.where(loss < 0.5, -2.0 * np.log1p(-np.minimum(loss, 0.5)), far))


def overlap_bounds(renyi: Scalars) -> tuple[Scalars, Scalars]:
    """Lower and upper bound on the overlap, given the Renyi divergence of order 1/2 in nats.

    1 - sqrt(1 - exp(-D)) <= overlap <= exp(-D/2), both attained. Infinite D gives 0 and 0. The lower bound is
    evaluated as exp(-D) / (1 + sqrt(1 - exp(-D))), which keeps its digits at large D.
    """
    renyi = np.asarray(renyi, dtype=np.float64)
    lower = np.exp(-renyi) / (1.0 + np.sqrt(-np.expm1(-renyi)))
    return lower, np.exp(-0.5 * renyi)


class Margins(NamedTuple):
    """Top of a distribution: largest probability, margin to the second, and 1 - margin summed without
    cancellation.
    """

    top_prob: Scalars
    margin: Scalars
    one_minus_margin: Scalars


def margins(probs: Probs) -> Margins:
    """Largest probability, largest minus second largest, and its complement.

    The complement is the sum of all other probabilities plus the second: `1 - margin` rounds to 0 long before
    the truth does, and a margin of 1 claims an infinite reverse threshold. With one token the second
    probability is 0.
    """
    probs = np.asarray(probs, dtype=np.float64)
    top_index = probs.argmax(axis=-1)[..., None]
    top_prob = np.take_along_axis(probs, top_index, axis=-1)[..., 0]
    others = probs.copy()
    np.put_along_axis(others, top_index, 0.0, axis=-1)
    second_prob = others.max(axis=-1)
    return Margins(top_prob, top_prob - second_prob, others.sum(axis=-1) + second_prob)
