"""Depth profiles against loops over rows, and the faults of published metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from acceptlab.analysis import depth_profile
from acceptlab.analysis.depth_profile import QUANTITIES
from acceptlab.resampling import Resampling
from acceptlab.store import Run, open_run
from tests.handmade import Node, Step, chain, write_run

FAST = Resampling(n_resamples=200)


def _oracle(run: Run, domain: str, depth: int) -> dict[str, float]:
    """The four quantities and the counts from plain loops."""
    keep = [
        row for row in run.read("steps").to_pylist() if domain in (row["domain"], "all") and row["n_nodes"]
    ]
    nodes = [row for row in run.read("nodes").to_pylist() if domain in (row["domain"], "all")]
    nodes = [row for row in nodes if row["depth"] == depth]
    reached = [sum(row["accepted_len"] >= d for row in keep) for d in (depth, depth - 1)]
    accepted = sum(row["outcome"] == "accepted" for row in nodes)
    tested = sum(row["outcome"] != "untested" for row in nodes)
    return {
        "S_d": reached[0] / len(keep),
        "alpha_d": reached[0] / reached[1],
        "node_rate_d": accepted / tested,
        "mean_ratio_d": sum(row["accept_ratio"] for row in nodes) / len(nodes),
        "n_nodes": len(nodes),
        "n_tested": tested,
        "n_steps": len(keep),
        "n_prompts": len({row["prompt_id"] for row in nodes}),
    }


@pytest.mark.parametrize("name", ["tree_run", "sampled_run"])
def test_every_row_equals_a_loop(name: str, request: pytest.FixtureRequest) -> None:
    run: Run = request.getfixturevalue(name)
    frame = depth_profile([run], resampling=FAST).frame
    assert list(frame["domain"].unique()) == [*run.config["domains"], "all"]
    for row in frame.to_dict("records"):
        for quantity, value in _oracle(run, row["domain"], row["depth"]).items():
            assert row[quantity] == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize("name", ["tree_run", "sampled_run"])
def test_invariants(name: str, request: pytest.FixtureRequest) -> None:
    run: Run = request.getfixturevalue(name)
    frame = depth_profile([run], resampling=FAST).frame
    for quantity in QUANTITIES:
        ends = frame[[f"{quantity}_lo", quantity, f"{quantity}_hi"]].dropna()
        assert len(ends) > 3
        assert ends.min(axis=None) >= 0
        assert ends.max(axis=None) <= 1
        assert (ends.iloc[:, 0] <= ends.iloc[:, 1]).all()
        assert (ends.iloc[:, 1] <= ends.iloc[:, 2]).all()
    for _, rows in frame.groupby("domain"):
        assert rows["S_d"].is_monotonic_decreasing
        assert rows["alpha_d"].cumprod().to_numpy() == pytest.approx(rows["S_d"].to_numpy())
    assert (frame["n_tested"] <= frame["n_nodes"]).all()


def test_tables_carry_counts_method_and_definitions(tree_run: Run) -> None:
    table = depth_profile([tree_run], resampling=FAST)
    assert {"n_nodes", "n_tested", "n_steps", "n_prompts", "method", "reason"} <= set(table.frame.columns)
    assert set(table.columns) == {name for name in table.frame if not str(name).endswith(("_lo", "_hi"))}
    assert table.frame["method"].str.contains("cluster bootstrap over prompts, percentile 95%").all()
    assert "48 prompts" in table.caption
    assert f"{tree_run.n_rows('nodes'):,} nodes" in table.caption


def _one(frame: pd.DataFrame, domain: str = "all", depth: int = 1) -> dict[str, Any]:
    return frame[(frame["domain"] == domain) & (frame["depth"] == depth)].iloc[0].to_dict()


def test_flags_past_the_first_rejection_do_not_count(tmp_path: Path) -> None:
    flags = (True, False, True, True)
    outcomes = ("accepted", "rejected", "untested", "untested")
    nodes = [
        Node(i - 1, outcome, is_argmax=flag)
        for i, (outcome, flag) in enumerate(zip(outcomes, flags, strict=True))
    ]
    run = open_run(write_run(tmp_path / "run", {"code/x": [Step(nodes)]}))
    frame = depth_profile([run]).frame
    pooled = frame[frame["domain"] == "all"]
    assert pooled["S_d"].tolist() == [1, 0, 0, 0]
    assert pooled["n_tested"].tolist() == [1, 1, 0, 0]
    assert pooled["node_rate_d"].isna().tolist() == [False, False, True, True]


def test_untested_nodes_and_the_configured_depth_enter_no_denominator(tmp_path: Path) -> None:
    # the length limit cuts the second tree after its first token; a third step drafts nothing
    steps = [Step(chain("a", "a", "r", "u")), Step(chain("a"), emitted=1, stop="length", bonus=None), Step()]
    run = open_run(write_run(tmp_path / "run", {"code/x": steps}))
    first, second, third = (_one(depth_profile([run]).frame, depth=depth) for depth in (1, 2, 3))
    assert (first["node_rate_d"], first["n_tested"]) == (1.0, 2)
    assert (second["node_rate_d"], second["n_tested"]) == (1.0, 1)
    assert (third["node_rate_d"], third["n_tested"]) == (0.0, 1)
    assert first["n_steps"] == 2
    assert (first["S_d"], second["S_d"], second["alpha_d"]) == (1.0, 0.5, 0.5)


def test_nothing_drafted_is_null_not_zero(tmp_path: Path) -> None:
    prompts = {f"code/{i}": [Step(stop="length", emitted=1)] for i in range(12)}
    run = open_run(write_run(tmp_path / "run", prompts))
    frame = depth_profile([run]).frame
    assert frame["domain"].tolist() == ["code", "all"]
    assert frame[list(QUANTITIES)].isna().all(axis=None)
    assert (frame["n_nodes"] == 0).all()
    assert (frame["reason"] == "nothing drafted").all()


def test_one_domain_without_drafts_leaves_the_others_whole(tmp_path: Path) -> None:
    prompts = {"code/a": [Step(chain("a", "r"))], "chat/b": [Step(emitted=1)]}
    frame = depth_profile([open_run(write_run(tmp_path / "run", prompts))]).frame
    assert _one(frame, "chat")["reason"] == "nothing drafted"
    assert _one(frame, "code")["S_d"] == 1.0
    # a step without a draft takes no part in survival
    assert _one(frame, "all")["S_d"] == 1.0


def test_no_run_with_steps_still_gives_the_pooled_row(tmp_path: Path) -> None:
    frame = depth_profile([open_run(write_run(tmp_path / "run", {"code/x": []}))]).frame
    assert frame["domain"].tolist() == ["all"]
    assert frame["S_d"].isna().all()


def test_chains_and_trees_of_the_same_draft_keep_their_rates_apart(tmp_path: Path) -> None:
    # width 2: the second sibling is accepted after the first was rejected
    wide = [Node(-1, "rejected"), Node(-1, "accepted"), Node(1, "accepted"), Node(1, "untested")]
    narrow = chain("r", "u")
    frames = [
        depth_profile([open_run(write_run(tmp_path / name, {"code/x": [Step(nodes)]}))]).frame
        for name, nodes in (("chain", narrow), ("tree", wide))
    ]
    chain_row, tree_row = (_one(frame) for frame in frames)
    assert (chain_row["S_d"], chain_row["node_rate_d"]) == (0.0, 0.0)
    assert (tree_row["S_d"], tree_row["node_rate_d"]) == (1.0, 0.5)
    assert _one(frames[1], depth=2)["node_rate_d"] == 1.0


def test_nine_prompts_have_no_interval(tmp_path: Path) -> None:
    prompts = {f"code/{i}": [Step(chain("a" if i % 2 else "r"))] for i in range(9)}
    row = _one(depth_profile([open_run(write_run(tmp_path / "nine", prompts))]).frame)
    assert row["S_d"] == pytest.approx(4 / 9)
    assert pd.isna(row["S_d_lo"])
    assert "fewer than 10 prompts" in row["reason"]
    prompts["code/9"] = [Step(chain("r"))]
    row = _one(depth_profile([open_run(write_run(tmp_path / "ten", prompts))]).frame)
    assert row["S_d_lo"] < 0.4 < row["S_d_hi"]
    assert row["reason"] is None


def test_several_runs_pool_and_group_by_run(tree_run: Run, sampled_run: Run) -> None:
    table = depth_profile([tree_run, sampled_run], by="run", resampling=FAST)
    apart = [depth_profile([run], resampling=FAST).frame for run in (tree_run, sampled_run)]
    for name, frame in zip(("tree", "chain"), apart, strict=True):
        rows = table.frame[table.frame["run"] == name]
        assert rows["S_d"].tolist() == pytest.approx(frame[frame["domain"] == "all"]["S_d"].tolist())
    pooled = table.frame[table.frame["run"] == "all"].iloc[0]
    assert pooled["n_steps"] == sum(int(_one(frame)["n_steps"]) for frame in apart)
    # code/0000 and its like are in both runs, and are one prompt each when pooled
    assert pooled["n_prompts"] == 48
    assert any("differ in rule" in note for note in table.notes)


def test_simultaneous_intervals_are_wider(tree_run: Run) -> None:
    plain, joint = (
        depth_profile([tree_run], resampling=Resampling(n_resamples=400, simultaneous=flag)).frame
        for flag in (False, True)
    )
    width = [frame["S_d_hi"] - frame["S_d_lo"] for frame in (plain, joint)]
    assert width[1].mean() > 1.1 * width[0].mean()
    assert joint["method"].str.contains("max-t").all()


def test_notes_tell_of_stand_ins_skips_and_breaks(tmp_path: Path) -> None:
    run = open_run(
        write_run(
            tmp_path / "run",
            {"code/x": [Step(chain("a"))]},
            complete=False,
            config={"draft_note": "a slow stand-in"},
        )
    )
    table = depth_profile([run])
    notes = table.notes
    assert notes[0] == "a slow stand-in"
    assert table.caption.endswith("Note: a slow stand-in.")
    assert "incomplete" in notes[1]
