"""What the audit tells about its progress. Where it goes is the caller's business."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


class Show(Protocol):
    """Where progress goes: a bar, a log or nowhere."""

    def say(self, message: str) -> None:
        """Tell one line."""
        ...

    def start(self, what: str, total: int) -> None:
        """A part begins, with so many things to do."""
        ...

    def update(self, done: int) -> None:
        """How many of them are done."""
        ...

    def stop(self) -> None:
        """The part has ended, or was interrupted."""
        ...


@contextmanager
def part(show: Show, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """One part of the audit; gives the function that says how much of it is done."""
    show.start(what, total)
    try:
        yield show.update
    finally:
        show.stop()
