"""The arithmetic of speed-ups, against values worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from acceptlab.analysis.costs import Costs
from acceptlab.bench.interleave import in_turn
from acceptlab.bench.prediction import CostModel, break_even, cost_model, extended
from acceptlab.bench.speedup import relative_speeds, sums_of, table
from acceptlab.errors import RunError, UsageError


def sample(arm: str, prompt: str, ms: float, tokens: int, repeat: int = 0, **values: Any) -> dict[str, Any]:
    """A row as `measure` gives it."""
    row = {
        "arm": arm,
        "shape": "" if arm == "plain" else arm,
        "domain": "code",
        "prompt_id": prompt,
        "repeat": repeat,
        "n_prompt_tokens": 10,
        "n_new_tokens": tokens,
        "token_ids": list(range(tokens)),
        "prefill_ms": 7.0,
        "decode_ms": ms,
        "draft_ms": 0.0,
        "verify_ms": ms,
        "record_ms": 0.0,
        "n_steps": tokens,
        "n_drafted": 0,
        "n_levels": 0,
        "n_nodes": 0,
        "n_tested": 0,
        "n_accepted": 0,
        "survivors": [],
    }
    return {**row, **values}


def two_arms() -> pd.DataFrame:
    drafted = {"n_steps": 2, "n_drafted": 2, "n_levels": 4, "n_nodes": 4, "n_tested": 3, "n_accepted": 2}
    rows = [
        sample("plain", "a", 100.0, 4),
        sample("chain:2", "a", 50.0, 4, draft_ms=10.0, verify_ms=30.0, survivors=[1, 1], **drafted),
        sample("plain", "b", 300.0, 6),
        sample("chain:2", "b", 100.0, 6, draft_ms=20.0, verify_ms=60.0, survivors=[2, 0], **drafted),
    ]
    return pd.DataFrame(rows)


def test_speed_up_is_a_ratio_of_sums_and_no_mean_of_ratios() -> None:
    found = table(sums_of(two_arms())).set_index("arm")
    # 10 tokens in 400 ms against 10 in 150; the mean of the prompts' own ratios would be 2.5
    assert found.loc["chain:2", "speed_up"] == pytest.approx(400 / 150)
    assert found.loc["plain", "speed_up"] == 1.0
    assert found.loc["chain:2", "tokens_per_s"] == pytest.approx(10 / 0.150)
    assert found.loc["chain:2", "acceptance"] == pytest.approx(4 / 6)
    assert found.loc["chain:2", "accepted_len"] == pytest.approx(4 / 4)
    assert found.loc["chain:2", "emitted_len"] == pytest.approx(10 / 4)
    assert found.loc["chain:2", "draft_share"] == pytest.approx(30 / 150)
    assert found.loc["chain:2", "verify_share"] == pytest.approx(90 / 150)
    assert found.loc["chain:2", "other_share"] == pytest.approx(30 / 150)
    # a step takes 37.5 ms, a plain token 40
    assert found.loc["chain:2", "break_even_len"] == pytest.approx(37.5 / 40)
    assert found.loc["chain:2", "same_text"] == 1.0
    assert found.loc["chain:2", "prefill_ms"] == 7.0
    assert pd.isna(found.loc["plain", "acceptance"])
    assert pd.isna(found.loc["plain", "break_even_len"])


def test_tokens_count_where_arms_emit_different_numbers() -> None:
    rows = [sample("plain", "a", 100.0, 10), sample("chain:2", "a", 100.0, 5)]
    assert relative_speeds(sums_of(pd.DataFrame(rows)), "plain")["chain:2"].value == 0.5


def test_other_texts_are_seen() -> None:
    rows = two_arms()
    rows.at[3, "token_ids"] = [9, 9, 9, 9, 9, 9]
    assert table(sums_of(rows)).set_index("arm").loc["chain:2", "same_text"] == 0.5


def test_a_prompts_time_is_the_median_of_its_repeats() -> None:
    rows = [sample("plain", "a", 100.0, 4, repeat) for repeat in range(3)]
    rows += [sample("chain:2", "a", ms, 4, repeat) for repeat, ms in enumerate([50.0, 5000.0, 40.0])]
    assert relative_speeds(sums_of(pd.DataFrame(rows)), "plain")["chain:2"].value == 2.0


def test_an_interrupted_run_compares_the_prompts_that_all_arms_have() -> None:
    rows = two_arms().iloc[:3]
    sums = sums_of(rows)
    assert sums["plain"].prompt_ids == sums["chain:2"].prompt_ids == ("a",)
    assert table(sums).set_index("arm").loc["chain:2", "speed_up"] == 2.0
    with pytest.raises(RunError, match="no prompt was decoded by every arm"):
        sums_of(pd.DataFrame([sample("plain", "a", 1.0, 1), sample("x", "b", 1.0, 1)]))
    with pytest.raises(RunError, match="no prompt"):
        sums_of(pd.DataFrame())


def test_intervals_resample_prompts_jointly() -> None:
    """Where every prompt has the same ratio, resampling cannot move it, however much their times differ."""
    rows = []
    for index in range(12):
        ms = 100.0 * (1 + index)
        rows += [sample("plain", f"p{index}", ms, 4), sample("chain:2", f"p{index}", ms / 2, 4)]
    row = table(sums_of(pd.DataFrame(rows)), against=["chain:2"]).set_index("arm")
    assert row.loc["chain:2", ["speed_up", "speed_up_lo", "speed_up_hi"]].tolist() == pytest.approx([2.0] * 3)
    assert row.loc["plain", "over_chain_2"] == pytest.approx(0.5)
    rows[1]["decode_ms"] *= 3
    row = table(sums_of(pd.DataFrame(rows))).set_index("arm")
    assert row.loc["chain:2", "speed_up_lo"] < row.loc["chain:2", "speed_up"] < 2.0
    # below ten prompts there is none, and the row says so
    few = table(sums_of(pd.DataFrame(rows[:10]))).set_index("arm")
    assert pd.isna(few.loc["chain:2", "speed_up_lo"])
    assert "fewer than 10" in few.loc["chain:2", "reason"]


def test_what_a_library_does_not_tell_is_undefined() -> None:
    rows = two_arms()
    rows["n_tested"] = rows["n_tested"].astype(object)
    rows.loc[rows["arm"] == "chain:2", "n_tested"] = None
    found = table(sums_of(rows)).set_index("arm")
    assert pd.isna(found.loc["chain:2", "acceptance"])
    assert found.loc["chain:2", "speed_up"] == pytest.approx(400 / 150)


def test_every_arm_stands_at_every_place_equally_often() -> None:
    order = [arm for _, _, arm in in_turn(["a", "b", "c"], 3, 2)]
    blocks = [order[i : i + 3] for i in range(0, len(order), 3)]
    assert all(sorted(block) == ["a", "b", "c"] for block in blocks)
    assert [[block[place] for block in blocks].count("a") for place in range(3)] == [2, 2, 2]


def model(survival: list[float], draft_ms: float = 10.0, plain_ms: float = 100.0) -> CostModel:
    costs = Costs(draft_ms, 5.0, np.array([1, 3, 65]), np.array([100.0, 120.0, 740.0]), "by hand")
    return CostModel(costs, plain_ms, np.array(survival))


def test_predicted_speed_up_of_a_chain_by_hand() -> None:
    # two draft passes of 10 ms, a target pass over 3 tokens of 120, 5 ms of bookkeeping: 145 ms for 1 + .6 + .3 tokens
    assert model([0.6, 0.3]).chain(2) == pytest.approx(1.9 * 100 / 145)
    # one: 10 + 110 + 5 for 1.6
    assert model([0.6, 0.3]).chain(1) == pytest.approx(1.6 * 100 / 125)
    # a tree of 2 nodes in one level that emitted 1.7
    assert model([0.6, 0.3]).tree(2, 1, 1.7) == pytest.approx(1.7 * 100 / 135)


def test_survival_goes_on_at_its_last_rate() -> None:
    assert extended(np.array([0.6, 0.3]), 4) == pytest.approx([0.6, 0.3, 0.15, 0.075])
    assert extended(np.array([0.6]), 3) == pytest.approx([0.6, 0.36, 0.216])
    assert extended(np.array([0.6, 0.3]), 1) == pytest.approx([0.6])
    assert extended(np.array([0.0]), 2) == pytest.approx([0.0, 0.0])


def test_break_even_is_the_last_length_that_pays() -> None:
    assert break_even([1.2, 1.1, 1.0, 0.9]) == 3
    assert break_even([0.9, 1.1, 0.8]) == 2
    assert break_even([0.9, 0.8]) == 0
    assert break_even([0.9, 1.2]) is None
    found = model([0.6, 0.3])
    # 4 draft passes, 140 ms of target, 5: 185 for 1 + .6 + .3 + .15 + .075; 5 cost 205 for .0375 more
    assert found.chain(4) == pytest.approx(212.5 / 185)
    assert found.chain(5) == pytest.approx(216.25 / 205)
    end = found.break_even()
    assert end is not None
    assert found.chain(end) >= 1.0 > found.chain(end + 1)
    assert found.best_chain() == max(range(1, 10), key=found.chain)


def test_the_cost_model_reads_off_one_chain_and_bare_passes() -> None:
    sums = sums_of(two_arms())
    passes = pd.DataFrame({"n": [1, 1, 1, 3, 9], "ms": [19.0, 20.0, 900.0, 24.0, 40.0]})
    found = cost_model(sums["plain"], sums["chain:2"], passes)
    assert found.plain_ms == 40.0
    assert found.costs.draft_level_ms == pytest.approx(30 / 8)
    # 4 steps take 150 ms of which 30 draft; a pass over 1 + 8/4 tokens takes 24: 6 are left a step
    assert found.costs.other_ms == pytest.approx(120 / 4 - 24)
    assert found.survival == pytest.approx([3 / 4, 1 / 4])
    # so the longest chain itself is predicted as its costs and its survival say
    assert found.chain(2) == pytest.approx(2.0 * 40 / (150 / 4))
    idle = sums_of(pd.DataFrame([sample("plain", "a", 10.0, 1)]))["plain"]
    with pytest.raises(UsageError, match="drafted nothing"):
        cost_model(idle, idle, passes)
