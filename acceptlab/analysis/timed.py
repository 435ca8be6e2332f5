"""Speed-ups as published tools define them, from the samples that `acceptlab bench speedup --folder` keeps.

A run does not hold how fast the target is without speculation, so these need a timed contest of the same pair. One row
of the samples is one prompt decoded once by one way of decoding; a prompt's times are the medians of its repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float

from acceptlab.errors import UsageError
from acceptlab.resampling import Resampling, Totals
from acceptlab.stats import Estimate, bootstrap, ratio
from acceptlab.store import Run

_PLAIN = "plain"
_COLUMNS = ("arm", "domain", "prompt_id", "n_new_tokens", "prefill_ms", "decode_ms")


@dataclass(frozen=True, eq=False)
class Timed:
    """Prompts that both ways of decoding have, in the same order: tokens and times with and without speculation."""

    domains: tuple[str, ...]
    n_tokens: Float[np.ndarray, "prompts 2"]
    prefill_ms: Float[np.ndarray, "prompts 2"]
    decode_ms: Float[np.ndarray, "prompts 2"]
    """Column 0 with speculation, column 1 without."""

    def of(self, domain: str | None) -> Timed:
        """The prompts of one domain; all of them for None."""
        chosen = np.array([domain is None or name == domain for name in self.domains], dtype=bool)
        kept = tuple(name for name, is_chosen in zip(self.domains, chosen, strict=True) if is_chosen)
        return Timed(kept, self.n_tokens[chosen], self.prefill_ms[chosen], self.decode_ms[chosen])


def read_timed(path: Path, runs: Sequence[Run]) -> Timed:
    """The samples of the runs' tree and of plain decoding.

    Raises:
        UsageError: no such file or columns, runs of several trees, or a tree that was not timed.
    """
    trees = sorted({str(run.config.get("tree")) for run in runs})
    if len(trees) != 1:
        raise UsageError(
            f"timings fit runs of one tree, and these have {', '.join(trees)}: name them one by one"
        )
    try:
        frame = pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the timings '{path}': {error}") from None
    if not set(_COLUMNS) <= set(frame.columns):
        raise UsageError(
            f"'{path}' holds no timings: name the samples.parquet of acceptlab bench speedup --folder"
        )
    arms = sorted(set(frame["arm"]))
    if not {trees[0], _PLAIN} <= set(arms):
        raise UsageError(
            f"'{path}' times {', '.join(arms)}, not '{trees[0]}' and '{_PLAIN}': time that tree too"
        )
    return _timed(frame, trees[0])


def _timed(frame: pd.DataFrame, tree: str) -> Timed:
    keys = ["arm", "prompt_id", "domain"]
    medians = (
        frame.groupby(keys, sort=False)[["n_new_tokens", "prefill_ms", "decode_ms"]].median().reset_index()
    )
    both = medians[medians["arm"] == tree].merge(
        medians[medians["arm"] == _PLAIN], on=["prompt_id", "domain"], suffixes=("_with", "_without")
    )

    def pair(name: str) -> Float[np.ndarray, "prompts 2"]:
        return both[[f"{name}_with", f"{name}_without"]].to_numpy(dtype=np.float64)

    return Timed(tuple(both["domain"]), pair("n_new_tokens"), pair("prefill_ms"), pair("decode_ms"))


def spec_bench(timed: Timed, resampling: Resampling) -> Estimate:
    """Mean over prompts of tokens/s, prefill included, over the same mean without speculation."""
    rates = timed.n_tokens / (timed.prefill_ms + timed.decode_ms)
    return _ratio_of_means(rates, resampling)


def dflash(timed: Timed, resampling: Resampling) -> Estimate:
    """Mean over prompts of the decoding time of a token without speculation, over the same with it."""
    per_token = timed.decode_ms / timed.n_tokens
    return _ratio_of_means(per_token[:, ::-1], resampling)


def _ratio_of_means(values: Float[np.ndarray, "prompts 2"], resampling: Resampling) -> Estimate:
    """The mean of the first column over that of the second."""

    def statistic(totals: Totals) -> Totals:
        return ratio(totals[:, :1], totals[:, 1:])

    counts = np.ones((len(values), 1), dtype=np.int64)
    return bootstrap(values, statistic, counts, resampling, undefined="no prompt was timed both ways")[0]
