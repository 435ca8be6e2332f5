"""A study that trains, on a tiny target: made once, then skipped; only what changed is measured again."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from acceptlab.errors import UsageError
from acceptlab.study import training_part, training_runs
from acceptlab.study.training_spec import Training, parse_training
from acceptlab.training.target import TrainingTarget
from tests.training.helpers import tiny_target
from tests.training.test_train import make_examples

CONFIG = """
[train]
target = "tiny"
data = ["text"]
n_kept = 30
steps = 4
batch_tokens = 40
gamma = 4
warmup_steps = 1
report_every = 2
diagnose = false
"""


class Told:
    """Parts that keep what they were told."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.skipped: list[str] = []
        self.lines: list[str] = []

    def begin(self, what: str) -> None:
        self.what = what

    def end(self, *, skipped: str = "", said: str = "") -> None:
        (self.skipped if skipped else self.made).append(self.what)

    def say(self, message: str) -> None:
        self.lines.append(message.strip())


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Training:
    monkeypatch.chdir(tmp_path)
    Path("start.toml").write_text(CONFIG + 'loss = "ce"\n')
    for loss in ("ce", "real"):
        Path(f"{loss}.toml").write_text(CONFIG + f'loss = "{loss}"\n')
    Path("held-out").mkdir()
    Path("held-out/part-000000.parquet").write_bytes(b"text")
    monkeypatch.setattr(training_runs, "load_target", lambda name: TrainingTarget(name, tiny_target(), None))
    monkeypatch.setattr(training_runs, "load_examples", lambda folders: make_examples(60))
    return parse_training(
        {
            "folder": "drafters",
            "results": "results",
            "start": "start.toml",
            "arms": ["ce.toml", "real.toml"],
            "seeds": [0, 1],
            "score": "held-out",
            "score_prompts": 12,
            "overhead_rounds": 2,
            "variance": ["start"],
            "variance_windows": 12,
            "rollout_contexts": 4,
        },
        "'s.toml'",
    )


def test_drafters_are_trained_and_measured_once(training: Training) -> None:
    first = Told()
    tables = {table.name: table.frame for table in training_part.train_and_measure(training, first)}
    runs = ["start", "ce-0", "real-0", "ce-1", "real-1"]
    assert first.made == [*(f"train {name}" for name in runs), "measure the drafters"]
    assert len(first.made) == training_part.count_parts(training)
    settings = json.loads(Path("drafters/real-1/settings.json").read_text())
    assert (settings["seed"], settings["loss"], settings["init"]) == (1, "real", "drafters/start/last")
    lengths = tables["losses"].set_index(["arm", "domain"])
    assert lengths.loc[("real", "all"), ["n_seeds", "n_prompts"]].tolist() == [2, 12]
    assert tables["losses-retention"]["k"].max() == 4
    assert tables["losses-overhead"]["n_rounds"].tolist() == [2, 2]
    assert tables["losses-rollouts"]["checkpoint"].tolist() == ["start", "ce-0", "real-0"]
    assert tables["losses-variance"]["n_windows"].unique().tolist() == [12]
    again = Told()
    repeated = training_part.train_and_measure(training, again)
    assert again.made == ["measure the drafters"]
    assert again.lines == []
    for table in repeated:
        pd.testing.assert_frame_equal(table.frame, tables[table.name])


def test_only_a_changed_drafter_is_measured_again(training: Training) -> None:
    training_part.train_and_measure(training, Told())
    weights = Path("drafters/real-0/last/model.safetensors")
    weights.write_bytes(Path("drafters/real-1/last/model.safetensors").read_bytes())
    told = Told()
    training_part.train_and_measure(training, told)
    assert told.lines == ["scoring real-0", "rollouts of real-0"]
    scores = pd.read_parquet("results/scores.parquet").set_index("run")
    assert scores.loc["real-0", "branch"].tolist() == scores.loc["real-1", "branch"].tolist()
    assert len(scores) == 5 * 12 * 4


def test_an_interrupted_run_goes_on(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop = training_runs.Workshop(training)
    start = workshop.runs[0]

    def stop(line: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        workshop.train(start, stop)
    assert not workshop.is_trained(start)
    lines: list[str] = []
    workshop.train(start, lines.append)
    assert workshop.is_trained(start)
    assert [line.strip().split(",")[0] for line in lines] == ["step 4"]


def test_arms_on_other_text_are_refused(training: Training) -> None:
    Path("real.toml").write_text(CONFIG.replace('["text"]', '["other"]') + 'loss = "real"\n')
    with pytest.raises(UsageError, match="all arms need the same"):
        training_runs.Workshop(training)


def test_heads_are_refused_before_anything_is_trained(training: Training) -> None:
    Path("real.toml").write_text(CONFIG + 'loss = "real"\nkind = "cross"\n')
    with pytest.raises(
        UsageError, match="real.toml trains a drafter of kind cross: a study compares causal ones"
    ):
        training_part.train_and_measure(training, Told())
    assert not Path("drafters").exists()
