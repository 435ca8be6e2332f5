"""Elementary functions whose textbook form loses all its digits near zero, in forms that keep them.

Certificate thresholds of flat contexts are of the order of a squared margin, so `sum p log(p/c)` cancels to
noise: everything here is a sum of nonnegative terms or a power series instead. Boundary: numbers in, numbers
out.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float

SMALL = 0.02
"""Below this size the power series are used: eleven terms then reach the last bit."""

_N_TERMS = 11
_ENTROPIC = [(-1.0) ** k / (k * (k - 1)) for k in range(2, 2 + _N_TERMS)]
_EXPONENTIAL = [1.0 / math.factorial(k) for k in range(2, 2 + _N_TERMS)]
_LOGARITHMIC = [(-1.0) ** k / k for k in range(2, 2 + _N_TERMS)]

Array = Float[np.ndarray, "..."]


def _series(coefficients: list[float], x: Array) -> Array:
    """x^2 times the polynomial with these coefficients, lowest order first."""
    total = np.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total *= x
        total += coefficient
    return np.asarray(total * x * x)


def _stitched(coefficients: list[float], x: Array, is_small: Array, direct: Array) -> Array:
    """The direct values, the series where x is small."""
    if not is_small.any():
        return direct
    return np.where(is_small, _series(coefficients, np.where(is_small, x, 0.0)), direct)


def entropic_excess(x: Array) -> Array:
    """(1 + x) log(1 + x) - x for x >= -1: nonnegative, x^2/2 near zero, 1 at -1."""
    x = np.asarray(x, dtype=np.float64)
    shifted = np.where(x > -1.0, x, 0.0)
    direct = np.where(x > -1.0, (1.0 + shifted) * np.log1p(shifted) - shifted, 1.0)
    return _stitched(_ENTROPIC, x, np.abs(x) < SMALL, direct)


def exponential_excess(x: Array) -> Array:
    """exp(x) - 1 - x: nonnegative, x^2/2 near zero."""
    x = np.asarray(x, dtype=np.float64)
    return _stitched(_EXPONENTIAL, x, np.abs(x) < SMALL, np.expm1(x) - x)


def log1p_excess(x: Array) -> Array:
    """X - log(1 + x) for x > -1: nonnegative, x^2/2 near zero."""
    x = np.asarray(x, dtype=np.float64)
    return _stitched(_LOGARITHMIC, x, np.abs(x) < SMALL, x - np.log1p(x))


def log_ratio(numerator: Array, denominator: Array) -> Array:
    """log(numerator / denominator) for a positive denominator, to the last digits of a ratio near 1; log 0 is
    -inf.
    """
    numerator, denominator = np.broadcast_arrays(numerator, denominator)
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        offset = (numerator - denominator) / denominator
        is_near = np.abs(offset) <= 0.5
        far = np.log(numerator) - np.log(denominator)
    return np.where(is_near, np.log1p(np.where(is_near, offset, 0.0)), far)


def round_down_float32(values: Array) -> np.ndarray:
    """The largest float32 that is not above each value: stored thresholds must never exceed the exact ones.

    Infinities stay; a finite value above the float32 range becomes the largest finite float32.
    """
    exact = np.asarray(values, dtype=np.float64)
    with np.errstate(over="ignore"):
        rounded = exact.astype(np.float32)
    return np.where(rounded > exact, np.nextafter(rounded, np.float32(-np.inf)), rounded).astype(np.float32)
