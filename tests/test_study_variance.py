"""The gradient-variance table of the study of losses against NumPy on the same windows."""

from __future__ import annotations

import numpy as np
import pytest

from acceptlab.resampling import Resampling
from acceptlab.study.variance import AGGREGATE, variance_rows


def make_gradients(n_prompts: int, *, same: bool = False) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    found = [rng.normal(size=(1 + i % 3, 2, 4, 5)) * [[[[2.0]], [[1.0]]]] + 0.5 for i in range(n_prompts)]
    return [np.repeat(g[:, :1], 2, axis=1) for g in found] if same else found


def test_variances_are_those_of_all_windows_and_ratios_have_intervals_over_prompts() -> None:
    gradients = make_gradients(30)
    rows = variance_rows(gradients, Resampling(n_resamples=200))
    every = np.concatenate(gradients)
    variances = every.var(axis=0, ddof=1).sum(axis=-1)
    whole = every.sum(axis=2).var(axis=0, ddof=1).sum(axis=-1)
    assert [row["position"] for row in rows] == [1, 2, 3, 4, AGGREGATE]
    np.testing.assert_allclose([row["path"] for row in rows], [*variances[0], whole[0]], rtol=1e-9)
    np.testing.assert_allclose([row["branch"] for row in rows], [*variances[1], whole[1]], rtol=1e-9)
    for row in rows:
        assert row["ratio"] == pytest.approx(row["branch"] / row["path"])
        # entries of twice the deviation have four times the variance
        assert row["ratio_lo"] < 0.25 < row["ratio_hi"]
        assert (row["n_windows"], row["n_prompts"]) == (len(every), 30)


def test_equal_gradients_have_the_ratio_one_in_every_resample() -> None:
    for row in variance_rows(make_gradients(12, same=True), Resampling(n_resamples=50)):
        assert (row["ratio_lo"], row["ratio_hi"]) == pytest.approx((1.0, 1.0))
