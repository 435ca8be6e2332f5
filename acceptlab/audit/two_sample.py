"""The two-sample test of the literature: do two methods use the tokens of the vocabulary equally often?

Tokens of one text depend on each other, so the chi-square law does not hold for the statistic. Its p-value comes from
permutation: if both methods write alike, then within a prompt the labels of whole texts are exchangeable.
It is far weaker than the transform (`transform`) and is kept because papers print it.

Boundary: token ids in, statistic and p-value out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64

from acceptlab.audit.uniformity import Outcome
from acceptlab.errors import UsageError

MIN_COUNT = 10
"""Tokens that both methods together emitted less often than this are pooled into one cell."""
N_PERMUTATIONS = 1999


@dataclass(frozen=True)
class Labelled:
    """One text: the prompt it answers, which of the two methods wrote it, and its tokens."""

    prompt_id: str
    is_second: bool
    token_ids: tuple[int, ...]


def cell_counts(texts: Sequence[Labelled], min_count: int = MIN_COUNT) -> Int64[np.ndarray, "texts cells"]:
    """How often every text uses every cell: a frequent token each, all rare ones together.

    Which tokens are rare is decided on both methods together, so that the cells do not know the method.
    """
    tokens = np.concatenate([np.asarray(text.token_ids, dtype=np.int64) for text in texts])
    owners = np.repeat(np.arange(len(texts)), [len(text.token_ids) for text in texts])
    kinds, inverse, totals = np.unique(tokens, return_inverse=True, return_counts=True)
    frequent = np.flatnonzero(totals >= min_count)
    cell_of = np.full(len(kinds), len(frequent), dtype=np.int64)
    cell_of[frequent] = np.arange(len(frequent))
    counts = np.zeros((len(texts), len(frequent) + 1), dtype=np.int64)
    np.add.at(counts, (owners, cell_of[inverse]), 1)
    return counts if counts[:, -1].any() else counts[:, :-1]


def chi_square(
    counts: Int64[np.ndarray, "texts cells"], labels: Bool[np.ndarray, "permutations texts"]
) -> Float64[np.ndarray, " permutations"]:
    """Pearson's chi-square of homogeneity of two methods over the cells, for every labelling of the texts."""
    total = counts.sum(axis=0).astype(np.float64)
    second = labels.astype(np.float64) @ counts
    share = second.sum(axis=1, keepdims=True) / total.sum()
    expected = share * total
    # both methods deviate by the same amount, in opposite directions
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = (second - expected) ** 2 * (1.0 / expected + 1.0 / (total - expected))
    return np.asarray(np.where((share > 0) & (share < 1), terms, 0.0).sum(axis=1))


def permuted_labels(
    texts: Sequence[Labelled], n_permutations: int, rng: np.random.Generator
) -> Bool[np.ndarray, "permutations texts"]:
    """Labels dealt out again among the texts of each prompt, keeping how many each method has there."""
    labels = np.tile([text.is_second for text in texts], (n_permutations, 1))
    by_prompt: dict[str, list[int]] = {}
    for index, text in enumerate(texts):
        by_prompt.setdefault(text.prompt_id, []).append(index)
    for members in by_prompt.values():
        labels[:, members] = rng.permuted(labels[:, members], axis=1)
    return np.asarray(labels, dtype=np.bool_)


def two_sample(
    texts: Sequence[Labelled],
    rng: np.random.Generator,
    *,
    min_count: int = MIN_COUNT,
    n_permutations: int = N_PERMUTATIONS,
) -> Outcome:
    """Test whether two methods write alike, by the tokens they use.

    Args:
        texts: of both methods, every prompt answered by both.
        rng: source of the permutations.
        min_count: rarer tokens are pooled.
        n_permutations: labellings beside the observed one; the p-value is at least 1 / (this + 1).

    Returns:
        The statistic, its degrees of freedom under independence (cells - 1), and the permutation p-value.

    Raises:
        UsageError: no prompt has texts of both methods.
    """
    written = [text for text in texts if text.token_ids]
    sides: dict[str, set[bool]] = {}
    for text in written:
        sides.setdefault(text.prompt_id, set()).add(text.is_second)
    if not any(len(found) == 2 for found in sides.values()):
        raise UsageError("no prompt has texts of both methods: there is nothing to compare")
    counts = cell_counts(written, min_count)
    observed_labels = np.array([[text.is_second for text in written]], dtype=np.bool_)
    observed = float(chi_square(counts, observed_labels)[0])
    permuted = chi_square(counts, permuted_labels(written, n_permutations, rng))
    # equal statistics count as extreme; rounding must not decide about them
    extreme = int((permuted >= observed * (1 - 1e-12)).sum())
    p_value = (1 + extreme) / (1 + n_permutations)
    return Outcome("two-sample chi-square", int(counts.sum()), observed, counts.shape[1] - 1, p_value)
