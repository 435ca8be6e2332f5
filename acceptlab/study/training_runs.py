"""Doing the [training] table of a study: train what is missing, measure what has not been measured.

Every measurement is a small file under `results`, with a fingerprint of what it was made from in
`fingerprints.json`, so that an interrupted study goes on where it was. No statistics here but the gradient
variances, whose raw numbers are too many to keep.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from acceptlab.drafters.base import Drafter
from acceptlab.drafters.causal import CausalDrafter
from acceptlab.drafters.files import WEIGHTS_FILE, load_drafter
from acceptlab.errors import UsageError
from acceptlab.files import replacing
from acceptlab.report.saved import write_text
from acceptlab.study.training_spec import TrainedRun, Training
from acceptlab.study.variance import variance_rows
from acceptlab.training.corpus import Example, load_examples
from acceptlab.training.diagnostics import rollout_length, window_gradients
from acceptlab.training.overhead import measure_overhead
from acceptlab.training.schedule import is_over
from acceptlab.training.scoring import score_positions
from acceptlab.training.settings import TrainSettings, read_settings
from acceptlab.training.target import TrainingTarget, load_target
from acceptlab.training.train import Trainer
from acceptlab.training.trajectories import list_parts

_TOGETHER = 11
"""Drafters that are scored in one pass over the trajectories: more save the target's work, and lose more if stopped."""
_ROLLOUT_TOKENS = 16
"""Rollouts start within so many tokens of an answer's beginning: behind long contexts they would cost too much."""
_WINDOWS_A_PROMPT = 4
Say = Callable[[str], None]


@dataclass(frozen=True)
class Measured:
    """What the study knows of its drafters; seeds and rounds are rows, not averages."""

    scores: pd.DataFrame
    overhead: pd.DataFrame
    variance: pd.DataFrame
    rollouts: pd.DataFrame


class Workshop:
    """Models, text and settings of the training part, loaded when first needed."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.runs = training.runs()
        self.settings = {run.name: self._settings(run) for run in self.runs}
        first = self.settings[self.runs[0].name]
        for run in self.runs:
            own = self.settings[run.name]
            if own.kind != "causal":
                raise UsageError(
                    f"{run.config} trains a drafter of kind {own.kind}: a study compares causal ones"
                )
            for name in ("target", "data", "gamma"):
                if getattr(own, name) != getattr(first, name):
                    raise UsageError(
                        f"{run.config} has {name} = {getattr(own, name)}, {training.start} has "
                        f"{getattr(first, name)}: all arms need the same"
                    )
        self.gamma = first.gamma

    def _settings(self, run: TrainedRun) -> TrainSettings:
        if run.seed is None:
            return read_settings(run.config, {})
        init = (self.training.folder / "start" / "last").as_posix()
        return read_settings(run.config, {"seed": run.seed, "init": init})

    @cached_property
    def target(self) -> TrainingTarget:
        """The target of all runs."""
        return load_target(self.settings[self.runs[0].name].target)

    @cached_property
    def examples(self) -> list[Example]:
        """The text that all runs are trained on, their held-out items included."""
        return load_examples([Path(name) for name in self.settings[self.runs[0].name].data])

    @cached_property
    def shared(self) -> list[Example]:
        """The trajectories that all runs are scored on: the first ones of every domain."""
        found: dict[str, list[Example]] = {}
        for example in load_examples([self.training.score]):
            own = found.setdefault(example.domain, [])
            if example.answer == 0 and len(own) < self.training.score_prompts:
                own.append(example)
        return [example for own in found.values() for example in own]

    def drafter(self, run: TrainedRun) -> Drafter:
        """The last state of a run."""
        return load_drafter(run.folder / "last", self.target.stack.embed_tokens.weight)

    def is_trained(self, run: TrainedRun) -> bool:
        """Whether its last reported step is the last one of its schedule."""
        log = run.folder / "log.jsonl"
        if not log.is_file() or not (run.folder / "last" / WEIGHTS_FILE).is_file():
            return False
        line = json.loads(log.read_text(encoding="utf-8").splitlines()[-1])
        return is_over(line["step"], line["trained_s"], self.settings[run.name])

    def train(self, run: TrainedRun, say: Say) -> None:
        """Train a run to its end, or what is left of it."""

        def report(line: Mapping[str, Any]) -> None:
            say(
                f"      step {line['step']}, loss {line['loss']:.4f}, held-out overlap {line['overlap']:.4f}, "
                f"{line['tokens_per_s']:.0f} tokens/s"
            )

        Trainer(run.folder, self.settings[run.name], self.target.stack, self.examples, report).run()


class Results:
    """Small files of measurements with the fingerprints of their origin."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "fingerprints.json"

    def prints(self) -> dict[str, str]:
        """Fingerprints by measurement."""
        if not self.path.is_file():
            return {}
        stored: dict[str, str] = json.loads(self.path.read_text(encoding="utf-8"))
        return stored

    def read(self, name: str) -> pd.DataFrame:
        """A file of measurements; empty where there is none."""
        path = self.folder / f"{name}.parquet"
        return pd.read_parquet(path) if path.is_file() else pd.DataFrame()

    def put(self, name: str, rows: pd.DataFrame, key: str, prints: Mapping[str, str]) -> None:
        """Replace the rows of the given keys, file first, then remember their fingerprints."""
        old = self.read(name)
        if len(old):
            old = old[~old[key].isin([entry.split("/")[1] for entry in prints])]
        frame = pd.concat([old, rows], ignore_index=True) if len(old) else rows
        with replacing(self.folder / f"{name}.parquet") as temporary:
            frame.to_parquet(temporary, index=False, compression="zstd")
        write_text(self.path, json.dumps({**self.prints(), **prints}, indent=1, sort_keys=True) + "\n")


def measure(workshop: Workshop, say: Say) -> Measured:
    """Measure all trained runs, or what of them has not been measured yet."""
    results = Results(workshop.training.results)
    states = {run.name: _digest(run.folder / "last" / WEIGHTS_FILE) for run in workshop.runs}
    _score(workshop, results, states, say)
    _time(workshop, results, states, say)
    _compare_gradients(workshop, results, states, say)
    _roll_out(workshop, results, states, say)
    names = [run.name for run in workshop.runs]
    scores = results.read("scores")
    return Measured(
        scores=scores[scores["run"].isin(names)],
        overhead=results.read("overhead"),
        variance=results.read("variance"),
        rollouts=results.read("rollouts"),
    )


def _score(workshop: Workshop, results: Results, states: Mapping[str, str], say: Say) -> None:
    text = _digest(*list_parts(workshop.training.score))
    wanted = {
        run.name: f"{states[run.name]} {text} {workshop.training.score_prompts}" for run in workshop.runs
    }
    missing = [run for run in workshop.runs if results.prints().get(f"scores/{run.name}") != wanted[run.name]]
    for first in range(0, len(missing), _TOGETHER):
        group = missing[first : first + _TOGETHER]
        say(f"      scoring {', '.join(run.name for run in group)}")
        drafters = {run.name: workshop.drafter(run) for run in group}
        weight = workshop.target.stack.output_weight
        tables = score_positions(drafters, workshop.shared, weight, gamma=workshop.gamma)
        frames = [
            tables[run.name]
            .to_pandas()
            .assign(run=run.name, arm=run.arm, seed=-1 if run.seed is None else run.seed)
            for run in group
        ]
        results.put(
            "scores",
            pd.concat(frames, ignore_index=True),
            "run",
            {f"scores/{run.name}": wanted[run.name] for run in group},
        )


def _time(workshop: Workshop, results: Results, states: Mapping[str, str], say: Say) -> None:
    training = workshop.training
    arms = {path.stem: workshop.settings[f"{path.stem}-{training.seeds[0]}"] for path in training.arms}
    wanted = f"{training.overhead_rounds} " + _digest_text(
        [{**settings.as_dict(), "init": ""} for settings in arms.values()]
    )
    if results.prints().get("overhead/all") == wanted:
        return
    say(f"      timing {len(arms)} losses")
    start = workshop.drafter(workshop.runs[0])
    assert isinstance(start, CausalDrafter)
    spent = measure_overhead(
        arms, start.train(), workshop.target.stack, workshop.examples, rounds=training.overhead_rounds
    )
    rows = [
        {"part": "all", "arm": arm, "round": turn, "seconds": seconds}
        for arm, found in spent.items()
        for turn, seconds in enumerate(found)
    ]
    results.put("overhead", pd.DataFrame(rows), "part", {"overhead/all": wanted})


def _compare_gradients(workshop: Workshop, results: Results, states: Mapping[str, str], say: Say) -> None:
    training = workshop.training
    text = _digest(*list_parts(training.score))
    for run in [run for run in workshop.runs if run.name in training.variance]:
        key, wanted = f"variance/{run.name}", f"{states[run.name]} {text} {training.variance_windows}"
        if results.prints().get(key) == wanted:
            continue
        say(f"      gradient variance of {run.name}")
        gradients = window_gradients(
            workshop.drafter(run),
            _alternate(workshop.shared),
            gamma=workshop.gamma,
            max_windows=training.variance_windows,
            per_example=_WINDOWS_A_PROMPT,
        )
        rows = variance_rows([found.numpy() for found in gradients])
        results.put("variance", pd.DataFrame(rows).assign(run=run.name), "run", {key: wanted})


def _roll_out(workshop: Workshop, results: Results, states: Mapping[str, str], say: Say) -> None:
    training = workshop.training
    text = _digest(*list_parts(training.score))
    first = [run for run in workshop.runs if run.seed in (None, training.seeds[0])]
    contexts = [_cut(example, _ROLLOUT_TOKENS) for example in _alternate(workshop.shared)]
    for run in first:
        key, wanted = f"rollouts/{run.name}", f"{states[run.name]} {text} {training.rollout_contexts}"
        if results.prints().get(key) == wanted:
            continue
        say(f"      rollouts of {run.name}")
        drafter = workshop.drafter(run)
        assert isinstance(drafter, CausalDrafter)
        found = rollout_length(
            drafter,
            workshop.target.stack,
            contexts,
            gamma=workshop.gamma,
            eos_id=workshop.settings[run.name].eos_id,
            max_contexts=training.rollout_contexts,
            group=2,
        )
        if found is not None:
            row = pd.DataFrame([{"run": run.name, "arm": run.arm, **asdict(found)}])
            results.put("rollouts", row, "run", {key: wanted})


def _alternate(examples: Sequence[Example]) -> list[Example]:
    """One of each domain in turn, so that a beginning of the list covers them all."""
    order: dict[str, int] = {}
    ranked = []
    for example in examples:
        order[example.domain] = order.get(example.domain, 0) + 1
        ranked.append((order[example.domain], example))
    return [example for _, example in sorted(ranked, key=lambda pair: pair[0])]


def _cut(example: Example, n_tokens: int) -> Example:
    """Only the first output tokens of an example."""
    return replace(
        example,
        token_ids=example.token_ids[: example.prompt_len + n_tokens],
        log_norms=example.log_norms[:n_tokens],
        features=example.features[: example.prompt_len - example.shared_len + n_tokens],
    )


def _digest(*paths: Path) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _digest_text(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
