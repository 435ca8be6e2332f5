"""A word-level tokenizer and tiny model folders, written where a test wants them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from tests.tiny import tiny_model

SPECIAL = ["<unk>", "<s>", "</s>"]
TEMPLATE = (
    "{{ bos_token }} {% for message in messages %}"
    "{{ message['role'] }} {{ message['content'] }} </s> {% endfor %}"
    "{% if add_generation_prompt %}assistant{% endif %}"
)


def words(n_ids: int) -> list[str]:
    """Token texts by id: three special ones, two roles, then w5, w6, ..."""
    return [*SPECIAL, "user", "assistant", *(f"w{i}" for i in range(5, n_ids))]


def word_tokenizer(
    n_ids: int = 60, texts: list[str] | None = None, *, adds_bos: bool = True, template: str | None = None
) -> Any:
    """A tokenizer with one token a word; ids are places in `texts`."""
    texts = texts or words(n_ids)
    backend = Tokenizer(WordLevel({text: i for i, text in enumerate(texts)}, unk_token="<unk>"))
    backend.pre_tokenizer = Whitespace()
    if adds_bos:
        backend.post_processor = TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", texts.index("<s>"))]
        )
    backend.add_special_tokens([text for text in texts if text in SPECIAL])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    tokenizer.chat_template = template
    return tokenizer


def model_folder(
    folder: Path, family: str = "llama", seed: int = 0, tokenizer: Any | None = None, **overrides: Any
) -> Path:
    """Write a tiny model, and a tokenizer if given, as a transformers folder."""
    tiny_model(family, seed=seed, **overrides).save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return folder
