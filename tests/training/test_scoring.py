"""Scores by prompt and position against the held-out measures, and the cost of losses on a clock of our own."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import numpy as np
import pytest
import torch

from acceptlab.drafters.causal import CausalDrafter
from acceptlab.drafters.output_layer import CutOutput
from acceptlab.training.evaluate import evaluate
from acceptlab.training.grpo_stage import GrpoOptions
from acceptlab.training.overhead import measure_overhead
from acceptlab.training.scoring import score_positions
from tests.training.helpers import VOCAB, tiny_target
from tests.training.test_train import SETTINGS, make_examples

GAMMA = 4


def make_drafter(layer: int) -> CausalDrafter:
    return CausalDrafter.from_target(
        tiny_target(), (layer,), CutOutput(torch.arange(3, 50), torch.ones(VOCAB), 32)
    )


def test_scores_by_position_add_up_to_the_held_out_measures() -> None:
    examples, weight = make_examples(9), tiny_target().output_weight
    drafters = {"first": make_drafter(0), "last": make_drafter(-1)}
    tables = score_positions(drafters, examples, weight, gamma=GAMMA)
    for name, drafter in drafters.items():
        frame = tables[name].to_pandas()
        whole = evaluate(drafter, examples, weight, gamma=GAMMA)
        windows = frame.loc[frame.position == 1, "n_windows"].sum()
        n_tokens = frame["n_windows"].sum()
        assert n_tokens == whole.n_tokens
        # float32 sums of a few dozen rows
        assert frame["branch"].sum() / windows == pytest.approx(whole.branch, rel=1e-5)
        assert frame["path"].sum() / windows == pytest.approx(whole.path, rel=1e-5)
        assert frame["overlap"].sum() / n_tokens == pytest.approx(whole.overlap, rel=1e-5)
        assert frame["match"].sum() / n_tokens == pytest.approx(whole.match, rel=1e-9)
        by_position = frame.groupby("position")[["overlap", "n_windows"]].sum()
        steps = by_position["overlap"] / by_position["n_windows"]
        assert steps.cumprod().sum() == pytest.approx(whole.product, rel=1e-5)
    assert not np.allclose(tables["first"]["branch"], tables["last"]["branch"])


def test_scores_stay_with_their_prompt_and_position() -> None:
    examples = make_examples(5)
    drafter, weight = make_drafter(0), tiny_target().output_weight
    together = score_positions({"d": drafter}, examples, weight, gamma=GAMMA)["d"].to_pandas()
    alone = score_positions({"d": drafter}, examples[3:4], weight, gamma=GAMMA)["d"].to_pandas()
    own = together[together["item"] == 3].reset_index(drop=True)
    assert own.equals(alone)
    # 8 output tokens make two whole windows
    assert own["position"].tolist() == [1, 2, 3, 4]
    assert own["n_windows"].tolist() == [2, 2, 2, 2]
    # the first branch term is the overlap itself, later ones are smaller; path terms only fall
    assert own["branch"][0] == own["overlap"][0]
    assert (own["branch"][1:] < own["overlap"][1:]).all()
    assert (np.diff(own["path"]) < 0).all()


def test_overhead_gives_each_arm_its_own_seconds_and_leaves_the_drafter_alone() -> None:
    arms = {
        "ce": replace(SETTINGS, loss="ce"),
        "real": replace(SETTINGS, loss="real"),
        "grpo": replace(SETTINGS, stage="grpo", init="x", grpo=GrpoOptions(contexts=2, group=2)),
    }
    drafter = make_drafter(0)
    before = {name: tensor.clone() for name, tensor in drafter.state_dict().items()}
    ticks = count()
    # the clock shows squares, so the n-th look differs from the one before it by 2 n - 1
    spent = measure_overhead(
        arms, drafter, tiny_target(), make_examples(30), rounds=2, clock=lambda: float(next(ticks) ** 2)
    )
    # the warm-up took looks 0 to 2; round 1 begins with the second arm, round 2 with the third
    assert {name: [int(s) for s in seconds] for name, seconds in spent.items()} == {
        "ce": [15, 23],
        "real": [7, 27],
        "grpo": [11, 19],
    }
    assert all(torch.equal(before[name], tensor) for name, tensor in drafter.state_dict().items())
    assert all(p.grad is None for p in drafter.parameters())
