"""A transformers causal model behind the `LanguageModel` protocol, with a cache made of slots.

Boundary: one sequence, one forward pass a call, cache upkeep. What to run and what to keep is the engine's business;
whether a model can be run exactly at all is decided in `checks` before one of these is made.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from acceptlab.pairs.heap import trim_memory
from acceptlab.pairs.lean import LeanModel, can_run_lean
from acceptlab.pairs.packed import PREFILL_STEP, few_rows
from acceptlab.pairs.slots import Part, SlotCache, in_place
from acceptlab.passes import Pass

_FIRST_CAPACITY = 256
_PLAIN_AFTER = 3
"""After so many passes of few rows (`packed.few_rows`) without another the plain weights are used: stepping token by
token, or with a token or two drafted, is faster on them, but they take memory that larger trees can do without."""


class _SlotLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values of one layer in buffers that double when full, so that a step allocates nothing.

    The buffers have shape (1, heads, capacity, head_dim); the first `length` slots are in use.
    """

    is_croppable = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.device = key_states.device
        self.keys = self._buffer(key_states, _FIRST_CAPACITY)
        self.values = self._buffer(value_states, _FIRST_CAPACITY)
        self.is_initialized = True

    @staticmethod
    def _buffer(states: Tensor, capacity: int) -> Tensor:
        batch, heads, _, head_dim = states.shape
        return states.new_empty((batch, heads, capacity, head_dim))

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.length + key_states.shape[-2]
        if end > self.keys.shape[-2]:
            self._grow(end)
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def _grow(self, needed: int) -> None:
        capacity = max(needed, 2 * self.keys.shape[-2])
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = self._buffer(old, capacity)
            new[:, :, : self.length] = old[:, :, : self.length]
            setattr(self, name, new)

    def get_seq_length(self) -> int:
        return self.length

    def keep(self, first: int, tail: Tensor) -> None:
        """Keep the first slots as they are and move the slots `tail` behind them (indexing copies first)."""
        end = first + len(tail)
        if len(tail) and self.is_initialized:
            self.keys[:, :, first:end] = self.keys[:, :, tail]
            self.values[:, :, first:end] = self.values[:, :, tail]
        self.length = end


class CachedModel:
    """A transformers model with a slot cache (implements `acceptlab.models.LanguageModel`).

    With `lean`, a model that allows it runs on packed weights (`pairs.lean`); all others run through transformers.
    The model is put into evaluation mode. The attention mask is additive in the model's dtype, (1, 1, rows, slots),
    0 where a row may look and the dtype's minimum elsewhere: eager attention misreads any other kind silently.
    """

    def __init__(self, model: PreTrainedModel, name: str, *, lean: bool = False) -> None:
        self.model = model.eval()
        self.name = name
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        config = model.config.get_text_config()
        self.vocab_size: int = model.get_output_embeddings().weight.shape[0]
        self.max_len: int | None = getattr(config, "max_position_embeddings", None)
        parameters = inspect.signature(model.forward).parameters
        # transformers 5.2x renamed the argument; the old name warns there
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self._keeps_logits = "logits_to_keep" in parameters
        self._blocked = torch.finfo(self.dtype).min
        self._lean = LeanModel(model) if lean and can_run_lean(model) else None
        self._slots: SlotCache | None = None
        self._reads_plain = False
        self.reset()

    @property
    def is_lean(self) -> bool:
        """Whether passes run on packed weights."""
        return self._lean is not None

    def release_plain(self) -> None:
        """Where passes run on packed weights, let the system take the memory of the plain ones back."""
        if self._lean is not None:
            self._lean.release_plain()

    def use_transformers(self) -> None:
        """From now on run through transformers alone; empties the cache."""
        self._lean = None
        self.reset()

    @property
    def n_slots(self) -> int:
        """Slots in the cache."""
        return self._n_slots

    def reset(self) -> None:
        """Empty the cache. On packed weights the next text uses its buffer again."""
        self._n_slots = 0
        self._n_short = 0
        self._cache = Cache(layer_class_to_replicate=_SlotLayer)
        if self._lean is None:
            self._slots = None
            return
        if self._slots is None:
            self._slots = self._lean.new_cache()
        self._slots.clear()
        if not self._reads_plain:  # else they are the output layer too, and would come back from the disk
            self._lean.release_embeddings()
            trim_memory()

    @torch.inference_mode()
    def prefill(self, token_ids: Int[Tensor, " tokens"]) -> None:
        """Append a plain causal run of tokens behind a dense prefix; no logits are computed but one row's."""
        n_tokens = token_ids.shape[0]
        if n_tokens == 0:
            return
        if self._lean:
            end = self._n_slots + n_tokens
            padded = functional.pad(token_ids, (0, -n_tokens % PREFILL_STEP))
            self._run_lean(padded, torch.arange(self._n_slots, self._n_slots + len(padded)), None)
            self.keep(torch.arange(end))
            return
        positions = torch.arange(self._n_slots, self._n_slots + n_tokens)
        if self._n_slots:
            rows = torch.arange(n_tokens)
            visible = torch.arange(self._n_slots + n_tokens)[None, :] <= (self._n_slots + rows)[:, None]
            self._run(token_ids, positions, visible, logits_to_keep=1)
        else:
            self._run(token_ids, positions, None, logits_to_keep=1)

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Int[Tensor, " rows"],
        positions: Int[Tensor, " rows"],
        visible: Bool[Tensor, "rows slots"],
    ) -> Float[Tensor, "rows vocab"]:
        """Append one slot a row; next-token logits of every row in float32."""
        if self._lean:
            logits = self._run_lean(token_ids, positions, visible)
            assert logits is not None
            return logits
        return self._run(token_ids, positions, visible, logits_to_keep=0)

    def fork(self) -> CachedModel:
        """Another sequence of the same model: weights shared, cache its own."""
        twin = copy.copy(self)
        twin._slots = None
        twin.reset()
        return twin

    @torch.inference_mode()
    def forward_many(self, passes: Sequence[Pass]) -> list[Float[Tensor, "rows vocab"]]:
        """Passes of several forks in one go, on packed weights; one after the other through transformers."""
        if self._lean is None:
            return [each.run() for each in passes]
        parts, sizes = [], []
        for each in passes:
            assert isinstance(each.model, CachedModel)
            assert each.model._slots is not None
            sizes.append(len(each.token_ids))
            parts.append(Part(each.model._slots, sizes[-1], each.visible))
            each.model._n_slots += sizes[-1]
            each.model._n_short = 0
        token_ids = torch.cat([each.token_ids for each in passes])
        logits = self._lean.run(token_ids, torch.cat([each.positions for each in passes]), parts)
        assert logits is not None
        return list(torch.split(logits, sizes))

    def _run_lean(
        self, token_ids: Tensor, positions: Tensor, visible: Tensor | None
    ) -> Float[Tensor, "rows vocab"] | None:
        assert self._lean is not None
        assert self._slots is not None
        n_rows = len(token_ids)
        self._n_short = self._n_short + 1 if n_rows <= few_rows() else 0
        plain = self._n_short > _PLAIN_AFTER
        self._reads_plain |= plain
        logits = self._lean.run(
            token_ids,
            positions,
            [Part(self._slots, n_rows, visible)],
            with_logits=visible is not None,
            plain=plain,
        )
        self._n_slots += n_rows
        return logits

    def _run(
        self, token_ids: Tensor, positions: Tensor, visible: Tensor | None, logits_to_keep: int
    ) -> Float[Tensor, "rows vocab"]:
        arguments: dict[str, Any] = {self._cache_argument: self._cache}
        if visible is not None:
            mask = torch.zeros(visible.shape, dtype=self.dtype)
            mask.masked_fill_(~visible, self._blocked)
            arguments["attention_mask"] = mask.to(self.device)[None, None]
        if self._keeps_logits:
            arguments["logits_to_keep"] = logits_to_keep
        output = self.model(
            input_ids=token_ids.to(self.device)[None],
            position_ids=positions.to(self.device)[None],
            use_cache=True,
            **arguments,
        )
        self._n_slots += token_ids.shape[0]
        logits: Tensor = output.logits[0]
        return logits.float()

    @torch.inference_mode()
    def keep(self, slots: Int[Tensor, " kept"]) -> None:
        """Keep exactly these slots, in this order; slots that stay in place are not copied."""
        first, tail = in_place(slots)
        tail = tail.to(self.device)
        if self._slots is not None:
            self._slots.keep(first, tail)
        else:
            for layer in self._cache.layers:
                layer.keep(first, tail)
        self._n_slots = len(slots)
