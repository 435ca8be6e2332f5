"""The split of a pass's time, against values worked out by hand; passes and backends on small models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from acceptlab.bench.backends import BACKENDS, make_backend
from acceptlab.bench.llama_cpp import is_installed
from acceptlab.bench.passes import ChainPasses, pass_times
from acceptlab.bench.tree_pass import EngineTree, StockTree, logits_apart
from acceptlab.bench.verify_cost import curve_table, fit, fit_table, pass_ratio
from acceptlab.errors import UsageError
from acceptlab.tree import from_branches
from tests.bench.helpers import PROMPT, small_pair

SIZES = np.array([1, 2, 4, 16, 64])


@pytest.mark.parametrize(
    ("fixed", "per_token", "index"), [(50.0, 2.0, 2 / 52), (40.0, 0.0, 0.0), (0.0, 5.0, 1.0), (1.0, 1.0, 0.5)]
)
def test_fixed_and_per_token_part_by_hand(fixed: float, per_token: float, index: float) -> None:
    found = fit(SIZES, fixed + per_token * SIZES)
    assert (found.fixed_ms, found.per_token_ms) == pytest.approx((fixed, per_token), abs=1e-9)
    assert found.serial_index == pytest.approx(index, abs=1e-9)


def test_no_part_is_below_zero() -> None:
    # faster with more tokens: free, at the harmonic mean that relative errors ask for
    found = fit(np.array([1, 2]), np.array([60.0, 40.0]))
    assert (found.fixed_ms, found.per_token_ms) == (pytest.approx(48.0), 0.0)
    # worse than stepping: all of it per token
    found = fit(np.array([1, 2]), np.array([10.0, 30.0]))
    assert found.fixed_ms == 0.0
    assert found.serial_index == 1.0
    # minimises (10 b / 100 - 1)^2-like errors: b = sum(n/T) / sum((n/T)^2) with n/T = 1/10 and 2/30
    assert found.per_token_ms == pytest.approx((1 / 10 + 2 / 30) / (1 / 100 + 4 / 900))


def test_the_line_has_the_smallest_relative_errors() -> None:
    """No line nearby has smaller ones: short passes weigh as much as long ones."""
    ms = np.array([50.0, 58.0, 55.0, 90.0, 170.0])

    def errors(fixed: float, per_token: float) -> float:
        return float((((fixed + per_token * SIZES) / ms - 1) ** 2).sum())

    found = fit(SIZES, ms)
    least = errors(found.fixed_ms, found.per_token_ms)
    for fixed in (-0.1, 0.0, 0.1):
        for per_token in (-0.01, 0.0, 0.01):
            assert errors(found.fixed_ms + fixed, found.per_token_ms + per_token) >= least


def rounds(n_rounds: int, slow: float = 3.0) -> pd.DataFrame:
    """Rounds in which everything takes 1, 2, 1, 2 ... times as long; and one backend that steps."""
    rows: list[dict[str, Any]] = []
    for number in range(n_rounds):
        factor = 1.0 + number % 2
        for n in (1, 4, 16):
            rows.append({"name": "free", "round": number, "n": n, "ms": factor * 30.0})
            rows.append({"name": "stepping", "round": number, "n": n, "ms": factor * slow * n})
    return pd.DataFrame(rows)


def test_curve_and_fit_tables() -> None:
    curve = curve_table(rounds(4)).set_index(["backend", "n"])
    assert curve.loc[("free", 16), "over_one"] == 1.0
    assert curve.loc[("stepping", 16), "over_one"] == 16.0
    assert curve.loc[("stepping", 4), ["of_stepping", "serial_at_n"]].tolist() == [1.0, 1.0]
    assert curve.loc[("free", 4), ["of_stepping", "serial_at_n"]].tolist() == [0.25, 0.0]
    assert curve.loc[("free", 4), "n_rounds"] == 4
    assert pd.isna(curve.loc[("free", 4), "over_one_lo"])  # too few rounds for an interval
    fits = fit_table(rounds(4)).set_index("backend")
    assert fits["serial_index"].to_dict() == pytest.approx({"free": 0.0, "stepping": 1.0}, abs=1e-9)
    assert fits["largest_miss"].max() < 1e-9


def test_intervals_take_ratios_within_rounds() -> None:
    """A machine that is half as fast in every other round moves no ratio."""
    curve = curve_table(rounds(12)).set_index(["backend", "n"])
    assert curve.loc[("stepping", 16), ["over_one_lo", "over_one_hi"]].tolist() == [16.0, 16.0]
    fits = fit_table(rounds(12)).set_index("backend")
    assert fits.loc["stepping", ["serial_index_lo", "serial_index_hi"]].tolist() == pytest.approx([1.0, 1.0])
    one_size = rounds(12, slow=12.0)
    found = pass_ratio(one_size[one_size["n"] == 4], "free", "stepping")
    assert found == pytest.approx({"ratio": 30 / 48, "ratio_lo": 30 / 48, "ratio_hi": 30 / 48})


class Fake:
    """Passes that keep a list of what was run."""

    device = torch.device("cpu")

    def __init__(self, name: str, log: list[tuple[str, int]], stop_at: int | None = None) -> None:
        self.name, self._log, self._stop_at = name, log, stop_at

    def run(self, n: int) -> None:
        self._log.append((self.name, n))
        if len(self._log) == self._stop_at:
            raise KeyboardInterrupt

    def rewind(self) -> None:
        pass


def test_a_round_runs_everything_once_and_the_first_does_not_count() -> None:
    log: list[tuple[str, int]] = []
    frame, is_whole = pass_times([Fake("a", log), Fake("b", log)], [1, 2, 3], repeats=2)
    assert is_whole
    assert len(log) == 18
    blocks = [log[:6], log[6:12], log[12:]]
    assert all(sorted(block) == sorted(blocks[0]) for block in blocks)
    assert blocks[1] != blocks[2]  # another order each
    assert frame.groupby("round").size().to_dict() == {0: 6, 1: 6}


def test_an_interrupt_keeps_whole_rounds_only() -> None:
    log: list[tuple[str, int]] = []
    frame, is_whole = pass_times([Fake("a", log, stop_at=8)], [1, 2, 3], repeats=5)
    assert not is_whole
    assert frame.groupby("round").size().to_dict() == {0: 3}


def test_chain_passes_come_back_to_the_text() -> None:
    pair = small_pair()
    passes = ChainPasses(pair.target, PROMPT, "target")
    first = passes.run(3)
    passes.rewind()
    passes.run(8)
    passes.rewind()
    # the buffers are longer now; the numbers are the same
    torch.testing.assert_close(passes.run(3), first, rtol=0, atol=1e-6)
    assert pair.target.n_slots == len(PROMPT) + 3


def test_the_tree_pass_is_that_of_plain_transformers() -> None:
    pair = small_pair()
    tree = from_branches([2, 2])
    ours = EngineTree(pair.target, PROMPT, tree, "ours")
    stock = StockTree(pair.target_model, PROMPT, tree, "transformers")
    # float32 rounding, and the same again after rewinding
    assert max(logits_apart(ours, stock) for _ in range(2)) < 1e-4
    assert ours.run(0).shape[0] == tree.n_nodes + 1


@pytest.mark.parametrize(
    ("name", "tolerance"), [("float32", 1e-4), ("packed", 1e-4), ("int8", 0.3), ("bfloat16", 0.1)]
)
def test_backends_run_the_same_model(name: str, tolerance: float) -> None:
    """In fewer bits only roughly: the logits have a spread of about 0.9."""
    pair = small_pair()
    try:
        model = make_backend(name, pair)
    except UsageError as error:
        assert name == "packed"
        pytest.skip(str(error))
    found, expected = (ChainPasses(one, PROMPT, "x").run(4) for one in (model, pair.target))
    assert (found - expected).abs().max() <= tolerance
    assert float(expected.std()) > 0.8
    # the pair's own model is as it was
    assert all(parameter.dtype == torch.float32 for parameter in pair.target_model.parameters())


def test_backends_that_are_not_here_are_named() -> None:
    pair = small_pair()
    with pytest.raises(UsageError, match="unknown backend 'fast': use one of float32, packed"):
        make_backend("fast", pair)
    if is_installed():
        with pytest.raises(UsageError, match="needs a GGUF file"):
            make_backend("llama.cpp", pair)
    else:
        with pytest.raises(UsageError, match="llama-cpp-python"):
            make_backend("llama.cpp", pair)
    assert [name for name, backend in BACKENDS.items() if not backend.trees] == ["llama.cpp"]
