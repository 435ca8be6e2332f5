"""Memory that loading models takes and running them does not need: holes in the heap, and code of all kinds.

The GNU library maps a large block on its own and gives it back when it is freed, but only until the first such block
has been freed: from then on blocks up to that size come from the heap. Packing makes large blocks that stay next to
others that are gone at once, and a heap keeps the holes between them for good.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt: what may lie free at the heap's end, and the size from which blocks are mapped."""
_DONT_NEED = 4
"""MADV_DONTNEED: forget pages. Those of a file that was not written to are read from it again when they are touched."""
_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ (\d+)", re.MULTILINE)
_LARGE = 2**20
"""Bytes: less than the smallest of the weights that matter."""
_MOST = 2**25
"""Bytes: where the library's own adjustment ends, at twice that for the free end of the heap. A threshold that has been
set is never adjusted again, so this is what is left behind: passes take and free some megabytes all the time, and get
them from the heap as before."""
_PRODUCTS = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
_MOST_PRODUCTS = 48
"""Products, of 0.7 MB each and five a number of rows, that oneDNN keeps code for; 1024 unless it is told. Making a
number of rows anew takes some 6 ms, so those of the decoding have to find room: they are used all the time."""


def keep_few_products() -> None:
    """Bound the code that oneDNN keeps, unless the user has; in time only before its first product."""
    os.environ.setdefault(_PRODUCTS, str(_MOST_PRODUCTS))


@contextlib.contextmanager
def large_blocks_apart() -> Iterator[None]:
    """Map every large block on its own for as long as this lasts; does nothing where the library is another one."""
    _set(_MMAP_THRESHOLD, _LARGE)
    try:
        yield
    finally:
        _set(_MMAP_THRESHOLD, _MOST)
        _set(_TRIM_THRESHOLD, 2 * _MOST)


def release_code() -> None:
    """Let go of the pages of program files: importing and loading run through much code that is not run again.

    What is needed again comes back from the system's own copy of the file, without reading the disk.
    """
    call = _library_call("madvise")
    if call is None:
        return
    with contextlib.suppress(OSError):
        for start, end in unwritten_mappings(Path("/proc/self/smaps").read_text(encoding="utf-8")):
            call(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _DONT_NEED)


def trim_memory() -> None:
    """Give memory that was used, and is free again, back to the system."""
    call = _library_call("malloc_trim")
    if call is not None:
        call(0)


def unwritten_mappings(smaps: str) -> list[tuple[int, int]]:
    """First address, and the one behind the last, of mappings that hold nothing but what their files hold.

    These cannot be written to, and no page of them has been: what the loader of programs has filled in is no copy of
    a file. Only files' own private mappings count; an inode of 0 means that there is no file.

    Args:
        smaps: what Linux says in /proc/self/smaps.
    """
    starts = [match.start() for match in _MAPPING.finditer(smaps)] + [len(smaps)]
    found = []
    for first, last in pairwise(starts):
        entry = smaps[first:last]
        match = _MAPPING.match(entry)
        assert match is not None
        start, end, rights, inode = match.groups()
        is_clean = all(
            re.search(rf"^{name}: +0 kB$", entry, re.MULTILINE)
            for name in ("Anonymous", "Private_Dirty", "Swap")
        )
        if rights in ("r--p", "r-xp") and inode != "0" and is_clean:
            found.append((int(start, 16), int(end, 16)))
    return found


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
