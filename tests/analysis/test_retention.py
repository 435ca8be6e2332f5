"""Retention, streaks and variances against loops, known answers and simulation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from acceptlab import queries
from acceptlab.analysis.retention import retention
from acceptlab.analysis.streaks import SUMS, statistic, streaks
from acceptlab.queries import labels
from acceptlab.resampling import Resampling
from acceptlab.store import Run, open_run
from tests.handmade import Step, chain, write_run

FAST = Resampling(n_resamples=200)


def lengths_of(run: Run) -> dict[str, list[int]]:
    rows = sorted(run.read("steps").to_pylist(), key=lambda row: (row["prompt_id"], row["step"]))
    found: dict[str, list[int]] = {}
    for row in rows:
        if row["n_nodes"]:
            found.setdefault(row["prompt_id"], []).append(row["accepted_len"])
    return found


def runs_of_low(lengths: list[int], at_most: int) -> list[int]:
    runs, current = [], 0
    for length in [*lengths, at_most + 1]:
        if length <= at_most:
            current += 1
        elif current:
            runs.append(current)
            current = 0
    return runs


@pytest.mark.parametrize("name", ["tree_run", "sampled_run"])
def test_retention_equals_a_loop(name: str, request: pytest.FixtureRequest) -> None:
    run: Run = request.getfixturevalue(name)
    frame = retention([run], resampling=FAST).frame
    texts = lengths_of(run)
    for row in frame.to_dict("records"):
        here = [
            n for text, steps in texts.items() if row["domain"] in (text.split("/")[0], "all") for n in steps
        ]
        k, alive = row["k"], [n for n in here if n >= row["k"]]
        assert row["length_share"] == pytest.approx(np.mean([n == k for n in here]))
        assert row["S_k"] == pytest.approx(len(alive) / len(here))
        assert row["J_k"] == pytest.approx(np.mean([min(n, k) for n in here]))
        if k:
            assert row["alpha_k"] == pytest.approx(len(alive) / len([n for n in here if n >= k - 1]))
        else:
            assert pd.isna(row["alpha_k"])
        assert row["n_steps"] == len(here)
    for _, group in frame.groupby("domain"):
        assert group["length_share"].sum() == pytest.approx(1)
        assert group["k"].tolist() == list(range(len(group)))
    deepest = {"tree_run": 3, "sampled_run": 4}[name]
    assert frame["k"].max() == deepest


@pytest.mark.parametrize("at_most", [0, 1, 2])
def test_streaks_of_every_text_equal_a_loop(tree_run: Run, at_most: int) -> None:
    frame = labels.step_streaks(queries.connect([tree_run]), at_most).set_index("prompt_id")
    texts = lengths_of(tree_run)
    assert set(frame.index) == set(texts)
    for text, lengths in texts.items():
        runs, row = runs_of_low(lengths, at_most), frame.loc[text]
        assert row["n_streaks"] == len(runs)
        assert row["longest_low"] == max(runs, default=0)
        assert row["n_low"] == sum(runs)
        assert (row["n_texts"], row["n_steps"], row["n_steps_sq"]) == (1, len(lengths), len(lengths) ** 2)
        assert (row["sum_len"], row["sum_len_sq"]) == (sum(lengths), sum(n * n for n in lengths))
        assert row["mean_part"] == pytest.approx(sum(lengths) ** 2 / len(lengths))


def test_the_streaks_table_equals_a_loop(tree_run: Run) -> None:
    frame = streaks([tree_run], resampling=FAST).frame
    for row in frame.to_dict("records"):
        texts = [
            steps
            for text, steps in lengths_of(tree_run).items()
            if row["domain"] in (text.split("/")[0], "all")
        ]
        runs = [runs_of_low(steps, 1) for steps in texts]
        pooled = [n for steps in texts for n in steps]
        within = sum(((np.array(s) - np.mean(s)) ** 2).sum() for s in texts) / (len(pooled) - len(texts))
        assert row["mean_len"] == pytest.approx(np.mean(pooled))
        assert row["variance_within"] == pytest.approx(within)
        assert row["longest_low"] == pytest.approx(np.mean([max(r, default=0) for r in runs]))
        assert row["longest_low_max"] == max(max(r, default=0) for r in runs)
        assert row["low_share"] == pytest.approx(np.mean([n <= 1 for n in pooled]))
        assert row["mean_streak"] == pytest.approx(np.mean([n for r in runs for n in r]))
        assert row["icc"] == pytest.approx(
            row["variance_between"] / (row["variance_between"] + row["variance_within"])
        )
        assert row["variance_between_lo"] <= row["variance_between"] <= row["variance_between_hi"]


def sums_of(texts: list[np.ndarray]) -> np.ndarray:
    rows = []
    for lengths in texts:
        runs = runs_of_low(lengths.tolist(), 1)
        n = len(lengths)
        row = (1, n, n * n, lengths.sum(), (lengths**2).sum(), lengths.sum() ** 2 / n, sum(runs), len(runs))
        rows.append([*row, max(runs, default=0)])
    return np.array(rows, dtype=float)


def test_variances_are_those_of_the_model_with_texts_of_different_length() -> None:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(60):
        means = rng.normal(3.0, 0.8, 120)
        texts = [mean + rng.normal(0, 1.5, rng.integers(2, 30)) for mean in means]
        found.append(statistic(sums_of(texts).sum(axis=0, keepdims=True))[0])
    within, between = np.mean(found, axis=0)[1:3]
    # standard errors over 60 samples are 0.009 and 0.018
    assert within == pytest.approx(1.5**2, abs=0.04)
    assert between == pytest.approx(0.8**2, abs=0.07)


def test_independent_steps_have_no_excess_and_sticky_ones_do() -> None:
    rng = np.random.default_rng(1)
    independent = [rng.choice([0, 1, 2, 3], rng.integers(3, 12)) for _ in range(3000)]
    sticky = [np.repeat(text, 2) for text in independent]
    excess = [statistic(sums_of(texts).sum(axis=0, keepdims=True))[0][7] for texts in (independent, sticky)]
    assert excess[0] == pytest.approx(1.0, abs=0.02)  # standard error 0.005
    assert excess[1] > 1.5


def test_degenerate_runs_give_nulls_with_reasons(tmp_path: Path) -> None:
    one = open_run(write_run(tmp_path / "one", {"code/x": [Step(chain("a", "a"))]}))
    row = streaks([one], resampling=FAST).frame.iloc[0]
    assert row["mean_len"] == 2
    assert row[["variance_within", "variance_between", "mean_streak"]].isna().all()
    assert "no text has two steps" in row["reason"]
    assert "no low step" in row["reason"]
    undrafted = open_run(write_run(tmp_path / "none", {"code/x": [Step(emitted=1)]}))
    assert streaks([undrafted], resampling=FAST).frame["mean_len"].isna().all()
    frame = retention([undrafted], resampling=FAST).frame
    assert frame["k"].tolist() == [0, 0]
    assert frame["S_k"].isna().all()
    assert len(SUMS) == sums_of([np.array([1, 2])]).shape[1]
