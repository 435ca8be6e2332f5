"""A cross head behind the `LanguageModel` protocol: one sequence, on what the target has computed about it.

Committed text is seen through the target's hidden states, the anchor and drafted tokens through the head's own keys
and values. What was drafted is forgotten after every step, so its tokens run again once they are committed.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from acceptlab.drafters.cross_head import CrossHead
from acceptlab.drafters.llama import attend
from acceptlab.errors import RunError
from acceptlab.models import LanguageModel


class InnerStates(Protocol):
    """The target, as far as a cross head looks into it."""

    @property
    def n_slots(self) -> int:
        """Committed tokens that the target has run."""
        ...

    def inner(self, layer: int, start: int, end: int) -> Float[Tensor, "rows size"]:
        """Hidden states in front of a layer, of slots start to end - 1."""
        ...


class CrossModel:
    """Runs a cross head one sequence at a time (implements `acceptlab.models.LanguageModel`).

    A slot is a token at its position; the first `n_true` slots are committed text, the last of them is the anchor.
    Lower layers have keys and values of all slots. Upper ones have those of the target for the slots before the
    anchor, and their own from the anchor on.
    """

    max_len: int | None = None
    last_only: ClassVar[bool] = False
    """Whether a pass over committed tokens proposes behind the last of them only."""

    def __init__(self, head: CrossHead, name: str) -> None:
        self._weight = head.drafting_weight()
        self._name_and_size(head, name)

    def _name_and_size(self, head: CrossHead, name: str) -> None:
        self.head = head.eval()
        self.name = name
        self.vocab_size = head.shape.vocab_size
        self.device = head.embeddings.device
        self._source: InnerStates | None = None
        self.reset()

    def attach(self, source: InnerStates) -> None:
        """Name the target whose hidden states are read."""
        self._source = source

    @property
    def tap_layers(self) -> tuple[int, ...]:
        """Layers of the target in front of which its hidden states are read."""
        return self.head.tap_layers

    @property
    def n_slots(self) -> int:
        """Slots in the cache."""
        return self._n_slots

    def reset(self) -> None:
        """Empty the cache."""
        shape = self.head.shape
        empty = torch.empty(1, shape.n_kv_heads, 0, shape.head_dim, device=self.device)
        n_upper = len(self.head.tap_layers)
        self._n_slots = self._n_true = 0
        self._lower = [(empty, empty) for _ in range(self.head.n_lower)]
        self._known = [(empty, empty) for _ in range(n_upper)]
        self._own = [(empty, empty) for _ in range(n_upper)]

    @torch.inference_mode()
    def prefill(self, token_ids: Int[Tensor, " tokens"]) -> None:
        """Append committed tokens behind a dense prefix; of the upper layers nothing is wanted for them."""
        if len(token_ids):
            positions = torch.arange(self._n_slots, self._n_slots + len(token_ids))
            self._run_lower(token_ids, positions, torch.arange(int(positions[-1]) + 1) <= positions[:, None])
            self._n_true = self._n_slots

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Int[Tensor, " rows"],
        positions: Int[Tensor, " rows"],
        visible: Bool[Tensor, "rows slots"],
    ) -> Float[Tensor, "rows vocab"]:
        """Append one slot a row; logits of every row over the whole vocabulary.

        Rows are committed text where the cache holds nothing drafted and the target has run all tokens before the
        last of them.

        Raises:
            RunError: drafted rows, and no pass over the committed token before them.
        """
        source = self._target()
        is_committed = self._n_true == self._n_slots and int(positions[-1]) <= source.n_slots
        if not is_committed:
            self._check_anchor(self._n_known, self._n_known + self._n_own)
        x = self._run_lower(token_ids, positions, visible)
        if is_committed:
            self._n_true = self._n_slots
            self._read_target(source)
            own = torch.eye(len(positions), dtype=torch.bool)
            seen = torch.cat([torch.arange(self._n_true - 1) < positions[:, None], own], dim=1)
            self._own = [(keys[:, :, :0], values[:, :, :0]) for keys, values in self._own]
            x = self._run_upper(x, positions, seen)
            # the rows before the anchor are known from the target by now
            self._own = [(keys[:, :, -1:], values[:, :, -1:]) for keys, values in self._own]
        else:
            x = self._run_upper(x, positions, visible)
        head = self.head
        logits: Tensor = head.output.expand(head.output(head.norm(x)[0], self._weight))
        return logits

    @property
    def _n_known(self) -> int:
        """Slots of which the upper layers have the target's keys and values."""
        return self._known[0][0].shape[2] if self._known else self._n_true - 1

    @property
    def _n_own(self) -> int:
        """Slots from the anchor on, of which they have their own."""
        return self._own[0][0].shape[2] if self._own else self._n_slots - self._n_known

    def _check_anchor(self, n_known: int, n_upper: int) -> None:
        """Whether the upper layers have all slots, those before the anchor from the target."""
        if n_known != self._n_true - 1 or n_upper != self._n_slots:
            raise RunError(
                f"the head '{self.name}' drafts only behind a committed token that it has run: run that first"
            )

    def _target(self) -> InnerStates:
        if self._source is None:
            raise RunError(f"the head '{self.name}' is not attached to a target: load it as part of a pair")
        return self._source

    def _run_lower(
        self, token_ids: Tensor, positions: Tensor, visible: Tensor
    ) -> Float[Tensor, "1 rows size"]:
        """Append slots to the lower layers' caches."""
        rotary, mask = self.head.rotary(positions[None].to(self.device)), visible.to(self.device)
        x = self.head.embed(token_ids.to(self.device))[None]
        for number, layer in enumerate(self.head.lower):
            query, key, value = layer.project(x, rotary)
            keys, values = self._lower[number] = _append(self._lower[number], key, value)
            x = layer.finish(x, attend(query, keys, values, mask))
        self._n_slots += len(token_ids)
        return x

    def _read_target(self, source: InnerStates) -> None:
        """Keys and values of what the target has run since, up to the anchor."""
        start, end = self._n_known, self._n_true - 1
        if end <= start:
            return
        rotary = self.head.rotary(torch.arange(start, end, device=self.device)[None])
        taps = zip(self.head.upper, self.head.tap_layers, strict=True)
        for number, (layer, tap) in enumerate(taps):
            states = source.inner(tap, start, end).float()[None]
            self._known[number] = _append(self._known[number], *self.head.keys_values(layer, states, rotary))

    def _run_upper(self, x: Tensor, positions: Tensor, seen: Tensor) -> Float[Tensor, "1 rows size"]:
        """Append slots to the upper layers' own caches; `seen` goes over the target's slots, then over these."""
        rotary, mask = self.head.rotary(positions[None].to(self.device)), seen.to(self.device)
        for number, layer in enumerate(self.head.upper):
            query, key, value = layer.project(x, rotary)
            self._own[number] = _append(self._own[number], key, value)
            keys, values = _append(self._known[number], *self._own[number])
            x = layer.finish(x, attend(query, keys, values, mask))
        return x

    @torch.inference_mode()
    def keep(self, slots: Int[Tensor, " kept"]) -> None:
        """Keep the committed slots among these, which come first and in place; drafted ones are forgotten."""
        kept = self._committed_among(slots)
        self._n_slots = self._n_true = kept
        self._own = _first(self._own, max(kept - self._n_known, 0))
        self._lower, self._known = _first(self._lower, kept), _first(self._known, kept)

    def _committed_among(self, slots: Int[Tensor, " kept"]) -> int:
        """How many committed slots stay: those that come first and in place."""
        in_place = slots == torch.arange(len(slots))
        return int((in_place & (slots < self._n_true)).long().cumprod(dim=0).sum())


def text_rows(
    model: LanguageModel, token_ids: Int[Tensor, " tokens"], start: int = 0
) -> Float[Tensor, "rows vocab"]:
    """Logits behind every token from `start` on, where the cache holds those before: one run of rows.

    Tokens run one by one through a head that proposes behind the last one of a pass only.
    """
    places = torch.arange(len(token_ids))
    visible = places[None, :] <= places[:, None]
    core = getattr(model, "inner", model)
    if not (isinstance(core, CrossModel) and core.last_only):
        return model.forward(token_ids[start:], places[start:], visible[start:])
    rows = [
        model.forward(token_ids[i : i + 1], places[i : i + 1], visible[i : i + 1, : i + 1])
        for i in range(start, len(places))
    ]
    return torch.cat(rows)


def _first(caches: list[tuple[Tensor, Tensor]], n_slots: int) -> list[tuple[Tensor, Tensor]]:
    """The first slots of every layer."""
    return [(keys[:, :, :n_slots], values[:, :, :n_slots]) for keys, values in caches]


def _append(cache: tuple[Tensor, Tensor], key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values with more slots behind them."""
    return torch.cat([cache[0], key], dim=2), torch.cat([cache[1], value], dim=2)
