"""Where a run was made: machine, package versions, git commit. Facts for the manifest, not judged here.

Standard library only: a CPU-only install and the analysis side ask the same questions.
"""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

PACKAGES = (
    "acceptlab",
    "torch",
    "transformers",
    "gguf",
    "safetensors",
    "numpy",
    "pandas",
    "pyarrow",
    "scipy",
    "duckdb",
)
CHECKOUT = Path(__file__).resolve().parents[2]
"""The folder that holds the package: the git checkout, where there is one."""


def now() -> str:
    """The present in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def new_run_id() -> str:
    """An identifier that sorts by time and that two runs of one second do not share."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def package_versions() -> dict[str, str]:
    """Python's version and that of every package whose version can change a record."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def git_state() -> tuple[str | None, bool | None]:
    """Commit and dirty flag of acceptlab's own checkout; (None, None) for an installed copy without one."""
    top = _git("rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != CHECKOUT:  # a package folder inside somebody else's repository
        return None, None
    status = _git("status", "--porcelain", "--untracked-files=no")
    return _git("rev-parse", "HEAD"), None if status is None else bool(status)


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(CHECKOUT), *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def machine() -> dict[str, str | int | float | None]:
    """Processor, usable cores, memory, platform; `accelerator` is None until the collector names one."""
    return {
        "cpu": _cpu_name(),
        "cores": _cores(),
        "memory_gib": _memory_gib(),
        "platform": platform.platform(),
        "accelerator": None,
    }


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_gib() -> float | None:
    with contextlib.suppress(AttributeError, ValueError, OSError):
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    return None
