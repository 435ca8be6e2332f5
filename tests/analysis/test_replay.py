"""Replays of synthetic runs: against the runs themselves, against a loop over steps, and what is refused."""

from __future__ import annotations

import itertools
import json
import shutil
from collections import defaultdict
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from acceptlab.analysis.base import open_sample
from acceptlab.analysis.replay import replay
from acceptlab.analysis.replay_batches import Replay, batches
from acceptlab.analysis.replay_plan import candidate, rank_paths, recorded
from acceptlab.errors import UsageError
from acceptlab.queries import trees
from acceptlab.resampling import Resampling
from acceptlab.rules import Rule, RuleKind, parse_rule
from acceptlab.store import Run, open_run
from acceptlab.tree import parse_tree
from tests.synthetic import EOS, make_run

FAST = Resampling(n_resamples=200)
ARGMAX = ("greedy", "additive:0.1", "ratio:0.5", "top:3", "typical:eps=0.09,delta=0.3")
LOSSLESS = (("onehot", "kary:depth=3,branch=2"), ("rejection", "branches:3,1,2"), ("rejection", "chain:4"))
RUNS = (*((rule, "kary:depth=3,branch=2") for rule in ARGMAX), *LOSSLESS)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Run]:
    """A short run a rule, by rule and tree."""
    base = tmp_path_factory.mktemp("replay")
    return {
        (rule, tree): open_run(
            make_run(
                base / f"run{i}",
                domains=("code", "chat"),
                n_prompts=11,
                n_steps=4,
                rule=rule,
                tree=tree,
                max_new_tokens=(1000, 9)[i % 2],
                seed=i,
            )
        )
        for i, (rule, tree) in enumerate(RUNS)
    }


def loop(run: Run, rule: Rule, tree: str | None) -> dict[str, dict[str, float]]:
    """Sums by domain, one step after the other, from the rows and the definitions."""
    wanted = None if tree is None else set(rank_paths(parse_tree(tree).static))  # type: ignore[arg-type]
    steps: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row in run.read("nodes").to_pylist():
        steps[row["domain"], row["prompt_id"], row["step"]].append(row)
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for (domain, _, _), nodes in steps.items():
        paths: list[tuple[int, ...]] = []
        for row in nodes:
            paths.append((() if row["parent"] < 0 else paths[row["parent"]]) + (row["child_rank"],))
        kept = [wanted is None or path in wanted for path in paths]
        sums[domain]["n_steps"] += 1
        sums[domain]["n_nodes"] += sum(kept)
        sums[domain]["expected"] += _expected(nodes, kept, rule, -1)
        if rule.is_argmax:
            here, going = -1, True
            while going:
                going = False
                for node, row in enumerate(nodes):
                    if kept[node] and row["parent"] == here and (here < 0 or nodes[here]["token_id"] != EOS):
                        sums[domain]["tested"] += 1
                        if _accept(nodes, rule, node) == 1:
                            sums[domain]["len"] += 1
                            here, going = node, True
                            break
    return sums


def _accept(nodes: list[dict[str, Any]], rule: Rule, node: int) -> float:
    row = nodes[node]
    prob, top = row["target_prob"], row["target_top_prob"]
    if rule.kind is RuleKind.ONEHOT:
        earlier = [
            n["target_prob"]
            for n in nodes
            if n["parent"] == row["parent"] and n["child_rank"] < row["child_rank"]
        ]
        return float(prob / (1 - sum(earlier)))
    return float(
        {
            RuleKind.GREEDY: lambda: row["is_target_argmax"],
            RuleKind.TOP: lambda: row["target_rank"] < (rule.m or 0),
            RuleKind.ADDITIVE: lambda: prob >= top - (rule.eps or 0.0),
            RuleKind.RATIO: lambda: prob >= top * (rule.gamma or 0.0),
            RuleKind.TYPICAL: lambda: (
                prob >= min(rule.eps or 0.0, (rule.delta or 0.0) * np.exp(-row["target_entropy"]))
            ),
            RuleKind.REJECTION: lambda: row["accept_ratio"],
            RuleKind.REJECTION_IID: lambda: row["accept_ratio"],
        }[rule.kind]()
    )


def _expected(nodes: list[dict[str, Any]], kept: list[bool], rule: Rule, here: int) -> float:
    if here >= 0 and nodes[here]["token_id"] == EOS:
        return 0.0
    left, total = 1.0, 0.0
    for node, row in enumerate(nodes):
        if kept[node] and row["parent"] == here:
            accept = _accept(nodes, rule, node)
            total += left * accept * (1.0 + _expected(nodes, kept, rule, node))
            left *= 1.0 - accept
    return total


def generic(run: Run, rule: str, tree: str | None = None, batch_nodes: int = 1000) -> pd.DataFrame:
    """Sums by prompt without the short cut for the run's own rule."""
    made = recorded([run])
    wanted = candidate(made, parse_rule(rule), parse_tree(tree) if tree else None)
    one = Replay(changed(wanted, is_own_rule=False), made)
    with open_sample([run]) as sample:
        for batch in batches(sample, made, [one.candidate], trees.end_tokens(sample.connection), batch_nodes):
            one.add(batch)
    return one.frame()


@pytest.mark.parametrize(("rule", "tree"), RUNS)
def test_own_rule_and_tree_reproduce_the_run_exactly(
    runs: dict[tuple[str, str], Run], rule: str, tree: str
) -> None:
    run = runs[rule, tree]
    frame = replay([run], resampling=FAST, rules=[rule], tree_texts=[tree]).frame
    assert frame["domain"].tolist() == ["code", "chat", "all"]
    steps = run.read("steps").to_pandas()
    for row in frame.to_dict("records"):
        here = steps[(steps.n_nodes > 0) & ((steps.domain == row["domain"]) | (row["domain"] == "all"))]
        assert row["replay_len"] == row["stored_len"] == pytest.approx(here.accepted_len.mean(), rel=1e-15)
        assert row["replay_expected"] == row["stored_expected"]
        assert row["stored_expected"] == pytest.approx(here.expected_accepted_len.mean(), rel=1e-12)
        assert row["replay_acceptance"] == row["stored_acceptance"]
        assert row["n_tested"] == here.n_tested.sum()
        assert row["n_nodes"] == here.n_nodes.sum()
        for name in ("len_difference", "expected_difference"):
            assert row[name] == row[f"{name}_lo"] == row[f"{name}_hi"] == 0
        assert row["undecided"] == 0


@pytest.mark.parametrize("rule", ARGMAX)
def test_recomputed_decisions_are_those_of_the_run(runs: dict[tuple[str, str], Run], rule: str) -> None:
    frame = generic(runs[rule, "kary:depth=3,branch=2"], rule)
    assert frame["n_undecided"].sum() == 0
    for name, stored in (("len", "stored_len"), ("tested", "stored_tested"), ("expected", "stored_expected")):
        assert (frame[name] == frame[stored]).all()
    assert (frame["least"] == frame["len"]).all()
    assert (frame["most"] == frame["len"]).all()


@pytest.mark.parametrize(("rule", "tree"), [LOSSLESS[0], LOSSLESS[2]])
def test_recomputed_expectations_are_those_of_the_run(
    runs: dict[tuple[str, str], Run], rule: str, tree: str
) -> None:
    frame = generic(runs[rule, tree], rule)
    # stored probabilities are float32
    np.testing.assert_allclose(frame["expected"], frame["stored_expected"], atol=1e-5)
    assert (frame["len"] != frame["stored_len"]).any()  # fresh draws
    # drawn lengths scatter around their expectation: 22 prompts of 4 steps, three standard errors
    gap = (frame["len"] - frame["expected"]).to_numpy()
    assert abs(gap.sum()) < 3 * np.sqrt((gap**2).sum())


def test_other_rules_and_smaller_trees_equal_a_loop(runs: dict[tuple[str, str], Run]) -> None:
    run = runs["additive:0.1", "kary:depth=3,branch=2"]
    rules = ("greedy", "additive:0.2", "ratio:0.3", "top:2", "onehot", ARGMAX[4])
    shapes = (run.config["tree"], "branches:2,1,2", "chain:2", "branches:1,2")
    table = replay([run], resampling=FAST, rules=rules, tree_texts=shapes, batch_nodes=800)
    rows = {(row["rule"], row["tree"], row["domain"]): row for row in table.frame.to_dict("records")}
    assert len(rows) == len(rules) * len(shapes) * 3
    for rule, tree in itertools.product(rules, shapes):
        for domain, sums in loop(run, parse_rule(rule), tree).items():
            row = rows[str(parse_rule(rule)), tree, domain]
            # onehot: stored probabilities are float32; the others count
            assert row["replay_expected"] == pytest.approx(sums["expected"] / sums["n_steps"], abs=1e-6)
            assert row["n_nodes"] == sums["n_nodes"]
            assert row["n_steps"] == sums["n_steps"]
            assert row["len_difference"] == pytest.approx(row["replay_len"] - row["stored_len"])
            assert row["len_difference_lo"] <= row["len_difference"] <= row["len_difference_hi"]
            assert row["expected_difference"] == pytest.approx(
                row["replay_expected"] - row["stored_expected"]
            )
            if rule != "onehot":
                assert row["replay_len"] == pytest.approx(sums["len"] / sums["n_steps"], rel=1e-12)
                assert row["n_tested"] == sums["tested"]
    assert "same roots" in table.title
    assert any("counterfactual" in note for note in table.notes)


def test_a_smaller_tree_under_the_runs_own_sampling_rule_equals_a_loop(
    runs: dict[tuple[str, str], Run],
) -> None:
    run = runs["rejection", "branches:3,1,2"]
    row = replay([run], resampling=FAST, tree_texts=["branches:2,1"]).frame.iloc[-1]
    wanted = set(rank_paths(parse_tree("branches:2,1").static))  # type: ignore[arg-type]
    paths: dict[Any, tuple[int, ...]] = {}
    length = expected = tested = 0.0
    for node in run.read("nodes").to_pylist():
        step = (node["prompt_id"], node["step"])
        above = paths.get((*step, node["parent"]), ())
        paths[(*step, node["node"])] = (*above, node["child_rank"])
        if paths[(*step, node["node"])] in wanted:
            length += node["outcome"] == "accepted"
            tested += node["outcome"] != "untested"
            expected += node["test_prob"] * (node["accept_prob"] or 0.0)
    n_steps = sum(step["n_nodes"] > 0 for step in run.read("steps").to_pylist())
    assert row["replay_len"] == pytest.approx(length / n_steps)
    assert row["replay_expected"] == pytest.approx(expected / n_steps)
    assert row["n_tested"] == tested
    assert row["replay_len"] < row["stored_len"]


def test_a_chain_of_first_draws_replays_under_rejection(runs: dict[tuple[str, str], Run]) -> None:
    run = runs["rejection", "branches:3,1,2"]
    row = replay([run], resampling=FAST, rules=["rejection-iid"], tree_texts=["chain:3"]).frame.iloc[-1]
    sums = loop(run, parse_rule("rejection-iid"), "chain:3")
    wanted = sum(s["expected"] for s in sums.values()) / sum(s["n_steps"] for s in sums.values())
    assert row["replay_expected"] == pytest.approx(wanted, abs=1e-6)  # stored ratios are float32
    own = replay([run], resampling=FAST, tree_texts=["chain:3"]).frame.iloc[-1]
    assert own["replay_expected"] == pytest.approx(wanted, abs=1e-6)


def test_batches_of_any_size_give_the_same_table(runs: dict[tuple[str, str], Run]) -> None:
    run = runs["rejection", "chain:4"]
    frames = [
        replay([run], resampling=FAST, rules=["rejection-iid"], batch_nodes=size).frame
        for size in (1, 300, 10**6)
    ]
    pd.testing.assert_frame_equal(frames[0], frames[1])
    pd.testing.assert_frame_equal(frames[0], frames[2])


def test_relaxing_lengthens_chains_step_by_step(tmp_path: Path) -> None:
    run = open_run(make_run(tmp_path / "run", domains=("code",), n_prompts=6, tree="chain:4"))
    for family in (("greedy", "top:2", "top:5"), ("additive:0", "additive:0.1"), ("ratio:1", "ratio:0.4")):
        lengths = [generic(run, rule).set_index("prompt_id")["len"] for rule in family]
        for tight, loose in itertools.pairwise(lengths):
            assert (loose >= tight).all()
            assert (loose > tight).any()
    strict = [generic(run, rule)["len"].to_list() for rule in ("greedy", "additive:0", "ratio:1", "top:1")]
    assert strict[0] == strict[1] == strict[2] == strict[3]  # no exact ties here


@pytest.mark.parametrize(
    ("made", "rules", "tree_texts", "words"),
    [
        (RUNS[0], ["rejection"], [], "ranked"),
        (RUNS[0], ["block"], [], "block"),
        (RUNS[0], ["tree:2"], [], "certificates"),
        (RUNS[0], [], ["kary:depth=4,branch=2"], "depth 4"),
        (RUNS[0], [], ["branches:3,1"], "child ranks 2"),
        (RUNS[0], [], ["dynamic:nodes=4,depth=2,topk=2"], "static"),
        (LOSSLESS[1], ["greedy"], [], "sampled"),
        (LOSSLESS[1], ["onehot"], ["chain:2"], "sampled"),
        (LOSSLESS[1], ["rejection-iid"], ["branches:2,1"], "chain"),
    ],
)
def test_what_records_cannot_answer_is_refused(
    runs: dict[tuple[str, str], Run],
    made: tuple[str, str],
    rules: list[str],
    tree_texts: list[str],
    words: str,
) -> None:
    with pytest.raises(UsageError, match=words):
        replay([runs[made]], resampling=FAST, rules=rules, tree_texts=tree_texts)


def test_a_tree_file_that_is_gone_is_checked_against_the_records(tmp_path: Path) -> None:
    gone = {"tree": "file:gone.json"}
    run = open_run(make_run(tmp_path / "run", domains=("code",), n_prompts=10, n_steps=3, config=gone))
    row = replay([run], resampling=FAST, tree_texts=["branches:2,1"]).frame.iloc[-1]
    assert 0 < row["replay_len"] < row["stored_len"]
    with pytest.raises(UsageError, match="child ranks 0,0,0,0"):
        replay([run], resampling=FAST, tree_texts=["chain:4"])


def test_runs_of_different_rules_are_not_pooled(runs: dict[tuple[str, str], Run]) -> None:
    with pytest.raises(UsageError, match="differ in rule"):
        replay([runs[RUNS[0]], runs[RUNS[1]]], resampling=FAST)


def test_end_tokens_come_from_the_manifest_even_if_no_text_ended_with_them(
    runs: dict[tuple[str, str], Run], tmp_path: Path
) -> None:
    run = runs["greedy", "kary:depth=3,branch=2"]
    rows = run.read("nodes").to_pandas().sort_values(["prompt_id", "step", "node"])
    taken = rows[rows.outcome == "accepted"]
    inner = taken[taken.depth == 1]
    token = int(inner.token_id[inner.token_id != EOS].mode()[0])
    folder = tmp_path / "named"
    shutil.copytree(run.path, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"eos_ids": [EOS, token]}))
    named = open_run(folder)
    wanted = 0
    for _, path in taken.groupby(["prompt_id", "step"]):
        ids = path.sort_values("depth").token_id.tolist()
        wanted += ids.index(token) + 1 if token in ids else len(ids)
    assert wanted < len(taken)
    tables = {run.path: replay([run], resampling=FAST, rules=["additive:0"]) for run in (run, named)}
    found = {path: table.frame.iloc[-1] for path, table in tables.items()}
    assert found[folder]["replay_len"] * found[folder]["n_steps"] == pytest.approx(wanted)
    assert found[run.path]["replay_len"] * found[run.path]["n_steps"] == pytest.approx(len(taken))
    assert any(f"(ids: {EOS}, {token})" in note for note in tables[folder].notes)
    assert any("does not say which tokens end a text" in note for note in tables[run.path].notes)
    assert not any("does not say" in note for note in tables[folder].notes)
