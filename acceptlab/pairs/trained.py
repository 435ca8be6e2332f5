"""Trained drafters as drafts: from a folder that `acceptlab train` wrote to a language model."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedModel

from acceptlab.drafters.causal import CausalDrafter
from acceptlab.drafters.files import load_drafter
from acceptlab.drafters.model import DrafterModel


def load_causal(folder: Path, target: PreTrainedModel) -> DrafterModel:
    """A plain causal drafter on the target's embeddings; in float32 whatever the target's dtype.

    Raises:
        UsageError: it was trained on another target.
        RunError: its files are broken.
    """
    embeddings = target.get_input_embeddings().weight.detach()
    drafter = load_drafter(folder, embeddings).to(embeddings.device)
    assert isinstance(drafter, CausalDrafter)
    drafter.share_embeddings(embeddings)
    return DrafterModel(drafter, str(folder))
