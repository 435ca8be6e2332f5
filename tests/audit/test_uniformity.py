"""The two tests of uniformity, the correction for many tests, and the printed power."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from acceptlab.audit.uniformity import (
    bin_counts,
    chi_square_uniform,
    detectable_tv,
    holm,
    lag_one,
)
from acceptlab.errors import UsageError


def share_rejected(p_values: list[float], level: float = 0.05) -> float:
    return float(np.mean(np.array(p_values) <= level))


def test_bins_take_both_ends() -> None:
    assert bin_counts(np.array([0.0, 0.049, 0.05, 1.0])).tolist() == [2, 1, *[0] * 16, 0, 1]
    with pytest.raises(UsageError, match="outside 0 to 1"):
        bin_counts(np.array([0.2, np.nan]))


def test_chi_square_equals_scipy() -> None:
    values = np.random.default_rng(0).random(700) ** 1.1
    ours = chi_square_uniform(values)
    theirs = stats.chisquare(bin_counts(values))
    assert ours.statistic == pytest.approx(theirs.statistic, rel=1e-12)
    assert ours.p_value == pytest.approx(theirs.pvalue, rel=1e-9)
    assert (ours.n, ours.dof) == (700, 19)


def test_uniform_numbers_are_rejected_at_the_nominal_rate() -> None:
    rng = np.random.default_rng(1)
    draws = [rng.random(400) for _ in range(1000)]
    # standard error 0.007 at 5%: four of them on either side
    assert 0.022 < share_rejected([chi_square_uniform(values).p_value for values in draws]) < 0.078
    texts = [list(values.reshape(40, 10)) for values in draws]
    assert 0.022 < share_rejected([lag_one(text).p_value for text in texts]) < 0.078


def test_lag_one_pairs_within_texts_only() -> None:
    rng = np.random.default_rng(2)
    first = rng.random(3000)
    dependent = [
        np.array([value, 0.7 * value + 0.3 * other])
        for value, other in zip(first, rng.random(3000), strict=True)
    ]
    found = lag_one(dependent)
    assert found.n == 3000
    assert found.p_value < 1e-12
    # the same numbers, but every pair now lies across two texts
    across = [np.array([1 - dependent[0][0]]), *[np.array([0.5, 0.5]) for _ in range(2)]]
    assert lag_one(across).statistic == 0.0
    with pytest.raises(UsageError, match="no text has two tokens"):
        lag_one([np.array([0.1]), np.array([])])


def test_too_few_numbers_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 100"):
        chi_square_uniform(np.full(99, 0.5))


def test_holm_by_hand() -> None:
    # 3 * 0.01; then 2 * 0.02 = 0.04; then 1 * 0.03, but never below the one before
    assert holm([0.03, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.9, 0.5]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_smallest_detectable_fault_is_detected_with_the_stated_power() -> None:
    n = 3000
    distance = detectable_tv(n)
    rng = np.random.default_rng(3)
    masses = np.full(20, 1 / 20)
    masses[::2] += 2 * distance / 20
    masses[1::2] -= 2 * distance / 20
    assert np.abs(masses - 1 / 20).sum() / 2 == pytest.approx(distance)
    counts = rng.multinomial(n, masses, size=2000)
    statistics = ((counts - n / 20) ** 2).sum(axis=1) * 20 / n
    power = (stats.chi2.sf(statistics, 19) <= 0.05).mean()
    # standard error 0.007; the noncentral law is an approximation for small faults
    assert 0.86 < power < 0.94
    assert detectable_tv(4 * n) == pytest.approx(distance / 2)
