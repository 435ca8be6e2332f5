"""Collections against their bare passes: the replay repeats every pass, and only passes count."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import pytest
import torch

from acceptlab.bench import floor
from acceptlab.bench.floor import floor_samples, over_floor, replay_ms
from acceptlab.prompts import Prompt
from tests.bench.helpers import small_pair
from tests.engine.helpers import settings


@dataclass
class Fake:
    """A model whose passes take as many ms as they have tokens, on a clock of the test's own."""

    clock: list[float]
    seen: list[str] = field(default_factory=list)
    device: Any = field(default_factory=lambda: torch.device("cpu"))

    def prefill(self, token_ids: torch.Tensor) -> None:
        self.clock[0] += len(token_ids)

    def forward(self, token_ids: torch.Tensor) -> None:
        self.clock[0] += len(token_ids)

    def keep(self, slots: torch.Tensor) -> None:
        self.clock[0] += 1000.0
        self.seen.append("keep")


def test_only_passes_are_timed_and_everything_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(floor, "now_ms", lambda device: clock[0])
    model: Any = Fake(clock)
    calls: Any = [
        (model, "prefill", (torch.arange(5),)),
        (model, "forward", (torch.arange(3),)),
        (model, "keep", (torch.arange(2),)),
        (model, "forward", (torch.arange(4),)),
    ]
    assert replay_ms(calls) == 12.0
    assert model.seen == ["keep"]


def test_the_ratio_is_one_of_sums_of_medians() -> None:
    rows = [
        {"prompt_id": "a", "repeat": r, "collect_ms": ms, "bare_ms": 10.0}
        for r, ms in enumerate((12, 900, 11))
    ]
    rows += [{"prompt_id": "b", "repeat": r, "collect_ms": 36.0, "bare_ms": 30.0} for r in range(3)]
    found = over_floor(pd.DataFrame(rows))
    assert found.value == pytest.approx(48 / 40)
    assert found.lo is None
    rows = [
        {"prompt_id": str(i), "repeat": 0, "collect_ms": 1.2 * i, "bare_ms": float(i)} for i in range(1, 13)
    ]
    found = over_floor(pd.DataFrame(rows))
    assert (found.value, found.lo, found.hi) == pytest.approx((1.2, 1.2, 1.2))


def test_the_replay_runs_the_passes_of_the_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = small_pair()
    monkeypatch.setattr(type(pair), "encode", lambda self, prompt: [5 + len(prompt), 6, 7, 8])
    monkeypatch.setattr(type(pair), "decode", lambda self, ids: "")
    prompts = [Prompt(f"p{i}", "code", "x" * i) for i in range(3)]
    passes: list[tuple[str, int]] = []
    for name in ("target", "draft"):
        model = getattr(pair, name)
        inner = model.forward

        def counted(
            token_ids: Any, positions: Any, visible: Any, name: str = name, inner: Any = inner
        ) -> Any:
            passes.append((name, len(token_ids)))
            return inner(token_ids, positions, visible)

        model.forward = counted
    seen: list[tuple[int, int]] = []
    frame = floor_samples(
        pair, prompts, settings(max_new_tokens=6), 1, lambda n, total: seen.append((n, total))
    )
    assert frame["prompt_id"].tolist() == ["p0", "p1", "p2"]
    assert (frame["collect_ms"] > 0).all()
    assert (frame["bare_ms"] > 0).all()
    assert seen[-1] == (6, 6)
    # listed, collected and replayed: three times the same passes, the last two prompt by prompt
    assert len(passes) % 3 == 0
    third = len(passes) // 3
    assert sorted(passes[third:]) == sorted(2 * passes[:third])
