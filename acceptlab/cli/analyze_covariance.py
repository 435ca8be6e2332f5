"""`acceptlab analyze covariance`: what products of mean acceptance miss."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from acceptlab.cli.analyze_options import (
    By,
    ByOption,
    Interval,
    IntervalOption,
    PlotOption,
    ResamplesOption,
    RunsArgument,
    SeedOption,
    analyze,
)
from acceptlab.cli.output import FormatOption, OutputFormat, OutputOption

app = typer.Typer()


@app.command("covariance")
def covariance(
    run: RunsArgument = None,
    by: ByOption = By.DOMAIN,
    plot: PlotOption = None,
    fmt: FormatOption = OutputFormat.TABLE,
    output: OutputOption = None,
    interval: IntervalOption = Interval.PERCENTILE,
    resamples: ResamplesOption = 2000,
    seed: SeedOption = 0,
    scores: Annotated[
        Path | None,
        typer.Option(
            help="Scored texts of the run (audit roads): windows of what the target wrote, not of drafts."
        ),
    ] = None,
) -> None:
    """Covariance of the path so far with the next overlap: C_k, and how they make up the gap J - W.

    Meant for chains under a sampling rule; of trees, and of the rules greedy and onehot, it takes the path of first
    children. Runs of several temperatures have rows of their own.

    Example:  acceptlab analyze covariance --plot covariance.png
    """
    analyze(
        "covariance",
        run,
        by=by,
        plot=plot,
        fmt=fmt,
        output=output,
        kind=interval.value,
        n_resamples=resamples,
        seed=seed,
        options={"scores": str(scores)} if scores else None,
    )
