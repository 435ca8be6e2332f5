"""Where the time of a collection goes. Measures only: what to run comes from the caller.

Shares are taken within one run, since absolute times differ between machines and hours.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from torch import Tensor

from acceptlab.collect import collect
from acceptlab.engine import Settings
from acceptlab.models import LanguageModel
from acceptlab.store import RunWriter, open_run

if TYPE_CHECKING:
    from acceptlab.pairs import Pair
    from acceptlab.prompts import Prompt


class TimedModel:
    """A language model that adds up the time of its passes; everything else is handed through."""

    def __init__(self, inner: LanguageModel) -> None:
        self._inner = inner
        self.pass_s = 0.0
        self.n_passes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def prefill(self, token_ids: Tensor) -> None:
        """Timed."""
        started = time.perf_counter()
        self._inner.prefill(token_ids)
        self._count(started)

    def forward(self, token_ids: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        """Timed."""
        started = time.perf_counter()
        logits = self._inner.forward(token_ids, positions, visible)
        self._count(started)
        return logits

    def _count(self, started: float) -> None:
        self.pass_s += time.perf_counter() - started
        self.n_passes += 1


@dataclass(frozen=True)
class CollectorSplit:
    """The split of a collection's time, and what it amounts to."""

    frame: pd.DataFrame
    inside_passes: float
    nodes_per_hour: float
    wall_s: float
    n_nodes: int


def collector_split(pair: Pair, prompts: Sequence[Prompt], settings: Settings) -> CollectorSplit:
    """Collect prompts into a folder that is thrown away, and split the wall time by what it was spent on.

    The parts add up to the wall time from the first prompt to the completed run on disk; loading the models is not
    in it.

    Args:
        pair: loaded target and draft.
        prompts: what to decode.
        settings: how to decode.
    """
    target, draft = TimedModel(pair.target), TimedModel(pair.draft)
    timed = replace(pair, target=target, draft=draft)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        writer = RunWriter.create(folder, {"config": {}})
        started = time.perf_counter()
        collect(timed, prompts, settings, writer)
        wall_s = time.perf_counter() - started
        run = open_run(folder)
        steps = run.read("steps").to_pandas()
        wall_of_prompts_s = run.read("prompts").to_pandas()["wall_ms"].sum() / 1000
        n_nodes = run.n_rows("nodes")
    step_s = steps[["draft_ms", "verify_ms", "record_ms", "other_ms"]].sum() / 1000
    inside_s = target.pass_s + draft.pass_s
    parts = {
        "target passes": target.pass_s,
        "draft passes": draft.pass_s,
        "choosing and judging the nodes": step_s["draft_ms"]
        + step_s["verify_ms"]
        + _prefill(wall_of_prompts_s, step_s)
        - inside_s,
        "measures and rows": step_s["record_ms"],
        "cache and bookkeeping": step_s["other_ms"],
        "writing Parquet, encoding, the rest": wall_s - wall_of_prompts_s,
    }
    frame = pd.DataFrame(
        {
            "part": list(parts),
            "seconds": list(parts.values()),
            "share": [seconds / wall_s for seconds in parts.values()],
            "ms_per_step": [1000 * seconds / len(steps) for seconds in parts.values()],
        }
    )
    return CollectorSplit(frame, inside_s / wall_s, 3600 * n_nodes / wall_s, wall_s, n_nodes)


def _prefill(wall_of_prompts_s: float, step_s: pd.Series[float]) -> float:
    """Time of the prompts outside their steps: the prefill passes, and turning tokens into text."""
    return float(wall_of_prompts_s - step_s.sum())
