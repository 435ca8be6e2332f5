"""The metrics crosswalk against loops that follow each tool's own definition."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from acceptlab.analysis import domains, metrics
from acceptlab.resampling import Resampling
from acceptlab.store import Run, open_run
from tests.handmade import Node, Step, chain, write_run
from tests.synthetic import make_run

FAST = Resampling(n_resamples=100)


@pytest.fixture(scope="module", params=["tree", "chain"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("metrics") / request.param
    tree, rule = {"tree": ("branches:3,2", "greedy"), "chain": ("chain:4", "rejection")}[request.param]
    return open_run(make_run(folder, n_prompts=8, n_steps=5, tree=tree, rule=rule, max_new_tokens=11))


def _values(run: Run) -> dict[tuple[str, str], float]:
    frame = metrics([run], resampling=FAST).frame
    assert not frame.duplicated(["source", "metric"]).any()
    return {(row["source"], row["metric"]): row["value"] for row in frame.to_dict("records")}


def _by_prompt(steps: list[dict[str, Any]], length: str, plus: int = 0) -> list[float]:
    lengths = defaultdict(list)
    for row in steps:
        lengths[row["prompt_id"]].append(row[length] + plus)
    return [float(np.mean(values)) for values in lengths.values()]


def _ratios(steps: list[dict[str, Any]]) -> list[float]:
    lengths, nodes = _by_prompt(steps, "accepted_len"), _by_prompt(steps, "n_nodes")
    return [length / count for length, count in zip(lengths, nodes, strict=True)]


def test_lengths_follow_each_definition(run: Run) -> None:
    found = _values(run)
    steps = run.read("steps").to_pylist()
    emitted = [row["emitted_len"] for row in steps]
    texts = [len(row["output_token_ids"]) for row in run.read("prompts").to_pylist()]
    without_eos_bonus = [
        row["accepted_len"] + (0 if row["stop_reason"] == "eos" and row["bonus_token_id"] is None else 1)
        for row in steps
    ]
    expected = {
        ("Spec-Bench", "mean accepted tokens"): np.mean(emitted),
        ("EAGLE", "tau"): sum(texts) / len(steps),
        ("vLLM", "mean acceptance length"): 1 + np.mean([row["accepted_len"] for row in steps]),
        ("SGLang, SpecForge", "accept_length"): sum(texts) / len(steps),
        ("SGLang, SpecForge", "accept_length, mean of requests"): np.mean(_by_prompt(steps, "emitted_len")),
        ("Sequoia", "tokens per target pass"): np.mean(without_eos_bonus),
        ("DeepSpec", "accept_len"): np.mean(without_eos_bonus),
        ("DFlash", "acceptance length"): np.mean(_by_prompt(steps, "accepted_len", 1)),
        ("NVIDIA specdec_bench", "average AL"): np.mean(_by_prompt(steps, "emitted_len")),
        ("acceptlab", "EL_joint"): np.mean([row["accepted_len"] for row in steps]),
        ("acceptlab", "expected_accepted_len"): np.mean([row["expected_accepted_len"] for row in steps]),
        ("acceptlab", "emitted_per_step"): np.mean(emitted),
    }
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, rel=1e-9), key
    assert any(row["stop_reason"] == "eos" and row["bonus_token_id"] is None for row in steps)
    assert any(row["stop_reason"] == "length" for row in steps)


def test_rates_follow_each_definition(run: Run) -> None:
    found = _values(run)
    steps, nodes = run.read("steps").to_pylist(), run.read("nodes").to_pylist()
    accepted = sum(row["accepted_len"] for row in steps)
    depth = max(row["depth"] for row in nodes)
    tested = [row for row in nodes if row["outcome"] != "untested"]
    expected = {
        ("LayerSkip", "acceptance rate"): accepted / len(nodes),
        ("LayerSkip", "acceptance rate, mean of requests"): np.mean(_ratios(steps)),
        ("vLLM", "draft acceptance rate"): accepted / len(nodes),
        ("acceptlab", "node_rate"): np.mean([row["outcome"] == "accepted" for row in tested]),
        ("acceptlab", "path_rate"): accepted / (depth * len(steps)),
        ("acceptlab", "step_rate"): np.mean([row["accepted_len"] > 0 for row in steps]),
    }
    for d in range(1, depth + 1):
        survival = float(np.mean([row["accepted_len"] >= d for row in steps]))
        before = float(np.mean([row["accepted_len"] >= d - 1 for row in steps]))
        at_depth = [row for row in nodes if row["depth"] == d]
        accepted_at = [row["outcome"] == "accepted" for row in at_depth if row["outcome"] != "untested"]
        expected |= {
            ("vLLM", f"acceptance rate at position {d - 1}"): survival,
            ("acceptlab", f"S_{d}"): survival,
            ("acceptlab", f"alpha_{d}"): survival / before,
            ("acceptlab", f"node_rate_{d}"): float(np.mean(accepted_at)),
            ("arXiv 2604.14682", f"alpha({d})"): float(np.mean([row["accept_ratio"] for row in at_depth])),
        }
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, rel=1e-9), key


def test_products_follow_each_definition(run: Run) -> None:
    found = _values(run)
    nodes = run.read("nodes").to_pylist()
    depth = max(row["depth"] for row in nodes)
    ratios = [
        np.mean([row["accept_ratio"] for row in nodes if row["depth"] == d]) for d in range(1, depth + 1)
    ]
    assert found["arXiv 2604.14682", "E[L]"] == pytest.approx(np.cumprod(ratios).sum())
    # the path of first children, step by step
    hits, overlaps = defaultdict(list), []
    trees: dict[tuple[str, int], dict[tuple[int, int], dict[str, Any]]] = defaultdict(dict)
    for row in nodes:
        trees[row["prompt_id"], row["step"]][row["parent"], row["child_rank"]] = row
    for tree in trees.values():
        length, product, parent = 0.0, 1.0, -1
        for d in range(1, depth + 1):
            node = tree[parent, 0]
            hits[d].append(node["is_target_argmax"])
            product *= node["overlap"]
            length += product
            parent = node["node"]
        overlaps.append(1 + length)
    accuracies = [np.mean(hits[d]) for d in range(1, depth + 1)]
    eal = found["Speculators (DFlash training)", "expected accepted length"]
    assert eal == pytest.approx(np.cumprod(accuracies).sum())
    assert found["Speculators (DSpark)", "accept_len"] == pytest.approx(np.mean(overlaps))


def test_relations_between_the_definitions(run: Run) -> None:
    found, row = _values(run), domains([run], resampling=FAST).frame.iloc[-1]
    assert found["vLLM", "mean acceptance length"] == pytest.approx(found["acceptlab", "EL_joint"] + 1)
    assert found["acceptlab", "step_rate"] == found["acceptlab", "S_1"]
    assert found["arXiv 2604.14682", "E[L]"] == pytest.approx(row["EL_product"])
    assert found["DeepSpec", "accept_len"] >= found["Spec-Bench", "mean accepted tokens"]
    rates = [value for (_, name), value in found.items() if "rate" in name]
    assert max(rates) <= 1


def test_speed_ups_are_null_with_the_reason(run: Run) -> None:
    frame = metrics([run], resampling=FAST).frame
    rows = frame[frame["metric"] == "speed-up"]
    assert rows["source"].tolist() == ["Spec-Bench", "DFlash"]
    assert rows["value"].isna().all()
    assert rows["reason"].str.contains("without speculation").all()


def test_every_definition_says_what_it_is(run: Run) -> None:
    table = metrics([run], resampling=FAST)
    assert (table.frame[["definition", "differs", "unit", "bonus"]].map(len) > 0).all(axis=None)
    assert set(table.columns) == {name for name in table.frame if not str(name).endswith(("_lo", "_hi"))}
    lengths = table.frame[table.frame["unit"] == "tokens"]
    assert set(lengths["bonus"]) == {"yes", "no"}


def test_the_same_draft_as_chain_and_as_tree_keeps_rates_apart(tmp_path: Path) -> None:
    # per node, per path and per step: three different numbers on the tree
    tree = [Node(-1, "rejected"), Node(-1, "accepted"), Node(1, "rejected"), Node(1, "rejected")]
    runs = [
        open_run(write_run(tmp_path / name, {"code/x": [Step(nodes), Step(nodes)]}))
        for name, nodes in (("chain", chain("a", "r")), ("tree", tree))
    ]
    on_chain, on_tree = map(_values, runs)
    names = ("node_rate", "path_rate", "step_rate")
    assert [on_chain["acceptlab", name] for name in names] == [0.5, 0.5, 1.0]
    assert [on_tree["acceptlab", name] for name in names] == [0.25, 0.5, 1.0]
    assert on_chain["LayerSkip", "acceptance rate"] == 0.5
    assert on_tree["LayerSkip", "acceptance rate"] == 0.25


def test_a_step_without_a_draft_is_a_pass_but_no_draft(tmp_path: Path) -> None:
    steps = [Step(chain("a", "a")), Step(stop="length")]
    found = _values(open_run(write_run(tmp_path / "run", {"code/x": steps})))
    assert found["vLLM", "mean acceptance length"] == 3.0
    assert found["Spec-Bench", "mean accepted tokens"] == 2.0


def test_nothing_drafted_is_null_and_one_token_a_pass(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run", {"code/x": [Step(stop="length", emitted=1)]}))
    frame = metrics([run]).frame
    named = frame.set_index("metric")
    assert named["value"][named["unit"] == "share"].isna().all()
    assert named.loc["tau", "value"] == 1.0
    assert named.loc["mean acceptance length", "value"] is None or pd.isna(
        named.loc["mean acceptance length", "value"]
    )
    assert (named["reason"][named["value"].isna()].str.len() > 0).all()


def test_groups_are_added_on_request(run: Run) -> None:
    frame = metrics([run], by="domain", resampling=FAST).frame
    assert frame["domain"].unique().tolist() == ["code", "math", "logic", "chat", "all"]
    alone = metrics([run], resampling=FAST).frame
    pooled = frame[frame["domain"] == "all"].drop(columns="domain").reset_index(drop=True)
    pd.testing.assert_frame_equal(pooled, alone)
