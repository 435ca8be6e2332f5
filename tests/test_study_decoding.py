"""Decoding with trained drafters: sums by prompt, paired with the baseline's, against a plain loop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from acceptlab.resampling import Resampling
from acceptlab.store import Run, open_run
from acceptlab.study.decoding import decoding_table, prompt_sums, served_arms
from tests.handmade import Step, chain, write_run

FEW = Resampling(n_resamples=100)
N_PROMPTS = 12


def make_run(folder: Path, shift: float, seed: int) -> Run:
    """Twelve prompts a domain with steps of chance; the last step of every prompt drafts nothing."""
    rng = np.random.default_rng(seed)
    prompts = {}
    for domain in ("code", "chat"):
        for i in range(N_PROMPTS):
            outcomes = ["".join("a" * int(rng.integers(0, 3)) + "r") for _ in range(int(rng.integers(1, 4)))]
            steps = [Step(chain(*own), expected=shift + 0.1 * i + 0.01 * len(own)) for own in outcomes]
            prompts[f"{domain}/{i}"] = [*steps, Step(emitted=1)]
    return open_run(write_run(folder, prompts, run_id=folder.name))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("decoding")
    return {
        name: make_run(folder / name, shift, seed)
        for seed, (name, shift) in enumerate(
            (("ce-greedy", 0.2), ("real-path-greedy", 0.5), ("ce-sampled", 0.1))
        )
    }


def test_names_split_at_the_last_dash_and_others_are_left_out() -> None:
    found = served_arms(["ce-greedy", "real-path-sampled", "layerskip-greedy", "ce"], ("ce", "real-path"))
    assert found == {"ce-greedy": ("ce", "greedy"), "real-path-sampled": ("real-path", "sampled")}


def test_rows_are_ratios_of_sums_over_drafted_steps(runs: dict[str, Run]) -> None:
    served = served_arms(list(runs), ("ce", "real-path"))
    table = decoding_table(runs, served, "ce", FEW)
    frame = table.frame.set_index(["serving", "arm", "domain"])
    assert set(frame.index.get_level_values("serving")) == {"greedy", "sampled"}
    for name, (arm, serving) in served.items():
        steps = runs[name].read("steps").to_pandas()
        drafted = steps[steps["n_nodes"] > 0]
        for domain in ("all", "code", "chat"):
            own = drafted if domain == "all" else drafted[drafted["domain"] == domain]
            row = frame.loc[(serving, arm, domain)]
            assert row["accepted_len"] == pytest.approx(own["accepted_len"].mean())
            assert row["expected_len"] == pytest.approx(own["expected_accepted_len"].mean())
            assert row["n_steps"] == len(own)
            assert row["n_prompts"] == own["prompt_id"].nunique()
            assert row["accepted_len_lo"] <= row["accepted_len"] <= row["accepted_len_hi"]
    gap = frame.loc[("greedy", "real-path", "all")]
    ce = frame.loc[("greedy", "ce", "all")]
    assert gap["difference"] == pytest.approx(gap["expected_len"] - ce["expected_len"])
    assert gap["difference_lo"] < gap["difference"] < gap["difference_hi"]
    assert pd.isna(ce["difference"])
    assert pd.isna(frame.loc[("sampled", "ce", "all"), "difference"])


def test_sums_have_one_row_a_prompt(runs: dict[str, Run]) -> None:
    sums = prompt_sums(runs["ce-greedy"])
    assert len(sums) == 2 * N_PROMPTS
    assert sums.loc["code/3", "domain"] == "code"
    assert (sums["n_steps"] >= 1).all()
