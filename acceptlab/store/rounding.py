"""How the lists of a context are rounded: down, to few bits, with the bounds that readers need.

Pure arithmetic on arrays. A context has some eighty such numbers, and the low bits of a float32 do not compress.
Rounding down keeps certificates sound: a lowered threshold certifies less, and a probability has a known upper end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

STEP_BITS = 13
"""Probabilities of at least 2^(MIN_BITS - STEP_BITS) are multiples of 2^-STEP_BITS: an error below 0.00013."""

MIN_BITS = 5
"""Bits after the leading one of smaller probabilities: an error below 1/32 of the value (and below 0.00013)."""

THRESHOLD_BITS = 14
"""Bits after the leading one of certificate thresholds: an error below 6.2e-5 of the value."""

_LAST_STEP = 2.0 ** (-126 - MIN_BITS)  # below 2^-126 float32 has steps instead of significant bits


def round_down(values: Any, dtype: type[np.floating[Any]], mantissa_bits: Any = None) -> np.ndarray:
    """Round towards zero to a narrower float type: for values >= 0 the true one is in [stored, next float).

    Args:
        values: array-like of floats, any shape.
        dtype: np.float16 or np.float32.
        mantissa_bits: round down further, to so many bits after the leading one; broadcast against `values`,
            None keeps all of `dtype`.

    Returns:
        An array of `dtype`, shaped as `values`. Finite values past the type's range give its largest number.
    """
    exact = np.asarray(values)
    with np.errstate(over="ignore", under="ignore"):
        rounded = exact.astype(dtype)
    if exact.dtype != dtype:
        too_large = np.abs(rounded.astype(np.float64)) > np.abs(exact.astype(np.float64))
        rounded = np.where(too_large, np.nextafter(rounded, dtype(0)), rounded)
    if mantissa_bits is None:
        return rounded
    unsigned = np.dtype(f"u{rounded.itemsize}")
    dropped = (np.finfo(dtype).nmant - np.asarray(mantissa_bits)).astype(unsigned)
    kept: np.ndarray = (np.asarray(rounded, order="C").view(unsigned) >> dropped) << dropped
    return kept.view(dtype)


def round_down_probs(probs: Any) -> np.ndarray:
    """Probabilities as lists store them, float32: multiples of 2^-13, below 2^-8 six significant bits.

    Probabilities of at least 2^-126 stay positive, and an order stays an order.
    """
    stored = round_down(probs, np.float32)
    return round_down(stored, np.float32, _bits(stored))


def prob_upper_bounds(stored: Any) -> np.ndarray:
    """Upper ends of probabilities read from lists: the true ones are in [stored, upper], and never above 1.

    Args:
        stored: target_probs or draft_probs as read, any shape.

    Returns:
        float64, shaped as `stored`.
    """
    lower = np.asarray(stored, dtype=np.float64)
    exponent = np.frexp(lower)[1] - 1
    step = np.ldexp(1.0, exponent - _bits(lower))
    upper: np.ndarray = np.minimum(1.0, lower + np.where(lower > 0, np.maximum(step, _LAST_STEP), _LAST_STEP))
    return upper


def _bits(probs: np.ndarray) -> np.ndarray:
    """Bits after the leading one that probabilities keep."""
    exponent = np.frexp(probs)[1] - 1  # the leading bit of p is 2^exponent
    bits: np.ndarray = np.maximum(STEP_BITS + exponent, MIN_BITS)
    return bits
