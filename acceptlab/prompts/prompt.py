"""What a prompt is, what can be wrong with one, and how both are named in messages. Standard library only."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

DOMAINS = ("code", "math", "logic", "chat")
"""Domains of the shipped prompts, in their order everywhere. Files of users may use any other label."""

UNLABELLED = "unlabelled"
"""Domain of a prompt whose file names none."""


def sha256(text: str) -> str:
    """SHA-256 of a text in UTF-8, as hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


@dataclass(frozen=True)
class Prompt:
    """One prompt as its file gives it: no template applied, no system prompt, nothing stripped.

    Attributes:
        id: Identifier, unique within a set; it becomes `prompt_id` in every table as it stands.
        domain: code, math, logic or chat for the shipped prompts, any label in files of users.
        prompt: The user's text; for several turns the first one.
        turns: All turns of the user where there is more than one, else None. The first equals `prompt`.
        source: Name of the shipped set, of the file, or of the hub dataset.
        reference: The answer that a benchmark file carries, unused in collection; None without one.
    """

    id: str
    domain: str
    prompt: str
    turns: tuple[str, ...] | None = None
    source: str = ""
    reference: str | None = None

    @property
    def sha256(self) -> str:
        """SHA-256 of the prompt's text (UTF-8)."""
        return sha256(self.prompt)


@dataclass(frozen=True)
class Columns:
    """Names of the columns of a file; None stands for the usual name, which a file may lack (id, domain)."""

    prompt: str | None = None
    id: str | None = None
    domain: str | None = None


@dataclass(frozen=True)
class Row:
    """One record of a file.

    Attributes:
        number: Which record of the file it is, from 1; blank lines and a CSV header do not count.
        line: Line of the file in which it starts, from 1; None where the format has no lines.
        values: Its columns.
    """

    number: int
    line: int | None
    values: dict[str, Any]

    @property
    def where(self) -> str:
        """The place in words, such as `row 3 (line 5)`."""
        return place(self.number, self.line)


@dataclass(frozen=True)
class Problem:
    """Why a row, or a whole file (row None), cannot be used."""

    source: str
    row: int | None
    line: int | None
    reason: str
    prompt_id: str | None = None

    def __str__(self) -> str:
        """One sentence without the full stop: file, row, line, reason."""
        parts = [
            self.source,
            *([] if self.row is None and self.line is None else [place(self.row, self.line)]),
        ]
        return ": ".join([*parts, self.reason])


def place(row: int | None, line: int | None) -> str:
    """`row 3 (line 5)`, `row 3` or `line 5`, as far as known."""
    if row is None:
        return f"line {line}"
    return f"row {row}" if line is None else f"row {row} (line {line})"
