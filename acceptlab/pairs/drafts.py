"""Kinds of drafts: another model, the target without some layers, prompt lookup, a trained drafter."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from acceptlab.errors import RunError, UsageError
from acceptlab.models import LanguageModel
from acceptlab.pairs.layerskip import skip_layers
from acceptlab.pairs.ngram import NgramModel
from acceptlab.pairs.source import Source, find_source, load_model, load_tokenizer

DRAFTER_KEY = "acceptlab_drafter"
"""Key of config.json that marks a folder as a trained drafter; its value names the kind."""


@dataclass(frozen=True)
class Draft:
    """A loaded draft, before its rows are fitted to the target's vocabulary."""

    name: str
    language_model: LanguageModel | None
    """The draft itself, where it is no transformers model."""
    model: PreTrainedModel | None
    tokenizer: Any | None
    source: Source | None
    note: str


DrafterLoader = Callable[[Path, PreTrainedModel], Draft]


def _load_trained(folder: Path, target: PreTrainedModel) -> Draft:
    from acceptlab.pairs.trained import load_trained

    return Draft(str(folder), load_trained(folder, target), None, None, None, "")


DRAFTER_LOADERS: dict[str, DrafterLoader] = dict.fromkeys(
    ("causal", "feature", "block", "cross"), _load_trained
)
"""Loaders of trained drafters by kind: (folder, target model) -> Draft."""


def load_draft(
    name: str, target: PreTrainedModel, vocab_width: int, dtype: torch.dtype, device: torch.device
) -> Draft:
    """Load the draft of a `--draft` value.

    Args:
        name: `self:skip=12,14`, `ngram:n=3`, a hub id, a folder, a GGUF file, a trained drafter's folder, or
            `drafter:NAME` for a shipped one.
        target: the loaded target, whose layers and device a draft may share.
        vocab_width: width of the common vocabulary.
        dtype: number type of a draft that is a model of its own.
        device: where such a model is put.

    Raises:
        UsageError, RunError: unknown kind or parameter, or the model cannot be loaded.
    """
    kind, separator, rest = name.partition(":")
    if kind == "self" and separator:
        return _layer_skip(name, rest, target)
    if kind == "ngram" and separator:
        return Draft(name, NgramModel(_ngram_n(name, rest), vocab_width, device), None, None, None, "")
    source = find_source(name)
    drafter = None if source.is_gguf else drafter_kind(source.path)
    if drafter is not None:
        if drafter not in DRAFTER_LOADERS:
            known = ", ".join(DRAFTER_LOADERS) or "none"
            raise UsageError(
                f"'{name}' is a trained drafter of kind '{drafter}', which this version cannot run: "
                f"use one of kind {known}"
            )
        # named as the user named it: a shipped drafter has the same name on every machine
        return replace(DRAFTER_LOADERS[drafter](source.path, target), name=source.id, source=source)
    return Draft(source.id, None, load_model(source, dtype, device), load_tokenizer(source), source, "")


def _layer_skip(name: str, rest: str, target: PreTrainedModel) -> Draft:
    key, _, value = rest.partition("=")
    parts = value.split(",")
    if key != "skip" or not all(part.strip().isdecimal() for part in parts):
        raise UsageError(f"draft '{name}': write the layers to leave out, from 0, as self:skip=12,14")
    skipped = {int(part) for part in parts}
    n_layers = int(target.config.get_text_config().num_hidden_layers)
    model = skip_layers(target, skipped)
    note = (
        f"the draft is the target without {len(skipped)} of its {n_layers} layers: a slow stand-in, "
        "so its speed means nothing"
    )
    return Draft(name, None, model, None, None, note)


def _ngram_n(name: str, rest: str) -> int:
    key, _, value = rest.partition("=")
    if key != "n" or not value.strip().isdecimal():
        raise UsageError(f"draft '{name}': write the length of the match as ngram:n=3")
    return int(value)


def drafter_kind(folder: Path) -> str | None:
    """The kind of a trained drafter's folder; None for any other model.

    Raises:
        RunError: its config.json cannot be read.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read '{folder / 'config.json'}' ({error}): restore the file") from None
    kind = config.get(DRAFTER_KEY) if isinstance(config, dict) else None
    return None if kind is None else str(kind)
