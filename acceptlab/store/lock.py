"""One writer a folder: an advisory lock that ends with the process, however it ends.

The lock sits on the folder itself, so that it leaves no file behind.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from acceptlab.errors import UsageError

_HELD: dict[Path, int] = {}
"""Descriptors of the folders that this process has locked, so that it may succeed a writer that it gave up."""


def lock(folder: Path) -> None:
    """Hold the folder for this process.

    Raises:
        UsageError: another process holds it.
    """
    try:
        import fcntl
    except ImportError:  # no advisory locks on this platform
        return
    if folder.resolve() in _HELD:
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UsageError(
            f"another process is writing run '{folder}': wait for it, or choose another --run"
        ) from None
    except OSError:  # a file system without locks
        os.close(descriptor)
        return
    _HELD[folder.resolve()] = descriptor


def unlock(folder: Path) -> None:
    """Let other processes hold the folder; nothing happens where it was not held."""
    descriptor = _HELD.pop(folder.resolve(), None)
    if descriptor is not None:
        with contextlib.suppress(OSError):
            os.close(descriptor)
