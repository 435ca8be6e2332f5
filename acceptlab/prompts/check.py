"""How varied a set of prompts is: lengths, repeated sentence frames, shared runs of words. No verdict."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from acceptlab.prompts.prompt import Prompt

OPENING_WORDS = 4
"""Words of an opening; two prompts with the same opening stand in the same frame."""

SHINGLE_WORDS = 8
"""Words in a row that two independent texts hardly ever share."""

_CODE_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+|\n+")
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_MASKED = re.compile(r"\"[^\"\n]*\"|`[^`\n]*`|[^\W_]+(?:['’.,][^\W_]+)*")


@dataclass(frozen=True)
class Lengths:
    """Size of one domain: prompts, those with several turns, and characters of their first turns."""

    domain: str
    n_prompts: int
    n_multi_turn: int
    min_chars: int
    median_chars: float
    max_chars: int


@dataclass(frozen=True)
class Frame:
    """A frame and the prompts that stand in it.

    Attributes:
        kind: `opening` for the first words of a prompt, `sentence` for a whole masked sentence anywhere.
        words: The frame; in sentences # stands for a number, @ for a name, ~ for a quotation.
        prompt_ids: Its prompts in order.
    """

    kind: str
    words: str
    prompt_ids: tuple[str, ...]


def lengths(prompts: Sequence[Prompt]) -> list[Lengths]:
    """One row a domain, in the order of first appearance."""
    by_domain: dict[str, list[Prompt]] = defaultdict(list)
    for prompt in prompts:
        by_domain[prompt.domain].append(prompt)
    return [
        Lengths(
            domain=domain,
            n_prompts=len(group),
            n_multi_turn=sum(prompt.turns is not None for prompt in group),
            min_chars=min(len(prompt.prompt) for prompt in group),
            median_chars=statistics.median(len(prompt.prompt) for prompt in group),
            max_chars=max(len(prompt.prompt) for prompt in group),
        )
        for domain, group in by_domain.items()
    ]


def repeated_frames(prompts: Iterable[Prompt], more_than: int = 3) -> list[Frame]:
    """Frames that more than so many prompts share, most frequent first.

    Openings are the first `OPENING_WORDS` words of a prompt in lower case. Sentences are masked: "Give 3
    apples to Ann now" and "Give 12 apples to Tom now" are the same frame. Code blocks are left out.
    """
    found: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for prompt in prompts:
        for kind, words in _frames(prompt):
            found[kind, words][prompt.id] = None
    frames = [Frame(kind, words, tuple(ids)) for (kind, words), ids in found.items() if len(ids) > more_than]
    return sorted(frames, key=lambda frame: -len(frame.prompt_ids))


def shared_shingles(
    first: Iterable[Prompt], second: Iterable[Prompt], n_words: int = SHINGLE_WORDS
) -> list[tuple[str, str, str]]:
    """Runs of so many words that prompts of two sets share, as the two ids and the words.

    Every turn counts, code included; case and punctuation do not. A prompt is never compared with itself.
    """
    owners: dict[tuple[str, ...], list[Prompt]] = defaultdict(list)
    for prompt in first:
        for shingle in set(_shingles(prompt, n_words)):
            owners[shingle].append(prompt)
    pairs: dict[tuple[str, str], str] = {}
    for prompt in second:
        for shingle in _shingles(prompt, n_words):
            for owner in owners.get(shingle, ()):
                if owner is not prompt:
                    pairs.setdefault((owner.id, prompt.id), " ".join(shingle))
    return [(*ids, words) for ids, words in pairs.items()]


def _texts(prompt: Prompt) -> tuple[str, ...]:
    return prompt.turns or (prompt.prompt,)


def _frames(prompt: Prompt) -> Iterator[tuple[str, str]]:
    opening = [word.lower() for word in _WORD.findall(prompt.prompt)[:OPENING_WORDS]]
    yield "opening", " ".join(opening)
    for text in _texts(prompt):
        for sentence in _SENTENCE_END.split(_CODE_BLOCK.sub("", text)):
            words = [_mask(word, i == 0) for i, word in enumerate(_MASKED.findall(sentence))]
            # shorter sentences ("Why?", table cells) are no frames
            if len(words) >= OPENING_WORDS:
                yield "sentence", " ".join(words)


def _mask(word: str, is_first: bool) -> str:
    if word[0] in '"`':
        return "~"
    if any(character.isdigit() for character in word):
        return "#"
    if word[0].isupper() and not is_first and word != "I":
        return "@"
    return word.lower()


def _shingles(prompt: Prompt, n_words: int) -> Iterator[tuple[str, ...]]:
    for text in _texts(prompt):
        words = [word.lower() for word in _WORD.findall(text)]
        for start in range(len(words) - n_words + 1):
            yield tuple(words[start : start + n_words])
