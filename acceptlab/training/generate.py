"""The target writes training text: its own prompts, then answers to them, both sampled at temperature 1.

Sampling works on a decoder and token ids; files are written in `trajectories`. Every item draws its uniforms
from a stream of its own, so neither the batch size nor an interruption changes what is drawn (rounding of the
logits aside).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from acceptlab.errors import UsageError
from acceptlab.training.prompting import Opener, is_usable, item_stream, normalise, trim_to_sentence
from acceptlab.training.static_cache import StaticDecoder

_SELECT_SHARE = 0.8
"""Finished rows are dropped from the batch once fewer than this share of its rows is still running."""
PROMPT_TEMPERATURE = 0.8
"""Of the prompts only:

A small target left at 1 writes requests stranger than any user's. Answers are at 1.
"""
_MARK = "\u241f"


class ChatTokenizer(Protocol):
    """What text generation needs of a tokenizer."""

    eos_token_id: int

    def __call__(self, text: str, add_special_tokens: bool = ...) -> dict[str, list[int]]:
        """Token ids of a text."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids."""
        ...

    def apply_chat_template(
        self, conversation: list[dict[str, str]], tokenize: bool = ..., add_generation_prompt: bool = ...
    ) -> str:
        """A conversation as the model's text."""
        ...


@dataclass(frozen=True)
class ChatFrame:
    """Token ids around a user turn: `before` ends right after the user header, `after` opens the answer."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    before_text: str
    after_text: str

    @classmethod
    def of(cls, tokenizer: ChatTokenizer) -> ChatFrame:
        """Cut the tokenizer's chat template around the user's words.

        Raises:
            UsageError: no chat template, or one that changes the user's words.
        """
        turn = [{"role": "user", "content": _MARK}]
        try:
            text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        except ValueError:
            raise UsageError("the target's tokenizer has no chat template: choose a chat model") from None
        before, mark, after = text.partition(_MARK)
        if not mark:
            raise UsageError("the target's chat template rewrites the user's turn: choose another target")
        ids = [tuple(tokenizer(part, add_special_tokens=False)["input_ids"]) for part in (before, after)]
        return cls(ids[0], ids[1], before, after)

    def prompt_ids(self, tokenizer: ChatTokenizer, text: str) -> list[int]:
        """Token ids of the whole prompt, as a user's message would be encoded."""
        whole = tokenizer(self.before_text + text + self.after_text, add_special_tokens=False)["input_ids"]
        return list(whole)


@dataclass(frozen=True)
class Sampled:
    """What one row produced.

    `features` holds the target's normed last hidden states, float16, one row a token from position shared_len
    on: row j predicted token shared_len + j of prompt + output. Log probabilities (nats) and log normalisers
    of the logits are those of the output's tokens.
    """

    token_ids: list[int]
    ended_by_eos: bool
    log_probs: list[float]
    log_norms: list[float]
    features: np.ndarray | None


@dataclass(frozen=True)
class Drawn:
    """Tokens with the logarithm of their probability and of the normaliser of their row's logits."""

    token_ids: Int[Tensor, " rows"]
    log_probs: Float[Tensor, " rows"]
    log_norms: Float[Tensor, " rows"]


def draw_rows(logits: Float[Tensor, "rows vocab"], uniforms: Float[Tensor, " rows"] | None) -> Drawn:
    """One token a row.

    Inverse transform of the softmax at the given uniforms, or the argmax where there are none.
    """
    top = logits.amax(dim=-1, keepdim=True)
    cumulative = (logits - top).exp_().cumsum_(dim=-1)
    total = cumulative[:, -1:]
    if uniforms is None:
        ids = logits.argmax(dim=-1)
    else:
        # Scaled by the unnormalised total, so that rounding of the sum can never leave the vocabulary.
        cut = uniforms[:, None].to(cumulative.dtype) * total
        ids = torch.searchsorted(cumulative, cut, right=True)[:, 0].clamp_(max=logits.shape[1] - 1)
    log_norms = (top + total.log())[:, 0]
    return Drawn(ids, logits.gather(1, ids[:, None])[:, 0] - log_norms, log_norms)


@torch.inference_mode()
def sample_batch(
    decoder: StaticDecoder,
    prompts: Sequence[Sequence[int]],
    uniforms: Float[np.ndarray, "batch limit"],
    *,
    shared_len: int,
    eos_id: int,
    temperature: float = 1.0,
    greedy: bool = False,
    keep_features: bool = False,
    on_step: Callable[[int], None] | None = None,
) -> list[Sampled]:
    """Continue every prompt until EOS (kept in the output) or for `limit` tokens.

    Args:
        decoder: the target.
        prompts: token ids, all with the same first `shared_len` (at least 1) tokens.
        uniforms: one number in [0, 1) a row and step; ignored when greedy, except for their count.
        shared_len: length of the common beginning.
        eos_id: token that ends a row.
        temperature: divides the logits.
        greedy: take the argmax instead.
        keep_features: also return the hidden states.
        on_step: called after every step with the number of rows that were still running.
    """
    limit = uniforms.shape[1]
    start = decoder.prefill(prompts, shared_len=shared_len, room=limit)
    ends = torch.tensor([len(ids) - shared_len for ids in prompts])
    rows = torch.arange(len(prompts))
    hidden = start[rows, ends]
    tails = [start[row, : ends[row] + 1].half() for row in rows] if keep_features else []
    draws = torch.from_numpy(np.ascontiguousarray(uniforms))
    tokens = torch.full((len(prompts), limit), -1, dtype=torch.long)
    scores = torch.zeros(2, len(prompts), limit)
    trail = torch.empty(len(prompts), limit - 1, hidden.shape[1], dtype=torch.half) if keep_features else None
    lens = torch.zeros(len(prompts), dtype=torch.long)
    running = torch.ones(len(rows), dtype=torch.bool)
    for step in range(limit):
        drawn = draw_rows(decoder.logits(hidden).div_(temperature), None if greedy else draws[rows, step])
        chosen = drawn.token_ids
        alive = rows[running]
        tokens[alive, step] = chosen[running]
        scores[:, alive, step] = torch.stack([drawn.log_probs, drawn.log_norms])[:, running]
        lens[alive] += 1
        running &= chosen != eos_id
        if on_step is not None:
            on_step(len(alive))
        if step + 1 == limit or not bool(running.any()):
            break
        if int(running.sum()) < _SELECT_SHARE * len(rows):
            decoder.select(running.nonzero()[:, 0])
            rows, chosen, running = rows[running], chosen[running], running[running]
        hidden = decoder.step(chosen)
        if trail is not None:
            trail[rows, step] = hidden.half()
    return _split(tokens, scores, lens, tails, trail, eos_id)


def _split(
    tokens: Int[Tensor, "batch limit"],
    scores: Float[Tensor, "2 batch limit"],
    lens: Int[Tensor, " batch"],
    tails: Sequence[Tensor],
    trail: Float[Tensor, "batch steps size"] | None,
    eos_id: int,
) -> list[Sampled]:
    """What every row produced.

    Its tokens and scores up to its length; the prompt's hidden states, then those behind each token but the
    last.
    """
    results = []
    for row, n in enumerate(lens.tolist()):
        ids = tokens[row, :n].tolist()
        features = None if trail is None else torch.cat([tails[row], trail[row, : n - 1]]).numpy()
        log_probs, log_norms = scores[:, row, :n].tolist()
        results.append(Sampled(ids, bool(ids and ids[-1] == eos_id), log_probs, log_norms, features))
    return results


def write_prompts(
    decoder: StaticDecoder,
    tokenizer: ChatTokenizer,
    frame: ChatFrame,
    openers: Sequence[tuple[int, Opener]],
    *,
    seed: int,
    max_tokens: int = 48,
) -> list[str | None]:
    """Let the target complete user turns; a cut turn ends at its last whole sentence, None where unusable.

    Args:
        decoder: the target.
        tokenizer: its tokenizer.
        frame: the chat template around a user turn.
        openers: pairs of item number and first words.
        seed: of the run.
        max_tokens: most tokens that the target adds to the opener.
    """
    prompts = [
        [*frame.before, *(tokenizer(o.text, add_special_tokens=False)["input_ids"] if o.text else [])]
        for _, o in openers
    ]
    uniforms = np.stack([item_stream(seed, item, "prompt").random(max_tokens) for item, _ in openers])
    sampled = sample_batch(
        decoder,
        prompts,
        uniforms,
        shared_len=len(frame.before),
        eos_id=tokenizer.eos_token_id,
        temperature=PROMPT_TEMPERATURE,
    )
    texts: list[str | None] = []
    for ids, result in zip(prompts, sampled, strict=True):
        produced = result.token_ids[:-1] if result.ended_by_eos else result.token_ids
        words = tokenizer.decode([*ids[len(frame.before) :], *produced]).strip()
        words = words if result.ended_by_eos else trim_to_sentence(words)
        texts.append(words if is_usable(words) else None)
    return texts


def drop_repeats(texts: Sequence[str | None], seen: set[str]) -> list[str | None]:
    """Replace by None what is in `seen` or came earlier in the list, up to case and punctuation."""
    known = set(seen)
    kept: list[str | None] = []
    for text in texts:
        key = None if text is None else normalise(text)
        kept.append(None if key is None or key in known else text)
        if key is not None:
            known.add(key)
    return kept
