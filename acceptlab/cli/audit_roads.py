"""`acceptlab audit roads`: three roads to the accepted length of the same run, which must lead to one number."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from acceptlab.cli.analyze_options import emit_analysis
from acceptlab.cli.options import ResamplesOption, ResamplingSeedOption
from acceptlab.cli.output import FormatOption, OutputFormat, OutputOption

app = typer.Typer()


@app.command("roads")
def roads(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="A run of --rule rejection --tree chain:K, at temperature 1."),
    ],
    scores: Annotated[
        Path | None,
        typer.Option(help="File of scored texts; RUN.scores.parquet if left out. Kept, and used again."),
    ] = None,
    half_width: Annotated[
        float, typer.Option(min=0.0, help="Widest half-width that counts as agreement, in tokens.")
    ] = 0.05,
    resamples: ResamplesOption = 10_000,
    seed: ResamplingSeedOption = 0,
    fmt: FormatOption = OutputFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Three roads, one number: accepted, expected and branch length at the same roots; ends with 1 if they differ.

    Example:  acceptlab audit roads data/runs/roads --half-width 0.1

    The branch length is computed along the text that was written after every root, scored by a plain forward of both
    models: no tree, no cache and no record takes part in it. Scoring takes a few seconds a text on a CPU; the scores
    are kept, so that an interrupted command goes on where it was.
    """
    from acceptlab.analysis.roads import chain_window
    from acceptlab.analysis.roads import roads as compare
    from acceptlab.audit.scores import score_run
    from acceptlab.cli.audit import AuditBar
    from acceptlab.resampling import Resampling
    from acceptlab.store import open_run
    from acceptlab.store.scores import scores_path

    opened = open_run(run)
    chain_window(opened)
    frame = score_run(opened, scores or scores_path(run), AuditBar())
    found = compare(opened, frame, widest=half_width, resampling=Resampling(n_resamples=resamples, seed=seed))
    emit_analysis(found.table, fmt, output)
    for failure in found.failures:
        print(f"failed: {failure}", file=sys.stderr)
    if found.failures:
        raise typer.Exit(1)
