"""Where the C library takes large blocks of memory from while models are loaded.

The GNU library maps a large block on its own and gives it back when it is freed, but only until the first such block
has been freed: from then on blocks up to that size come from the heap. Packing makes large blocks that stay next to
others that are gone at once, and a heap keeps the holes between them for good.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt: what may lie free at the heap's end, and the size from which blocks are mapped."""
_LARGE = 2**20
"""Bytes: less than the smallest of the weights that matter."""
_MOST = 2**25
"""Bytes: where the library's own adjustment ends, at twice that for the free end of the heap. A threshold that has been
set is never adjusted again, so this is what is left behind: passes take and free some megabytes all the time, and get
them from the heap as before."""


@contextlib.contextmanager
def large_blocks_apart() -> Iterator[None]:
    """Map every large block on its own for as long as this lasts; does nothing where the library is another one."""
    _set(_MMAP_THRESHOLD, _LARGE)
    try:
        yield
    finally:
        _set(_MMAP_THRESHOLD, _MOST)
        _set(_TRIM_THRESHOLD, 2 * _MOST)


def _set(parameter: int, value: int) -> None:
    call = _library_call("mallopt")
    if call is not None:
        call(parameter, value)


@lru_cache
def _library_call(name: str) -> Any:
    """A call of the GNU library, or None: its parameters mean something else, or nothing, in other libraries."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return getattr(library, name, None) if hasattr(library, "gnu_get_libc_version") else None
