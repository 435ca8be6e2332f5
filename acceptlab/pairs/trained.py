"""Trained drafters as drafts: from a folder that `acceptlab train` wrote to a language model.

Heads read the target's hidden states, so their target runs as a `WatchedModel`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from acceptlab.drafters.causal import CausalDrafter
from acceptlab.drafters.cross_head import CrossHead
from acceptlab.drafters.cross_model import CrossModel
from acceptlab.drafters.files import load_drafter
from acceptlab.drafters.head_model import HeadModel
from acceptlab.drafters.model import DrafterModel
from acceptlab.errors import UsageError
from acceptlab.pairs.cached import CachedModel
from acceptlab.pairs.slots import FIRST_CAPACITY, in_place


def load_trained(folder: Path, target: PreTrainedModel) -> DrafterModel | HeadModel | CrossModel:
    """A drafter on the target's embeddings, in float32 whatever the target's dtype; heads still need `attach`.

    Raises:
        UsageError: it was trained on another target.
        RunError: its files are broken.
    """
    embeddings = target.get_input_embeddings().weight.detach()
    drafter = load_drafter(folder, embeddings).to(embeddings.device)
    drafter.share_embeddings(embeddings)
    if isinstance(drafter, CausalDrafter):
        return DrafterModel(drafter, str(folder))
    if isinstance(drafter, CrossHead):
        return CrossModel(drafter, str(folder))
    return HeadModel(drafter, str(folder))


class _Rows:
    """Hidden states, a row a slot, in a buffer that doubles when it is full: a pass copies its own rows only."""

    def __init__(self, size: int, like: PreTrainedModel) -> None:
        self.length = 0
        self._buffer = torch.empty((FIRST_CAPACITY, size), device=like.device, dtype=like.dtype)

    def append(self, rows: Float[Tensor, "rows size"]) -> None:
        """Put rows behind those that are there."""
        start, end = self.length, self.length + len(rows)
        if end > len(self._buffer):
            old = self._buffer[:start]
            self._buffer = old.new_empty((max(end, 2 * len(self._buffer)), old.shape[1]))
            self._buffer[:start] = old
        self._buffer[start:end] = rows
        self.length = end

    def keep(self, first: int, tail: Int[Tensor, " slots"]) -> None:
        """Keep the first rows as they are and move the rows `tail` behind them (indexing copies first)."""
        self.length = first + len(tail)
        if len(tail):
            self._buffer[first : self.length] = self._buffer[tail]

    def between(self, start: int, end: int) -> Float[Tensor, "rows size"]:
        """Rows start to end - 1, as far as they are there; not a copy."""
        return self._buffer[start : min(end, self.length)]


class WatchedModel(CachedModel):
    """A cached model that also keeps hidden states of every slot: the normed last ones, or those inside.

    Implements `HiddenStates`, and `InnerStates` once it is told which layers to `watch`.
    """

    _states: _Rows
    _inner: dict[int, _Rows]

    def __init__(self, model: PreTrainedModel, name: str, *, lean: bool = False) -> None:
        base = model.base_model
        if getattr(base, "norm", None) is None:
            raise UsageError(
                f"a head cannot read the hidden states of '{name}': use it with a Llama-type target"
            )
        base.norm.register_forward_hook(self._watch)
        self._passing: dict[int, Tensor] = {}
        self._watched: tuple[int, ...] = ()
        self._is_running = False
        super().__init__(model, name, lean=lean)

    def watch(self, layers: Sequence[int]) -> None:
        """Keep the hidden states in front of these layers; empties the cache.

        Raises:
            UsageError: the model has no such layer.
        """
        own = self.model.base_model.layers
        if any(not 0 <= number < len(own) for number in layers):
            raise UsageError(
                f"'{self.name}' has {len(own)} layers, and the head reads in front of number {max(layers)}"
            )
        self._watched = tuple(sorted(set(layers)))
        if self._lean is not None:
            self._lean.watch(self._watched)
        else:
            for number in self._watched:
                own[number].register_forward_pre_hook(partial(self._see, number), with_kwargs=True)
        self.reset()

    def _run(self, *args: Any, **options: Any) -> Tensor:
        with self._running():
            return super()._run(*args, **options)

    def _run_lean(self, *args: Any, **options: Any) -> Tensor | None:
        with self._running():
            return super()._run_lean(*args, **options)

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        """The hooks are for passes of this cache: the same model may run elsewhere too."""
        self._is_running = True
        try:
            yield
        finally:
            self._is_running = False

    def _see(self, number: int, module: Any, inputs: Any, options: Any) -> None:
        states = inputs[0] if inputs else options["hidden_states"]
        self._passing[number] = states[0]

    def _watch(self, module: Any, inputs: Any, output: Tensor) -> None:
        if not self._is_running:
            return
        self._states.append(output[0])
        passing = self._passing if self._lean is None else self._lean.seen
        for number in self._watched:
            self._inner[number].append(passing[number])

    def fork(self) -> CachedModel:
        """There is none: the states of the last pass are kept in one place.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            "a draft that reads the target's hidden states runs one prompt at a time: use --batch-size 1"
        )

    def reset(self) -> None:
        """Empty the cache."""
        super().reset()
        size = self.model.config.get_text_config().hidden_size
        self._states = _Rows(size, self.model)
        self._inner = {number: _Rows(size, self.model) for number in self._watched}

    @torch.inference_mode()
    def keep(self, slots: Int[Tensor, " kept"]) -> None:
        """Keep exactly these slots, in this order."""
        super().keep(slots)
        first, tail = in_place(slots)
        tail = tail.to(self.device)
        for rows in (self._states, *self._inner.values()):
            rows.keep(first, tail)

    def hidden(self, start: int, end: int) -> Float[Tensor, "rows size"]:
        """Normed last hidden states of slots start to end - 1."""
        return self._states.between(start, end)

    def inner(self, layer: int, start: int, end: int) -> Float[Tensor, "rows size"]:
        """Hidden states in front of a watched layer, of slots start to end - 1."""
        return self._inner[layer].between(start, end)
