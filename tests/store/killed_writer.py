"""A process that writes a run and kills itself: `python -m tests.store.killed_writer FOLDER POINT`.

POINT says where in the write of the fourth prompt, or in finishing, SIGKILL strikes.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from acceptlab.store import RunWriter, manifest, parts
from acceptlab.store import writer as writing
from tests.store.helpers import FIELDS, prompt_tables

POINTS = (
    "a temporary part is written",
    "some parts are renamed",
    "all parts are renamed",
    "the manifest is written under its temporary name",
    "joined parts are not listed",
    "replaced parts are not removed",
    "the run is not marked complete",
)


def die() -> None:
    """As the kernel's out-of-memory killer would: nothing is cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)


def dying(function: Any, call: int, *, after: bool = False) -> Any:
    """`function`, with SIGKILL at the start (or the end) of its call of that number, from 1."""
    calls = 0

    def wrapper(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and not after:
            die()
        result = function(*arguments, **options)
        if calls == call:
            die()
        return result

    return wrapper


def arm(point: str) -> None:
    """Make the process die at the point the next time it passes there."""
    if point == POINTS[0]:
        parts.sha256_file = dying(parts.sha256_file, 1)  # called between writing and renaming
    elif point == POINTS[1]:
        writing.write_part = dying(writing.write_part, 3)
    elif point in {POINTS[2], POINTS[6]}:
        writing.write_manifest = dying(writing.write_manifest, 1 if point == POINTS[2] else 5)
    elif point == POINTS[3]:
        manifest._flush = dying(manifest._flush, 9)  # four parts and their folders came before
    elif point == POINTS[4]:
        writing.join_parts = dying(writing.join_parts, 2, after=True)
    elif point == POINTS[5]:
        writing.write_manifest = dying(writing.write_manifest, 2, after=True)


def main() -> None:
    """Write four prompts and finish; never comes to its end."""
    folder, point = Path(sys.argv[1]), sys.argv[2]
    writer = RunWriter.create(folder, FIELDS)
    for number in range(3):
        writer.write(prompt_tables(number))
    if point in POINTS[:4]:
        arm(point)
    writer.write(prompt_tables(3))
    arm(point)
    writer.finish()


if __name__ == "__main__":
    main()
