"""`acceptlab analyze replay`, `budget` and `budget-check`: other rules and trees, from the records of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from acceptlab.cli.analyze_options import AnalysisOptions, analyze
from acceptlab.cli.options import spread_options

app = typer.Typer()


@app.command("replay")
@spread_options
def replay(
    options: AnalysisOptions,
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
) -> None:
    """Evaluate other rules and smaller trees on the stored records, at the same roots, without models.

    Example:  acceptlab analyze replay data/runs/NAME --rule additive:0.1 --rule top:2 --tree branches:2,2,1
    """
    analyze("replay", options, rules=rule or (), tree_texts=tree or ())


CostsOption = Annotated[
    Path | None,
    typer.Option("--costs", help="CSV with columns n (tokens of a target pass) and ms: verification times."),
]


@app.command("budget")
@spread_options
def budget(
    options: AnalysisOptions,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Largest node budget.")] = 16,
    costs: CostsOption = None,
) -> None:
    """Best static tree for every node budget and best chain, by domain: predicted length, speed and choice.

    The run must have a static tree at least as deep and wide as the shapes that are asked for.

    Example:  acceptlab analyze budget data/runs/NAME --nodes 16 --plot budget.png
    """
    analyze("budget", options, nodes=nodes, costs_file=costs)


@app.command("budget-check")
@spread_options
def budget_check(
    options: AnalysisOptions,
    costs: CostsOption = None,
) -> None:
    """Predicted against realised length and speed of trees that were run again. The first RUN predicts the others.

    Example:  acceptlab analyze budget-check data/runs/NAME data/runs/AGAIN --plot check.png

    AGAIN is a run with a static tree that NAME covers, such as --tree dp:nodes=16,domain=code,from=data/runs/NAME or
    the best chain of `acceptlab analyze budget data/runs/NAME`.
    """
    analyze("budget-check", options, costs_file=costs)
