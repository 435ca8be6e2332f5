"""Rounding down: the stored number is never above the true one, and the upper bound never below it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acceptlab.store import prob_upper_bounds, round_down, round_down_probs


def floor_to_bits(value: float, bits: int) -> Fraction:
    """Oracle in exact fractions: the largest number of so many bits after the leading one that is <= value."""
    if value == 0:
        return Fraction(0)
    exact, exponent = Fraction(value), 0
    while exact >= 2:
        exact, exponent = exact / 2, exponent + 1
    while exact < 1:
        exact, exponent = exact * 2, exponent - 1
    return Fraction(int(exact * 2**bits), 2**bits) * Fraction(2) ** exponent


# float16 has 10 bits after the leading one down to 2^-14
@given(st.floats(2.0**-14, 60000.0))
def test_float16_is_the_largest_one_below(value: float) -> None:
    assert Fraction(float(round_down(value, np.float16))) == floor_to_bits(value, 10)


@given(st.floats(2.0**-120, 1.0), st.integers(1, 23))
def test_fewer_bits_are_the_largest_such_number_below(value: float, bits: int) -> None:
    assert Fraction(float(round_down(value, np.float32, bits))) == floor_to_bits(value, bits)


def test_float16_has_the_values_that_numpy_gives_towards_zero() -> None:
    values = np.random.default_rng(0).random(1000) ** 4
    stored = round_down(values, np.float16)
    assert (stored <= values).all()
    assert (values < np.nextafter(stored, np.float16(2))).all()


# float32 has normal numbers down to 2^-126
@given(st.floats(2.0**-120, 1.0))
def test_a_probability_is_the_largest_storable_one_below(value: float) -> None:
    stored = Fraction(float(round_down_probs(value)))
    if value >= 2.0**-8:
        assert stored == Fraction(int(Fraction(value) * 2**13), 2**13)
    else:
        assert stored == floor_to_bits(value, 5)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=32))
def test_the_upper_ends_hold_and_are_tight(values: list[float]) -> None:
    true = np.sort(values)[::-1]
    stored = round_down_probs(true)
    upper = prob_upper_bounds(stored)
    assert (stored <= true).all()
    assert (upper >= true).all()
    assert (upper <= 1).all()
    assert (np.diff(stored) <= 0).all()  # still in order
    step = np.where(true >= 2.0**-8, 2.0**-13, true / 32)
    assert (upper - stored <= np.maximum(step, 2.0**-131)).all()  # the second is the step below 2^-126


def test_positive_probabilities_stay_positive() -> None:
    assert (round_down_probs([1e-7, 1e-20, 1e-37, 2.0**-126]) > 0).all()
    assert round_down_probs([0.0]).tolist() == [0.0]
    assert prob_upper_bounds([0.0]).tolist() == [2.0**-131]
    assert prob_upper_bounds([1.0, 0.5]).tolist() == [1.0, 0.5 + 2.0**-13]


def test_known_values_and_edges() -> None:
    assert round_down(0.999, np.float32, 7) == np.float32(0.99609375)
    assert round_down([np.inf, 0.0, 1e300], np.float32).tolist() == [
        np.inf,
        0.0,
        float(np.finfo(np.float32).max),
    ]
    assert round_down(np.inf, np.float32, 14) == np.inf
    kept = np.array([0.1, 0.2], dtype=np.float32)
    assert round_down(kept, np.float32) is not kept
    assert round_down(kept, np.float32).tolist() == kept.tolist()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_shapes_are_kept(dtype: type) -> None:
    assert round_down(np.zeros((2, 3)), dtype).shape == (2, 3)
    assert round_down(np.zeros((0, 3)), dtype, 5).shape == (0, 3)
