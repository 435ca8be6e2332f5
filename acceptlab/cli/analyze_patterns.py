"""`acceptlab analyze retention` and `streaks`: what steps keep, and how that varies within a text."""

from __future__ import annotations

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


@app.command("retention")
def retention(
    run: RunsArgument = None,
    by: ByOption = By.DOMAIN,
    plot: PlotOption = None,
    fmt: FormatOption = OutputFormat.TABLE,
    output: OutputOption = None,
    interval: IntervalOption = Interval.PERCENTILE,
    simultaneous: Annotated[
        bool, typer.Option("--simultaneous", help="Intervals that hold for all k of a line at once.")
    ] = False,
    resamples: ResamplesOption = 2000,
    seed: SeedOption = 0,
) -> None:
    """What a step keeps: histogram of the accepted length, S_k, conditional acceptance, J_K for every cut-off.

    Example:  acceptlab analyze retention --plot retention.png
    """
    analyze(
        "retention",
        run,
        by=by,
        plot=plot,
        fmt=fmt,
        output=output,
        kind=interval.value,
        simultaneous=simultaneous,
        n_resamples=resamples,
        seed=seed,
    )


@app.command("streaks")
def streaks(
    run: RunsArgument = None,
    by: ByOption = By.DOMAIN,
    plot: PlotOption = None,
    fmt: FormatOption = OutputFormat.TABLE,
    output: OutputOption = None,
    interval: IntervalOption = Interval.PERCENTILE,
    resamples: ResamplesOption = 2000,
    seed: SeedOption = 0,
) -> None:
    """Variance of the accepted length within and between texts, and runs of steps with at most one token.

    Example:  acceptlab analyze streaks --format csv
    """
    analyze(
        "streaks",
        run,
        by=by,
        plot=plot,
        fmt=fmt,
        output=output,
        kind=interval.value,
        n_resamples=resamples,
        seed=seed,
    )
