"""Passes as requests: what decoding asks of a model, apart from when and with whom it is run.

A decoding loop is a generator that yields passes and is sent their logits. So the same loop serves one text, whose
passes run as they come, and several, whose passes are put together. Boundary: no tokens are chosen here.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from jaxtyping import Bool, Float, Int
from torch import Tensor

from acceptlab.models import LanguageModel

Result = TypeVar("Result")


@dataclass(frozen=True)
class Pass:
    """The arguments of `LanguageModel.forward`, and the model (one sequence) that they are for."""

    model: LanguageModel
    token_ids: Int[Tensor, " rows"]
    positions: Int[Tensor, " rows"]
    visible: Bool[Tensor, "rows slots"]

    def run(self) -> Float[Tensor, "rows vocab"]:
        """Run it alone."""
        return self.model.forward(self.token_ids, self.positions, self.visible)


Passes = Generator[Pass, Tensor, Result]
"""A computation that yields passes and is sent the logits of each."""


def run_alone(passes: Passes[Result]) -> Result:
    """Run every pass as it comes and return what the computation returns."""
    try:
        wanted = next(passes)
        while True:
            wanted = passes.send(wanted.run())
    except StopIteration as stop:
        result: Result = stop.value
        return result


def run_together(passes: Sequence[Pass]) -> list[Float[Tensor, "rows vocab"]]:
    """Run passes of several sequences of one model, in one go where the model can (`forward_many`)."""
    together: Any = getattr(passes[0].model, "forward_many", None)
    if together is None or len(passes) == 1:
        return [each.run() for each in passes]
    logits: list[Tensor] = together(passes)
    return logits


def fork(model: LanguageModel) -> LanguageModel:
    """Another sequence of the same model, with an empty cache and the same weights.

    Raises:
        UsageError: the model can hold one sequence only.
    """
    own: Any = getattr(model, "fork", None)
    if own is not None:
        forked: LanguageModel = own()
        return forked
    twin = copy.copy(model)
    twin.reset()  # gives the copy a cache of its own: what it had belongs to the original
    return twin
