"""Progress of a command on stderr: a bar on a terminal, a line at every tenth elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from acceptlab.cli.output import warn

if TYPE_CHECKING:
    from rich.progress import Progress as Bar


class TenthsBar:
    """One count from 0 to a total: a bar with the time left on a terminal, else a line at every tenth."""

    def __init__(self, doing: str, what: str) -> None:
        """Name the work, as in `measuring`, and what is counted, as in `passes`."""
        self._doing, self._what = doing, what
        self._bar: Bar | None = None
        self._task: Any = None
        self._told = 0

    def start(self, total: int | None = None) -> None:
        """Show the bar; the total may come with the first update."""
        if not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn(self._doing),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn(f"{self._what}  left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            speed_estimate_period=600,
        )
        self._task = self._bar.add_task("", total=total)
        self._bar.start()

    def update(self, done: int, total: int) -> None:
        """Show what is done."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)
        elif 10 * done // max(total, 1) > self._told:
            self._told = 10 * done // total
            warn(f"{done:,} of {total:,} {self._what}")

    def stop(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
