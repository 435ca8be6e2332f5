"""From a path to text or bytes: which files to read, unpacking, byte-order marks, line ends. No records yet.

The same prompts come out of a clean file and of its copies with a byte-order mark, with CRLF line ends, or
gzipped: packing is recognised by its magic bytes, not by the name.
"""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from pathlib import Path, PurePosixPath

from acceptlab.errors import UsageError

SUFFIXES = frozenset({".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".txt"})
"""Endings of the files that are read from a folder, each also with `.gz`; others there are passed over."""

_GZIP_MAGIC = b"\x1f\x8b"
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


def list_files(path: Path) -> list[tuple[Path, str]]:
    """Files to read with their names in messages and ids, in natural order (2.json before 10.json).

    Args:
        path: A file, taken whatever its ending, or a folder, searched with its subfolders for `SUFFIXES`.

    Raises:
        UsageError: nothing there, or a folder without a readable file.
    """
    if path.is_file():
        return [(path, path.name)]
    if not path.is_dir():
        raise UsageError(f"there is no prompt file '{path}'")
    found = [
        (file, file.relative_to(path).as_posix())
        for file in path.rglob("*")
        if file.is_file() and suffix(file.name) in SUFFIXES and not _is_hidden(file.relative_to(path))
    ]
    if not found:
        endings = ", ".join(sorted(SUFFIXES))
        raise UsageError(f"the folder '{path}' holds no prompt file ({endings}, each also with .gz)")
    return sorted(found, key=lambda item: _natural(item[1]))


def suffix(name: str) -> str:
    """Ending of a file name without `.gz`, in lower case: `.jsonl` for `A.JSONL.gz`."""
    return PurePosixPath(name.lower().removesuffix(".gz")).suffix


def stem(name: str) -> str:
    """Name without its known endings, folders kept: `test/algebra/1` for `test/algebra/1.json.gz`."""
    bare = name[: -len(".gz")] if name.lower().endswith(".gz") else name
    return bare[: len(bare) - len(suffix(bare))] if suffix(bare) in SUFFIXES else bare


def read_bytes(path: Path) -> bytes:
    """Content of a file, unpacked where it is gzip.

    Raises:
        UsageError: the file cannot be read or is broken gzip.
    """
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data.startswith(_GZIP_MAGIC) else data
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise UsageError(f"'{path}' is cut off or broken gzip: fetch it again") from None
    except OSError as error:
        raise UsageError(f"cannot read '{path}': {error.strerror or error}") from None


def decode(data: bytes, name: str) -> str:
    r"""Text of a file: byte-order marks gone (also those in the middle, from joined files), line ends `\n`.

    Raises:
        UsageError: neither UTF-8 nor UTF-16 with its mark; the message names the line.
    """
    encoding = next((encoding for bom, encoding in _BOMS if data.startswith(bom)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UsageError(f"{name}: line {line}: not valid UTF-8; save the file as UTF-8") from None
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return re.sub("^\ufeff", "", text, flags=re.MULTILINE)


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _natural(name: str) -> tuple[tuple[int, int, str], ...]:
    parts = re.split(r"(\d+)", name)
    return tuple((0, int(part), "") if i % 2 else (1, 0, part) for i, part in enumerate(parts))
