"""Time of single passes by the number of tokens in them, over a filled cache. One model a call, or several in turn.

Boundary: models behind a small protocol in, one row a pass out. No ratios, no printing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import pandas as pd
import torch

from acceptlab.bench.arms import now_ms
from acceptlab.models import LanguageModel


class Passes(Protocol):
    """A model whose cache holds a text, ready to run some tokens behind it again and again."""

    name: str
    device: torch.device

    def run(self, n: int) -> Any:
        """One pass over n tokens behind the text."""
        ...

    def rewind(self) -> None:
        """Forget what `run` has appended; not timed."""
        ...


class ChainPasses:
    """Chains behind a text, through the protocol that the engine uses."""

    def __init__(self, model: LanguageModel, token_ids: Sequence[int], name: str) -> None:
        self._model = model
        self._text = torch.tensor(list(token_ids))
        self._inputs: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        self.name = name
        self.device = model.device
        model.reset()
        model.prefill(self._text)

    def run(self, n: int) -> torch.Tensor:
        """One pass; the inputs of a length are made once."""
        if n not in self._inputs:
            length = len(self._text)
            places = torch.arange(length, length + n)
            visible = torch.arange(length + n)[None, :] <= places[:, None]
            self._inputs[n] = (self._text.repeat(-(-n // length))[:n], places, visible)
        return self._model.forward(*self._inputs[n])

    def rewind(self) -> None:
        """Back to the text."""
        self._model.keep(torch.arange(len(self._text)))


def pass_times(
    models: Sequence[Passes],
    sizes: Sequence[int],
    repeats: int,
    seed: int = 0,
    on_done: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[pd.DataFrame, bool]:
    """Time passes of all sizes on all models, in rounds: a round runs everything once, in an order of its own.

    Args:
        models: what to time.
        sizes: tokens in a pass.
        repeats: rounds that count; one more comes before them and does not.
        seed: of the orders.
        on_done: called with the number of passes done and their total.

    Returns:
        Rows `name, round, n, ms`, and whether the run was not interrupted. Rounds that were not finished are left out.
    """
    orders = np.random.default_rng(seed)
    plan = [(model, n) for model in models for n in sizes]
    rows: list[dict[str, Any]] = []
    total = len(plan) * (repeats + 1)
    n_done = 0
    try:
        for number in range(-1, repeats):
            this_round: dict[int, dict[str, Any]] = {}
            for place in orders.permutation(len(plan)):
                model, n = plan[place]
                started = now_ms(model.device)
                model.run(n)
                ms = now_ms(model.device) - started
                model.rewind()
                this_round[int(place)] = {"name": model.name, "round": number, "n": n, "ms": ms}
                n_done += 1
                on_done(n_done, total)
            if number >= 0:
                rows += [this_round[place] for place in sorted(this_round)]
    except KeyboardInterrupt:
        return pd.DataFrame(rows, columns=["name", "round", "n", "ms"]), False
    return pd.DataFrame(rows, columns=["name", "round", "n", "ms"]), True
