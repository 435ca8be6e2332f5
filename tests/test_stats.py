"""Cluster bootstrap: values, intervals against brute force, coverage in both tails, and what has no interval."""

from __future__ import annotations

import math

import numpy as np
import pytest

from acceptlab import resampling, stats
from acceptlab.resampling import Resampling
from acceptlab.stats import bootstrap, conditional_rates, mean_of_prompt_means, product_length, ratio_of_sums

FAST = Resampling(n_resamples=400)


def _sample(rng: np.random.Generator, n_prompts: int) -> tuple[np.ndarray, np.ndarray]:
    """Accepted and tested nodes of prompts that differ in rate and size; the pooled rate is 0.6."""
    tested = rng.integers(10, 60, n_prompts)
    accepted = rng.binomial(tested, rng.beta(3, 2, n_prompts))
    return accepted[:, None], tested[:, None]


def test_weights_draw_every_prompt_once_on_average() -> None:
    weights = np.concatenate(list(resampling.resample_weights(7, Resampling(n_resamples=4000))))
    assert weights.shape == (4000, 7)
    assert (weights.sum(axis=1) == 7).all()
    # the mean of 4000 draws has a standard error of about 0.015
    assert np.allclose(weights.mean(axis=0), 1.0, atol=0.06)


def test_kept_and_streamed_weights_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Resampling(n_resamples=50, seed=3)
    kept = np.concatenate(list(resampling.resample_weights(11, settings)))
    monkeypatch.setattr(resampling, "_KEPT_CELLS", 0)
    monkeypatch.setattr(resampling, "_BLOCK_CELLS", 11 * 7)
    streamed = list(resampling.resample_weights(11, settings))
    assert len(streamed) == 8
    assert np.array_equal(kept, np.concatenate(streamed))


def test_value_and_interval_equal_a_loop_over_resamples() -> None:
    accepted, tested = _sample(np.random.default_rng(1), 15)
    (found,) = ratio_of_sums(accepted, tested, Resampling(n_resamples=300, widen=False, seed=5))
    rates = []
    for weights in np.concatenate(list(resampling.resample_weights(15, Resampling(n_resamples=300, seed=5)))):
        drawn = np.repeat(np.arange(15), weights.astype(int))
        rates.append(accepted[drawn].sum() / tested[drawn].sum())
    assert found.value == accepted.sum() / tested.sum()
    assert (found.lo, found.hi) == pytest.approx(tuple(np.quantile(rates, [0.025, 0.975])))
    assert (found.n, found.n_prompts, found.reason) == (int(tested.sum()), 15, "")
    assert "percentile" in found.method


def test_seeds_decide() -> None:
    accepted, tested = _sample(np.random.default_rng(1), 15)
    first, again, other = (
        ratio_of_sums(accepted, tested, Resampling(n_resamples=200, seed=seed))[0] for seed in (0, 0, 1)
    )
    assert first == again
    assert (first.lo, first.hi) != (other.lo, other.hi)


@pytest.mark.parametrize("kind", ["percentile", "bca"])
@pytest.mark.parametrize("n_prompts", [10, 25])
def test_coverage_is_nominal_in_both_tails(kind: str, n_prompts: int) -> None:
    settings = Resampling(n_resamples=400, kind=kind)  # type: ignore[arg-type]
    rng = np.random.default_rng(7)
    below = above = 0
    n_runs = 800
    for _ in range(n_runs):
        (found,) = ratio_of_sums(*_sample(rng, n_prompts), settings)
        assert found.lo is not None
        assert found.hi is not None
        below += found.hi < 0.6
        above += found.lo > 0.6
    # nominal 2.5% a tail; the standard error is 0.55%, and the bootstrap itself is off by up to 1% with 10 prompts
    assert 0.010 < below / n_runs < 0.045
    assert 0.010 < above / n_runs < 0.045


def test_intervals_that_ignore_prompts_or_few_prompts_do_not_cover() -> None:
    rng = np.random.default_rng(7)
    naive = plain = 0
    for _ in range(400):
        accepted, tested = _sample(rng, 10)
        rate = accepted.sum() / tested.sum()
        naive += abs(rate - 0.6) > 1.96 * math.sqrt(rate * (1 - rate) / tested.sum())
        (found,) = ratio_of_sums(accepted, tested, Resampling(n_resamples=400, widen=False))
        plain += not (found.lo or 0) <= 0.6 <= (found.hi or 0)
    assert naive / 400 > 0.30
    assert plain / 400 > 0.07


def test_simultaneous_intervals_cover_together() -> None:
    rng = np.random.default_rng(3)
    settings = [Resampling(n_resamples=400, simultaneous=flag) for flag in (True, False)]
    missed = [0, 0]
    n_runs = 300
    for _ in range(n_runs):
        tested = rng.integers(20, 60, (20, 6))
        accepted = rng.binomial(tested, rng.beta(3, 2, (20, 6)))
        for i, setting in enumerate(settings):
            found = ratio_of_sums(accepted, tested, setting)
            missed[i] += any(not (one.lo or 0) <= 0.6 <= (one.hi or 0) for one in found)
    # six quantities: about 5% of the families miss one; one at a time about 26% do. Standard error 1.3%
    assert 0.015 < missed[0] / n_runs < 0.095
    assert missed[1] / n_runs > 0.15


def test_below_ten_prompts_no_interval_is_given() -> None:
    accepted, tested = _sample(np.random.default_rng(1), 10)
    (nine,) = ratio_of_sums(accepted[:9], tested[:9], FAST)
    (ten,) = ratio_of_sums(accepted, tested, FAST)
    assert nine.value is not None
    assert (nine.lo, nine.hi, nine.reason) == (None, None, "fewer than 10 prompts")
    assert ten.lo is not None
    tested[0] = accepted[0] = 0  # a prompt without tested nodes is no tenth prompt
    (holed,) = ratio_of_sums(accepted, tested, FAST)
    assert (holed.lo, holed.n_prompts) == (None, 9)


def test_nothing_to_divide_by_is_null_with_the_reason() -> None:
    zeros = np.zeros((12, 1))
    (found,) = ratio_of_sums(zeros, zeros, FAST, undefined="nothing drafted")
    assert (found.value, found.lo, found.n, found.n_prompts) == (None, None, 0, 0)
    assert found.reason == "nothing drafted"


def test_a_value_that_resamples_often_lose_has_no_interval() -> None:
    sums = np.zeros((12, 1))
    sums[0] = 1.0

    def inverse(totals: np.ndarray) -> np.ndarray:
        return stats.ratio(np.ones_like(totals), totals)

    (found,) = bootstrap(sums, inverse, np.ones((12, 1)), FAST)
    assert found.value == 1.0
    assert found.lo is None
    assert "of the resamples" in found.reason


def test_bca_corrects_a_skewed_statistic_upwards() -> None:
    rng = np.random.default_rng(2)
    values = rng.exponential(size=(25, 1)) ** 2
    ones = np.ones((25, 1))
    (percentile,) = ratio_of_sums(values, ones, Resampling(n_resamples=4000))
    (corrected,) = ratio_of_sums(values, ones, Resampling(n_resamples=4000, kind="bca"))
    assert (corrected.lo or 0) > (percentile.lo or 0)
    assert (corrected.hi or 0) > (percentile.hi or 0)


def test_pooled_and_prompt_means_are_different_quantities() -> None:
    accepted, tested = np.array([[9], [0], [0]]), np.array([[10], [1], [0]])
    assert ratio_of_sums(accepted, tested)[0].value == 9 / 11
    (mean,) = mean_of_prompt_means(accepted, tested)
    assert mean.value == pytest.approx(0.45)
    assert (mean.n, mean.n_prompts) == (2, 2)


def _rate(totals: np.ndarray) -> np.ndarray:
    return stats.ratio(totals[:, :1], totals[:, 1:])


def test_a_paired_difference_cancels_what_prompts_share() -> None:
    rng = np.random.default_rng(4)
    rate = rng.beta(3, 2, 40)
    tested = np.full(40, 200)
    first = np.stack([rng.binomial(tested, rate), tested], axis=1)
    second = np.stack([rng.binomial(tested, np.clip(rate - 0.05, 0, 1)), tested], axis=1)
    (paired,) = stats.paired_difference(first, second, _rate)
    (independent,) = stats.independent_difference(first, second, _rate)
    assert paired.value == independent.value == pytest.approx((first - second)[:, 0].sum() / tested.sum())
    width = [(one.hi or 0) - (one.lo or 0) for one in (paired, independent)]
    assert width[0] < 0.5 * width[1]


def test_an_independent_difference_covers_with_both_variances() -> None:
    rng = np.random.default_rng(5)
    below = above = 0
    n_runs = 500
    for _ in range(n_runs):
        first = np.hstack(_sample(rng, 15))
        second = np.hstack(_sample(rng, 30))
        (found,) = stats.independent_difference(first, second, _rate, FAST)
        below += (found.hi or 0) < 0
        above += (found.lo or 0) > 0
    # nominal 2.5% a tail, standard error 0.7%
    assert 0.005 < below / n_runs < 0.045
    assert 0.005 < above / n_runs < 0.045


def test_few_prompts_in_either_sample_give_no_independent_interval() -> None:
    first, second = (np.hstack(_sample(np.random.default_rng(6), n)) for n in (9, 30))
    (found,) = stats.independent_difference(first, second, _rate, FAST)
    assert (found.lo, found.n_prompts, found.reason) == (None, 9, "fewer than 10 prompts")


def test_conditional_rates_multiply_back_to_survival() -> None:
    survival = np.array([[0.8, 0.4, 0.0, 0.0]])
    alpha = conditional_rates(survival)
    assert alpha[0, :3] == pytest.approx([0.8, 0.5, 0.0])
    assert np.isnan(alpha[0, 3])


def test_product_length_ends_at_an_undefined_rate() -> None:
    rates = np.array([[0.5, 0.5, 0.5], [0.5, np.nan, 0.5]])
    assert product_length(rates) == pytest.approx([0.875, 0.5])
