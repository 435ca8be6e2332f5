"""Acceptance by depth and rank against a loop, dp trees against every other shape, costs and budgets."""

from __future__ import annotations

import itertools
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from acceptlab import queries
from acceptlab.analysis.best_shape import (
    AcceptanceTable,
    DpRequest,
    acceptance_table,
    fastest_tree,
    measured_trees,
    parse_any,
    parse_dp,
    tree_from_run,
)
from acceptlab.analysis.budget import budget
from acceptlab.analysis.costs import costs_from
from acceptlab.analysis.replay import replay
from acceptlab.errors import UsageError
from acceptlab.queries import trees
from acceptlab.resampling import Resampling
from acceptlab.store import Run, open_run
from acceptlab.theory.best_tree import expected_tree_len
from acceptlab.tree import Tree, from_branches
from tests.handmade import Step, chain, write_run
from tests.synthetic import make_run

FAST = Resampling(n_resamples=200)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A greedy run on wide trees, so that tables have 3 depths and 4, 3, 2 ranks."""
    folder = tmp_path_factory.mktemp("shape") / "run"
    return open_run(
        make_run(folder, domains=("code", "chat"), n_prompts=12, n_steps=6, tree="branches:4,3,2", seed=5)
    )


def rates_by_hand(run: Run, domain: str | None = None) -> dict[tuple[int, int], tuple[int, int]]:
    rows = [row for row in run.read("nodes").to_pylist() if domain in (None, row["domain"])]
    outcome = {(row["prompt_id"], row["step"], row["node"]): row["outcome"] for row in rows}
    counts: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        parent = outcome.get((row["prompt_id"], row["step"], row["parent"]), "accepted")
        if parent == "accepted":
            counts[row["depth"], row["child_rank"]][0] += row["outcome"] == "accepted"
            counts[row["depth"], row["child_rank"]][1] += 1
    return {cell: (found[0], found[1]) for cell, found in counts.items()}


def test_the_table_equals_a_loop(run: Run) -> None:
    table = acceptance_table([run])
    wanted = rates_by_hand(run)
    assert table.rates.shape == (3, 4)
    for depth, rank in itertools.product(range(1, 4), range(4)):
        accepted, offered = wanted.get((depth, rank), (0, 0))
        assert table.n_accepted[depth - 1, rank] == accepted
        assert table.n_offered[depth - 1, rank] == offered
    assert np.isnan(table.rates[2, 2])  # the tree has two children there
    # siblings exclude each other: the rates of a depth add up to the conditional acceptance
    assert 0 < np.nansum(table.rates[0]) < 1


def test_the_table_predicts_the_runs_own_length_exactly(run: Run) -> None:
    table = acceptance_table([run])
    steps = run.read("steps").to_pandas()
    mean = steps[steps.n_nodes > 0].accepted_len.mean()
    # a regular tree: every accepted parent of a depth offers the same ranks, so the product telescopes
    rates = np.nan_to_num(table.rates)
    assert expected_tree_len(from_branches([4, 3, 2]), rates) == pytest.approx(mean, rel=1e-12)


def test_queries_equal_loops(run: Run) -> None:
    connection = queries.connect([run])
    by_prompt = trees.rank_sums(connection)
    for prompt_id in by_prompt["prompt_id"].unique()[:3]:
        part = by_prompt[by_prompt.prompt_id == prompt_id]
        counts: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
        rows = [row for row in run.read("nodes").to_pylist() if row["prompt_id"] == prompt_id]
        accepted = {(row["step"], row["node"]) for row in rows if row["outcome"] == "accepted"}
        for row in rows:
            if row["parent"] < 0 or (row["step"], row["parent"]) in accepted:
                counts[row["depth"], row["child_rank"]][0] += row["outcome"] == "accepted"
                counts[row["depth"], row["child_rank"]][1] += 1
        found = zip(part.depth, part.child_rank, part.n_accepted, part.n_offered, strict=True)
        assert {(d, r): [a, o] for d, r, a, o in found} == counts
    steps = run.read("steps").to_pandas()
    passes = trees.pass_costs(connection)
    assert passes[["n_nodes", "n_levels"]].to_numpy().tolist() == [[40, 3]]
    for name in ("draft_ms", "verify_ms", "other_ms"):
        assert passes[name].iloc[0] == pytest.approx(steps[name].astype(float).mean(), rel=1e-9)
    prompts = run.read("prompts").to_pylist()
    ends = {row["output_token_ids"][-1] for row in prompts if row["stop_reason"] == "eos"}
    assert trees.end_tokens(connection) == ends == {0}


def random_tree(rng: np.random.Generator, size: int) -> Tree:
    while True:
        parents: list[int] = []
        for node in range(size):
            parents.append(int(rng.integers(-1, node)) if node else -1)
        tree = Tree(tuple(parents))
        if tree.depth <= 3 and all(
            int(tree.child_ranks[n]) < (4, 3, 2)[int(tree.depths[n]) - 1] for n in range(size)
        ):
            return tree


def test_sixteen_nodes_are_at_least_every_other_static_shape(run: Run) -> None:
    shape = tree_from_run(run, DpRequest(run.path, 16))
    assert shape.static is not None
    assert (shape.kind, shape.text, shape.static.n_nodes) == ("dp", f"dp:nodes=16,from={run.run_id}", 16)
    rates = np.nan_to_num(acceptance_table([run]).rates)
    best = expected_tree_len(shape.static, rates)
    rng = np.random.default_rng(0)
    others = [random_tree(rng, 16) for _ in range(300)]
    others += [
        from_branches(b) for b in ([4, 3], [4, 1, 2], [3, 2, 1], [2, 2, 2], [1, 1, 1], [4], [4, 2], [2, 3, 1])
    ]
    lengths = [expected_tree_len(tree, rates) for tree in others]
    assert all(tree.n_nodes <= 16 for tree in others)
    assert best >= max(lengths) - 1e-12
    assert best > np.median(lengths) + 0.01
    before = 0.0
    for n_nodes in range(1, 17):
        length = expected_tree_len(tree_from_run(run, DpRequest(run.path, n_nodes)).static or Tree(()), rates)
        assert length >= before - 1e-9
        before = length


def test_measured_zeros_are_used_before_what_was_never_measured() -> None:
    accepted, offered = np.array([[5, 0, 0], [0, 0, 0]]), np.array([[10, 10, 10], [4, 0, 0]])
    found = measured_trees(AcceptanceTable(accepted, offered), 9)
    assert [best.tree.n_nodes for best in found] == [1, 2, 3, 4, 5, 6]
    assert found[-1].expected_len == pytest.approx(0.5)
    assert measured_trees(AcceptanceTable(np.zeros((0, 0), int), np.zeros((0, 0), int)), 3) == []


def test_a_run_that_is_too_narrow_is_refused_with_the_remedy(run: Run, tmp_path: Path) -> None:
    narrow = open_run(make_run(tmp_path / "narrow", domains=("code",), n_prompts=3, tree="chain:3"))
    with pytest.raises(UsageError, match="at most 3 nodes, not 4.*--tree kary"):
        tree_from_run(narrow, DpRequest(narrow.path, 4))
    assert tree_from_run(narrow, DpRequest(narrow.path, 3)).static == from_branches([1, 1, 1])
    with pytest.raises(UsageError, match="at most 40 nodes"):
        tree_from_run(run, DpRequest(run.path, 41))
    for config in ({"tree": "dynamic:nodes=4,depth=2,topk=2"}, {"stop": "entropy:2"}):
        folder = tmp_path / next(iter(config))
        made = open_run(make_run(folder, domains=("code",), n_prompts=2, n_steps=2, config=config))
        with pytest.raises(UsageError, match="confident"):
            tree_from_run(made, DpRequest(made.path, 2))
    undrafted = open_run(write_run(tmp_path / "none", {"code/x": [Step(emitted=1)]}))
    with pytest.raises(UsageError, match="at most 0 nodes"):
        tree_from_run(undrafted, DpRequest(undrafted.path, 1))


def test_dp_texts_name_a_folder(run: Run) -> None:
    assert parse_dp(f"dp:nodes=5,from={run.path}") == tree_from_run(run, DpRequest(run.path, 5))
    assert parse_any("chain:2").kind == "chain"
    malformed = ("dp:nodes=5", "dp:nodes=x,from=a", "dp:from=a,nodes=5", "dp:nodes=5,from=")
    malformed += (
        "dp:nodes=5,depth=0,from=a",
        "dp:nodes=5,width=x,from=a",
        "dp:nodes=5,colour=red,from=a",
        "dp:nodes=5,domain=,from=a",
    )
    for text in malformed:
        with pytest.raises(UsageError, match="dp:nodes=16,from"):
            parse_dp(text)
    with pytest.raises(UsageError, match="no-such-run"):
        parse_dp("dp:nodes=5,from=no-such-run")
    row = replay([run], resampling=FAST, tree_texts=[f"dp:nodes=5,from={run.path}"]).frame.iloc[-1]
    table = np.nan_to_num(acceptance_table([run]).rates)
    # the prediction multiplies rates of depths; the replay knows which paths go on, so they differ a little
    assert row["replay_len"] == pytest.approx(
        expected_tree_len(tree_from_run(run, DpRequest(run.path, 5)).static or Tree(()), table), abs=0.15
    )
    assert row["tree"] == f"dp:nodes=5,from={run.run_id}"


def test_dp_takes_one_domain_and_a_limit_of_depth(run: Run) -> None:
    shape = parse_dp(f"dp:nodes=9,depth=2,domain=chat,from={run.path}")
    assert shape.text == f"dp:nodes=9,depth=2,domain=chat,from={run.run_id}"
    rates = np.zeros((3, 4))
    for (depth, rank), (accepted, offered) in rates_by_hand(run, "chat").items():
        rates[depth - 1, rank] = accepted / offered
    assert shape.static is not None
    assert shape.depth == 2
    length = expected_tree_len(shape.static, rates)
    wider = [expected_tree_len(from_branches(b), rates) for b in ([3, 2], [1, 3], [4, 1], [2, 3])]
    assert length >= max(wider) - 1e-12
    assert (
        tree_from_run(run, DpRequest(run.path, 9, domain="chat")).static
        != tree_from_run(run, DpRequest(run.path, 9, domain="code")).static
    )
    chain = parse_dp(f"dp:nodes=3,width=1,from={run.path}")
    assert (chain.static, chain.text) == (
        from_branches([1, 1, 1]),
        f"dp:nodes=3,width=1,from={run.run_id}",
    )
    with pytest.raises(UsageError, match="at most 3 nodes"):
        parse_dp(f"dp:nodes=4,width=1,from={run.path}")
    with pytest.raises(UsageError, match="nothing in domain 'law': it has chat, code"):
        parse_dp(f"dp:nodes=9,domain=law,from={run.path}")


def test_dp_takes_the_size_and_depth_that_measured_costs_favour(run: Run, tmp_path: Path) -> None:
    table = acceptance_table([run])
    rates = np.nan_to_num(table.rates)
    sizes = []
    for name, growth in (("flat", 0.0), ("steep", 60.0)):
        file = tmp_path / f"{name}.csv"
        file.write_text("n,ms\n" + "".join(f"{n},{100 + growth * n}\n" for n in (1, 41)))
        costs = costs_from(trees.pass_costs(queries.connect([run])), file)
        shape = parse_dp(f"dp:nodes=best,costs={file},from={run.path}")
        assert costs is not None
        assert shape.static is not None
        assert shape.static == fastest_tree(table, costs, 64)
        assert shape.text == f"dp:nodes={shape.static.n_nodes},depth={shape.depth},from={run.run_id}"
        speed = costs.tokens_per_s(expected_tree_len(shape.static, rates), shape.static)
        others = [random_tree(np.random.default_rng(n), 1 + n % 20) for n in range(200)]
        assert speed >= max(costs.tokens_per_s(expected_tree_len(t, rates), t) for t in others) - 1e-9
        sizes.append(shape.static.n_nodes)
        # a budget's own best choice is the same tree where speculation pays at all
        rows = budget([run], resampling=FAST, nodes=40, costs_file=file).frame
        found = rows[(rows.domain == "all") & (rows["shape"] != "none")]
        assert speed == pytest.approx(found["tokens_per_s"].max())
    assert sizes[0] > sizes[1]
    with pytest.raises(UsageError, match=r"one size only.*costs=FILE"):
        parse_dp(f"dp:nodes=best,from={run.path}")


def passes(*rows: tuple[int, int, int, float, float, float]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["n_nodes", "n_levels", "n_steps", "draft_ms", "verify_ms", "other_ms"])


def test_costs_are_means_by_size_and_lines_between_them(tmp_path: Path) -> None:
    frame = passes((0, 0, 10, 0.0, 50.0, 1.0), (6, 2, 30, 20.0, 80.0, 2.0), (14, 3, 60, 33.0, 100.0, 4.0))
    frame = pd.concat([frame, passes((3, 2, 1, 20.0, 999.0, 2.0))], ignore_index=True)  # once: no measurement
    costs = costs_from(frame)
    assert costs is not None
    assert costs.draft_level_ms == pytest.approx((20 * 30 + 33 * 60 + 20) / (2 * 30 + 3 * 60 + 2))
    assert costs.verify_tokens.tolist() == [1, 7, 15]
    assert costs.step_ms(6, 0) - costs.other_ms == pytest.approx(80.0)
    assert costs.step_ms(10, 0) - costs.other_ms == pytest.approx(90.0)
    assert costs.step_ms(100, 2) == pytest.approx(100.0 + 2 * costs.draft_level_ms + costs.other_ms)
    file = tmp_path / "costs.csv"
    file.write_text("n,ms\n1,40\n3,60\n")
    assert costs_from(frame, file).step_ms(1, 0) == pytest.approx(50.0 + costs.other_ms)  # type: ignore[union-attr]
    assert costs_from(passes((0, 0, 3, 0.0, 50.0, 1.0))) is None
    for content, words in (("n;ms\n1;2\n", "columns"), ("n,ms\n1,x\n", "number"), ("n,ms\n", "number")):
        file.write_text(content)
        with pytest.raises(UsageError, match=words):
            costs_from(frame, file)
    with pytest.raises(UsageError, match=r"gone\.csv"):
        costs_from(frame, tmp_path / "gone.csv")


def test_budgets_equal_the_tables_of_their_groups(run: Run) -> None:
    frame = budget([run], resampling=FAST, nodes=9).frame
    for domain in ("code", "chat", None):
        rows = frame[frame.domain == (domain or "all")]
        rates = np.zeros((3, 4))
        for (depth, rank), (accepted, offered) in rates_by_hand(run, domain).items():
            rates[depth - 1, rank] = accepted / offered
        for row in rows.to_dict("records"):
            tree = Tree(tuple(int(p) for p in row["parents"].strip("[]").split(",") if p))
            assert tree.n_nodes == row["budget"]
            assert tree.depth == row["depth"]
            assert row["expected_len"] == pytest.approx(expected_tree_len(tree, rates), rel=1e-12)
            assert row["expected_len_lo"] <= row["expected_len"] <= row["expected_len_hi"]
            assert row["tokens_per_s"] == pytest.approx(1000 * (1 + row["expected_len"]) / row["step_ms"])
        assert rows[rows["shape"] == "chain"]["budget"].tolist() == [1, 2, 3]
        tree_rows = rows[rows["shape"] == "tree"]
        assert tree_rows["budget"].tolist() == list(range(1, 10))
        best = rows[rows["choice"] == "best"]
        assert len(best) == 1
        assert best["tokens_per_s"].iloc[0] == rows["tokens_per_s"].max()
        assert rows[rows["shape"] == "none"]["speed_up"].tolist() == [1.0]
        for row in rows[rows["shape"] == "fast tree"].to_dict("records"):
            slow = tree_rows[tree_rows["budget"] == row["budget"]].iloc[0]
            assert row["tokens_per_s"] > slow["tokens_per_s"]
            assert row["expected_len"] <= slow["expected_len"]


def test_costs_decide_how_large_the_best_tree_is(run: Run, tmp_path: Path) -> None:
    chosen = []
    for name, growth in (("flat", 0.0), ("steep", 60.0)):
        file = tmp_path / f"{name}.csv"
        file.write_text("n,ms\n" + "".join(f"{n},{100 + growth * n}\n" for n in (1, 40)))
        frame = budget([run], resampling=FAST, nodes=12, costs_file=file).frame
        chosen.append(int(frame[(frame.domain == "all") & (frame.choice == "best")]["budget"].iloc[0]))
    assert chosen[0] > chosen[1]


def test_runs_without_nodes_have_no_trees(tmp_path: Path) -> None:
    undrafted = open_run(
        write_run(tmp_path / "none", {"code/x": [Step(emitted=1)], "code/y": [Step(emitted=1)]})
    )
    table = budget([undrafted], resampling=FAST)
    assert table.frame["shape"].tolist() == ["none", "none"]
    assert table.frame["tokens_per_s"].isna().all()
    assert any("at most 0 nodes" in note for note in table.notes)
    with pytest.raises(UsageError, match="at least 1"):
        budget([undrafted], nodes=0)
    drafted = open_run(write_run(tmp_path / "few", {"code/x": [Step(chain("a", "r"))]}))
    frame = budget([drafted], resampling=FAST).frame
    assert frame["expected_len_lo"].isna().all()
    assert frame[frame["shape"] == "tree"]["expected_len"].max() == 1.0
