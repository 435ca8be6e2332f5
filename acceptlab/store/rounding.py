"""How the lists of a context are rounded: down, to few significant bits, with the bounds that readers need.

Pure arithmetic on arrays. A context has some eighty such numbers, and the low bits of a float32 do not compress;
rounded like this they take about two bytes each. Rounding down keeps certificates sound: a lowered threshold
certifies less, and a probability has a known upper bound.
"""

from __future__ import annotations

from typing import Any

import numpy as np

HEAD = 8
"""Places of a probability list that keep `HEAD_BITS`; the rest keep `TAIL_BITS`."""

HEAD_BITS = 10
"""Bits after the leading one, as in float16: an error below 2^-10 of the value."""

TAIL_BITS = 7
"""Bits after the leading one, as in bfloat16: an error below 2^-7 of the value, below 0.001 from the ninth place."""

THRESHOLD_BITS = 14
"""Bits after the leading one of certificate thresholds: an error below 6.2e-5 of the value."""

_FLOAT16_STEP = 2.0**-24  # the step of float16 near 0, for probabilities that were rounded to it before


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


def round_down_float16(values: Any) -> np.ndarray:
    """Probabilities in 16 bits, rounded towards zero, so that the true value is in [stored, next float16)."""
    return round_down(values, np.float16)


def prob_bits(place: np.ndarray) -> np.ndarray:
    """Bits after the leading one that a probability keeps at its place in a list (0 the most probable)."""
    return np.where(place < HEAD, HEAD_BITS, TAIL_BITS)


def prob_upper_bounds(stored: Any) -> np.ndarray:
    """Upper ends of stored probabilities: the true ones are in [stored, upper], and never above 1.

    Args:
        stored: target_probs or draft_probs as read, most probable first along the last axis.

    Returns:
        float64, shaped as `stored`.
    """
    lower = np.asarray(stored, dtype=np.float64)
    bits = prob_bits(np.arange(lower.shape[-1]))
    _, exponent = np.frexp(
        lower
    )  # lower = m 2^exponent with m in [0.5, 1): its leading bit is 2^(exponent - 1)
    step = np.where(lower > 0, np.ldexp(1.0, exponent - 1 - bits), 0.0)
    upper: np.ndarray = np.minimum(1.0, lower + np.maximum(step, _FLOAT16_STEP))
    return upper
