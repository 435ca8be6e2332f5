"""The draft's columns in the parts of trajectories, against a plain forward at every place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from acceptlab.drafters.base import Drafter, Rows
from acceptlab.drafters.causal import CausalDrafter
from acceptlab.drafters.cross_head import CrossHead
from acceptlab.drafters.heads import FeatureHead
from acceptlab.drafters.output_layer import CutOutput
from acceptlab.training.corpus import load_examples
from acceptlab.training.draft_scores import score_parts
from acceptlab.training.evaluate import evaluate
from acceptlab.training.static_cache import StaticDecoder
from acceptlab.training.taps import write_taps
from acceptlab.training.trajectories import GivenPrompt, TrajectorySettings, generate_trajectories, list_parts
from tests.training.helpers import VOCAB, CharTokenizer, tiny_target

SETTINGS = TrajectorySettings("tiny", 6, 1, 9, 0, 4, greedy=False, prompts="given", keep_features=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    given = [GivenPrompt("chat", text) for text in ("abc", "de fg", "hi", "jkl.", "mn", "opq r")]
    generate_trajectories(tmp_path, StaticDecoder(tiny_target()), CharTokenizer(), SETTINGS, given=given)
    return tmp_path


def make_drafter(kind: type[CausalDrafter] | type[FeatureHead], layer: int = 0) -> Drafter:
    return kind.from_target(tiny_target(), (layer,), CutOutput(torch.arange(3, 50), torch.ones(VOCAB), 32))


@torch.no_grad()
def test_columns_are_what_the_draft_says_at_every_place(folder: Path) -> None:
    drafter, weight = make_drafter(CausalDrafter), tiny_target().output_weight
    mean = score_parts(folder, drafter, weight, name="one")
    every = []
    for part in list_parts(folder):
        examples = {e.item: e for e in load_examples([folder], min_output_len=1)}
        for row in pq.read_table(part).to_pylist():
            ids, start = row["prompt_token_ids"] + row["output_token_ids"], len(row["prompt_token_ids"])
            features = torch.from_numpy(examples[row["item"]].features.astype(np.float32))
            for place, token in enumerate(row["output_token_ids"]):
                at = start + place
                rows = Rows(
                    torch.tensor([ids[:at]]), torch.tensor([0]), torch.tensor([at - 1]), torch.tensor([0])
                )
                draft = drafter.output.expand(drafter.row_logits(rows))[0].softmax(-1)
                target = (features[at - row["shared_len"]] @ weight.T).softmax(-1)
                # float32 in two orders of summation
                assert row["draft_log_probs"][place] == pytest.approx(float(draft[token].log()), abs=1e-4)
                assert row["overlaps"][place] == pytest.approx(
                    float(torch.minimum(draft, target).sum()), abs=1e-5
                )
                every.append(row["overlaps"][place])
    assert mean == pytest.approx(np.mean(every), rel=1e-6)


def test_parts_of_the_same_draft_are_left_alone_and_those_of_another_replaced(folder: Path) -> None:
    weight = tiny_target().output_weight
    told: list[tuple[int, int]] = []
    first = score_parts(folder, make_drafter(CausalDrafter), weight, name="one")
    times = [part.stat().st_mtime_ns for part in list_parts(folder)]
    again = score_parts(
        folder,
        make_drafter(CausalDrafter, 1),
        weight,
        name="one",
        report=lambda n, of, _: told.append((n, of)),
    )
    assert again == first
    assert [part.stat().st_mtime_ns for part in list_parts(folder)] == times
    assert told == [(1, 2), (2, 2)]
    other = score_parts(folder, make_drafter(CausalDrafter, 1), weight, name="two")
    assert other != first
    for part in list_parts(folder):
        names = pq.read_schema(part).names
        assert names.count("overlaps") == names.count("draft_log_probs") == 1


def test_a_feature_head_is_scored_as_it_drafts(folder: Path) -> None:
    head, weight = make_drafter(FeatureHead), tiny_target().output_weight
    mean = score_parts(folder, head, weight, name="head")
    examples = load_examples([folder], min_output_len=1)
    # the same windows of eight tokens from the first output token on; float32
    assert mean == pytest.approx(evaluate(head, examples, weight, gamma=8).overlap, rel=1e-5)


def test_a_cross_head_is_scored_on_the_states_that_it_reads(folder: Path) -> None:
    target = tiny_target()
    head = CrossHead.from_target(target, (0, 1), CutOutput(torch.arange(3, 50), torch.ones(VOCAB), 32))
    write_taps([folder], target, head.tap_layers)
    mean = score_parts(folder, head, target.output_weight, name="cross")
    examples = load_examples([folder], min_output_len=1, tap_layers=head.tap_layers)
    assert mean == pytest.approx(evaluate(head, examples, target.output_weight, gamma=8).overlap, rel=1e-5)
