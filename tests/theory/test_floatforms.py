"""Cancellation-free forms against 60-digit arithmetic, and rounding that never rounds up."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acceptlab.theory.floatforms import (
    entropic_excess,
    exponential_excess,
    log1p_excess,
    log_ratio,
    round_down_float32,
)

SIZES = [1e-300, 1e-12, 1e-8, 1e-4, 0.0199, 0.02, 0.0201, 0.3, 0.9]
EXACT: dict[Callable, Callable[[Decimal], Decimal]] = {
    entropic_excess: lambda x: (1 + x) * (1 + x).ln() - x,
    exponential_excess: lambda x: x.exp() - 1 - x,
    log1p_excess: lambda x: x - (1 + x).ln(),
}


@pytest.mark.parametrize("function", list(EXACT), ids=lambda function: function.__name__)
def test_all_digits_at_every_size(function: Callable) -> None:
    for x in [sign * size for size in SIZES for sign in (1.0, -1.0)]:
        with localcontext() as context:
            context.prec = 700
            expected = float(EXACT[function](Decimal(x)))
        # just above the switch at 0.02 two digits cancel
        assert float(function(np.array(x))) == pytest.approx(expected, rel=2e-14, abs=0.0), x
    assert float(function(np.array(0.0))) == 0.0


def test_entropic_excess_at_its_end() -> None:
    assert float(entropic_excess(np.array(-1.0))) == 1.0


@settings(deadline=None)
@given(st.floats(1e-300, 1.0), st.floats(1e-300, 1.0))
def test_log_ratio(numerator: float, denominator: float) -> None:
    with localcontext() as context:
        context.prec = 60
        expected = float((Decimal(numerator) / Decimal(denominator)).ln())
    # far from 1 the logarithms are subtracted, each of at most 700 with its own rounding
    tolerance = 0.0 if abs(expected) < 0.4 else 3e-13
    actual = float(log_ratio(np.array(numerator), np.array(denominator)))
    assert actual == pytest.approx(expected, rel=1e-14, abs=tolerance)


def test_log_ratio_of_near_equals_keeps_its_digits() -> None:
    smaller = 0.3
    larger = smaller + 3e-12
    with localcontext() as context:
        context.prec = 60
        expected = float((Decimal(larger) / Decimal(smaller)).ln())
    assert float(log_ratio(np.array(larger), np.array(smaller))) == pytest.approx(
        expected, rel=1e-14, abs=0.0
    )


def test_log_ratio_of_zero_is_minus_infinity() -> None:
    assert float(log_ratio(np.array(0.0), np.array(0.5))) == -np.inf


@settings(deadline=None)
@given(st.floats(0.0, allow_nan=False, allow_infinity=True))
def test_round_down_is_the_largest_float32_not_above(value: float) -> None:
    rounded = round_down_float32(np.array([value]))
    assert rounded.dtype == np.float32
    assert float(rounded[0]) <= value
    if value == np.inf:
        assert rounded[0] == np.inf
    elif rounded[0] < np.finfo(np.float32).max:
        assert float(np.nextafter(rounded[0], np.float32(np.inf))) > value


def test_round_down_keeps_zero_and_exact_values() -> None:
    assert round_down_float32(np.array([0.0, 0.5, np.inf, 1e39])).tolist() == [
        0.0,
        0.5,
        np.inf,
        float(np.finfo(np.float32).max),
    ]
