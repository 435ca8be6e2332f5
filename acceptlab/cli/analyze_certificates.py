"""`acceptlab analyze certificates`: proofs of acceptance on real contexts, and whether one ever fails."""

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


@app.command("certificates")
def certificates(
    run: RunsArgument = None,
    by: ByOption = By.DOMAIN,
    all_bins: Annotated[
        bool, typer.Option("--all-bins", help="Bins of the target's margin within every group, too.")
    ] = False,
    plot: PlotOption = None,
    fmt: FormatOption = OutputFormat.TABLE,
    output: OutputOption = None,
    scale_thresholds: Annotated[
        float,
        typer.Option(
            "--scale-thresholds",
            hidden=True,
            help="Multiply all thresholds by this before they certify: a test that the check can fail.",
        ),
    ] = 1.0,
    interval: IntervalOption = Interval.PERCENTILE,
    resamples: ResamplesOption = 2000,
    seed: SeedOption = 0,
) -> None:
    """How many proposals a KL certificate proves acceptable, by rule, direction and margin; exit 1 if a proof fails.

    Example:  acceptlab analyze certificates data/sample --plot certificates.png

    To see that the check can fail, multiply the thresholds: --scale-thresholds 3 ends with exit 1.
    """
    from acceptlab.analysis.certificates import check_certificates

    table = analyze(
        "certificates",
        run,
        by=by,
        plot=plot,
        fmt=fmt,
        output=output,
        options={"all_bins": all_bins, "scale_thresholds": scale_thresholds},
        kind=interval.value,
        n_resamples=resamples,
        seed=seed,
    )
    check_certificates(table, scale_thresholds)
