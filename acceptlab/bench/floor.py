"""How near a collection is to its floor: its time against that of the bare model passes that it needs.

The passes of a collection are written down once, then run again by themselves with the very same inputs, prompt by
prompt between the prompts of another collection. Everything that is no pass (choosing nodes, judging, measures, caches,
Parquet) is what the ratio exceeds 1 by. Measures only: what to run comes from the caller.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from torch import Tensor

from acceptlab.bench.arms import now_ms
from acceptlab.collect import Progress, collect
from acceptlab.engine import Settings
from acceptlab.models import LanguageModel
from acceptlab.resampling import DEFAULT, Resampling
from acceptlab.stats import Estimate, ratio_of_sums
from acceptlab.store import RunWriter

if TYPE_CHECKING:
    from acceptlab.pairs import Pair
    from acceptlab.prompts import Prompt

Call = tuple[LanguageModel, str, tuple[Tensor, ...]]
_PASSES = ("prefill", "forward")


class _Listed:
    """A language model that writes down every call that changes its cache."""

    def __init__(self, inner: LanguageModel, calls: list[Call]) -> None:
        self._inner, self._calls = inner, calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in (*_PASSES, "keep", "reset"):
            return found

        def listed(*arguments: Tensor) -> Any:
            self._calls.append((self._inner, name, arguments))
            return found(*arguments)

        return listed


def replay_ms(calls: Sequence[Call]) -> float:
    """Time of the passes among these calls, run again in their order; the calls between them are not timed."""
    total = 0.0
    for model, name, arguments in calls:
        started = now_ms(model.device)
        getattr(model, name)(*arguments)
        if name in _PASSES:
            total += now_ms(model.device) - started
    return total


def floor_samples(
    pair: Pair,
    prompts: Sequence[Prompt],
    settings: Settings,
    repeats: int,
    on_done: Callable[[int, int], None] = lambda done, total: None,
) -> pd.DataFrame:
    """Collect prompts again and again, each prompt followed by its bare passes.

    Args:
        pair: loaded target and draft.
        prompts: what to decode.
        settings: how to decode.
        repeats: collections that are timed; one more, before them, lists the passes.
        on_done: called with the number of prompts done and their total.

    Returns:
        Rows `prompt_id, repeat, collect_ms, bare_ms`; the time to complete the run is shared out over its prompts.
    """
    total = len(prompts) * (repeats + 1)
    lists = _listed(pair, prompts, settings, lambda done: on_done(done, total))
    rows: list[dict[str, Any]] = []
    for repeat in range(repeats):
        rows += _one_collection(
            pair,
            prompts,
            settings,
            lists,
            repeat,
            lambda done, repeat=repeat: on_done((repeat + 1) * len(prompts) + done, total),  # type: ignore[misc]
        )
    return pd.DataFrame(rows)


def _listed(
    pair: Pair, prompts: Sequence[Prompt], settings: Settings, on_prompt: Callable[[int], None]
) -> list[list[Call]]:
    """The calls of every prompt, in order."""
    calls: list[Call] = []
    listed = replace(pair, target=_Listed(pair.target, calls), draft=_Listed(pair.draft, calls))
    lists: list[list[Call]] = []

    def after(progress: Progress) -> None:
        if progress.n_prompts_done > len(lists):
            lists.append(list(calls))
            calls.clear()
            on_prompt(len(lists))

    with tempfile.TemporaryDirectory() as name:
        collect(listed, prompts, settings, RunWriter.create(Path(name) / "run", {"config": {}}), after)
    return lists


def _one_collection(
    pair: Pair,
    prompts: Sequence[Prompt],
    settings: Settings,
    lists: Sequence[Sequence[Call]],
    repeat: int,
    on_prompt: Callable[[int], None],
) -> list[dict[str, Any]]:
    device = pair.target.device
    rows: list[dict[str, Any]] = []
    last = 0.0

    def after(progress: Progress) -> None:
        nonlocal last
        if progress.n_prompts_done > len(rows):
            collect_ms = now_ms(device) - last
            bare_ms = replay_ms(lists[len(rows)])
            prompt_id = prompts[len(rows)].id
            rows.append(
                {"prompt_id": prompt_id, "repeat": repeat, "collect_ms": collect_ms, "bare_ms": bare_ms}
            )
            on_prompt(len(rows))
            last = now_ms(device)

    with tempfile.TemporaryDirectory() as name:
        writer = RunWriter.create(Path(name) / "run", {"config": {}})
        last = now_ms(device)
        collect(pair, prompts, settings, writer, after)
        share_ms = (now_ms(device) - last) / len(rows)
    return [{**row, "collect_ms": row["collect_ms"] + share_ms} for row in rows]


def over_floor(samples: pd.DataFrame, resampling: Resampling = DEFAULT) -> Estimate:
    """Collection time over the time of its bare passes: sums over prompts of medians over repeats."""
    medians = samples.groupby("prompt_id", sort=False)[["collect_ms", "bare_ms"]].median()
    found = ratio_of_sums(
        medians[["collect_ms"]].to_numpy(dtype=np.float64),
        medians[["bare_ms"]].to_numpy(dtype=np.float64),
        resampling,
    )
    return found[0]
