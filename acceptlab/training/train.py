"""The training loop: AdamW on batches of trajectories, with held-out measures and resumable checkpoints.

A run is a folder: `settings.json`, `log.jsonl` (one line a report), `checkpoint.pt` (everything to go on
from), the drafter folders `best/` (highest held-out overlap so far) and `last/`, and at the end, where asked
for, `diagnostics.json` and `scores.json`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from acceptlab.drafters.base import Drafter
from acceptlab.drafters.causal import CausalDrafter
from acceptlab.drafters.files import DrafterConfig, config_of, load_drafter, save_drafter
from acceptlab.drafters.llama import LlamaStack
from acceptlab.errors import RunError, UsageError
from acceptlab.files import replacing
from acceptlab.training.corpus import (
    Batch,
    Example,
    draw_batches,
    learn_prompts,
    split_examples,
)
from acceptlab.training.diagnostics import gradient_variance, rollout_length
from acceptlab.training.evaluate import evaluate
from acceptlab.training.grpo_stage import GrpoStage
from acceptlab.training.losses import BestTokens, Scores, objective, reads_best_tokens, reads_target
from acceptlab.training.schedule import is_over, learning_rate
from acceptlab.training.settings import TrainSettings
from acceptlab.training.start import make_drafter

_CHECKPOINT = "checkpoint.pt"


def supervised_loss(drafter: Drafter, settings: TrainSettings, batch: Batch) -> Tensor:
    """The loss of these settings on a batch."""
    best = None
    if reads_target(settings.loss, settings.options):
        with torch.no_grad():
            target_probs = drafter.output.merge(batch.features, batch.log_norms, drafter.kept_weight)
            if reads_best_tokens(settings.loss):
                weight = drafter.embeddings.float()
                best = BestTokens(*drafter.output.best_tokens(target_probs, batch.features, weight))
    else:
        target_probs = batch.features.new_empty(batch.n_tokens, 0)
    labels = drafter.output.classes(batch.labels)
    scores = Scores(drafter.row_logits(batch.rows), target_probs, labels, batch.windows, best)
    return objective(settings.loss, scores, settings.options)


def check_begun(folder: Path, settings: TrainSettings) -> None:
    """Whether a run in this folder may go on with these settings.

    Raises:
        UsageError: it was begun with others.
    """
    path = folder / "settings.json"
    if not path.exists():
        return
    # a run begun before a setting existed was begun with its default
    usual = TrainSettings(target="", data=()).as_dict()
    stored = usual | json.loads(path.read_text(encoding="utf-8"))
    for name, value in settings.as_dict().items():
        if stored[name] != value:
            raise UsageError(
                f"{folder} was begun with {name} = {stored[name]}, not {value}: use another output"
            )


def check_enough(examples: Sequence[Example]) -> tuple[list[Example], list[Example]]:
    """The examples to train on and those held out.

    Raises:
        UsageError: none of one of them.
    """
    train, held_out = split_examples(examples)
    if not train or not held_out:
        raise UsageError(f"{len(examples)} trajectories are too few to train on: generate more")
    return train, held_out


class Trainer:
    """One training run in a folder. `run` goes on from the folder's checkpoint where there is one."""

    def __init__(
        self,
        folder: Path,
        settings: TrainSettings,
        target: LlamaStack,
        examples: Sequence[Example],
        report: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        if target.output_weight is not target.embed_tokens.weight:
            raise UsageError("the target's output layer is not its embedding matrix: drafters share the two")
        self.folder = folder
        self.settings = settings
        self.target = target
        self.train_examples, held_out = check_enough(examples)
        stride = max(1, len(held_out) // settings.held_out_items)
        self.held_out = held_out[::stride][: settings.held_out_items]
        if settings.learn_prompts:
            self.train_examples = learn_prompts(self.train_examples, target.output_weight)
        self.report = report or (lambda line: None)
        self.drafter = make_drafter(settings, target, self.train_examples)
        decayed = [p for p in self.drafter.parameters() if p.ndim > 1]
        plain = [p for p in self.drafter.parameters() if p.ndim <= 1]
        groups = [
            {"params": decayed, "weight_decay": settings.weight_decay},
            {"params": plain, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.95))
        self.grpo: GrpoStage | None = None
        if settings.stage == "grpo":
            assert isinstance(self.drafter, CausalDrafter)
            self.grpo = GrpoStage(self.drafter, target, settings.grpo, settings.eos_id)
        self.step = 0
        self.best = -1.0
        self.trained_s = 0.0
        self._open()

    def _open(self) -> None:
        check_begun(self.folder, self.settings)
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "settings.json"
        if not path.exists():
            path.write_text(json.dumps(self.settings.as_dict(), indent=1) + "\n", encoding="utf-8")
        if (self.folder / _CHECKPOINT).exists():
            self._restore()

    def _restore(self) -> None:
        path = self.folder / _CHECKPOINT
        try:
            state = torch.load(path, weights_only=True)
            self.drafter.load_state_dict(state["drafter"])
            self.optimizer.load_state_dict(state["optimizer"])
        except (OSError, RuntimeError, KeyError) as error:
            raise RunError(f"cannot read {path} ({error}): delete it to start again") from None
        self.drafter.share_embeddings(self.target.embed_tokens.weight)
        self.step, self.best, self.trained_s = state["step"], state["best"], state["trained_s"]

    def run(self) -> float:
        """Train until the schedule is over; returns the best held-out overlap."""
        settings = self.settings
        batches = draw_batches(
            self.train_examples,
            batch_tokens=settings.batch_tokens,
            gamma=settings.gamma,
            seed=settings.seed,
            start_step=self.step,
            with_features=self.drafter.needs_features,
        )
        since, n_tokens, losses = self.trained_s, 0, []
        while not is_over(self.step, self.trained_s, settings):
            began = time.monotonic()
            batch = next(batches)
            losses.append(self._update(batch))
            n_tokens += batch.n_tokens
            self.step += 1
            self.trained_s += time.monotonic() - began
            if self.step % settings.report_every == 0 or is_over(self.step, self.trained_s, settings):
                self._report(sum(losses) / len(losses), n_tokens / (self.trained_s - since))
                since, n_tokens, losses = self.trained_s, 0, []
        if settings.diagnose:
            self._diagnose()
        return self.best

    def score(self, examples: Sequence[Example]) -> dict[str, Any]:
        """Measure the best drafter on other trajectories by domain, and keep the result as `scores.json`."""
        best = load_drafter(self.folder / "best", self.target.embed_tokens.weight)
        scores: dict[str, Any] = {}
        for domain in sorted({e.domain for e in examples}):
            own = [e for e in examples if e.domain == domain]
            measured = evaluate(best, own, self.target.output_weight, gamma=self.settings.gamma)
            scores[domain] = asdict(measured)
        mean = sum(values["overlap"] for values in scores.values()) / len(scores)
        scores["mean_overlap_over_domains"] = mean
        text = json.dumps(scores, indent=1)
        (self.folder / "scores.json").write_text(text + "\n", encoding="utf-8")
        return scores

    def _diagnose(self) -> None:
        """Gradient variance, and rollouts beside teacher forcing, at the last checkpoint of a finished run."""
        path = self.folder / "diagnostics.json"
        if path.exists():
            return
        gamma = self.settings.gamma
        variance = gradient_variance(self.drafter, self.held_out, gamma=gamma)
        found: dict[str, Any] = {"step": self.step, "gradient_variance": asdict(variance)}
        if isinstance(self.drafter, CausalDrafter):
            lens = rollout_length(
                self.drafter, self.target, self.held_out, gamma=gamma, eos_id=self.settings.eos_id
            )
            found["rollouts"] = None if lens is None else asdict(lens)
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    def _update(self, batch: Batch) -> float:
        loss = (
            supervised_loss(self.drafter, self.settings, batch)
            if self.grpo is None
            else self._grpo_loss(self.grpo, batch)
        )
        if not bool(torch.isfinite(loss)):
            raise RunError(f"the loss is {float(loss)} at step {self.step}: lower the learning rate")
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.drafter.parameters(), self.settings.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, self.trained_s, self.settings)
        self.optimizer.step()
        return float(loss.detach())

    def _grpo_loss(self, stage: GrpoStage, batch: Batch) -> Tensor:
        assert isinstance(self.drafter, CausalDrafter)
        rng = np.random.default_rng([self.settings.seed, self.step, *b"rollouts"])
        return stage.loss(self.drafter, batch, rng)

    def _report(self, loss: float, tokens_per_s: float) -> None:
        measured = evaluate(self.drafter, self.held_out, self.target.output_weight, gamma=self.settings.gamma)
        line = {
            "step": self.step,
            "loss": round(loss, 5),
            "tokens_per_s": round(tokens_per_s, 1),
            "trained_s": round(self.trained_s, 1),
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            **{k: v if not isinstance(v, float) else round(v, 5) for k, v in asdict(measured).items()},
        }
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        notes = {"settings": self.settings.as_dict(), "held_out": line}
        config = config_of(self.drafter, self.settings.target, notes)
        self._store("last", config)
        if measured.overlap > self.best:
            self.best = measured.overlap
            self._store("best", config)
        self._checkpoint()
        self.report(line)

    def _store(self, name: str, config: DrafterConfig) -> None:
        file_bytes = round(1e6 * self.settings.file_mb) or None
        bits = self.settings.stored_bits
        save_drafter(self.folder / name, self.drafter, config, bits=bits, file_bytes=file_bytes)

    def _checkpoint(self) -> None:
        state = {
            "drafter": self.drafter.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "best": self.best,
            "trained_s": self.trained_s,
        }
        with replacing(self.folder / _CHECKPOINT) as temporary:
            torch.save(state, temporary)
