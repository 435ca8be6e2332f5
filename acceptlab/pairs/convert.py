"""GGUF files to dense transformers models. Blocks are unpacked: what comes out has ordinary float weights."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging as transformers_logging


def load_dense_gguf(path: Path, dtype: torch.dtype, **options: Any) -> PreTrainedModel:
    """Read a GGUF file into a model with unpacked weights of `dtype`."""
    try:
        from transformers import GgufConfig

        options["quantization_config"] = GgufConfig(dequantize=True)
    except ImportError:  # older releases know no packed GGUF weights and always unpack
        pass
    return AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=dtype, **options)


def load_gguf_tokenizer(path: Path) -> Any:
    """The tokenizer stored in a GGUF file, chat template included.

    Releases of transformers disagree in which special tokens they set, so the ids of the file's header decide.
    """
    place = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    tokenizer = AutoTokenizer.from_pretrained(**place)
    config = AutoConfig.from_pretrained(**place)
    for role in ("bos", "eos", "pad"):
        token_id = getattr(config, f"{role}_token_id", None)
        if isinstance(token_id, int):
            setattr(tokenizer, f"{role}_token", tokenizer.convert_ids_to_tokens(token_id))
    return tokenizer


def write_dense_copy(path: Path, folder: Path) -> None:
    """Write the model and the tokenizer of a GGUF file as a transformers folder in float32, quietly."""
    # the bar of the reader itself cannot be switched off
    with no_bars(), contextlib.redirect_stderr(io.StringIO()):
        load_dense_gguf(path, torch.float32).save_pretrained(folder)
        load_gguf_tokenizer(path).save_pretrained(folder)


@contextlib.contextmanager
def no_bars() -> Iterator[None]:
    """Keep transformers' progress bars off the screen: a run has its own."""
    was_on = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            transformers_logging.enable_progress_bar()
