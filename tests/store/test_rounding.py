"""Rounding down: the stored number is never above the true one, and the upper bound never below it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acceptlab.store import prob_upper_bounds, round_down, round_down_float16
from acceptlab.store.rounding import HEAD, HEAD_BITS, TAIL_BITS, prob_bits


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


# float16 has 10 bits after the leading one down to 2^-14, float32 has normal numbers down to 2^-126
@given(st.floats(2.0**-14, 60000.0))
def test_float16_is_the_largest_one_below(value: float) -> None:
    assert Fraction(float(round_down_float16(value))) == floor_to_bits(value, 10)


@given(st.floats(2.0**-120, 1.0), st.integers(1, 23))
def test_fewer_bits_are_the_largest_such_number_below(value: float, bits: int) -> None:
    assert Fraction(float(round_down(value, np.float32, bits))) == floor_to_bits(value, bits)


@given(st.floats(0.0, 1.0))
def test_float16_brackets_any_probability(value: float) -> None:
    stored = round_down_float16(value)
    assert float(stored) <= value < float(np.nextafter(stored, np.float16(2)))


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=32), st.booleans())
def test_the_upper_bounds_hold_and_are_tight(values: list[float], rounded_before: bool) -> None:
    true = np.sort(values)[::-1]
    given_ = round_down_float16(true) if rounded_before else true
    stored = round_down(given_, np.float32, prob_bits(np.arange(len(true))))
    upper = prob_upper_bounds(stored)
    assert (stored <= true).all()
    assert (upper >= true).all()
    assert (upper <= 1).all()
    assert (np.diff(stored) <= 0).all()  # still in order
    bits = np.where(np.arange(len(true)) < HEAD, HEAD_BITS, TAIL_BITS)
    # one step of the last bit kept, or of float16 near 0
    assert (upper - stored <= np.maximum(true * 2.0**-bits, 2.0**-24) * (1 + 1e-12)).all()


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
