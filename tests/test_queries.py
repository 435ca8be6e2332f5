"""Every .sql file against a plain loop over the rows, which is the oracle; views over old and missing parts."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest

from acceptlab import queries
from acceptlab.errors import RunError, UsageError
from acceptlab.store import Run, open_run
from tests.handmade import Step, chain, drop_columns, write_run
from tests.synthetic import make_run

Rows = list[dict[str, Any]]
Oracle = Callable[[dict[str, Rows]], dict[tuple[Any, ...], dict[str, float]]]
KEYS = ("run_id", "domain", "prompt_id")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """A greedy tree run, a run with rejection by siblings, and one by hand with undrafted steps and null ratios."""
    base = tmp_path_factory.mktemp("runs")
    greedy = make_run(base / "greedy", n_prompts=4, n_steps=6, n_skipped=2)
    sampled = make_run(
        base / "sampled", n_prompts=3, n_steps=5, rule="rejection", tree="branches:3,1,2", seed=1
    )
    steps = [
        Step(chain("a", "r", "u", accept_ratio=None)),
        Step(),
        Step(chain("a", "a"), stop="eos", bonus=None),
    ]
    by_hand = write_run(base / "by-hand", {"code/x": steps, "new/y": [Step(stop="length")]})
    return [open_run(path) for path in (greedy, sampled, by_hand)]


@pytest.fixture(scope="module")
def rows(runs: list[Run]) -> dict[str, Rows]:
    names = ("nodes", "steps", "prompts")
    return {name: [row for run in runs for row in run.read(name).to_pylist()] for name in names}


@pytest.fixture(scope="module")
def connection(runs: list[Run]) -> duckdb.DuckDBPyConnection:
    return queries.connect(runs)


def _key(row: dict[str, Any], *more: str) -> tuple[Any, ...]:
    return tuple(row[name] for name in (*KEYS, *more))


def _step_sums(rows: dict[str, Rows]) -> dict[tuple[Any, ...], dict[str, float]]:
    found: dict[tuple[Any, ...], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in rows["steps"]:
        sums = found[_key(row)]
        sums["n_steps"] += 1
        sums["n_drafted"] += row["n_nodes"] > 0
        for name in ("n_nodes", "n_tested", "accepted_len", "emitted_len"):
            sums[name] += row[name]
        sums["expected_len"] += row["expected_accepted_len"]
        ended_by_draft = row["stop_reason"] == "eos" and row["bonus_token_id"] is None
        sums["uncut_len"] += row["accepted_len"] + (0 if ended_by_draft else 1)
        sums["n_accepting"] += row["accepted_len"] > 0
    return found


def _accepted_lengths(rows: dict[str, Rows]) -> dict[tuple[Any, ...], dict[str, float]]:
    found: dict[tuple[Any, ...], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in rows["steps"]:
        if row["n_nodes"]:
            found[_key(row, "accepted_len")]["n_steps"] += 1
    return found


def _depth_sums(rows: dict[str, Rows]) -> dict[tuple[Any, ...], dict[str, float]]:
    found: dict[tuple[Any, ...], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in rows["nodes"]:
        sums = found[_key(row, "depth")]
        sums["n_nodes"] += 1
        sums["n_tested"] += row["outcome"] in ("accepted", "rejected")
        sums["n_accepted"] += row["outcome"] == "accepted"
        sums["n_ratio"] += row["accept_ratio"] is not None
        sums["sum_ratio"] += row["accept_ratio"] or 0.0
    return found


def _context_sums(rows: dict[str, Rows]) -> dict[tuple[Any, ...], dict[str, float]]:
    contexts = {_key(row, "step", "parent"): row for row in rows["nodes"]}
    found: dict[tuple[Any, ...], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in contexts.values():
        for which in ("draft", "target"):
            found[_key(row)][f"n_{which}_entropy"] += 1
            found[_key(row)][f"sum_{which}_entropy"] += row[f"{which}_entropy"]
    return found


def _tree_depth_sums(rows: dict[str, Rows]) -> dict[tuple[Any, ...], dict[str, float]]:
    deepest: dict[tuple[Any, ...], int] = defaultdict(int)
    for row in rows["nodes"]:
        key = _key(row, "step")
        deepest[key] = max(deepest[key], row["depth"])
    found: dict[tuple[Any, ...], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for key, depth in deepest.items():
        found[key[:3]]["n_trees"] += 1
        found[key[:3]]["sum_tree_depth"] += depth
    return found


def _first_path_sums(rows: dict[str, Rows]) -> dict[tuple[Any, ...], dict[str, float]]:
    nodes = {_key(row, "step", "node"): row for row in rows["nodes"]}
    found: dict[tuple[Any, ...], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in rows["nodes"]:
        path = [row]
        while path[-1]["parent"] >= 0:
            path.append(nodes[(*_key(row, "step"), path[-1]["parent"])])
        if any(node["child_rank"] for node in path):
            continue
        sums = found[_key(row, "depth")]
        sums["n_nodes"] += 1
        sums["n_argmax"] += row["is_target_argmax"]
        sums["sum_path_overlap"] += float(np.prod([node["overlap"] for node in path]))
    return found


ORACLES: dict[str, tuple[Callable[..., pd.DataFrame], Oracle, tuple[str, ...]]] = {
    "step_sums": (queries.step_sums, _step_sums, KEYS),
    "accepted_lengths": (queries.accepted_lengths, _accepted_lengths, (*KEYS, "accepted_len")),
    "depth_sums": (queries.depth_sums, _depth_sums, (*KEYS, "depth")),
    "context_sums": (queries.context_sums, _context_sums, KEYS),
    "tree_depth_sums": (queries.tree_depth_sums, _tree_depth_sums, KEYS),
    "first_path_sums": (queries.first_path_sums, _first_path_sums, (*KEYS, "depth")),
}
OTHERS = {"prompt_list", "entropy_nodes"}
"""Files whose oracles are tests of their own below."""


def _files() -> dict[str, str]:
    folder = resources.files("acceptlab.queries")
    return {
        path.name.removesuffix(".sql"): path.read_text() for path in folder.iterdir() if ".sql" in path.name
    }


def test_every_file_has_its_function() -> None:
    folder = Path(queries.__file__).parent
    code = "".join(path.read_text() for path in folder.glob("*.py"))
    assert [name for name in sorted(_files()) if f'"{name}"' not in code] == []
    assert set(ORACLES) | OTHERS <= set(_files())


@pytest.mark.parametrize("name", sorted(_files()))
def test_headers_state_the_grain(name: str) -> None:
    assert "-- grain: one row per " in _files()[name]


@pytest.mark.parametrize("name", sorted(set(ORACLES) | OTHERS))
def test_headers_explain_every_column(name: str, connection: duckdb.DuckDBPyConnection) -> None:
    text = _files()[name]
    header = "\n".join(line for line in text.splitlines() if line.startswith("--"))
    if name == "entropy_nodes":
        frame = pd.DataFrame(queries.entropy_nodes(connection, ["code", "math", "logic", "chat", "new"]))
    else:
        frame = getattr(queries, name)(connection)
    assert all(re.search(rf"\b{column}\b", header) for column in frame.columns)


@pytest.mark.parametrize("name", sorted(ORACLES))
def test_query_equals_a_loop(name: str, rows: dict[str, Rows], connection: duckdb.DuckDBPyConnection) -> None:
    query, oracle, keys = ORACLES[name]
    expected, frame = oracle(rows), query(connection)
    assert not frame.duplicated(list(keys)).any()
    found = frame.set_index(list(keys)).to_dict("index")
    assert set(found) == set(expected)
    assert len(found) > 5
    for key, sums in expected.items():
        # float32 columns are summed in float64; only the order of the sums differs
        assert found[key] == pytest.approx(dict(sums), rel=1e-9)


def test_rows_come_in_a_fixed_order(connection: duckdb.DuckDBPyConnection) -> None:
    for query, _, keys in ORACLES.values():
        frame = query(connection)
        assert frame.equals(frame.sort_values(list(keys), ignore_index=True))


def test_prompt_list_equals_the_rows(rows: dict[str, Rows], connection: duckdb.DuckDBPyConnection) -> None:
    frame = queries.prompt_list(connection)
    assert len(frame) == len(rows["prompts"])
    assert int(frame["skip_reason"].notna().sum()) == 2
    by_key = {_key(row): row for row in rows["prompts"]}
    for row in frame.to_dict("records"):
        assert row["n_new_tokens"] == by_key[_key(row)]["n_new_tokens"]
        assert row["source"] == by_key[_key(row)]["source"]


def test_entropy_nodes_equal_the_rows(rows: dict[str, Rows], connection: duckdb.DuckDBPyConnection) -> None:
    groups = ["chat", "code", "logic", "math", "new"]
    frame = pd.DataFrame(queries.entropy_nodes(connection, groups))
    prompts = queries.prompt_groups(connection).set_index(["run_id", "prompt_id"])["prompt"]
    accepted = {"accepted": 1, "rejected": 0, "untested": -1}
    expected = [
        (
            groups.index(row["domain"]),
            row["depth"],
            int(prompts[row["run_id"], row["prompt_id"]]),
            row["draft_entropy"],
            row["target_entropy"],
            accepted[row["outcome"]],
            int(row["is_target_argmax"]),
            -1.0 if row["accept_ratio"] is None else row["accept_ratio"],
        )
        for row in rows["nodes"]
    ]
    found = frame.fillna({"accept_ratio": -1.0}).itertuples(index=False, name=None)
    assert sorted(found) == sorted(expected)
    assert (frame.memory_usage(index=False) / len(frame)).sum() <= 22


def test_the_same_prompt_in_two_runs_is_one_cluster(runs: list[Run]) -> None:
    with queries.connect(runs) as connection:
        groups = queries.prompt_groups(connection)
    # the two synthetic runs share the first three prompts of every domain
    assert len(groups) == 16 + 12 + 2
    assert groups["prompt"].nunique() == 16 + 2
    assert sorted(groups["prompt"].unique()) == list(range(18))


@pytest.mark.parametrize(
    ("by", "labels"),
    [
        ("domain", {"code", "math", "logic", "chat", "new"}),
        ("source", {"synthetic", "hand"}),
        ("run", {"greedy", "sampled", "by-hand"}),
    ],
)
def test_groups_follow_by(by: queries.By, labels: set[str], runs: list[Run]) -> None:
    with queries.connect(runs, by=by) as connection:
        assert set(queries.prompt_groups(connection)["label"]) == labels


def test_old_parts_give_nulls_and_new_ones_keep_their_columns(tmp_path: Path) -> None:
    new = open_run(make_run(tmp_path / "new", n_prompts=2, n_steps=3))
    old_folder = make_run(tmp_path / "old", n_prompts=2, n_steps=3, seed=1)
    drop_columns(old_folder, "nodes", ["accept_ratio", "draft_entropy"])
    old = open_run(old_folder)
    for order in ([old, new], [new, old]):
        with queries.connect(order) as connection:
            sums = queries.depth_sums(connection).groupby("run_id")[["n_nodes", "n_ratio"]].sum()
            assert sums.loc[old.run_id, "n_ratio"] == 0
            assert sums.loc[new.run_id, "n_ratio"] == sums.loc[new.run_id, "n_nodes"] == new.n_rows("nodes")
            contexts = queries.context_sums(connection).groupby("run_id").sum(numeric_only=True)
            assert contexts.loc[old.run_id, "n_draft_entropy"] == 0
            assert contexts.loc[old.run_id, "n_target_entropy"] > 0
    with queries.connect([old]) as connection:
        described = {row[0]: row[1] for row in connection.execute("DESCRIBE nodes").fetchall()}
        assert described["accept_ratio"] == "FLOAT"
        assert len(queries.entropy_nodes(connection, ["code"])["depth"]) == 0


def test_views_have_the_declared_columns_and_types(
    connection: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    empty = write_run(tmp_path / "empty", {"code/x": [Step()]})
    with queries.connect([open_run(empty)]) as bare:
        for table in queries.records.TABLES:
            described = [con.execute(f"DESCRIBE {table.name}").fetchall() for con in (connection, bare)]
            names = [[row[0] for row in rows] for rows in described]
            assert names[0] == names[1] == [column.name for column in table.columns]
            assert [row[1] for row in described[0]] == [row[1] for row in described[1]]


def test_the_same_run_twice_is_refused(runs: list[Run]) -> None:
    with pytest.raises(UsageError, match="same run"):
        queries.connect([runs[0], open_run(runs[0].path)])
    with pytest.raises(UsageError, match="at least one run"):
        queries.connect([])
    with pytest.raises(UsageError, match="group by 'colour'"):
        queries.connect(runs, by="colour")  # type: ignore[arg-type]


def test_a_part_that_breaks_while_it_is_read_is_named(tmp_path: Path) -> None:
    run = open_run(make_run(tmp_path / "run", n_prompts=2, n_steps=3))
    path = run.files("nodes")[0]
    content = bytearray(path.read_bytes())
    content[200 : len(content) // 2] = b"\0" * (len(content) // 2 - 200)  # the footer stays whole
    path.write_bytes(content)
    with queries.connect([run]) as connection, pytest.raises(RunError, match="runs check"):
        queries.depth_sums(connection)
