"""`acceptlab analyze calibration` and `predictors`: what goes with acceptance."""

from __future__ import annotations

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


@app.command("calibration")
def calibration(
    run: RunsArgument = None,
    by: ByOption = By.DOMAIN,
    plot: PlotOption = None,
    fmt: FormatOption = OutputFormat.TABLE,
    output: OutputOption = None,
    interval: IntervalOption = Interval.PERCENTILE,
    resamples: ResamplesOption = 2000,
    seed: SeedOption = 0,
) -> None:
    """The draft's confidence against acceptance: reliability curve, ECE, Brier score, AUROC, by domain.

    Example:  acceptlab analyze calibration --plot calibration.png
    """
    analyze(
        "calibration",
        run,
        by=by,
        plot=plot,
        fmt=fmt,
        output=output,
        kind=interval.value,
        n_resamples=resamples,
        seed=seed,
    )


@app.command("predictors")
def predictors(
    run: RunsArgument = None,
    by: ByOption = By.DOMAIN,
    plot: PlotOption = None,
    fmt: FormatOption = OutputFormat.TABLE,
    output: OutputOption = None,
    interval: IntervalOption = Interval.PERCENTILE,
    resamples: ResamplesOption = 2000,
    seed: SeedOption = 0,
) -> None:
    """Does the domain or the depth predict acceptance more: explained variance, information, logistic models.

    Example:  acceptlab analyze predictors --plot predictors.png
    """
    analyze(
        "predictors",
        run,
        by=by,
        plot=plot,
        fmt=fmt,
        output=output,
        kind=interval.value,
        n_resamples=resamples,
        seed=seed,
    )
