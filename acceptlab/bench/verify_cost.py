"""What verifying n tokens in one pass costs: T(n) / T(1), its fixed and its per-token part, and the serial index.

Boundary: rows of `passes.pass_times` in, tables out; runs no model. T(n) is fitted by fixed + per_token * n, with equal
weight on relative errors. The serial index is per_token / (fixed + per_token): 0 where a pass costs the same whatever
its length (verification is free), 1 where n tokens in one pass cost as much as n passes (it is as slow as stepping).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

_LEVEL = 0.95
_RESAMPLES = 2000
MIN_ROUNDS = 10
"""Fewest rounds for which an interval is given."""

COLUMNS = {
    "backend": "how the target runs",
    "n": "tokens in the pass",
    "ms": "median time of a pass over the rounds (ms)",
    "over_one": "T(n) / T(1), with the interval of the median over resampled rounds",
    "of_stepping": "T(n) / (n T(1)): 1 is as slow as n passes of one token",
    "serial_at_n": "(T(n) / T(1) - 1) / (n - 1): the serial index that this size alone gives",
}
FIT_COLUMNS = {
    "backend": "how the target runs",
    "fixed_ms": "part of a pass that does not depend on its length (ms)",
    "per_token_ms": "part that every token adds (ms)",
    "serial_index": "per_token / (fixed + per_token): 0 verification is free, 1 it is as slow as stepping",
    "largest_miss": "largest relative error of the fit at any size",
    "speed_limit": "1 / serial_index: no speculation can be faster than this many times plain decoding",
}


@dataclass(frozen=True)
class Fit:
    """T(n) = fixed_ms + per_token_ms * n."""

    fixed_ms: float
    per_token_ms: float

    @property
    def serial_index(self) -> float:
        """Share of the time of a pass of one token that its token brings."""
        return self.per_token_ms / (self.fixed_ms + self.per_token_ms)


def fit(n: Int[np.ndarray, " sizes"], ms: Float[np.ndarray, " sizes"]) -> Fit:
    """The straight line with the smallest squared relative errors; neither part may be below 0.

    Args:
        n: tokens in a pass, at least two different sizes.
        ms: time of a pass.
    """
    design = np.stack([np.ones(len(n)), n.astype(np.float64)], axis=1) / ms[:, None]
    (fixed, per_token), *_ = np.linalg.lstsq(design, np.ones(len(n)), rcond=None)
    if per_token < 0:
        fixed, per_token = 1.0 / np.mean(1.0 / ms), 0.0
    elif fixed < 0:
        shares = n / ms
        fixed, per_token = 0.0, shares.sum() / (shares**2).sum()
    return Fit(float(fixed), float(per_token))


def _rounds(
    frame: pd.DataFrame, name: str
) -> tuple[Int[np.ndarray, " sizes"], Float[np.ndarray, "rounds sizes"]]:
    """Times of one backend, a row a round, a column a size."""
    wide = (
        frame[frame["name"] == name].pivot_table(index="round", columns="n", values="ms").sort_index(axis=1)
    )
    return wide.columns.to_numpy(dtype=np.int64), wide.to_numpy(dtype=np.float64)


def _resampled(
    times: Float[np.ndarray, "rounds sizes"], seed: int
) -> Float[np.ndarray, "resamples sizes"] | None:
    """Medians of resampled rounds; None with too few of them for an interval."""
    if len(times) < MIN_ROUNDS:
        return None
    drawn = np.random.default_rng(seed).integers(len(times), size=(_RESAMPLES, len(times)))
    return np.asarray(np.median(times[drawn], axis=1))


def _ends(draws: Float[np.ndarray, "resamples ..."] | None) -> tuple[Any, Any]:
    if draws is None:
        return None, None
    low, high = np.quantile(draws, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2], axis=0)
    return low, high


def curve_table(frame: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """One row a backend and size: the time of a pass against that of one token in the same rounds."""
    rows: list[dict[str, Any]] = []
    for name in dict.fromkeys(frame["name"]):
        sizes, times = _rounds(frame, name)
        medians, draws = np.median(times, axis=0), _resampled(times, seed)
        one = int(np.flatnonzero(sizes == 1)[0])
        low, high = _ends(None if draws is None else draws / draws[:, one : one + 1])
        for place, n in enumerate(sizes):
            over = medians[place] / medians[one]
            rows.append(
                {
                    "backend": name,
                    "n": int(n),
                    "ms": medians[place],
                    "over_one": over,
                    "over_one_lo": None if low is None else low[place],
                    "over_one_hi": None if high is None else high[place],
                    "of_stepping": over / n,
                    "serial_at_n": (over - 1) / (n - 1) if n > 1 else None,
                    "n_rounds": len(times),
                }
            )
    return pd.DataFrame(rows)


def fit_table(frame: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """One row a backend: the fitted line and the serial index, with its interval over resampled rounds."""
    rows: list[dict[str, Any]] = []
    for name in dict.fromkeys(frame["name"]):
        sizes, times = _rounds(frame, name)
        medians, draws = np.median(times, axis=0), _resampled(times, seed)
        found = fit(sizes, medians)
        indices = None if draws is None else np.array([fit(sizes, draw).serial_index for draw in draws])
        low, high = _ends(indices)
        predicted = found.fixed_ms + found.per_token_ms * sizes
        rows.append(
            {
                "backend": name,
                "fixed_ms": found.fixed_ms,
                "per_token_ms": found.per_token_ms,
                "serial_index": found.serial_index,
                "serial_index_lo": low,
                "serial_index_hi": high,
                "speed_limit": 1.0 / found.serial_index if found.serial_index > 0 else None,
                "largest_miss": float(np.abs(predicted / medians - 1).max()),
                "n_rounds": len(times),
            }
        )
    return pd.DataFrame(rows)


def pass_ratio(frame: pd.DataFrame, name: str, other: str, seed: int = 0) -> dict[str, float | None]:
    """Median over rounds of the ratio of two passes of the same round, with its interval."""
    wide = frame.pivot_table(index="round", columns="name", values="ms")
    ratios = (wide[name] / wide[other]).to_numpy(dtype=np.float64)[:, None]
    draws = _resampled(ratios, seed)
    low, high = _ends(None if draws is None else draws[:, 0])
    return {
        "ratio": float(np.median(ratios)),
        "ratio_lo": None if low is None else float(low),
        "ratio_hi": None if high is None else float(high),
    }
