"""Replays of runs that the collector made with a tiny pair: own numbers, warped runs, pruned and adaptive trees."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace as changed
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from acceptlab import cli
from acceptlab.analysis.base import open_sample
from acceptlab.analysis.replay import replay
from acceptlab.analysis.replay_batches import Replay, batches
from acceptlab.analysis.replay_plan import candidate, recorded
from acceptlab.errors import UsageError
from acceptlab.queries import trees
from acceptlab.resampling import Resampling
from acceptlab.rules import parse_rule
from acceptlab.store import Run, open_run
from tests.engine.helpers import save_pair

FAST = Resampling(n_resamples=200)
KARY = "kary:depth=3,branch=2"
Collect = Callable[..., Run]

CASES = (
    ("greedy", KARY),
    ("additive:0.1", KARY),
    ("ratio:0.5", KARY),
    ("top:2", "dynamic:nodes=9,depth=4,topk=3"),
    ("typical:eps=0.09,delta=0.3", "branches:4,2,1"),
    ("onehot", KARY),
    ("onehot", "opt:nodes=9,threshold=0.05"),
    ("rejection", "branches:3,2"),
    ("rejection-iid", "branches:3,2"),
    ("rejection", "chain:4"),
    ("block", "chain:4"),
)


FROM_RECORDS_ONLY = (("rejection", "branches:3,2"), ("rejection-iid", "branches:3,2"), ("block", "chain:4"))
"""What only the recorded probabilities can say: residuals need full distributions."""


@pytest.fixture(scope="module")
def collect(tmp_path_factory: pytest.TempPathFactory) -> Collect:
    """Collect a run of 5 prompts in this process, each configuration once."""
    home = tmp_path_factory.mktemp("pair")
    save_pair(home)
    prompts = [
        {"id": f"p{i}", "domain": ("code", "math")[i % 2], "prompt": f"word{i} word{3 * i + 3} word7"}
        for i in range(5)
    ]
    (home / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts))
    made: dict[tuple[str, ...], Run] = {}

    def collected(rule: str, tree: str, *options: str) -> Run:
        key = (rule, tree, *options)
        if key not in made:
            folder = f"run{len(made)}"
            words = ["collect", "--target", "target", "--draft", "draft", "--prompts", "prompts.jsonl"]
            words += ["--max-new-tokens", "14", "--rule", rule, "--tree", tree, "--run", folder, *options]
            errors = io.StringIO()
            with (
                pytest.MonkeyPatch.context() as patch,
                redirect_stdout(io.StringIO()),
                redirect_stderr(errors),
            ):
                patch.chdir(home)
                patch.setenv("ACCEPTLAB_CACHE", str(home / "cache"))
                assert cli.run(words) == 0, errors.getvalue()
            made[key] = open_run(home / folder)
        return made[key]

    return collected


def generic(run: Run, rule: str) -> pd.DataFrame:
    """Sums by prompt without the short cut for the run's own rule."""
    made = recorded([run])
    one = Replay(changed(candidate(made, parse_rule(rule), None), is_own_rule=False), made)
    with open_sample([run]) as sample:
        for batch in batches(sample, made, [one.candidate], trees.end_tokens(sample.connection), 10**6):
            one.add(batch)
    return one.frame()


@pytest.mark.parametrize(("rule", "tree"), CASES)
def test_own_rule_and_tree_reproduce_the_run(collect: Collect, rule: str, tree: str) -> None:
    run = collect(rule, tree)
    row = replay([run], resampling=FAST).frame.iloc[-1]
    steps = run.read("steps").to_pandas()
    steps = steps[steps.n_nodes > 0]
    assert row["replay_len"] == row["stored_len"] == pytest.approx(steps.accepted_len.mean(), rel=1e-15)
    assert row["replay_expected"] == pytest.approx(steps.expected_accepted_len.mean(), rel=1e-12)
    assert row["replay_acceptance"] == pytest.approx(steps.accepted_len.sum() / steps.n_tested.sum())
    assert row["len_difference"] == row["expected_difference"] == 0
    assert row["n_nodes"] == run.n_rows("nodes")
    assert row["replay_len"] > 0


@pytest.mark.parametrize(("rule", "tree"), [case for case in CASES if case not in FROM_RECORDS_ONLY])
def test_recomputed_decisions_are_those_of_the_run(collect: Collect, rule: str, tree: str) -> None:
    frame = generic(collect(rule, tree), rule)
    # stored probabilities are float32, so expectations of the lossless rules agree to that
    np.testing.assert_allclose(frame["expected"], frame["stored_expected"], atol=1e-5)
    if parse_rule(rule).is_argmax:
        assert (frame["least"] <= frame["stored_len"]).all()
        assert (frame["stored_len"] <= frame["most"]).all()
        assert frame["n_undecided"].sum() == 0
        assert (frame["len"] == frame["stored_len"]).all()
        assert (frame["tested"] == frame["stored_tested"]).all()


def test_lists_of_a_warped_run_enclose_what_the_plain_run_says(collect: Collect) -> None:
    plain, warped = collect("greedy", KARY), collect("greedy", KARY, "--temperature", "0.7", "--top-k", "5")
    rules = ["additive:0.05", "ratio:0.2", "typical:eps=0.02,delta=0.1", "additive:0.02"]
    exact = replay([plain], resampling=FAST, rules=rules).frame
    bounded = replay([warped], resampling=FAST, rules=rules)
    # greedy decodes the same text at any temperature, so the roots and the trees are the same
    assert (exact["stored_len"] == bounded.frame["stored_len"]).all()
    assert (bounded.frame["replay_len_least"] <= exact["replay_len"]).all()
    assert (exact["replay_len"] <= bounded.frame["replay_len_most"]).all()
    assert (exact["undecided"] == 0).all()
    assert (bounded.frame["undecided"] < 0.05).all()
    assert (bounded.frame["undecided"] > 0).any()
    rejection = replay([plain], resampling=FAST, rules=["onehot"]).frame.iloc[-1]
    other = replay([warped], resampling=FAST, rules=["onehot"]).frame.iloc[-1]
    assert (
        other["replay_expected"] != rejection["replay_expected"]
    )  # onehot follows the sampling distribution


def test_a_block_run_replays_under_rejection(collect: Collect) -> None:
    run = collect("block", "chain:4")
    row = replay([run], resampling=FAST, rules=["rejection"]).frame.iloc[-1]
    # block verification never accepts less on average than token by token (arXiv 2403.10444)
    assert row["replay_expected"] <= row["stored_expected"] + 1e-9
    nodes = run.read("nodes").to_pandas().sort_values(["prompt_id", "step", "node"])
    path = nodes.groupby(["prompt_id", "step"])["accept_ratio"].cumprod()
    ended = nodes["token_id"].eq(2).groupby([nodes.prompt_id, nodes.step]).cumsum().gt(0)
    before_end = ~(ended & ~nodes["token_id"].eq(2))
    n_steps = (run.read("steps").to_pandas().n_nodes > 0).sum()
    assert row["replay_expected"] == pytest.approx((path * before_end).sum() / n_steps, abs=1e-6)


def test_trees_of_an_adaptive_run_are_checked_step_by_step(collect: Collect) -> None:
    run = collect("top:2", "dynamic:nodes=9,depth=4,topk=3")
    row = replay([run], resampling=FAST, rules=["greedy"], tree_texts=["chain:1"]).frame.iloc[-1]
    assert 0 < row["replay_len"] <= 1
    with pytest.raises(UsageError, match="step"):
        replay([run], resampling=FAST, tree_texts=["branches:3,3"])


def test_steps_cut_by_entropy_keep_what_they_have(collect: Collect) -> None:
    run = collect("greedy", KARY, "--stop", "entropy:3.65")
    table = replay([run], resampling=FAST, tree_texts=["branches:2,1"]).frame.iloc[-1]
    nodes = run.read("nodes").to_pandas()
    assert nodes.groupby(["prompt_id", "step"]).size().nunique() > 1
    kept = nodes[(nodes.depth == 1) | ((nodes.depth == 2) & (nodes.child_rank == 0))]
    assert table["n_nodes"] == len(kept)
    assert table["replay_len"] == pytest.approx((kept.outcome == "accepted").sum() / table["n_steps"])


def test_the_command_prints_a_table_and_draws(collect: Collect, tmp_path: Path) -> None:
    run = collect("greedy", KARY)
    assert run.manifest["eos_ids"] == [2]  # </s> of the pair
    figure = tmp_path / "replay.svg"
    out, err = io.StringIO(), io.StringIO()
    words = ["analyze", "replay", str(run.path), "--rule", "additive:0.1", "--tree", "branches:2,1"]
    with redirect_stdout(out), redirect_stderr(err):
        code = cli.run([*words, "--plot", str(figure), "--format", "csv", "--resamples", "200"])
    assert code == 0, err.getvalue()
    assert out.getvalue().startswith("domain,rule,tree,stored_len,")
    assert "counterfactual at the same roots" in err.getvalue()
    assert "additive:0.1" in out.getvalue()
    assert figure.stat().st_size > 1000
    with redirect_stdout(io.StringIO()), redirect_stderr(err):
        assert cli.run(["analyze", "replay", str(run.path), "--tree", "chain:9"]) == 2
    assert "chain:9" in err.getvalue()
