"""What a training step of each loss costs, beside one of cross-entropy: the same batches, turn by turn.

Seconds are those of this process on the processor, so that other work on the machine does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from torch import nn

from acceptlab.drafters.base import Drafter
from acceptlab.drafters.causal import CausalDrafter
from acceptlab.drafters.llama import LlamaStack
from acceptlab.training.corpus import Batch, Example, draw_batches
from acceptlab.training.grpo_stage import GrpoStage
from acceptlab.training.settings import TrainSettings
from acceptlab.training.train import supervised_loss


def measure_overhead(
    arms: Mapping[str, TrainSettings],
    drafter: CausalDrafter,
    target: LlamaStack,
    examples: Sequence[Example],
    *,
    rounds: int,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, list[float]]:
    """Seconds of forward and backward pass of every arm, one entry a round.

    In a round all arms take the same batch, in an order that turns from round to round; a first round that
    warms up is not counted. The optimizer's part, equal for all, is left out, so ratios are upper bounds.

    Args:
        arms: settings by name.
        drafter: the drafter that all of them start from; it is not changed.
        target: its target, which reinforcement runs.
        examples: text to train on.
        rounds: how many to measure.
        clock: seconds of work.
    """
    first = next(iter(arms.values()))
    batches = draw_batches(examples, batch_tokens=first.batch_tokens, gamma=first.gamma, seed=0)
    stages = {
        name: GrpoStage(drafter, target, settings.grpo, settings.eos_id)
        for name, settings in arms.items()
        if settings.stage == "grpo"
    }
    names = list(arms)
    spent: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds + 1):
        batch = next(batches)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            began = clock()
            _step(drafter, arms[name], stages.get(name), batch)
            if turn:
                spent[name].append(clock() - began)
    drafter.zero_grad(set_to_none=True)
    return spent


def _step(drafter: Drafter, settings: TrainSettings, stage: GrpoStage | None, batch: Batch) -> None:
    drafter.zero_grad(set_to_none=True)
    if stage is None:
        loss = supervised_loss(drafter, settings, batch)
    else:
        assert isinstance(drafter, CausalDrafter)
        loss = stage.loss(drafter, batch, np.random.default_rng(0))
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(drafter.parameters(), settings.clip)
