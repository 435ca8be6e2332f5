"""The target of a training command.

Its decoder stack and its tokenizer, from the same names that `collect` takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from acceptlab.drafters.llama import LlamaShape, LlamaStack
from acceptlab.errors import UsageError
from acceptlab.pairs.default import DEFAULT_PAIR, named_pair
from acceptlab.pairs.source import find_source, load_model, load_tokenizer


@dataclass(frozen=True)
class TrainingTarget:
    """A loaded target; `name` is what settings and configurations call it."""

    name: str
    stack: LlamaStack
    tokenizer: Any


def target_name(pair: str | None, target: str | None) -> str:
    """The target that was asked for: that of a named pair (the default one), or any model.

    Raises:
        UsageError: both were given, or the pair is unknown.
    """
    if target is None:
        return named_pair(pair or DEFAULT_PAIR).target
    if pair is not None:
        raise UsageError(f"--pair {pair} and --target {target} exclude each other: leave one out")
    return target


def load_target(name: str) -> TrainingTarget:
    """Load a target for training, in float32 on the CPU.

    Raises:
        UsageError: it is nowhere, no Llama, or has no tokenizer.
    """
    source = find_source(name)
    tokenizer = load_tokenizer(source)
    if tokenizer is None:
        raise UsageError(f"'{source.id}' has no tokenizer: put the target's tokenizer files into its folder")
    model = load_model(source, torch.float32, torch.device("cpu"))
    stack = LlamaStack.from_state(LlamaShape.from_config(model.config), model.state_dict())
    return TrainingTarget(name, stack, tokenizer)
