"""Greedy identity: is the engine's greedy text that of target-only decoding, and if not, how near was the tie?

In float32 the two must be equal token for token. In lower precision a batched pass rounds differently from a single
step, so a text may part where two tokens are almost equally probable: the first divergence is reported with the
margin that the target had there. Boundary: a loaded pair in, a table out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pandas as pd
import torch

from acceptlab.engine import Settings, decode

if TYPE_CHECKING:
    from acceptlab.pairs import Pair
    from acceptlab.prompts import Prompt


def greedy_identity(
    pair: Pair,
    prompts: Sequence[Prompt],
    settings: Settings,
    on_prompt: Callable[[int], None] = lambda n_done: None,
) -> pd.DataFrame:
    """Decode prompts with the engine and with the target alone, and compare.

    Args:
        pair: loaded target and draft.
        prompts: what to decode.
        settings: tree and limits; the rule should be greedy.
        on_prompt: called with the number of prompts done.

    Returns:
        One row a prompt: tokens compared, whether they are equal, the index of the first divergence, the target's
        probability margin there (from a plain, cache-free forward), and both tokens; null where equal.
    """
    quiet = replace(settings, record=False)
    rows = []
    for n_done, prompt in enumerate(prompts, start=1):
        token_ids = pair.encode(prompt.prompt)
        steps = decode(pair.target, pair.draft, token_ids, prompt.id, quiet)
        ours = [token for step in steps for token in step.emitted]
        rows.append({"prompt_id": prompt.id, **_compare(pair, token_ids, ours, settings.max_new_tokens)})
        on_prompt(n_done)
    return pd.DataFrame(rows)


def target_only(pair: Pair, token_ids: Sequence[int], max_new_tokens: int) -> list[int]:
    """Greedy continuation by the transformers library itself, which shares no code with the engine."""
    prompt = torch.tensor([list(token_ids)], device=pair.target_model.device)
    eos = sorted(pair.eos_ids)
    output = pair.target_model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        eos_token_id=eos or None,
        pad_token_id=eos[0] if eos else 0,
    )
    return [int(token) for token in output[0, len(token_ids) :]]


def _compare(
    pair: Pair, token_ids: Sequence[int], ours: list[int], max_new_tokens: int
) -> dict[str, int | float | bool | None]:
    theirs = target_only(pair, token_ids, max_new_tokens)
    row: dict[str, int | float | bool | None] = {"n_tokens": len(theirs), "is_identical": ours == theirs}
    if ours == theirs:
        return {**row, "first_divergence": None, "margin": None, "engine_token": None, "target_token": None}
    same = [left == right for left, right in zip(ours, theirs, strict=False)]
    at = same.index(False) if False in same else len(same)
    with torch.inference_mode():
        text = torch.tensor([[*token_ids, *theirs[:at]]], device=pair.target_model.device)
        logits = pair.target_model(text, use_cache=False).logits[0, -1]
    top = torch.softmax(logits.double(), dim=-1).topk(2).values
    return {
        **row,
        "first_divergence": at,
        "margin": float(top[0] - top[1]),
        "engine_token": ours[at] if at < len(ours) else None,
        "target_token": theirs[at] if at < len(theirs) else None,
    }
