"""Small pairs and settings that the tests of the engine share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from acceptlab.engine import Settings
from acceptlab.pairing import proposal_for
from acceptlab.pairs.cached import CachedModel
from acceptlab.rules import parse_rule
from acceptlab.sampling import Warp
from acceptlab.tree import parse_tree
from tests.tiny import VOCAB, tiny_model

SHAPES = (
    "chain:1",
    "chain:5",
    "kary:depth=3,branch=2",
    "branches:4,2,1",
    "dynamic:nodes=9,depth=4,topk=3",
    "opt:nodes=9,threshold=0.05",
)


def settings(tree: str = "kary:depth=3,branch=2", rule: str = "greedy", **options: Any) -> Settings:
    parsed = parse_rule(rule)
    defaults: dict[str, Any] = {"max_new_tokens": 24, "seed": 0, "warp": Warp()}
    return Settings(
        tree=parse_tree(tree), rule=parsed, proposal=proposal_for(parsed), **{**defaults, **options}
    )


def related_pair(family: str, noise: float = 0.035, **overrides: Any) -> tuple[CachedModel, CachedModel]:
    """A target, and a draft that is the target with noise on its weights: it is right about half the time."""
    target = tiny_model(family, seed=0, **overrides)
    draft = tiny_model(family, seed=0, **overrides)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(noise * torch.randn(parameter.shape, generator=generator))
    return CachedModel(target, "target"), CachedModel(draft, "draft")


def save_pair(folder: Path) -> None:
    """Write `target` and `draft` as a user's local folders: tiny Llamas that share a word tokenizer."""
    words = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"word{i}": i + 3 for i in range(VOCAB - 3)}}
    backend = Tokenizer(WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    for model, name in zip(related_pair("llama", eos_token_id=2), ("target", "draft"), strict=True):
        model.model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
