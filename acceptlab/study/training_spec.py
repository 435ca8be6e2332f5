"""The [training] table of a study: drafters that are trained and compared before anything is collected.

    [training]
    folder = "data/drafters/losses"           # one folder a run: start, ce-0, ce-1, ...
    results = "studies/losses"                # what was measured, small files
    start = "studies/training/losses/start.toml"
    arms = ["studies/training/losses/ce.toml", "studies/training/losses/real.toml"]   # the first is the baseline
    seeds = [0, 1, 2]
    score = "data/trajectories/eval-shipped"  # answers of the target to prompts that no run has seen

Names a file that says how to train; reads none and trains nothing.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from acceptlab.errors import UsageError


@dataclass(frozen=True)
class TrainedRun:
    """One training run; the start has no seed."""

    name: str
    arm: str
    seed: int | None
    config: Path
    folder: Path

    def state(self) -> str:
        """What of it is there: missing, or the last step that was reported."""
        try:
            lines = (self.folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
            return f"step {json.loads(lines[-1])['step']:,}"
        except (OSError, IndexError):
            return "missing"


@dataclass(frozen=True)
class Training:
    """What is trained and how it is measured.

    `one_seed` are arms that run with the first seed only. `score_prompts` is how many trajectories of a
    domain every run is scored on, `overhead_rounds` how often each loss is timed; `variance` names runs whose
    gradients are compared on `variance_windows` windows, and `rollout_contexts` contexts show every arm's
    first run drafting for itself.
    """

    folder: Path
    results: Path
    start: Path
    arms: tuple[Path, ...]
    seeds: tuple[int, ...]
    score: Path
    one_seed: tuple[str, ...] = ()
    score_prompts: int = 50
    overhead_rounds: int = 4
    variance: tuple[str, ...] = ()
    variance_windows: int = 400
    rollout_contexts: int = 40

    @property
    def baseline(self) -> str:
        """The arm that others are compared with."""
        return self.arms[0].stem

    @property
    def arm_names(self) -> tuple[str, ...]:
        """Arms in the order of the file."""
        return tuple(path.stem for path in self.arms)

    def runs(self) -> list[TrainedRun]:
        """All runs in the order in which they are made: the start, then every arm, seed after seed."""
        start = TrainedRun("start", "start", None, self.start, self.folder / "start")
        return [
            start,
            *(
                TrainedRun(f"{path.stem}-{seed}", path.stem, seed, path, self.folder / f"{path.stem}-{seed}")
                for seed in self.seeds
                for path in self.arms
                if seed == self.seeds[0] or path.stem not in self.one_seed
            ),
        ]


_LISTS = {"arms": str, "seeds": int, "one_seed": str, "variance": str}


def parse_training(table: Any, where: str) -> Training:
    """Check the table.

    Raises:
        UsageError: an unknown or missing key, a value of the wrong type, or a name that no run has.
    """
    if not isinstance(table, dict):
        raise UsageError(f"{where}: 'training' is a table: write [training]")
    known = {field.name: field for field in fields(Training)}
    for key in table:
        if key not in known:
            raise UsageError(f"{where}, training: unknown key '{key}': use one of {', '.join(known)}")
    for key, entry in known.items():
        if entry.default is MISSING and key not in table:
            raise UsageError(f"{where}, training has no '{key}': add it")
    training = Training(
        **{key: _value(key, value, str(known[key].type), where) for key, value in table.items()}
    )
    names = {run.name for run in training.runs()}
    for key, wanted, there in (
        ("one_seed", training.one_seed, set(training.arm_names)),
        ("variance", training.variance, names),
    ):
        for name in wanted:
            if name not in there:
                raise UsageError(
                    f"{where}, training: {key} names '{name}': use one of {', '.join(sorted(there))}"
                )
    return training


def _value(key: str, value: Any, kind: str, where: str) -> Any:
    if key in _LISTS:
        if not isinstance(value, list) or not all(type(item) is _LISTS[key] for item in value):
            raise UsageError(f"{where}, training: {key} is {value!r}: write a list of {_LISTS[key].__name__}")
        if not value and key in ("arms", "seeds"):
            raise UsageError(f"{where}, training: {key} is empty: name at least one")
        return tuple(map(Path, value)) if key == "arms" else tuple(value)
    if kind == "int":
        if type(value) is not int or value < 1:
            raise UsageError(f"{where}, training: {key} is {value!r}: write a whole number from 1")
        return value
    if not isinstance(value, str) or not value:
        raise UsageError(f"{where}, training: {key} is {value!r}: write a path")
    return Path(value)
