"""Calibration against loops over rows, known answers, and the same nodes read from lists."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from acceptlab import queries
from acceptlab.analysis.calibration import N_LEVELS, area_under_curve, calibration, expected_error
from acceptlab.errors import UsageError
from acceptlab.queries import labels
from acceptlab.resampling import Resampling
from acceptlab.store import Run, open_run
from tests.handmade import Step, write_run
from tests.synthetic import make_run

FAST = Resampling(n_resamples=200)
LABELS = {
    "accepted": lambda row: None if row["outcome"] == "untested" else float(row["outcome"] == "accepted"),
    "argmax": lambda row: float(row["is_target_argmax"]),
    "ratio": lambda row: row["accept_ratio"],
}


def pairs_of(run: Run, domain: str, outcome: str) -> list[tuple[float, float]]:
    rows = [row for row in run.read("nodes").to_pylist() if domain in (row["domain"], "all")]
    found = [(row["draft_prob"], LABELS[outcome](row)) for row in rows]
    return [(confidence, label) for confidence, label in found if label is not None]


def oracle(pairs: list[tuple[float, float]]) -> dict[str, float]:
    bins: dict[int, list[tuple[float, float]]] = {}
    for pair in pairs:
        bins.setdefault(min(int(pair[0] * 10), 9), []).append(pair)
    error = sum(abs(sum(c - y for c, y in part)) for part in bins.values()) / len(pairs)
    return {
        "confidence": float(np.mean([c for c, _ in pairs])),
        "rate": float(np.mean([y for _, y in pairs])),
        "overconfidence": float(np.mean([c - y for c, y in pairs])),
        "ece": error,
        "brier": float(np.mean([(c - y) ** 2 for c, y in pairs])),
        "n_nodes": len(pairs),
    }


def auroc(pairs: list[tuple[float, float]]) -> float:
    yes, no = ([c for c, y in pairs if y == label] for label in (1.0, 0.0))
    wins = np.sign(np.subtract.outer(np.array(yes), np.array(no)))
    return float((wins.sum() / wins.size + 1) / 2)


@pytest.mark.parametrize("name", ["tree_run", "sampled_run"])
def test_every_row_equals_a_loop(name: str, request: pytest.FixtureRequest) -> None:
    run: Run = request.getfixturevalue(name)
    frame = calibration([run], resampling=FAST).frame
    for (domain, outcome), rows in frame.groupby(["domain", "outcome"], sort=False):
        pairs = pairs_of(run, str(domain), str(outcome))
        whole = rows[rows["bin"].isna()].iloc[0]
        for quantity, value in oracle(pairs).items():
            assert whole[quantity] == pytest.approx(value, rel=1e-6), (domain, outcome, quantity)
        if outcome == "ratio":
            assert pd.isna(whole["auroc"])
            assert "no yes/no" in whole["reason"]
        else:
            # levels of log odds in eighths take some pairs for ties
            assert whole["auroc"] == pytest.approx(auroc(pairs), abs=0.01)
            assert whole["auroc_lo"] <= whole["auroc"] <= whole["auroc_hi"]
        for row in rows[rows["bin"].notna()].to_dict("records"):
            part = [(c, y) for c, y in pairs if min(int(c * 10), 9) == row["bin"]]
            assert row["n_nodes"] == len(part)
            assert row["confidence"] == pytest.approx(np.mean([c for c, _ in part]), rel=1e-6)
            assert row["rate"] == pytest.approx(np.mean([y for _, y in part]), rel=1e-6, abs=1e-12)
        assert rows[rows["bin"].notna()]["n_nodes"].sum() == whole["n_nodes"]


def test_queries_equal_loops(tree_run: Run) -> None:
    connection = queries.connect([tree_run])
    labels.add_confidence(connection, listed=False)
    levels = labels.confidence_levels(connection)
    rows = [row for row in tree_run.read("nodes").to_pylist() if row["prompt_id"] == "math/0003"]
    found = levels[levels["prompt_id"] == "math/0003"].set_index("level")
    counts: dict[int, list[int]] = {}
    for row in rows:
        c = row["draft_prob"]
        level = 80 + round(8 * max(-10.0, min(10.0, np.log(c / (1 - c)))))
        entry = counts.setdefault(level, [0, 0, 0, 0])
        entry[0] += row["outcome"] == "accepted"
        entry[1] += row["outcome"] == "rejected"
        entry[2] += row["is_target_argmax"]
        entry[3] += not row["is_target_argmax"]
    columns = ["pos_accepted", "neg_accepted", "pos_argmax", "neg_argmax"]
    assert {int(level): found.loc[level, columns].tolist() for level in found.index} == counts
    bins = labels.calibration_bins(connection, 4)
    whole: Any = bins[bins["prompt_id"] == "math/0003"].groupby("bin")["conf_argmax"].sum()
    for number in whole.index:
        wanted = sum(row["draft_prob"] for row in rows if min(int(row["draft_prob"] * 4), 3) == number)
        assert whole[number] == pytest.approx(wanted, rel=1e-6)


def test_scores_of_known_answers() -> None:
    yes, no = np.zeros((2, N_LEVELS))
    yes[100], yes[50], no[50], no[20] = 3, 1, 2, 2
    wins = sum(
        1.0 if y > n else 0.5 if y == n else 0.0 for y in (100, 100, 100, 50) for n in (50, 50, 20, 20)
    )
    assert area_under_curve(np.hstack([yes, no])[None])[0, 0] == pytest.approx(wins / 16)
    assert np.isnan(area_under_curve(np.hstack([yes, 0 * no])[None])[0, 0])
    assert expected_error(np.array([[1.0, -2.0, 0.0, 6.0]]))[0, 0] == pytest.approx(0.5)


def test_a_calibrated_draft_is_on_the_diagonal(tmp_path: Path) -> None:
    """Under onehot at the root the first candidate of a draft that equals the target is accepted with its own prob."""
    rng = np.random.default_rng(0)
    confidence = rng.random(40_000)
    label = rng.random(40_000) < confidence
    totals = np.bincount((confidence * 10).astype(int), weights=confidence - label)
    # 4,000 nodes a bin: the mean |gap| of a calibrated draft is some 0.005
    assert expected_error(np.append(totals, 40_000)[None])[0, 0] < 0.012


def test_lists_give_the_same_confidence_up_to_their_rounding(tmp_path: Path) -> None:
    made = {}
    for name, config in (("plain", {}), ("warped", {"temperature": 0.7})):
        folder = make_run(tmp_path / name, domains=("code",), n_prompts=10, n_steps=5, config=config)
        made[name] = calibration([open_run(folder)], resampling=FAST)
    plain, warped = (made[name].frame for name in ("plain", "warped"))
    first, second = (frame[frame["bin"].isna()].reset_index(drop=True) for frame in (plain, warped))
    assert (first["n_nodes"] == second["n_nodes"]).all()  # ranked tokens are in every list
    assert (second["confidence"] <= first["confidence"]).all()
    np.testing.assert_allclose(second["confidence"], first["confidence"], rtol=1 / 128)
    assert any("lists" in note for note in made["warped"].notes)
    with pytest.raises(UsageError, match="apart"):
        calibration([open_run(tmp_path / "plain"), open_run(tmp_path / "warped")])


def test_nodes_outside_the_lists_are_left_out_and_counted(tmp_path: Path) -> None:
    folder = make_run(
        tmp_path / "run",
        domains=("code",),
        n_prompts=11,
        n_steps=5,
        rule="rejection",
        tree="branches:4,2",
        config={"temperature": 0.7},
    )
    run = open_run(folder)
    table = calibration([run], resampling=FAST)
    ranks = [row["draft_rank"] for row in run.read("nodes").to_pylist()]
    beyond = sum(rank >= 32 for rank in ranks)
    assert beyond > 0
    assert any(f"{beyond:,} nodes" in note for note in table.notes)
    pooled = table.frame[(table.frame.outcome == "argmax") & table.frame["bin"].isna()]
    assert pooled["n_nodes"].tolist() == [len(ranks) - beyond] * 2


def test_undrafted_runs_give_nulls(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "none", {"code/x": [Step(emitted=1)]}))
    frame = calibration([run], resampling=FAST).frame
    assert len(frame) == 6
    assert frame[["confidence", "rate", "ece", "brier", "auroc"]].isna().all(axis=None)
    assert all(itertools.chain(frame["reason"].notna()))
