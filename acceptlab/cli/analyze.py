"""`acceptlab analyze`: tables and figures from runs. Options in, one analysis called, its table printed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from acceptlab.cli import (
    analyze_certificates,
    analyze_covariance,
    analyze_labels,
    analyze_patterns,
    analyze_trees,
)
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

app = typer.Typer(
    no_args_is_help=True,
    help="Turn runs into tables and figures.\n\nWithout RUN: the newest complete run under data/runs, else the "
    "sample run that ships with acceptlab.\n\nExample:  acceptlab analyze depth-profile --plot profile.png",
)


@app.command("depth-profile")
def depth_profile(
    run: RunsArgument = None,
    by: ByOption = By.DOMAIN,
    plot: PlotOption = None,
    fmt: FormatOption = OutputFormat.TABLE,
    output: OutputOption = None,
    interval: IntervalOption = Interval.PERCENTILE,
    simultaneous: Annotated[
        bool, typer.Option("--simultaneous", help="Intervals that hold for all depths of a line at once.")
    ] = False,
    resamples: ResamplesOption = 2000,
    seed: SeedOption = 0,
) -> None:
    """How acceptance falls with depth: S_d, alpha_d, node_rate_d and mean_ratio_d, by domain.

    Example:  acceptlab analyze depth-profile --plot depth.svg
    """
    analyze(
        "depth-profile",
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


@app.command("domains")
def domains(
    run: RunsArgument = None,
    by: ByOption = By.DOMAIN,
    plot: PlotOption = None,
    fmt: FormatOption = OutputFormat.TABLE,
    output: OutputOption = None,
    interval: IntervalOption = Interval.PERCENTILE,
    resamples: ResamplesOption = 2000,
    seed: SeedOption = 0,
) -> None:
    """Acceptance by domain: rates, E[L] joint and product with their gap, emitted tokens a step, entropies.

    Example:  acceptlab analyze domains --format csv --output domains.csv
    """
    analyze(
        "domains",
        run,
        by=by,
        plot=plot,
        fmt=fmt,
        output=output,
        kind=interval.value,
        n_resamples=resamples,
        seed=seed,
    )


@app.command("entropy")
def entropy(
    run: RunsArgument = None,
    by: ByOption = By.DOMAIN,
    plot: PlotOption = None,
    fmt: FormatOption = OutputFormat.TABLE,
    output: OutputOption = None,
    interval: IntervalOption = Interval.PERCENTILE,
    resamples: ResamplesOption = 2000,
    seed: SeedOption = 0,
) -> None:
    """Spearman's correlation of draft and target entropy with acceptance, by domain and depth.

    Example:  acceptlab analyze entropy --plot entropy.png
    """
    analyze(
        "entropy",
        run,
        by=by,
        plot=plot,
        fmt=fmt,
        output=output,
        kind=interval.value,
        n_resamples=resamples,
        seed=seed,
    )


@app.command("metrics")
def metrics(
    run: RunsArgument = None,
    by: Annotated[By | None, typer.Option("--by", help="Add these groups to the pooled values.")] = None,
    timed: Annotated[
        Path | None,
        typer.Option(help="samples.parquet of acceptlab bench speedup --folder: gives the speed-ups."),
    ] = None,
    plot: PlotOption = None,
    fmt: FormatOption = OutputFormat.TABLE,
    output: OutputOption = None,
    interval: IntervalOption = Interval.PERCENTILE,
    resamples: ResamplesOption = 2000,
    seed: SeedOption = 0,
) -> None:
    """Acceptance lengths and rates as published tools define them, computed side by side from the same run.

    Example:  acceptlab analyze metrics --format json
    """
    analyze(
        "metrics",
        run,
        by=by,
        plot=plot,
        fmt=fmt,
        output=output,
        kind=interval.value,
        n_resamples=resamples,
        seed=seed,
        options={"timed_file": timed} if timed is not None else None,
    )


app.add_typer(analyze_labels.app)
app.add_typer(analyze_patterns.app)
app.add_typer(analyze_trees.app)
app.add_typer(analyze_covariance.app)
app.add_typer(analyze_certificates.app)
