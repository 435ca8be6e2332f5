"""Random distributions for the theory tests: Hypothesis strategies and seeded batches."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

RULES = (
    "greedy",
    "additive:0.1",
    "ratio:0.8",
    "top:2",
    "top:3",
    "typical:eps=0.09,delta=0.3",
    "tree:1",
    "tree:2",
    "tree:4",
)


@st.composite
def distributions(draw: st.DrawFn, max_size: int = 8) -> np.ndarray:
    """Rows that meet ties, zeros, near-certainty and tiny tails: whole weights, or weights over many
    decades.
    """
    size = draw(st.integers(2, max_size))
    whole = st.integers(0, 6).map(float)
    decades = st.floats(-12.0, 0.0).map(lambda exponent: 10.0**exponent)
    weights = draw(st.lists(draw(st.sampled_from([whole, decades])), min_size=size, max_size=size))
    if sum(weights) <= 0.0:
        weights[draw(st.integers(0, size - 1))] = 1.0
    array = np.array(weights)
    return array / array.sum()


def random_targets(rng: np.random.Generator, n: int, vocab_size: int) -> np.ndarray:
    """Dirichlet rows from nearly certain to nearly uniform."""
    concentration = 10.0 ** rng.uniform(-1.5, 1.5, size=(n, 1))
    gammas = rng.gamma(np.broadcast_to(concentration, (n, vocab_size))) + 1e-30
    return gammas / gammas.sum(axis=1, keepdims=True)


def random_drafts(rng: np.random.Generator, target: np.ndarray, nearest: np.ndarray) -> np.ndarray:
    """Drafts of all distances, a third of them close to the nearest rejecting one, where violations would
    be.
    """
    n, vocab_size = target.shape
    noisy = target * np.exp(rng.normal(size=target.shape) * 10.0 ** rng.uniform(-2.0, 0.5, size=(n, 1)))
    share = rng.uniform(0.9, 1.02, size=(n, 1))
    boundary = np.where(np.isfinite(nearest), nearest, noisy)
    between = np.maximum(share * boundary + (1.0 - share) * target, 0.0)
    between *= np.exp(rng.normal(size=target.shape) * 10.0 ** rng.uniform(-4.0, -1.5, size=(n, 1)))
    kind = rng.integers(0, 3, size=(n, 1))
    drafts = np.where(kind == 0, between, np.where(kind == 1, noisy, random_targets(rng, n, vocab_size)))
    return drafts / drafts.sum(axis=1, keepdims=True)


def realistic_rows(rng: np.random.Generator, n: int, vocab_size: int) -> np.ndarray:
    """Softmax of a few strong logits over a long falling tail, from flat contexts to nearly certain ones."""
    slope = np.linspace(0.7, 3.0, n)[:, None]
    logits = -slope * np.log(np.arange(1, vocab_size + 1)) + 0.5 * rng.normal(size=(n, vocab_size))
    logits[:, 0] += np.linspace(-1.0, 12.0, n)
    # contiguous rows, so that their sums are accurate
    logits = np.ascontiguousarray(logits[:, rng.permutation(vocab_size)])
    probs = np.exp(logits - logits.max(axis=1, keepdims=True))
    return probs / probs.sum(axis=1, keepdims=True)
