"""Covariances against theory on arrays built by plain loops, known answers, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from acceptlab.analysis import ANALYSES
from acceptlab.analysis.covariance import QUANTITIES, covariance
from acceptlab.errors import UsageError
from acceptlab.resampling import Resampling, resample_weights
from acceptlab.store import Run, open_run
from acceptlab.theory.chains import chain_gap, window_mask
from tests.handmade import Node, Step, write_run
from tests.synthetic import EOS, make_run

FAST = Resampling(n_resamples=200)
CHAIN = {"rule": "rejection", "tree": "chain:2", "temperature": 1.0}
CLOSE = 1e-7
"""Values by hand are stored as float32."""
Windows = dict[str, list[tuple[list[float], list[float], int]]]


def windows_of(run: Run, ratio: str, overlap: str) -> Windows:
    """Ratios, overlaps and valid length of every step by prompt, along the path of first children."""
    steps: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in run.read("nodes").to_pylist():
        steps.setdefault((row["prompt_id"], row["step"]), []).append(row)
    found: Windows = {}
    for (prompt, _), rows in sorted(steps.items()):
        path, node = [], -1
        while below := [row for row in rows if row["parent"] == node and row["child_rank"] == 0]:
            path.append(below[0])
            node = below[0]["node"]
        ends = [place for place, row in enumerate(path) if row["token_id"] == EOS]
        valid = ends[0] + 1 if ends else len(path)
        values = [[float(row[name]) for row in path] for name in (ratio, overlap)]
        found.setdefault(prompt, []).append((values[0], values[1], valid))
    return found


def gap_of(windows: Windows, prompts: list[str], weights: list[float] | None = None) -> Any:
    chosen = [window for prompt in prompts for window in windows[prompt]]
    repeated = (
        None
        if weights is None
        else np.repeat(np.array(weights), [len(windows[prompt]) for prompt in prompts])
    )
    ratios, overlaps = (np.array([window[i] for window in chosen]) for i in (0, 1))
    mask = window_mask(np.array([window[2] for window in chosen]), ratios.shape[1])
    return chain_gap(ratios, overlaps, mask, weights=repeated)


def estimates_of(windows: Windows, prompts: list[str]) -> dict[str, np.ndarray]:
    """Path and WTV estimates by a plain loop."""
    sums = np.zeros((2, len(windows[prompts[0]][0][0])))
    for ratios, overlaps, valid in (window for prompt in prompts for window in windows[prompt]):
        for i, values in enumerate((ratios, overlaps)):
            product = 1.0
            for k, value in enumerate(values[:valid]):
                product *= value
                sums[i, k] += product
    n = sum(len(windows[prompt]) for prompt in prompts)
    return {"S_path": sums[0] / n, "wtv": sums[1] / n}


def table_of(gap: Any) -> dict[str, np.ndarray]:
    joint, product = np.cumsum(gap.survival), np.cumsum(np.cumprod(gap.mean_overlaps))
    return {
        "S_k": gap.survival,
        "mean_overlap": gap.mean_overlaps,
        "C_k": gap.covariances,
        "contribution": gap.contributions,
        "J_k": joint,
        "W_k": product,
        "gap_k": joint - product,
        "path_covariance": gap.path_covariances,
        "remainder": gap.remainders,
        "adjacent_covariance": np.concatenate([[np.nan], gap.adjacent_covariances]),
    }


@pytest.fixture(scope="module")
def first_children(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("covariance") / "trees"
    return open_run(make_run(folder, n_prompts=5, rule="rejection", tree="branches:2,1,2", seed=5))


@pytest.mark.parametrize(
    ("name", "ratio", "overlap"),
    [
        ("sampled_run", "accept_ratio", "overlap"),
        ("first_children", "accept_ratio", "overlap"),
        ("tree_run", "is_target_argmax", "is_target_argmax"),
    ],
)
def test_every_quantity_equals_the_theory_on_arrays(
    name: str, ratio: str, overlap: str, request: pytest.FixtureRequest
) -> None:
    run: Run = request.getfixturevalue(name)
    frame = covariance([run], resampling=FAST).frame
    windows = windows_of(run, ratio, overlap)
    assert any(valid < len(a) for steps in windows.values() for a, _, valid in steps)  # texts did end
    for domain, rows in frame.groupby("domain", sort=False):
        prompts = [prompt for prompt in windows if domain in (prompt.split("/")[0], "all")]
        gap = gap_of(windows, prompts)
        assert rows["k"].tolist() == list(range(1, len(gap.survival) + 1))
        expected = table_of(gap) | estimates_of(windows, prompts)
        assert set(expected) == set(QUANTITIES)
        for quantity, values in expected.items():
            # stored numbers are float32 but read alike; sums differ in order only
            assert rows[quantity].to_numpy(float) == pytest.approx(values, abs=1e-12, nan_ok=True), quantity
        assert rows["contribution"].sum() == pytest.approx(rows["gap_k"].iloc[-1], abs=1e-12)
        assert (rows["path_covariance"] + rows["remainder"]).to_numpy() == pytest.approx(
            rows["C_k"].to_numpy(), abs=1e-12
        )
        assert (rows["n_steps"] == sum(len(windows[prompt]) for prompt in prompts)).all()
        assert (rows["n_prompts"] == len(prompts)).all()


def test_intervals_resample_whole_prompts(sampled_run: Run) -> None:
    plain = Resampling(n_resamples=100, widen=False)
    frame = covariance([sampled_run], resampling=plain).frame
    row = frame[(frame["domain"] == "code") & (frame["k"] == 3)].iloc[0]
    windows = windows_of(sampled_run, "accept_ratio", "overlap")
    prompts = sorted(prompt for prompt in windows if prompt.startswith("code"))
    draws = [
        table_of(gap_of(windows, prompts, list(weights)))["C_k"][2]
        for block in resample_weights(len(prompts), plain)
        for weights in block
    ]
    assert (row["C_k_lo"], row["C_k_hi"]) == pytest.approx(np.quantile(draws, [0.025, 0.975]), abs=1e-12)


def two_windows(folder: Path, **changes: Any) -> Run:
    """Windows with b = (.5, .4), a = (.6, .2) and b = (1, .5), a = (.8, .9)."""
    first = [Node(-1, "accepted", 0.5, overlap=0.6), Node(0, "rejected", 0.4, overlap=0.2)]
    second = [Node(-1, "accepted", 1.0, overlap=0.8), Node(0, "accepted", 0.5, overlap=0.9)]
    prompts = {"code/a": [Step(first)], "code/b": [Step(second)]}
    return open_run(write_run(folder, prompts, config={**CHAIN, **changes}, run_id=folder.name))


def test_two_windows_by_hand(tmp_path: Path) -> None:
    table = covariance([two_windows(tmp_path / "run")])
    row = table.frame[table.frame["domain"] == "all"].set_index("k")
    assert row["S_k"].tolist() == pytest.approx([0.7, (0.5 * 0.2 + 0.9) / 2], abs=CLOSE)
    assert row["mean_overlap"].tolist() == pytest.approx([0.7, 0.55], abs=CLOSE)
    assert row["C_k"].tolist() == pytest.approx([0.0, 0.5 - 0.7 * 0.55], abs=CLOSE)
    assert row["J_k"].tolist() == pytest.approx([0.7, 1.2], abs=CLOSE)
    assert row["W_k"].tolist() == pytest.approx([0.7, 0.7 + 0.385], abs=CLOSE)
    assert row["path_covariance"].iloc[1] == pytest.approx(0.5 - 0.75 * 0.55, abs=CLOSE)
    assert row["remainder"].iloc[1] == pytest.approx((0.75 - 0.7) * 0.55, abs=CLOSE)
    # in windows of two the neighbours are the whole path
    assert row["adjacent_covariance"].iloc[1] == pytest.approx(row["path_covariance"].iloc[1], abs=1e-12)
    assert pd.isna(row["adjacent_covariance"].iloc[0])
    assert "pairs begin at the second position" in row["reason"].iloc[0]
    assert any("REAL" in note for note in table.notes)
    assert any("sum to its gap" in note for note in table.notes)


def test_windows_are_zero_after_the_end_of_text(tmp_path: Path) -> None:
    folder = two_windows(tmp_path / "run").path
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "eos_ids": [0]}))  # every node has token 0
    frame = covariance([open_run(folder)]).frame
    rows = frame[frame["domain"] == "all"].set_index("k")
    assert rows["S_k"].tolist() == pytest.approx([0.7, 0.0], abs=1e-7)
    assert rows["mean_overlap"].tolist() == pytest.approx([0.7, 0.0], abs=1e-7)
    # the path's weight before the second position is what it was; only the overlap is gone
    assert rows["n_steps"].tolist() == [2, 2]


def test_onehot_windows_hold_the_target_probabilities(tmp_path: Path) -> None:
    run = open_run(make_run(tmp_path / "run", domains=("code",), n_prompts=3, rule="onehot", seed=8))
    windows = windows_of(run, "target_prob", "target_prob")
    frame = covariance([run], resampling=FAST).frame
    rows = frame[frame["domain"] == "all"]
    assert rows["C_k"].to_numpy() == pytest.approx(gap_of(windows, list(windows)).covariances, abs=1e-12)


def test_temperatures_have_rows_of_their_own(tmp_path: Path) -> None:
    cool = two_windows(tmp_path / "cool", temperature=0.5)
    warm = [two_windows(tmp_path / name) for name in ("one", "two")]
    table = covariance([warm[0], cool, warm[1]])
    rows = table.frame[table.frame["domain"] == "all"]
    assert rows["temperature"].tolist() == [0.5, 0.5, 1.0, 1.0]
    assert rows["n_steps"].tolist() == [2, 2, 4, 4]
    assert not any("differ in temperature" in note for note in table.notes)


def test_nothing_drafted_is_null(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run", {"code/a": [Step(emitted=1)]}, config=CHAIN))
    frame = covariance([run]).frame
    assert frame["domain"].tolist() == ["code", "all"]
    assert frame[list(QUANTITIES)].isna().all(axis=None)
    assert (frame["reason"] == "nothing drafted").all()


def test_a_group_without_drafts_is_null(tmp_path: Path) -> None:
    node = [Node(-1, "accepted"), Node(0, "rejected")]
    prompts = {"code/a": [Step(node)], "chat/b": [Step(emitted=1)]}
    frame = covariance([open_run(write_run(tmp_path / "run", prompts, config=CHAIN))]).frame
    chat = frame[frame["domain"] == "chat"]
    assert chat[list(QUANTITIES)].isna().all(axis=None)
    assert chat["reason"].tolist() == ["nothing drafted"] * 2


def test_what_has_no_fixed_windows_is_refused(tmp_path: Path) -> None:
    short = [Node(-1, "accepted"), Node(0, "rejected")]
    changing = {"code/a": [Step(short), Step(short[:1])]}
    run = open_run(write_run(tmp_path / "changing", changing, config=CHAIN, run_id="c"))
    with pytest.raises(UsageError, match="change from step to step"):
        covariance([run])
    relaxed = two_windows(tmp_path / "relaxed", rule="additive:0.1")
    with pytest.raises(UsageError, match=r"additive:0\.1"):
        covariance([relaxed])
    sampled, greedy = two_windows(tmp_path / "sampled"), two_windows(tmp_path / "greedy", rule="greedy")
    with pytest.raises(UsageError, match="rejection and greedy differ"):
        covariance([sampled, greedy])
    deep = {"code/a": [Step([*short, Node(1, "untested")])]}
    longer = open_run(write_run(tmp_path / "longer", deep, config=CHAIN, run_id="l"))
    with pytest.raises(UsageError, match="2 and 3 tokens deep"):
        covariance([sampled, longer])


def test_columns_are_explained(sampled_run: Run) -> None:
    table = ANALYSES["covariance"]([sampled_run], resampling=FAST)
    assert set(table.columns) == {name for name in table.frame if not str(name).endswith(("_lo", "_hi"))}
