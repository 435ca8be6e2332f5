"""Chain objectives against enumeration of all texts, the worked examples, and step starts along a text."""

from __future__ import annotations

import numpy as np
import pytest

from acceptlab.errors import UsageError
from acceptlab.theory import chains
from acceptlab.theory.enumeration import EnumeratedChain, enumerate_chain, exact_survival

Tables = list[np.ndarray]


def random_tables(rng: np.random.Generator, n_tokens: int, n_positions: int) -> Tables:
    return [
        rng.dirichlet(np.full(n_tokens, 0.7), size=(n_tokens,) * position) for position in range(n_positions)
    ]


@pytest.fixture(scope="module")
def random_chain() -> tuple[Tables, Tables, EnumeratedChain]:
    rng = np.random.default_rng(17)
    target, draft = random_tables(rng, 3, 4), random_tables(rng, 3, 4)
    return target, draft, enumerate_chain(target, draft)


def variance(shares: np.ndarray, values: np.ndarray) -> float:
    return float(shares @ (values - shares @ values) ** 2)


def test_path_and_branch_are_unbiased(random_chain: tuple[Tables, Tables, EnumeratedChain]) -> None:
    target, draft, found = random_chain
    survival = exact_survival(target, draft)
    shares = found.path_probs
    assert shares.sum() == pytest.approx(1.0, rel=1e-14, abs=0.0)
    assert shares @ chains.path_weights(found.ratios) == pytest.approx(survival, rel=1e-13, abs=0.0)
    assert shares @ chains.branch_terms(found.ratios, found.overlaps) == pytest.approx(
        survival, rel=1e-13, abs=0.0
    )
    path, branch = chains.path_weights(found.ratios), chains.branch_terms(found.ratios, found.overlaps)
    for position in range(4):
        # Rao-Blackwell term by term
        assert variance(shares, branch[:, position]) <= variance(shares, path[:, position]) + 1e-15


def test_gap_is_the_double_sum_of_covariances(random_chain: tuple[Tables, Tables, EnumeratedChain]) -> None:
    target, draft, found = random_chain
    gap = chains.chain_gap(found.ratios, found.overlaps, weights=found.path_probs)
    survival, means = exact_survival(target, draft), gap.mean_overlaps
    product_len = sum(np.prod(means[: k + 1]) for k in range(4))
    double_sum = sum(
        gap.covariances[i] * np.prod(means[i + 1 : k + 1]) for k in range(4) for i in range(k + 1)
    )
    assert gap.joint_len == pytest.approx(survival.sum(), rel=1e-13, abs=0.0)
    assert gap.product_len == pytest.approx(product_len, rel=1e-13, abs=0.0)
    assert gap.gap == pytest.approx(survival.sum() - product_len, rel=1e-12, abs=0.0)
    assert gap.gap == pytest.approx(double_sum, rel=1e-12, abs=0.0)
    assert gap.contributions.sum() == pytest.approx(gap.gap, rel=1e-12, abs=0.0)
    # in the population C_k is the covariance of path weight and overlap, and nothing remains
    assert gap.path_covariances == pytest.approx(gap.covariances, abs=1e-15)
    assert gap.remainders == pytest.approx(np.zeros(4), abs=1e-15)
    assert gap.covariances[0] == pytest.approx(0.0, abs=1e-16)


def test_trajectory_and_population_wtv_part_at_three_positions() -> None:
    rng = np.random.default_rng(18)
    for n_positions, differs in ((2, False), (3, True)):
        found = enumerate_chain(random_tables(rng, 3, n_positions), random_tables(rng, 3, n_positions))
        population = chains.chain_gap(found.ratios, found.overlaps, weights=found.path_probs).product_len
        trajectory = found.path_probs @ chains.wtv_lens(found.overlaps)
        assert (abs(trajectory - population) > 1e-4) == differs


def test_adjacent_pairs_are_the_gap_for_two_positions_only() -> None:
    rng = np.random.default_rng(19)
    for n_positions in (2, 3):
        found = enumerate_chain(random_tables(rng, 3, n_positions), random_tables(rng, 3, n_positions))
        gap = chains.chain_gap(found.ratios, found.overlaps, weights=found.path_probs)
        assert gap.adjacent_covariances.shape == (n_positions - 1,)
        is_gap = abs(gap.adjacent_covariances.sum() - gap.gap) < 1e-14
        assert is_gap == (n_positions == 2)


def test_decomposition_is_exact_on_any_sample_and_mask() -> None:
    rng = np.random.default_rng(20)
    ratios, overlaps = rng.uniform(size=(40, 5)), rng.uniform(size=(40, 5))
    mask = chains.window_mask(rng.integers(1, 6, size=40), 5)
    gap = chains.chain_gap(ratios, overlaps, mask)
    branch = chains.branch_lens(ratios, overlaps, mask)
    assert gap.joint_len == pytest.approx(branch.mean(), rel=1e-13, abs=0.0)
    assert gap.contributions.sum() == pytest.approx(gap.gap, rel=1e-11, abs=0.0)
    assert gap.path_covariances[2] == pytest.approx(
        np.cov(chains.path_weights(ratios, mask)[:, 1], np.where(mask, overlaps, 0.0)[:, 2], bias=True)[0, 1],
        rel=1e-12,
    )
    assert gap.covariances == pytest.approx(gap.path_covariances + gap.remainders, abs=1e-15)


def test_after_the_end_of_text_everything_is_zero() -> None:
    ratios, overlaps = np.full((1, 4), 0.5), np.full((1, 4), 0.5)
    mask = chains.window_mask(np.array([2]), 4)
    assert mask.tolist() == [[True, True, False, False]]
    assert chains.path_lens(ratios, mask).tolist() == [0.75]
    assert chains.branch_lens(ratios, overlaps, mask).tolist() == [0.75]
    assert chains.wtv_lens(overlaps, mask).tolist() == [0.75]


def test_weights_count_like_repeated_trajectories() -> None:
    rng = np.random.default_rng(21)
    ratios, overlaps = rng.uniform(size=(5, 3)), rng.uniform(size=(5, 3))
    counts = np.array([2, 0, 1, 3, 1])
    repeated = chains.chain_gap(np.repeat(ratios, counts, axis=0), np.repeat(overlaps, counts, axis=0))
    weighted = chains.chain_gap(ratios, overlaps, weights=counts)
    assert weighted.covariances == pytest.approx(repeated.covariances, abs=1e-15)
    assert weighted.gap == pytest.approx(repeated.gap, rel=1e-12, abs=0.0)


def opposite_gradients(theta: float, certainty: float) -> EnumeratedChain:
    """Two steps; the draft's second law leans towards token 0 after A by theta, and away from it after B."""
    second = np.array([[certainty, 1 - certainty]] * 2)
    draft = np.array([[theta, 1 - theta], [1 - theta, theta]])
    return enumerate_chain([np.array([0.4, 0.6]), second], [np.array([0.8, 0.2]), draft])


@pytest.mark.parametrize(("certainty", "path_variance"), [(0.9, 0.478519), (0.8, 0.543333), (1.0, 0.426667)])
def test_surrogate_with_the_opposite_gradient(certainty: float, path_variance: float) -> None:
    step = 1e-6
    low, mid, high = (opposite_gradients(0.5 + sign * step, certainty) for sign in (-1, 0, 1))
    shares = mid.path_probs
    joint, product = (
        [getattr(chains.chain_gap(c.ratios, c.overlaps, weights=shares), name) for c in (low, mid, high)]
        for name in ("joint_len", "product_len")
    )
    assert joint[1] == pytest.approx(product[1], rel=1e-12, abs=0.0)  # the same value
    assert (joint[2] - joint[0]) / (2 * step) == pytest.approx(0.2, abs=1e-8)
    assert (product[2] - product[0]) / (2 * step) == pytest.approx(-0.12, abs=1e-8)
    path, branch, surrogate = (
        (values[1] - values[0]) / (2 * step)
        for values in (
            [chains.path_lens(c.ratios) for c in (low, high)],
            [chains.branch_lens(c.ratios, c.overlaps) for c in (low, high)],
            [chains.wtv_lens(c.overlaps) for c in (low, high)],
        )
    )
    assert shares @ path == pytest.approx(0.2, abs=1e-8)
    assert shares @ branch == pytest.approx(0.2, abs=1e-8)
    assert shares @ surrogate == pytest.approx(-0.12, abs=1e-8)
    # the examples are stated with six digits
    assert variance(shares, path) == pytest.approx(path_variance, abs=1e-6)
    assert variance(shares, branch) == pytest.approx(0.426667, abs=1e-6)
    assert variance(shares, surrogate) == pytest.approx(0.3456, abs=1e-6)


def test_surrogate_that_reverses_a_ranking() -> None:
    second_target = np.array([[1.0, 0.0], [1.0, 0.0]])
    second_draft = np.array([[0.9, 0.1], [0.1, 0.9]])
    found = []
    for first in ([0.9, 0.1], [0.1, 0.9]):
        chain = enumerate_chain([np.array([0.4, 0.6]), second_target], [np.array(first), second_draft])
        gap = chains.chain_gap(chain.ratios, chain.overlaps, weights=chain.path_probs)
        found.append((gap.joint_len, gap.product_len))
    assert found[0] == pytest.approx((0.87, 0.71), rel=1e-12, abs=0.0)
    assert found[1] == pytest.approx((0.85, 0.994), rel=1e-12, abs=0.0)


def test_branch_can_vary_more_than_path_in_the_sum() -> None:
    target = [np.array([0.5, 0.5]), np.array([[1.0, 0.0], [1.0, 0.0]])]
    draft = [np.array([0.75, 0.25]), np.array([[0.0, 1.0], [1.0, 0.0]])]
    chain = enumerate_chain(target, draft)
    assert variance(chain.path_probs, chains.path_lens(chain.ratios)) == pytest.approx(0.0, abs=1e-16)
    branch = chains.branch_lens(chain.ratios, chain.overlaps)
    assert variance(chain.path_probs, branch) == pytest.approx(1 / 16, rel=1e-12, abs=0.0)


def visits(ratios: np.ndarray, window: int, start: int, weight: float, found: np.ndarray) -> None:
    """Slow reference: follow every outcome of every step."""
    if start >= len(found):
        return
    found[start] += weight
    accepted = weight
    for n in range(window):
        if start + n >= len(found):
            return
        visits(ratios, window, start + n + 1, accepted * (1 - ratios[start + n]), found)
        accepted *= ratios[start + n]
    visits(ratios, window, start + window + 1, accepted, found)


@pytest.mark.parametrize("window", [1, 2, 5])
def test_step_starts_equal_the_tree_of_all_outcomes(window: int) -> None:
    ratios = np.random.default_rng(22).uniform(size=9)
    expected = np.zeros(9)
    visits(ratios, window, 0, 1.0, expected)
    assert chains.step_start_weights(ratios, window) == pytest.approx(expected, rel=1e-12, abs=0.0)


def test_step_starts_at_the_extremes() -> None:
    assert chains.step_start_weights(np.ones(7), 2).tolist() == [1, 0, 0, 1, 0, 0, 1]
    assert chains.step_start_weights(np.zeros(4), 2).tolist() == [1, 1, 1, 1]
    assert chains.step_start_weights(np.zeros(0), 2).tolist() == []


def test_bad_windows_are_refused() -> None:
    ones = np.ones((2, 3))
    with pytest.raises(UsageError, match="has a hole"):
        chains.path_lens(ones, np.array([[True, False, True]] * 2))
    with pytest.raises(UsageError, match=r"the mask has shape \(2, 2\)"):
        chains.path_lens(ones, np.ones((2, 2), dtype=bool))
    with pytest.raises(UsageError, match="trajectories, positions"):
        chains.path_lens(np.ones(3))
    with pytest.raises(UsageError, match="must have one shape"):
        chains.chain_gap(ones, np.ones((2, 2)))
    with pytest.raises(UsageError, match="2 nonnegative numbers"):
        chains.chain_gap(ones, ones, weights=np.zeros(2))
    with pytest.raises(UsageError, match="the window is 0"):
        chains.step_start_weights(np.ones(3), 0)


def test_tables_that_do_not_fit_are_refused() -> None:
    first = np.array([0.5, 0.5])
    with pytest.raises(UsageError, match="table of position 1"):
        exact_survival([first, first], [first, first])
    with pytest.raises(UsageError, match="differ in shape"):
        enumerate_chain([first], [np.full(3, 1 / 3)])
