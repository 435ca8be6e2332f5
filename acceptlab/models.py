"""What the engine needs of a language model, as a protocol. No transformers here.

`pairs` wraps Hugging Face models in it, `toy` implements it with tables. A model holds one sequence: a cache of
*slots*, each the key and value of one token at one position. Slots are appended by `forward` and chosen by `keep`.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@runtime_checkable
class LanguageModel(Protocol):
    """One causal language model with a cache that can be rolled back to any subset of its slots."""

    name: str
    vocab_size: int
    """Width of the logits: padding included."""
    max_len: int | None
    """Largest number of positions, or None where there is no limit."""
    device: torch.device

    @property
    def n_slots(self) -> int:
        """Slots in the cache."""
        ...

    def reset(self) -> None:
        """Empty the cache."""
        ...

    def prefill(self, token_ids: Int[Tensor, " tokens"]) -> None:
        """Append a plain causal run of tokens, at positions n_slots onward, and compute no logits.

        Only valid while the cache is a dense prefix. An empty run is allowed.
        """
        ...

    def forward(
        self,
        token_ids: Int[Tensor, " rows"],
        positions: Int[Tensor, " rows"],
        visible: Bool[Tensor, "rows slots"],
    ) -> Float[Tensor, "rows vocab"]:
        """Append one slot a row and give the next-token logits (float32) of every row.

        `visible` says which slots each row attends to; its width is n_slots + rows, the new rows last, and every
        row sees itself. A row of all -inf logits means that the model has no proposal there.
        """
        ...

    def keep(self, slots: Int[Tensor, " kept"]) -> None:
        """Keep exactly these slots of the cache, in this order."""
        ...
