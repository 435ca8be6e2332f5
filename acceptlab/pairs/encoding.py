"""Prompts to token ids: the chat template applied once, one BOS. No models here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from acceptlab.errors import UsageError

Prompt = str | Sequence[str] | Sequence[Mapping[str, str]]


def encode_prompt(tokenizer: Any, prompt: Prompt, n_embeddings: int | None = None) -> list[int]:
    """Token ids of a prompt, ready for generation.

    Args:
        tokenizer: the target's.
        prompt: a text; or user turns, of which the first is used, since the later ones answer replies that
            this model has not given; or a whole conversation as messages with `role` and `content`.
        n_embeddings: rows of the target's embedding, to refuse ids beyond it.

    A tokenizer with a chat template gets one user message and the header of the reply; the template alone
    decides about system turns and BOS. One without gets the plain text, with the BOS that the tokenizer adds
    itself.

    Raises:
        UsageError: nothing to encode, or an id that the model has no embedding for.
    """
    messages = _messages(prompt)
    if getattr(tokenizer, "chat_template", None):
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids = _ids(tokenizer, text, add_special_tokens=False)
    else:
        ids = _ids(
            tokenizer, "\n\n".join(message["content"] for message in messages), add_special_tokens=True
        )
        ids = _without_end(tokenizer, ids)
    bos = tokenizer.bos_token_id
    while len(ids) > 1 and bos is not None and ids[0] == ids[1] == bos:
        ids = ids[1:]
    if not ids:
        raise UsageError("the prompt has no tokens: give it some text")
    if n_embeddings is not None and max(ids) >= n_embeddings:
        token = tokenizer.convert_ids_to_tokens(max(ids))
        raise UsageError(
            f"the prompt holds {token!r} (id {max(ids)}), but the target knows ids "
            f"below {n_embeddings}: remove it"
        )
    return ids


def _messages(prompt: Prompt) -> list[dict[str, str]]:
    if isinstance(prompt, str):
        messages = [{"role": "user", "content": prompt}]
    elif prompt and isinstance(prompt[0], str):
        messages = [{"role": "user", "content": prompt[0]}]
    else:
        messages = [dict(message) for message in prompt if isinstance(message, Mapping)]
    if not any(message["content"].strip() for message in messages):
        raise UsageError("the prompt is empty: give it some text")
    return messages


def _ids(tokenizer: Any, text: str, add_special_tokens: bool) -> list[int]:
    return [int(i) for i in tokenizer(text, add_special_tokens=add_special_tokens).input_ids]


def _without_end(tokenizer: Any, ids: list[int]) -> list[int]:
    """Drop an EOS that the tokenizer puts behind every text: the reply would start after the end."""
    eos = tokenizer.eos_token_id
    return ids[:-1] if len(ids) > 1 and eos is not None and ids[-1] == eos else ids


def end_ids(tokenizer: Any, model: Any | None) -> frozenset[int]:
    """Ids that end a text: the generation settings' and the tokenizer's, else the configuration's."""
    found: set[int] = set()
    for owner in (getattr(model, "generation_config", None), tokenizer):
        found |= _as_ids(getattr(owner, "eos_token_id", None))
    if not found and model is not None:
        found = _as_ids(getattr(model.config.get_text_config(), "eos_token_id", None))
    return frozenset(found)


def _as_ids(value: object) -> set[int]:
    if value is None:
        return set()
    return {int(i) for i in value} if isinstance(value, (list, tuple, set)) else {int(str(value))}
