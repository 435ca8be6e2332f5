"""Entropy correlations against scipy over rows; scopes, undefined input, the Simpson check."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import rankdata, spearmanr

from acceptlab import queries
from acceptlab.analysis import entropy
from acceptlab.analysis.base import open_sample
from acceptlab.analysis.entropy import OUTCOMES, simpson_notes
from acceptlab.analysis.entropy_sums import EntropyRanks
from acceptlab.ranks import spearman
from acceptlab.resampling import Resampling
from acceptlab.store import Run, open_run
from tests.handmade import Node, Step, chain, write_run
from tests.synthetic import make_run

FAST = Resampling(n_resamples=100)


@pytest.fixture(scope="module")
def frame(tree_run: Run) -> pd.DataFrame:
    return entropy([tree_run], resampling=FAST).frame


def _nodes(run: Run, domain: str, depth: object, outcome: str) -> pd.DataFrame:
    nodes = run.read("nodes").to_pandas()
    nodes["accepted"] = (nodes["outcome"] == "accepted").astype(float)
    keep = (nodes["domain"] == domain) | (domain == "all")
    keep &= pd.isna(depth) | (nodes["depth"] == depth)  # type: ignore[call-overload]
    if outcome == "accepted":
        keep &= nodes["outcome"] != "untested"
    return nodes[keep]


def test_every_cell_is_there(frame: pd.DataFrame) -> None:
    # 5 groups x (all depths and 3 depths) x 2 entropies x 3 outcomes
    assert len(frame) == 5 * 4 * 2 * 3
    assert not frame.duplicated(["domain", "depth", "entropy", "outcome"]).any()


def test_every_row_equals_scipy(frame: pd.DataFrame, tree_run: Run) -> None:
    for row in frame.to_dict("records"):
        nodes = _nodes(tree_run, row["domain"], row["depth"], row["outcome"])
        expected = spearmanr(nodes[f"{row['entropy']}_entropy"], nodes[row["outcome"]].astype(float))
        assert row["rho"] == pytest.approx(expected.statistic, abs=1e-9)
        assert row["n_nodes"] == len(nodes)
        assert row["n_prompts"] == nodes["prompt_id"].nunique()


def test_intervals_equal_those_from_arrays(frame: pd.DataFrame, tree_run: Run) -> None:
    for outcome in OUTCOMES:
        nodes = _nodes(tree_run, "all", None, outcome)
        y = nodes[outcome].to_numpy(dtype=np.float64)
        prompts = nodes["prompt_id"].to_numpy(dtype=str)
        expected = spearman(nodes["draft_entropy"].to_numpy(), y, prompts, FAST)
        row = frame[
            (frame["domain"] == "all")
            & frame["depth"].isna()
            & (frame["entropy"] == "draft")
            & (frame["outcome"] == outcome)
        ].iloc[0]
        assert (row["rho_lo"], row["rho_hi"]) == pytest.approx((expected.lo, expected.hi), abs=1e-9)


def _scopes_of(rows: list[dict[str, Any]], outcome: str) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    scopes: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if (outcome == "accepted" and row["outcome"] == "untested") or row.get(outcome, 0) is None:
            continue
        for group in (row["domain"], None):
            for depth in (row["depth"], None):
                scopes[group, depth].append(row)
    return scopes


def test_rank_sums_equal_a_loop(tmp_path: Path) -> None:
    runs = [
        open_run(make_run(tmp_path / "greedy", n_prompts=4, n_steps=6)),
        open_run(
            make_run(tmp_path / "sampled", n_prompts=3, rule="rejection", tree="branches:3,1,2", seed=1)
        ),
        open_run(write_run(tmp_path / "hand", {"code/x": [Step(chain("a", "r", "u", accept_ratio=None))]})),
    ]
    rows = [row for run in runs for row in run.read("nodes").to_pylist()]
    with open_sample(runs) as sample:
        found = {key: sums for *key_parts, sums in EntropyRanks(sample).sums() for key in [tuple(key_parts)]}
        groups = queries.prompt_groups(sample.connection)
    numbers = groups.set_index("prompt_id")["prompt"].to_dict()
    for outcome in OUTCOMES:
        scopes = _scopes_of(rows, outcome)
        assert {scope for scope, name, _ in found if name == outcome} == set(scopes)
        for (group, depth), part in scopes.items():
            size = len(part)
            labels = [row["outcome"] == "accepted" if outcome == "accepted" else row[outcome] for row in part]
            y = np.array(labels) - 0.5
            if outcome == "accept_ratio":
                y = (rankdata(labels) - (size + 1) / 2) / size
            for which in ("draft", "target"):
                x = (rankdata([row[f"{which}_entropy"] for row in part]) - (size + 1) / 2) / size
                expected = np.zeros((len(set(numbers.values())), 6))
                for row, a, b in zip(part, x, y, strict=True):
                    expected[numbers[row["prompt_id"]]] += [1, a, b, a * a, b * b, a * b]
                # the order of the sums differs
                assert found[(group, depth), outcome, which] == pytest.approx(expected, abs=1e-9)


def test_columns_are_explained(tree_run: Run) -> None:
    table = entropy([tree_run], resampling=FAST)
    assert set(table.columns) == {name for name in table.frame if not str(name).endswith(("_lo", "_hi"))}
    assert len([note for note in table.notes if note.startswith("Simpson check")]) == 6


def test_constant_and_tiny_input_is_null_with_n_and_reason(tmp_path: Path) -> None:
    prompts = {
        "code/a": [Step(chain("a", "a", "a", entropy=1.0)), Step(chain("a", entropy=2.0))],
        "chat/b": [Step(chain("r"))],
    }
    frame = entropy([open_run(write_run(tmp_path / "run", prompts))]).frame
    rows = frame[(frame["entropy"] == "draft") & (frame["outcome"] == "accepted")]
    code = rows[(rows["domain"] == "code") & rows["depth"].isna()].iloc[0]
    assert pd.isna(code["rho"])
    assert (code["n_nodes"], code["reason"]) == (4, "accepted is constant")
    chat = rows[(rows["domain"] == "chat") & rows["depth"].isna()].iloc[0]
    assert (chat["n_nodes"], chat["reason"]) == (1, "fewer than 3 pairs")


def test_constant_entropy_is_named(tmp_path: Path) -> None:
    prompts = {"code/a": [Step(chain("a", "a", "r", "u", entropy=1.0))]}
    frame = entropy([open_run(write_run(tmp_path / "run", prompts))]).frame
    pooled = frame[(frame["domain"] == "all") & frame["depth"].isna() & (frame["outcome"] == "accepted")]
    assert pooled["reason"].tolist() == ["the draft entropy is constant", "the target entropy is constant"]


def test_nothing_drafted_is_null(tmp_path: Path) -> None:
    frame = entropy([open_run(write_run(tmp_path / "run", {"code/a": [Step(emitted=1)]}))]).frame
    assert frame["rho"].isna().all()
    assert (frame["n_nodes"] == 0).all()
    assert frame["domain"].unique().tolist() == ["code", "all"]


def test_nodes_without_a_ratio_leave_only_the_ratio_rows(tmp_path: Path) -> None:
    nodes = [Node(i - 1, "accepted", None if i else 0.3, i % 2 == 0, entropy=float(i)) for i in range(5)]
    frame = entropy([open_run(write_run(tmp_path / "run", {"code/a": [Step(nodes)]}))]).frame
    pooled = frame[(frame["domain"] == "all") & frame["depth"].isna()].set_index(["entropy", "outcome"])
    assert pooled.loc[("draft", "accept_ratio"), "n_nodes"] == 1
    assert pooled.loc[("draft", "is_target_argmax"), "n_nodes"] == 5


def test_the_simpson_check_finds_a_reversal(tmp_path: Path) -> None:
    # acceptance rises with entropy within each depth, but the deeper nodes have high entropy and low
    # acceptance
    prompts = {}
    for i in range(12):
        first = [Node(-1, "accepted" if e > 0 else "rejected", entropy=float(e)) for e in (0, 1, 2, 3)]
        below = [Node(3, "accepted" if e > 12 else "rejected", entropy=float(e)) for e in (10, 11, 12, 13)]
        prompts[f"code/{i}"] = [Step([*first, *below])]
    frame = entropy([open_run(write_run(tmp_path / "run", prompts))], resampling=FAST).frame
    rows = frame[
        (frame["entropy"] == "draft") & (frame["outcome"] == "accepted") & (frame["domain"] == "code")
    ]
    assert (rows[rows["depth"].notna()]["rho"] > 0).all()
    assert rows[rows["depth"].isna()]["rho"].iloc[0] < 0.0
    note = next(
        n
        for n in simpson_notes(frame, "domain")
        if n.startswith("Simpson check, draft entropy with accepted")
    )
    assert "the sign is the other in 2 of 2 cells" in note
