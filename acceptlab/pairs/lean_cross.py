"""A cross head on weights of 16 bits: the numbers of `drafters.cross_model`, in less time and memory.

One cache a layer serves both kinds of keys and values: slots before the anchor hold those of the target's hidden
states, slots from there on the head's own, which are overwritten once the target has run their tokens.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from acceptlab.drafters.cross_model import CrossModel, InnerStates
from acceptlab.pairs.heap import trim_memory
from acceptlab.pairs.lean_drafter import HalfWeights
from acceptlab.pairs.slots import Part


class LeanCross(CrossModel):
    """Runs a `CrossHead` on weights of 16 bits. The head that it is made from gives its matrices away.

    Of a run of committed tokens only the last one gets a proposal: decoding asks for no other.
    """

    is_lean = True
    last_only = True

    def __init__(self, model: CrossModel) -> None:
        head = model.head
        self._weights = HalfWeights(head)
        self._down = self._weights.stack(0, head.n_lower)
        self._up = self._weights.stack(head.n_lower, len(head.layers))
        self._name_and_size(head, model.name)
        trim_memory()

    def plain(self) -> CrossModel:
        """The same head in float32, attached to the same target."""
        model = CrossModel(self._weights.plain(), self.name)
        if self._source is not None:
            model.attach(self._source)
        return model

    @property
    def nbytes(self) -> int:
        """Memory of the matrices, which `head` lacks."""
        return self._weights.nbytes

    def reset(self) -> None:
        """Empty the cache."""
        self._n_slots = self._n_true = self._n_read = 0
        self._below, self._above = self._down.new_cache(), self._up.new_cache()

    @torch.inference_mode()
    def prefill(self, token_ids: Int[Tensor, " tokens"]) -> None:
        """Append committed tokens behind a dense prefix; of the upper layers nothing is wanted for them."""
        if len(token_ids):
            self._run_below(token_ids, torch.arange(self._n_slots, self._n_slots + len(token_ids)), None)
            self._n_true = self._n_slots

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Int[Tensor, " rows"],
        positions: Int[Tensor, " rows"],
        visible: Bool[Tensor, "rows slots"],
    ) -> Float[Tensor, "rows vocab"]:
        """Append one slot a row; logits over the whole vocabulary, -inf for committed rows before the last.

        Raises:
            RunError: drafted rows, and no pass over the committed token before them.
        """
        source = self._target()
        is_committed = self._n_true == self._n_slots and int(positions[-1]) <= source.n_slots
        if not is_committed:
            self._check_anchor(self._n_read, self._above.length)
        x = self._run_below(token_ids, positions, visible)
        if not is_committed:
            return self._logits(self._up.run(x, positions, [Part(self._above, len(x), visible)]))
        self._n_true = self._n_slots
        self._read_target(source)
        last = self._logits(self._up.run(x[-1:], positions[-1:], [Part(self._above, 1, None)]))
        if len(x) == 1:
            return last
        return torch.cat([last.new_full((len(x) - 1, self.vocab_size), -torch.inf), last])

    def _run_below(
        self, token_ids: Tensor, positions: Tensor, visible: Tensor | None
    ) -> Float[Tensor, "rows size"]:
        self._n_slots += len(token_ids)
        part = Part(self._below, len(token_ids), visible)
        return self._down.run(self.head.embed(token_ids), positions, [part])

    def _read_target(self, source: InnerStates) -> None:
        """Keys and values of what the target has run since, up to the anchor, in place of the head's own."""
        start, anchor = self._n_read, self._n_true - 1
        self._above.length = start
        if anchor > start:
            states = [source.inner(tap, start, anchor).float() for tap in self.tap_layers]
            self._up.write_states(self._above, states, torch.arange(start, anchor))
        self._n_read = anchor

    def _logits(self, x: Float[Tensor, "rows size"]) -> Float[Tensor, "rows vocab"]:
        return self._weights.output.logits(self._up.final(x))

    @torch.inference_mode()
    def keep(self, slots: Int[Tensor, " kept"]) -> None:
        """Keep the committed slots among these, which come first and in place; drafted ones are forgotten."""
        kept = self._committed_among(slots)
        self._n_slots = self._n_true = kept
        self._below.length = kept
        self._above.length = min(self._above.length, kept)
        self._n_read = min(self._n_read, kept)
