"""Settings of a training run, and reading them from TOML."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from acceptlab.drafters.files import KINDS
from acceptlab.errors import UsageError
from acceptlab.training.grpo_stage import GrpoOptions
from acceptlab.training.losses import LOCAL, LossOptions, check_objective


@dataclass(frozen=True)
class TrainSettings:
    """Everything that decides a training run; `init` is a drafter folder to go on from, or empty; a
    feature head may begin with a causal drafter.

    `score` are folders of other trajectories, on which the best drafter is measured by domain at the end. The
    stage "grpo" reinforces the drafter of `init` with its own rollouts instead of the loss. With `recut`
    such a drafter's output vocabulary is chosen again from the present text; with `learn_prompts` the
    user's turns are trained on as well, which only losses of single positions allow. `minutes` above 0
    replace `steps`: the run ends after so much training time, and the learning rate follows that clock;
    held-out measures and interruptions do not count. Without `diagnose` the gradient variance and the
    rollouts at the end, which run the target, are left out. `grow` puts these layers of the target into the
    drafter of `init`, which must be causal. `taps` are the layers of the target in front of which the last
    layers of a cross head read it, one for each; by default the later half reads where it starts from.
    `stored_bits` is the width of the stored matrices, 16 or 8; `file_mb` above 0 is the largest size of a stored
    file in 10^6 bytes.
    """

    target: str
    data: tuple[str, ...]
    kind: str = "causal"
    loss: str = "kl"
    options: LossOptions = field(default_factory=LossOptions)
    stage: str = "supervised"
    grpo: GrpoOptions = field(default_factory=GrpoOptions)
    eos_id: int = 2
    init: str = ""
    grow: tuple[int, ...] = ()
    stored_bits: int = 16
    file_mb: float = 0.0
    recut: bool = False
    learn_prompts: bool = False
    layers: tuple[int, ...] = (0, -1)
    taps: tuple[int, ...] = ()
    n_kept: int = 8192
    steps: int = 500
    minutes: float = 0.0
    batch_tokens: int = 1800
    gamma: int = 8
    learning_rate: float = 1e-3
    warmup_steps: int = 20
    final_share: float = 0.05
    weight_decay: float = 0.01
    clip: float = 1.0
    seed: int = 0
    report_every: int = 100
    held_out_items: int = 40
    score: tuple[str, ...] = ()
    diagnose: bool = True

    def __post_init__(self) -> None:
        """Refuse what cannot be trained with."""
        check_objective(self.loss, self.options)
        for name in ("steps", "batch_tokens", "gamma", "report_every", "held_out_items", "n_kept"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if not self.minutes >= 0:
            raise UsageError(f"minutes is {self.minutes}: write 0 to train by steps, or a positive number")
        if not self.learning_rate > 0:
            raise UsageError(f"learning_rate is {self.learning_rate}: it must be above 0")
        if not self.file_mb >= 0:
            raise UsageError(f"file_mb is {self.file_mb}: write 0 for one file, or a positive number")
        if self.stored_bits not in (8, 16):
            raise UsageError(f"stored_bits is {self.stored_bits}: write 16 or 8")
        if self.grow and (not self.init or self.kind != "causal"):
            raise UsageError("grow needs a causal drafter to start from: name its folder with --init")
        if self.learn_prompts and (self.loss not in LOCAL or self.loss == "ce"):
            raise UsageError(
                f"learn_prompts goes with kl, tv, la, renyi or another local loss, not '{self.loss}'"
            )
        if self.stage not in ("supervised", "grpo"):
            raise UsageError(f"unknown stage '{self.stage}': use supervised or grpo")
        if self.stage == "grpo" and (not self.init or self.kind != "causal"):
            raise UsageError(
                "the grpo stage needs a causal drafter to start from: name its folder with --init"
            )
        if self.kind not in KINDS:
            raise UsageError(f"unknown kind of drafter '{self.kind}': use one of {', '.join(KINDS)}")
        self._check_taps()
        if not self.layers:
            raise UsageError("layers is empty: name the target's layers to start from, such as [0, -1]")

    def _check_taps(self) -> None:
        if self.taps and self.kind != "cross":
            raise UsageError(f"taps are for drafters of kind cross, not {self.kind}: leave them out")
        if len(self.taps) > len(self.layers) and not self.init:
            raise UsageError(
                f"{len(self.taps)} taps are more than the {len(self.layers)} layers: name one for each at most"
            )

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return json.loads(json.dumps(asdict(self)))  # type: ignore[no-any-return]


def read_settings(path: Path, changes: Mapping[str, Any]) -> TrainSettings:
    """The [train] table of a TOML file, with some values changed; [train.options] are those of the loss,
    [train.grpo] those of the reinforcement stage.

    Raises:
        UsageError: no such file, not TOML, an unknown name or a value of the wrong type.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise UsageError(f"there is no file '{path}': name a TOML file with a [train] table") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"'{path}' is no TOML file ({error}): correct it") from None
    values = table.get("train")
    if not isinstance(values, dict):
        raise UsageError(f"'{path}' has no [train] table: add one")
    return make_settings({**values, **changes})


def make_settings(values: Mapping[str, Any]) -> TrainSettings:
    """Check names and types, and fill in defaults.

    Raises:
        UsageError: an unknown name, or a value of the wrong type.
    """
    checked = _checked("train", values, TrainSettings)
    for name in ("data", "layers", "taps", "grow", "score"):
        if name in checked:
            checked[name] = tuple(checked[name])
    if "options" in checked:
        checked["options"] = LossOptions(**_checked("train.options", checked["options"], LossOptions))
    if "grpo" in checked:
        checked["grpo"] = GrpoOptions(**_checked("train.grpo", checked["grpo"], GrpoOptions))
    for name in ("target", "data"):
        if name not in checked:
            raise UsageError(f"the [train] table has no '{name}': add it")
    return TrainSettings(**checked)


_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "tuple[str, ...]": (list, tuple),
    "tuple[int, ...]": (list, tuple),
    "LossOptions": (dict,),
    "GrpoOptions": (dict,),
    "Auxiliary": (str,),
    "int | None": (int,),
    "float | None": (int, float),
    "str | None": (str,),
}

_ITEMS: dict[str, type] = {"tuple[str, ...]": str, "tuple[int, ...]": int}


def _checked(table: str, values: Any, kind: type) -> dict[str, Any]:
    known = {entry.name: str(entry.type) for entry in fields(kind)}
    for name, value in values.items():
        if name not in known:
            raise UsageError(f"unknown setting '{name}' in [{table}]: use one of {', '.join(known)}")
        expected, item = _TYPES[known[name]], _ITEMS.get(known[name])
        fits = isinstance(value, expected) and (bool in expected or not isinstance(value, bool))
        if not fits or (item and any(type(each) is not item for each in value)):
            raise UsageError(f"[{table}] {name} = {value!r} should be of type {known[name]}: correct it")
    return dict(values)
