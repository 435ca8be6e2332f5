"""`acceptlab analyze certificates`: proofs of acceptance on real contexts, and whether one ever fails."""

from __future__ import annotations

from typing import Annotated

import typer

from acceptlab.cli.analyze_options import AnalysisOptions, analyze
from acceptlab.cli.options import spread_options

app = typer.Typer()


@app.command("certificates")
@spread_options
def certificates(
    options: AnalysisOptions,
    all_bins: Annotated[
        bool, typer.Option("--all-bins", help="Bins of the target's margin within every group, too.")
    ] = False,
    scale_thresholds: Annotated[
        float,
        typer.Option(
            "--scale-thresholds",
            hidden=True,
            help="Multiply all thresholds by this before they certify: a test that the check can fail.",
        ),
    ] = 1.0,
) -> None:
    """How many proposals a KL certificate proves acceptable, by rule, direction and margin; exit 1 if a proof fails.

    Example:  acceptlab analyze certificates data/sample --plot certificates.png

    To see that the check can fail, multiply the thresholds: --scale-thresholds 3 ends with exit 1.
    """
    from acceptlab.analysis.certificates import check_certificates

    table = analyze("certificates", options, all_bins=all_bins, scale_thresholds=scale_thresholds)
    check_certificates(table, scale_thresholds)
