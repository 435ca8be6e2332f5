"""What the commands of `acceptlab analyze` share: options, the choice of runs, one analysis printed and drawn."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acceptlab.cli.options import ResamplesOption, ResamplingSeedOption, check_plot
from acceptlab.cli.output import FormatOption, OutputFormat, OutputOption, emit, warn
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
AddByOption = Annotated[By | None, typer.Option("--by", help="Add these groups to the pooled values.")]
PlotOption = Annotated[
    Path | None, typer.Option("--plot", help="Draw the figure to this file: .png, .svg or .pdf.")
]
IntervalOption = Annotated[Interval, typer.Option("--interval", help="Kind of bootstrap interval.")]
SimultaneousOption = Annotated[
    bool, typer.Option("--simultaneous", help="Intervals that hold for all depths of a line at once.")
]


@dataclass(frozen=True)
class PooledOptions:
    """Options of an analysis of all prompts together, to which groups may be added."""

    run: RunsArgument = None
    by: AddByOption = None
    plot: PlotOption = None
    fmt: FormatOption = OutputFormat.TABLE
    output: OutputOption = None
    interval: IntervalOption = Interval.PERCENTILE
    resamples: ResamplesOption = 2000
    seed: ResamplingSeedOption = 0


@dataclass(frozen=True)
class AnalysisOptions(PooledOptions):
    """Options of an analysis by groups of prompts."""

    by: ByOption = By.DOMAIN


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
    name: str, options: PooledOptions, *, simultaneous: bool = False, **arguments: Any
) -> AnalysisTable:
    """Run one analysis, draw it where asked, and print its table.

    Args:
        name: the analysis, as in `ANALYSES`.
        options: what the command line said.
        simultaneous: intervals that hold for all depths of a line at once.
        arguments: further arguments of the analysis.

    Returns:
        The table, as printed.
    """
    if options.plot is not None:
        check_plot(options.plot)
    from acceptlab.analysis import ANALYSES
    from acceptlab.resampling import Resampling

    resampling = Resampling(
        n_resamples=options.resamples,
        kind=options.interval.value,
        seed=options.seed,
        simultaneous=simultaneous,
    )
    by = options.by.value if options.by else None
    table = ANALYSES[name](choose_runs(options.run), by=by, resampling=resampling, **arguments)
    if options.plot is not None:
        from acceptlab import figures

        figures.save(figures.draw(name, table.frame, table.caption), options.plot)
        warn(f"drew {options.plot}")
    emit_analysis(table, options.fmt, options.output)
    return table


def emit_analysis(table: AnalysisTable, fmt: OutputFormat, output: Path | None) -> None:
    """Print the table of an analysis with its notes; the table view explains the columns, too."""
    explained = [f"{name}: {meaning}" for name, meaning in table.columns.items() if name not in _PLAIN]
    notes = [*table.notes, *(explained if fmt is OutputFormat.TABLE else [])]
    emit(table.frame, fmt=fmt, output=output, title=f"{table.title}. {table.caption}", notes=notes)
