"""Spearman's coefficient: ties, undefined input, fixed ranks against exact re-ranking, coverage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata, spearmanr

from acceptlab.ranks import Codes, rank_sums, scaled_ranks, spearman, spearman_from_sums
from acceptlab.resampling import Resampling, resample_weights

X, Y = np.array([0, 0, 1, 1, 1]), np.array([0.1, 0.1, 0.2, 0.3, 0.3])


def test_ties_give_the_known_value() -> None:
    found = spearman(X, Y, np.arange(5))
    # .9129 is sqrt(5/6), exact in mid-ranks
    assert found.value == pytest.approx(np.sqrt(5 / 6), abs=1e-12)
    assert (found.lo, found.n, found.n_prompts, found.reason) == (None, 5, 5, "fewer than 10 prompts")


@pytest.mark.parametrize(
    ("x", "y", "reason", "n"),
    [
        ([1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 3.0, 4.0], "entropy is constant", 4),
        ([1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 0.0], "label is constant", 4),
        ([1.0, 2.0], [1.0, 2.0], "fewer than 3 pairs", 2),
        ([], [], "fewer than 3 pairs", 0),
        ([np.nan] * 5, [1.0, 2.0, 3.0, 4.0, 5.0], "fewer than 3 pairs", 0),
    ],
)
def test_undefined_input_is_null_with_the_reason(x: list[float], y: list[float], reason: str, n: int) -> None:
    found = spearman(np.array(x), np.array(y), np.arange(len(x)), names=("entropy", "label"))
    assert (found.value, found.lo, found.reason, found.n) == (None, None, reason, n)


def test_undefined_pairs_are_left_out() -> None:
    x = np.append(X.astype(float), [np.nan, 5.0])
    y = np.append(Y, [0.9, np.nan])
    found = spearman(x, y, np.arange(7))
    assert found.value == pytest.approx(np.sqrt(5 / 6), abs=1e-12)
    assert found.n == 5


@given(st.lists(st.integers(0, 6), min_size=1, max_size=40))
def test_scaled_ranks_are_centred_mid_ranks(values: list[int]) -> None:
    n = len(values)
    # sums of at most 40 halves: exact but for the division
    assert scaled_ranks(np.array(values)) == pytest.approx((rankdata(values) - (n + 1) / 2) / n, abs=1e-12)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 4)), min_size=3, max_size=60))
def test_value_equals_scipy(rows: list[tuple[int, int, int]]) -> None:
    x, y, prompts = np.array(rows).T
    found = spearman(x, y, prompts)
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert found.value is None
    else:
        assert found.value == pytest.approx(spearmanr(x, y).statistic, abs=1e-9)


def test_sums_are_rows_of_prompts_in_sorted_order() -> None:
    sums = rank_sums(X, Y, np.array(["b", "b", "a", "a", "a"]))
    assert sums[:, 0].tolist() == [3, 2]
    # centred ranks sum to 0 over everything
    assert sums[:, 1:3].sum(axis=0) == pytest.approx([0, 0], abs=1e-12)


def _clustered(
    rng: np.random.Generator, n_prompts: int, n_nodes: int, spread: float = 0.5
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An entropy-like variable and a noisy yes/no label that falls with it, both with a prompt effect."""
    prompts = np.repeat(np.arange(n_prompts), n_nodes)
    effect = rng.normal(0, spread, n_prompts)[prompts]
    x = np.exp(rng.normal(0, 0.6, len(prompts)) + effect)
    y = (rng.random(len(prompts)) < 1 / (1 + np.exp(x - 1.0 + effect))).astype(float)
    return np.round(x, 2), y, prompts


def test_fixed_ranks_come_close_to_ranking_every_resample_anew() -> None:
    x, y, prompts = _clustered(np.random.default_rng(0), 30, 20)
    settings = Resampling(n_resamples=800, widen=False)
    fixed = spearman(x, y, prompts, settings)
    exact = []
    for weights in np.concatenate(list(resample_weights(30, settings))):
        chosen = np.concatenate(
            [np.flatnonzero(prompts == p) for p in np.repeat(range(30), weights.astype(int))]
        )
        ranks = [rankdata(values[chosen]) for values in (x, y)]
        exact.append(np.corrcoef(*ranks)[0, 1])
    lo, hi = np.quantile(exact, [0.025, 0.975])
    # equal resamples; what is left is the approximation by fixed ranks, a tenth of the interval's width
    assert (fixed.lo, fixed.hi) == pytest.approx((lo, hi), abs=0.1 * (hi - lo))


def test_fixed_ranks_cover_in_both_tails() -> None:
    rng = np.random.default_rng(11)
    truth = spearmanr(*_clustered(rng, 20_000, 20, 0.2)[:2]).statistic
    below = above = 0
    n_runs = 500
    for _ in range(n_runs):
        found = spearman(*_clustered(rng, 40, 20, 0.2), Resampling(n_resamples=400))
        below += (found.hi or 0) < truth
        above += (found.lo or 0) > truth
    # nominal 2.5% a tail, standard error 0.7%. A larger spread of the prompts biases the coefficient itself, which
    # exact re-ranking shares
    assert 0.005 < below / n_runs < 0.050
    assert 0.005 < above / n_runs < 0.050


def test_scaling_of_ranks_changes_nothing() -> None:
    x, y, prompts = _clustered(np.random.default_rng(1), 12, 10)
    sums = rank_sums(x, y, prompts)
    shifted = sums.copy()
    shifted[:, 2] += 0.25 * sums[:, 0]
    shifted[:, 4] += 0.5 * sums[:, 2] + 0.0625 * sums[:, 0]
    shifted[:, 5] += 0.25 * sums[:, 1]
    assert spearman_from_sums(shifted).value == pytest.approx(spearman_from_sums(sums).value, abs=1e-12)


@pytest.mark.parametrize("size", [400, 5])
def test_coded_ranks_of_a_part_are_the_ranks_of_that_part(size: int) -> None:
    rng = np.random.default_rng(3)
    values = np.round(rng.normal(size=1000), 2).astype(np.float32)  # with ties
    codes = Codes.of(values)
    assert codes.n_codes == len(np.unique(values))
    part = rng.choice(1000, size, replace=False)
    np.testing.assert_array_equal(codes.scaled_ranks(part), scaled_ranks(values[part]))
    np.testing.assert_array_equal(codes.scaled_ranks(slice(3, 3 + size)), scaled_ranks(values[3 : 3 + size]))
    assert len(Codes.of(values[:0]).scaled_ranks(slice(0, 0))) == 0
