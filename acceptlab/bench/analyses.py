"""Every analysis on one run, each in a process of its own: wall time and peak memory.

Boundary: command lines in, seconds and bytes out. What an analysis prints goes to a file that is thrown away.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd

from acceptlab.errors import UsageError

LIMIT_S, SLOW_LIMIT_S, LIMIT_GIB = 60.0, 600.0, 4.0
"""What an analysis of ten million nodes may take on two cores."""

SLOW = frozenset({"certificates", "replay", "predictors"})
"""Analyses with the longer limit: they visit nodes or contexts one range of prompts after the other."""

WORDS: dict[str, tuple[str, ...]] = {
    "replay": ("--rule", "additive:0.1", "--tree", "branches:2,1"),
}
"""What a command needs beside the run."""

NOT_ALONE = frozenset({"budget-check"})
"""Analyses that need several runs."""


@dataclass(frozen=True)
class Timed:
    """One command: wall time, processor time, peak resident memory, and whether it kept the limits."""

    command: str
    seconds: float
    cpu_s: float
    peak_gib: float
    exit_code: int
    limit_s: float
    within: bool
    said: str
    """Last line on stderr where it failed; empty otherwise."""


def time_analyses(
    run: Path, names: Sequence[str], on_done: Callable[[Timed], None] = lambda timed: None
) -> pd.DataFrame:
    """Run the analyses one after the other.

    Args:
        run: folder of the run.
        names: analyses, as `acceptlab analyze` calls them.
        on_done: told about each.

    Returns:
        One row an analysis.

    Raises:
        UsageError: an unknown name.
    """
    from acceptlab.analysis import ANALYSES

    for name in names:
        if name not in ANALYSES:
            raise UsageError(
                f"unknown analysis '{name}': use {', '.join(n for n in ANALYSES if n not in NOT_ALONE)}"
            )
    rows = []
    for name in names:
        timed = time_one(name, run)
        on_done(timed)
        rows.append(asdict(timed))
    return pd.DataFrame(rows)


def time_one(name: str, run: Path) -> Timed:
    """One analysis as a command of its own."""
    limit_s = SLOW_LIMIT_S if name in SLOW else LIMIT_S
    words = ["analyze", name, str(run), *WORDS.get(name, ()), "--format", "csv"]
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as table:
        started = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-m", "acceptlab", *words], stdout=table, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        lines = said.read().decode(errors="replace").strip().splitlines()
    # the kernel counts kilobytes on Linux, bytes on macOS
    peak_gib = usage.ru_maxrss / (2**30 if sys.platform == "darwin" else 2**20)
    within = process.returncode == 0 and seconds <= limit_s and peak_gib <= LIMIT_GIB
    return Timed(
        command=f"analyze {name}",
        seconds=seconds,
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_gib=peak_gib,
        exit_code=process.returncode,
        limit_s=limit_s,
        within=within,
        said=lines[-1] if process.returncode and lines else "",
    )
