"""The manifest of a run: the file that says what the run is and which parts belong to it.

A part that the manifest does not list does not exist. Files are replaced atomically: written under a
temporary name, flushed to the disk, renamed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from acceptlab.errors import RunError, UsageError
from acceptlab.records import SCHEMA_VERSION
from acceptlab.store import provenance
from acceptlab.store.schema import TABLE_NAMES

MANIFEST = "manifest.json"
TEMPORARY = ".tmp"
CONFIG_KEYS = (
    "pair",
    "target",
    "draft",
    "draft_note",
    "prompts",
    "domains",
    "limit",
    "tree",
    "rule",
    "proposal",
    "temperature",
    "top_k",
    "top_p",
    "max_new_tokens",
    "seed",
    "stop",
    "batch_size",
    "device",
    "dtype",
)
"""What a configuration holds, in the order in which differences are looked for."""


def new_manifest(fields: dict[str, Any]) -> dict[str, Any]:
    """A manifest of a run that starts now; `fields` override what is found here (machine is merged)."""
    commit, is_dirty = provenance.git_state()
    manifest: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "run_id": provenance.new_run_id(),
        "created": provenance.now(),
        "ended": None,
        "complete": False,
        "config": {},
        "models": {},
        "tokenizer_sha256": None,
        "packages": provenance.package_versions(),
        "git_commit": commit,
        "git_dirty": is_dirty,
        "machine": provenance.machine(),
        "command": None,
    }
    machine = {**manifest["machine"], **fields.get("machine", {})}
    manifest.update(fields)
    manifest["machine"] = machine
    manifest["wall_s"] = 0.0
    manifest["parts"] = {name: [] for name in TABLE_NAMES}
    return manifest


def has_manifest(folder: Path) -> bool:
    """Whether the folder holds a run."""
    return (folder / MANIFEST).is_file()


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a run folder.

    Raises:
        UsageError: no such folder, or no run in it.
        RunError: the manifest is not readable, or lacks what every manifest has.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"'{folder}' is not a run: it has no {MANIFEST}; see acceptlab runs list") from None
    except OSError as error:
        raise RunError(f"cannot read '{path}': {error.strerror}; check the folder's permissions") from None
    except ValueError as error:
        raise RunError(f"'{path}' is damaged ({error}): collect the run again") from None
    if not isinstance(manifest, dict):
        raise RunError(f"'{path}' is not a manifest: collect the run again")
    for key in ("schema_version", "run_id", "complete", "config", "parts"):
        if key not in manifest:
            raise RunError(f"'{path}' lacks '{key}': it is not a manifest of acceptlab, or it is damaged")
    if manifest["schema_version"] > SCHEMA_VERSION:
        raise RunError(
            f"run '{folder}' has schema version {manifest['schema_version']}, newer than {SCHEMA_VERSION}: "
            "update acceptlab"
        )
    return manifest


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Replace the manifest atomically; durable when this returns."""
    text = json.dumps(manifest, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    path = folder / MANIFEST
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write(text)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`; on success flush it to the disk and rename it, else remove it.

    Raises:
        RunError: the disk is full or refuses to write; what was there before is untouched.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        yield temporary
        _flush(temporary)
        temporary.replace(path)
        _flush(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise _disk_error(path, error) from error
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _disk_error(path: Path, error: OSError) -> RunError:
    folder = path.parent
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return RunError(f"no space left in '{folder}': free some, then run the same command with --resume")
    return RunError(f"cannot write '{path}': {error.strerror or error}; mend that, then use --resume")


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def first_difference(stored: dict[str, Any], wanted: dict[str, Any]) -> str | None:
    """Name the first configuration field that differs, as `name was X, not Y`; None where all agree."""
    stored, wanted = (json.loads(json.dumps(config)) for config in (stored, wanted))
    names = [*CONFIG_KEYS, *sorted((set(stored) | set(wanted)) - set(CONFIG_KEYS))]
    for name in names:
        if stored.get(name) != wanted.get(name):
            return f"{name} was {json.dumps(stored.get(name))}, not {json.dumps(wanted.get(name))}"
    return None
