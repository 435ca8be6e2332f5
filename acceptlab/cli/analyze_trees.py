"""`acceptlab analyze replay`, `budget` and `budget-check`: other rules and trees, from the records of a run."""

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


@app.command("replay")
def replay(
    run: RunsArgument = None,
    rule: Annotated[
        list[str] | None,
        typer.Option("--rule", help="Rule to replay; may be repeated. Default: the run's own."),
    ] = None,
    tree: Annotated[
        list[str] | None,
        typer.Option(
            "--tree",
            help="Static tree contained in the stored one; may be repeated. Default: the stored tree.",
        ),
    ] = None,
    by: ByOption = By.DOMAIN,
    plot: PlotOption = None,
    fmt: FormatOption = OutputFormat.TABLE,
    output: OutputOption = None,
    interval: IntervalOption = Interval.PERCENTILE,
    resamples: ResamplesOption = 2000,
    seed: SeedOption = 0,
) -> None:
    """Evaluate other rules and smaller trees on the stored records, at the same roots, without models.

    Example:  acceptlab analyze replay data/runs/NAME --rule additive:0.1 --rule top:2 --tree branches:2,2,1
    """
    analyze(
        "replay",
        run,
        by=by,
        plot=plot,
        fmt=fmt,
        output=output,
        options={"rules": rule or (), "tree_texts": tree or ()},
        kind=interval.value,
        n_resamples=resamples,
        seed=seed,
    )


CostsOption = Annotated[
    Path | None,
    typer.Option("--costs", help="CSV with columns n (tokens of a target pass) and ms: verification times."),
]


@app.command("budget")
def budget(
    run: RunsArgument = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Largest node budget.")] = 16,
    costs: CostsOption = None,
    by: ByOption = By.DOMAIN,
    plot: PlotOption = None,
    fmt: FormatOption = OutputFormat.TABLE,
    output: OutputOption = None,
    interval: IntervalOption = Interval.PERCENTILE,
    resamples: ResamplesOption = 2000,
    seed: SeedOption = 0,
) -> None:
    """Best static tree for every node budget and best chain, by domain: predicted length, speed and choice.

    The run must have a static tree at least as deep and wide as the shapes that are asked for.

    Example:  acceptlab analyze budget data/runs/NAME --nodes 16 --plot budget.png
    """
    analyze(
        "budget",
        run,
        by=by,
        plot=plot,
        fmt=fmt,
        output=output,
        options={"nodes": nodes, "costs_file": costs},
        kind=interval.value,
        n_resamples=resamples,
        seed=seed,
    )


@app.command("budget-check")
def budget_check(
    run: RunsArgument = None,
    costs: CostsOption = None,
    by: ByOption = By.DOMAIN,
    plot: PlotOption = None,
    fmt: FormatOption = OutputFormat.TABLE,
    output: OutputOption = None,
    interval: IntervalOption = Interval.PERCENTILE,
    resamples: ResamplesOption = 2000,
    seed: SeedOption = 0,
) -> None:
    """Predicted against realised length and speed of trees that were run again. The first RUN predicts the others.

    Example:  acceptlab analyze budget-check data/runs/NAME data/runs/AGAIN --plot check.png

    AGAIN is a run with a static tree that NAME covers, such as --tree dp:nodes=16,domain=code,from=data/runs/NAME or
    the best chain of `acceptlab analyze budget data/runs/NAME`.
    """
    analyze(
        "budget-check",
        run,
        by=by,
        plot=plot,
        fmt=fmt,
        output=output,
        options={"costs_file": costs},
        kind=interval.value,
        n_resamples=resamples,
        seed=seed,
    )
