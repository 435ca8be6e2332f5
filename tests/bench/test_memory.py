"""Memory of a collection: weights counted once, rows on the way, and the verdict."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from acceptlab.bench import memory
from acceptlab.bench.memory import memory_of_collection, peak_bytes, resident_bytes, weight_bytes
from acceptlab.drafters.model import DrafterModel
from acceptlab.pairs import halves
from acceptlab.pairs.lean_drafter import LeanDrafter
from acceptlab.prompts import Prompt
from tests.bench.helpers import small_drafter, small_pair
from tests.engine.helpers import settings


def test_what_models_share_counts_once() -> None:
    pair = small_pair()
    each = sum(parameter.nbytes for parameter in pair.target_model.parameters())
    buffers = sum(buffer.nbytes for buffer in pair.target_model.buffers())
    assert weight_bytes(pair) == 2 * (each + buffers)
    assert weight_bytes(replace(pair, draft_model=pair.target_model)) == each + buffers
    drafter = small_drafter()
    own = sum(t.nbytes for t in (*drafter.parameters(), *drafter.buffers()))
    with_drafter = replace(pair, draft_model=None, draft=DrafterModel(drafter, "d"))
    assert weight_bytes(with_drafter) == each + buffers + own
    if halves.is_available():
        for weight in drafter.layers.parameters():
            weight.data = halves.rounded(weight.data)
        lean = LeanDrafter(DrafterModel(drafter, "d"))
        small = sum(t.nbytes for t in (*drafter.parameters(), *drafter.buffers()))
        assert lean.nbytes > 0
        assert weight_bytes(replace(with_drafter, draft=lean)) == each + buffers + small + lean.nbytes


def test_resident_memory_follows_what_is_taken() -> None:
    before = resident_bytes()
    if before is None:
        pytest.skip("this system does not tell the resident memory")
    taken = torch.ones(20_000_000)  # 80 MB, touched
    after = resident_bytes()
    assert after is not None
    # other threads may give some back meanwhile
    assert 60e6 < after - before < 120e6
    assert peak_bytes() >= after - 1e6
    assert float(taken[-1]) == 1.0


def test_rows_are_spread_over_the_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = small_pair()
    monkeypatch.setattr(type(pair), "encode", lambda self, prompt: [5, 6, 7, 8])
    monkeypatch.setattr(type(pair), "decode", lambda self, ids: "")
    # 1 MB more whenever it is asked for
    peaks = (weight_bytes(pair) + 1_000_000 * n for n in range(99))
    monkeypatch.setattr(memory, "peak_bytes", lambda: next(peaks))
    prompts = [Prompt(f"p{i}", "code", "x") for i in range(17)]
    frame, is_whole = memory_of_collection(pair, prompts, settings(max_new_tokens=2))
    assert is_whole
    assert frame["n_prompts"].tolist() == [0, 2, 4, 6, 8, 10, 12, 14, 16, 17]
    assert frame["over_models_mb"].tolist() == pytest.approx(
        [*range(9), 10]
    )  # the last one after the run is complete
