"""Files that are there whole or not at all. Names and renames only; what stands in a file is the caller's."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from acceptlab.errors import RunError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary name beside `path`, of the same suffix: what is written there replaces the file at the end.

    Folders are made as needed. Where the body fails, the temporary file is removed and the old one stays. The name is
    this process's own: where two write the same file, the last one to finish stays, whole.

    Raises:
        RunError: the file cannot be written.
    """
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise RunError(f"cannot write '{path}': {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
