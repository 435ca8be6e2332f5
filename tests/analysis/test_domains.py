"""Acceptance by domain against loops over rows; bonus, gap and emptiness."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from acceptlab.analysis import domains
from acceptlab.resampling import Resampling
from acceptlab.store import Run, open_run
from tests.handmade import Step, chain, drop_columns, write_run
from tests.synthetic import make_run

FAST = Resampling(n_resamples=200)


def _oracle(run: Run, domain: str) -> dict[str, float]:
    steps = [row for row in run.read("steps").to_pylist() if domain in (row["domain"], "all")]
    nodes = [row for row in run.read("nodes").to_pylist() if domain in (row["domain"], "all")]
    drafted = [row for row in steps if row["n_nodes"]]
    tested = [row for row in nodes if row["outcome"] != "untested"]
    means = []
    for depth in range(1, max(row["depth"] for row in nodes) + 1):
        means.append(np.mean([row["accept_ratio"] for row in nodes if row["depth"] == depth]))
    contexts = {(row["prompt_id"], row["step"], row["parent"]): row for row in nodes}.values()
    joint = float(np.mean([row["accepted_len"] for row in drafted]))
    product = float(np.cumprod(means).sum())
    return {
        "acceptance": np.mean([row["outcome"] == "accepted" for row in tested]),
        "mean_accept_ratio": np.mean([row["accept_ratio"] for row in nodes]),
        "mean_accepted_len": joint,
        "EL_joint": joint,
        "EL_product": product,
        "EL_gap": joint - product,
        "expected_accepted_len": np.mean([row["expected_accepted_len"] for row in drafted]),
        "emitted_per_step": np.mean([row["emitted_len"] for row in steps]),
        "draft_entropy": np.mean([row["draft_entropy"] for row in contexts]),
        "target_entropy": np.mean([row["target_entropy"] for row in contexts]),
        "n_nodes": len(nodes),
        "n_tested": len(tested),
        "n_steps": len(drafted),
        "n_prompts": len({row["prompt_id"] for row in steps}),
    }


@pytest.mark.parametrize("name", ["tree_run", "sampled_run"])
def test_every_row_equals_a_loop(name: str, request: pytest.FixtureRequest) -> None:
    run: Run = request.getfixturevalue(name)
    frame = domains([run], resampling=FAST).frame
    assert frame["domain"].tolist() == [*run.config["domains"], "all"]
    for row in frame.to_dict("records"):
        for quantity, value in _oracle(run, row["domain"]).items():
            assert row[quantity] == pytest.approx(value, rel=1e-9, abs=1e-12)
            if not quantity.startswith("n_"):
                assert row[f"{quantity}_lo"] <= row[quantity] <= row[f"{quantity}_hi"]


def test_the_gap_is_resampled_jointly(sampled_run: Run) -> None:
    row = domains([sampled_run], resampling=Resampling(n_resamples=1000)).frame.iloc[-1]
    width = {name: row[f"{name}_hi"] - row[f"{name}_lo"] for name in ("EL_joint", "EL_product", "EL_gap")}
    # joint and product rise together with a prompt's agreement, so their gap moves less than independent
    # ones would
    assert width["EL_gap"] < np.hypot(width["EL_joint"], width["EL_product"])
    assert width["EL_gap"] > 0


def test_columns_are_explained(tree_run: Run) -> None:
    table = domains([tree_run], resampling=FAST)
    assert set(table.columns) == {name for name in table.frame if not str(name).endswith(("_lo", "_hi"))}


def test_a_draft_that_is_never_right(tmp_path: Path) -> None:
    prompts = {f"code/{i}": [Step(chain("r", "u"))] * 3 for i in range(10)}
    row = domains([open_run(write_run(tmp_path / "run", prompts))]).frame.iloc[-1]
    assert (row["acceptance"], row["EL_joint"], row["emitted_per_step"]) == (0.0, 0.0, 1.0)
    assert (row["acceptance_lo"], row["acceptance_hi"]) == (0.0, 0.0)


def test_a_draft_that_is_always_right_has_rate_one(tmp_path: Path) -> None:
    row = domains([open_run(write_run(tmp_path / "run", {"code/x": [Step(chain("a", "a"))]}))]).frame.iloc[-1]
    # the bonus token is counted in emitted tokens, never as accepted
    assert (row["acceptance"], row["EL_joint"], row["emitted_per_step"]) == (1.0, 2.0, 3.0)


def test_lengths_with_and_without_the_bonus_are_one_apart_where_nothing_is_cut(sampled_run: Run) -> None:
    steps = sampled_run.read("steps").to_pandas()
    uncut = steps[steps["bonus_token_id"].notna()]
    assert (uncut["emitted_len"] == uncut["accepted_len"] + 1).all()
    row = domains([sampled_run], resampling=FAST).frame.iloc[-1]
    cut = (steps["accepted_len"] + 1 - steps["emitted_len"]).sum()
    assert row["emitted_per_step"] == pytest.approx(row["EL_joint"] + 1 - cut / len(steps))


def test_nothing_drafted_is_null_not_zero(tmp_path: Path) -> None:
    prompts = {f"code/{i}": [Step(stop="length", emitted=1)] for i in range(12)}
    table = domains([open_run(write_run(tmp_path / "run", prompts))])
    assert any("no node was drafted" in note for note in table.notes)
    frame = table.frame
    undefined = ["acceptance", "mean_accept_ratio", "mean_accepted_len", "EL_joint", "EL_product", "EL_gap"]
    assert frame[[*undefined, "draft_entropy"]].isna().all(axis=None)
    assert (frame["emitted_per_step"] == 1.0).all()
    assert frame["reason"].str.contains("nothing drafted").all()


def test_a_run_with_one_domain(tmp_path: Path) -> None:
    run = open_run(make_run(tmp_path / "run", domains=("chat",), n_prompts=10, n_steps=3))
    frame = domains([run], resampling=FAST).frame
    assert frame["domain"].tolist() == ["chat", "all"]
    assert frame.iloc[0, 1:].equals(frame.iloc[1, 1:])


def test_a_run_of_an_old_version_lacks_what_it_lacks(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", n_prompts=3, n_steps=3)
    drop_columns(folder, "nodes", ["accept_ratio", "draft_entropy"])
    row = domains([open_run(folder)], resampling=FAST).frame.iloc[-1]
    assert pd.isna(row["mean_accept_ratio"])
    assert pd.isna(row["EL_product"])
    assert pd.isna(row["EL_gap"])
    assert pd.isna(row["draft_entropy"])
    assert row["target_entropy"] > 0
    assert row["EL_joint"] > 0


def test_skipped_prompts_count_nowhere(tmp_path: Path) -> None:
    run = open_run(make_run(tmp_path / "run", n_prompts=2, n_steps=3, n_skipped=3))
    table = domains([run], resampling=FAST)
    assert table.frame["n_prompts"].tolist() == [2, 2, 2, 2, 8]
    assert "3 prompts were skipped and count nowhere" in table.notes


def test_sources_are_groups_too(tmp_path: Path) -> None:
    prompts = {"code/a": [Step(chain("a"))], "chat/b": [Step(chain("r"))]}
    run = open_run(
        write_run(tmp_path / "run", prompts, sources={"code/a": "one.jsonl", "chat/b": "two.jsonl"})
    )
    frame = domains([run], by="source").frame
    assert frame["source"].tolist() == ["one.jsonl", "two.jsonl", "all"]
    assert frame["acceptance"].tolist() == [1.0, 0.0, 0.5]
