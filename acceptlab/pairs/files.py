"""The cache folder, checksums of large files, and folders that appear whole or not at all. No models here."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

from acceptlab.errors import RunError

_HASHES = "hashes.json"
_SLOW_SIZE = 4 * 10**9
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".gguf", ".pt", ".pth")


def cache_root() -> Path:
    """Folder for converted models: $ACCEPTLAB_CACHE, else acceptlab below the user's cache folder."""
    chosen = os.environ.get("ACCEPTLAB_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "acceptlab"


def progress(message: str) -> None:
    """One line about slow work, on stderr."""
    print(message, file=sys.stderr, flush=True)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal, read in full."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def cached_sha256(path: Path) -> str:
    """SHA-256 of a file, remembered in the cache folder while its size and modification time stay."""
    stat = path.stat()
    stamp = [stat.st_size, stat.st_mtime_ns]
    key = str(path.resolve())
    store = cache_root() / _HASHES
    known = _read_hashes(store)
    entry = known.get(key)
    if isinstance(entry, list) and len(entry) == 3 and entry[:2] == stamp and isinstance(entry[2], str):
        return entry[2]
    if stat.st_size > _SLOW_SIZE:
        progress(f"taking the checksum of {path.name}, once ({stat.st_size / 1e9:.0f} GB)")
    digest = sha256_of(path)
    # read again: another process may have added entries while this one was hashing
    with contextlib.suppress(OSError):
        store.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(store, json.dumps(_read_hashes(store) | {key: [*stamp, digest]}, indent=0))
    return digest


def _read_hashes(store: Path) -> dict[str, object]:
    try:
        content = json.loads(store.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def weight_files(folder: Path) -> list[Path]:
    """Files that hold the weights of a model folder: safetensors if there are any, else the older formats."""
    found = sorted(path for path in folder.iterdir() if path.suffix in _WEIGHT_SUFFIXES)
    tensors = [path for path in found if path.suffix == ".safetensors"]
    return tensors or [path for path in found if path.suffix != ".gguf"]


def write_atomically(path: Path, text: str) -> None:
    """Write a text file under a temporary name and rename it."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """Give a temporary folder that becomes `final` when the block ends well and is removed when it does not.

    The caller holds `folder_lock(final)`, so temporary folders that a killed process left are removed first.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    for leftover in final.parent.glob(f".{final.name}.*.tmp"):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary = final.with_name(f".{final.name}.{uuid.uuid4().hex[:8]}.tmp")
    temporary.mkdir()
    try:
        yield temporary
        if final.exists():
            shutil.rmtree(final)
        temporary.replace(final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def folder_lock(final: Path) -> Iterator[None]:
    """Hold the lock for making `final`; a second process waits for the first.

    Raises:
        RunError: the cache folder cannot be written.
    """
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(final.with_name(f".{final.name}.lock"))
        lock.acquire()
    except OSError as error:
        raise RunError(
            f"cannot write the cache folder '{final.parent}' ({error.strerror or error}): "
            "set ACCEPTLAB_CACHE to a folder that can be written"
        ) from None
    try:
        yield
    finally:
        lock.release()
