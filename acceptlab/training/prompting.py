"""What the target is asked to write prompts from, and which of them are kept. Pure functions on text.

The target completes user turns: one quarter of the candidates starts from nothing, the others from a few
first words of our own (`openers.txt`), by domain in turn. No benchmark and no study prompt is ever involved.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources

import numpy as np

from acceptlab.errors import RunError

DOMAINS = ("code", "math", "logic", "chat")
_SOURCES = ("code", "math", "logic", "free")
_MIN_CHARS = 12
_MIN_WORDS = 3
_MIN_LETTER_SHARE = 0.5

_CODE = re.compile(
    r"```|\b(python|javascript|java|sql|html|css|bash|c\+\+|code|function that|program|script|regex"
    r"|regular expression|def |class |algorithm|api|linked list|array|string|loop|pandas"
    r"|unit test|variable)\b"
)
_LOGIC = re.compile(
    r"\b(logic|logical|riddle|puzzle|premise|conclusion|valid|argument|syllogism|true or false|statement|liar"
    r"|knights|taller than|older than|next in the sequence|next number|suspects?|which of these does not"
    r"|if all|if no |if it"
    r"|all \w+ are|some \w+ are|no \w+ are|every \w+ (is|has)|sit in a row|three boxes|odd one out)\b"
)
_MATH = re.compile(
    r"\d\s*[-+*/=^]\s*\d|\b(equation|solve|calculate|compute|sum|area|perimeter|probability|derivative|integral"
    r"|percent|average|ratio|fraction|how many|how much|how far|cost|triangle|rectangle|circle|angle|number"
    r"|simplify|evaluate|prove|mph|miles|dollars|divide|multiply)\b|\d+\s*%"
)


@dataclass(frozen=True)
class Opener:
    """First words of a user turn; empty where the target starts from nothing."""

    source: str
    text: str


def load_openers() -> dict[str, tuple[str, ...]]:
    """The shipped openers by domain."""
    sections: dict[str, list[str]] = {}
    current: list[str] | None = None
    text = resources.files("acceptlab.training").joinpath("openers.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith("["):
            current = sections.setdefault(line.strip("[] "), [])
        elif line.strip() and not line.startswith("#"):
            if current is None:
                raise RunError("openers.txt has a line before its first [domain] header: add the header")
            current.append(line.strip())
    return {name: tuple(lines) for name, lines in sections.items()}


def choose_opener(item: int, seed: int, openers: dict[str, tuple[str, ...]]) -> Opener:
    """The opener of candidate `item`: sources take turns, the words are drawn from the item's own stream.

    A "free" candidate starts from nothing half of the time and from a chat opener otherwise.
    """
    source = _SOURCES[item % len(_SOURCES)]
    rng = item_stream(seed, item, "opener")
    if source == "free":
        if rng.random() < 0.5:
            return Opener("free", "")
        source = "chat"
    lines = openers[source]
    return Opener(source, lines[int(rng.integers(len(lines)))])


def item_stream(seed: int, item: int, purpose: str) -> np.random.Generator:
    """The random stream of one item and purpose: neither batch size nor an interruption changes it."""
    return np.random.default_rng([seed, item, *purpose.encode()])


def classify(text: str) -> str:
    """A rough domain by keywords: code before logic before math, and chat for the rest."""
    lowered = text.lower()
    for name, pattern in (("code", _CODE), ("logic", _LOGIC), ("math", _MATH)):
        if pattern.search(lowered):
            return name
    return "chat"


def normalise(text: str) -> str:
    """The key under which two prompts count as the same."""
    return re.sub(r"\W+", " ", text.lower()).strip()


def is_usable(text: str) -> bool:
    """Whether a complete user turn is fit to be answered: long enough, mostly letters, without markup."""
    letters = sum(c.isalpha() for c in text)
    dense = sum(not c.isspace() for c in text)
    return (
        len(text) >= _MIN_CHARS
        and len(text.split()) >= _MIN_WORDS
        and letters >= _MIN_LETTER_SHARE * dense
        and "<|" not in text
        and "\ufffd" not in text
    )


def trim_to_sentence(text: str) -> str:
    """The part up to the last sentence end (or line end) of a turn that was cut by the length limit.

    May be empty.
    """
    ends = [match.end() for match in re.finditer(r"[.?!](?=\s|$)|\n", text)]
    return text[: ends[-1]].strip() if ends else ""
