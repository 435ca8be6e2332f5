"""Trained drafters as drafts: from a folder that `acceptlab train` wrote to a language model.

Feature-level and block heads read the target's hidden states, so their target runs as a `WatchedModel`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from acceptlab.drafters.causal import CausalDrafter
from acceptlab.drafters.files import load_drafter
from acceptlab.drafters.head_model import HeadModel
from acceptlab.drafters.model import DrafterModel
from acceptlab.errors import UsageError
from acceptlab.pairs.cached import CachedModel


def load_trained(folder: Path, target: PreTrainedModel) -> DrafterModel | HeadModel:
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
    return HeadModel(drafter, str(folder))


class WatchedModel(CachedModel):
    """A cached model that also keeps the normed last hidden state of every slot (see `HiddenStates`)."""

    _states: Tensor

    def __init__(self, model: PreTrainedModel, name: str, *, lean: bool = False) -> None:
        norm = getattr(model.base_model, "norm", None)
        if norm is None:
            raise UsageError(
                f"a head cannot read the hidden states of '{name}': use it with a Llama-type target"
            )
        norm.register_forward_hook(self._watch)
        super().__init__(model, name, lean=lean)

    def _watch(self, module: Any, inputs: Any, output: Tensor) -> None:
        self._states = torch.cat([self._states, output[0]])

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
        self._states = torch.empty((0, size), device=self.model.device, dtype=self.model.dtype)

    def keep(self, slots: Int[Tensor, " kept"]) -> None:
        """Keep exactly these slots, in this order."""
        super().keep(slots)
        self._states = self._states[slots.to(self._states.device)]

    def hidden(self, start: int, end: int) -> Float[Tensor, "rows size"]:
        """Normed last hidden states of slots start to end - 1."""
        return self._states[start:end]
