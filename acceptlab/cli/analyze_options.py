"""What the commands of `acceptlab analyze` share: options, the choice of runs, one analysis printed and drawn."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acceptlab.cli.output import OutputFormat, emit, warn
from acceptlab.errors import UsageError

if TYPE_CHECKING:
    from acceptlab.analysis import AnalysisTable
    from acceptlab.store import Run

_PLAIN = frozenset({"method", "reason"})
"""Columns that a table explains by itself."""


class By(StrEnum):
    """What the groups of a table are."""

    DOMAIN = "domain"
    SOURCE = "source"
    RUN = "run"


class Interval(StrEnum):
    """Kinds of bootstrap interval."""

    PERCENTILE = "percentile"
    BCA = "bca"


RunsArgument = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[RUN]...", help="Run folders; several are pooled. Default: the newest run."),
]
ByOption = Annotated[By, typer.Option("--by", help="What the groups of prompts are.")]
PlotOption = Annotated[
    Path | None, typer.Option("--plot", help="Draw the figure to this file: .png, .svg or .pdf.")
]
ResamplesOption = Annotated[
    int, typer.Option("--resamples", min=100, help="Bootstrap resamples of the prompts behind the intervals.")
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of the resampling.")]
IntervalOption = Annotated[Interval, typer.Option("--interval", help="Kind of bootstrap interval.")]


def choose_runs(paths: list[Path] | None) -> list[Run]:
    """Open the named runs, or the newest complete one, or the sample; says on stderr which and what they lack.

    Raises:
        UsageError: a folder is no run, or there is no run at all.
        RunError: a run is damaged.
    """
    from acceptlab.store import open_run

    if paths:
        runs = [open_run(path) for path in paths]
    else:
        runs = [open_run(_default_run())]
        warn(f"run: {runs[0].path}")
    for run in runs:
        if not run.is_complete:
            warn(f"warning: {run.path} is incomplete: only its finished prompts are analysed")
    return runs


def _default_run() -> Path:
    from acceptlab.store import find_runs, open_run
    from acceptlab.store.provenance import CHECKOUT
    from acceptlab.store.reader import SAMPLE_FOLDER

    found = find_runs(sample=False)  # complete runs first, the newest first among them
    if found and open_run(found[0], strict=False).is_complete:
        return found[0]
    if found:
        warn(f"warning: {found[0]} is incomplete, so it is used only where it is named")
    for folder in (SAMPLE_FOLDER, CHECKOUT / SAMPLE_FOLDER):
        if sample := find_runs(folder, sample=False):
            return sample[0]
    raise UsageError(
        "there is no complete run under data/runs: make one with `acceptlab collect --domain code`"
    )


def analyze(
    name: str,
    paths: list[Path] | None,
    *,
    by: By | None,
    plot: Path | None,
    fmt: OutputFormat,
    output: Path | None,
    options: Mapping[str, Any] | None = None,
    **resampling: Any,
) -> AnalysisTable:
    """Run one analysis, draw it where asked, and print its table.

    Args:
        name: the analysis, as in `ANALYSES`.
        paths: run folders; None for the newest.
        by: what the groups are.
        plot: file for the figure.
        fmt: how to print.
        output: file for the table.
        options: further arguments of the analysis.
        resampling: fields of `Resampling`.

    Returns:
        The table, as printed.
    """
    if plot is not None and plot.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise UsageError(f"cannot draw to '{plot}': use a file that ends in .png, .svg or .pdf")
    from acceptlab.analysis import ANALYSES
    from acceptlab.resampling import Resampling

    runs = choose_runs(paths)
    table = ANALYSES[name](
        runs, by=by.value if by else None, resampling=Resampling(**resampling), **(options or {})
    )
    if plot is not None:
        from acceptlab import figures

        figures.save(figures.draw(name, table.frame, table.caption), plot)
        warn(f"drew {plot}")
    explained = [f"{name}: {meaning}" for name, meaning in table.columns.items() if name not in _PLAIN]
    notes = [*table.notes, *(explained if fmt is OutputFormat.TABLE else [])]
    emit(table.frame, fmt=fmt, output=output, title=f"{table.title}. {table.caption}", notes=notes)
    return table
