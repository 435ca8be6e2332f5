"""`acceptlab analyze`: tables and figures from runs. Options in, one analysis called, its table printed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from acceptlab.cli import analyze_certificates, analyze_trees
from acceptlab.cli.analyze_options import AnalysisOptions, PooledOptions, SimultaneousOption, analyze
from acceptlab.cli.options import spread_options

app = typer.Typer(
    no_args_is_help=True,
    help="Turn runs into tables and figures.\n\nWithout RUN: the newest complete run under data/runs, else the "
    "sample run that ships with acceptlab.\n\nExample:  acceptlab analyze depth-profile --plot profile.png",
)


@app.command("depth-profile")
@spread_options
def depth_profile(options: AnalysisOptions, simultaneous: SimultaneousOption = False) -> None:
    """How acceptance falls with depth: S_d, alpha_d, node_rate_d and mean_ratio_d, by domain.

    Example:  acceptlab analyze depth-profile --plot depth.svg
    """
    analyze("depth-profile", options, simultaneous=simultaneous)


@app.command("domains")
@spread_options
def domains(options: AnalysisOptions) -> None:
    """Acceptance by domain: rates, E[L] joint and product with their gap, emitted tokens a step, entropies.

    Example:  acceptlab analyze domains --format csv --output domains.csv
    """
    analyze("domains", options)


@app.command("entropy")
@spread_options
def entropy(options: AnalysisOptions) -> None:
    """Spearman's correlation of draft and target entropy with acceptance, by domain and depth.

    Example:  acceptlab analyze entropy --plot entropy.png
    """
    analyze("entropy", options)


@app.command("metrics")
@spread_options
def metrics(
    options: PooledOptions,
    timed: Annotated[
        Path | None,
        typer.Option(help="samples.parquet of acceptlab bench speedup --folder: gives the speed-ups."),
    ] = None,
) -> None:
    """Acceptance lengths and rates as published tools define them, computed side by side from the same run.

    Example:  acceptlab analyze metrics --format json
    """
    analyze("metrics", options, timed_file=timed)


@app.command("calibration")
@spread_options
def calibration(options: AnalysisOptions) -> None:
    """The draft's confidence against acceptance: reliability curve, ECE, Brier score, AUROC, by domain.

    Example:  acceptlab analyze calibration --plot calibration.png
    """
    analyze("calibration", options)


@app.command("predictors")
@spread_options
def predictors(options: AnalysisOptions) -> None:
    """Does the domain or the depth predict acceptance more: explained variance, information, logistic models.

    Example:  acceptlab analyze predictors --plot predictors.png
    """
    analyze("predictors", options)


app.add_typer(analyze_trees.app)


@app.command("retention")
@spread_options
def retention(options: AnalysisOptions, simultaneous: SimultaneousOption = False) -> None:
    """What a step keeps: histogram of the accepted length, S_k, conditional acceptance, J_K for every cut-off.

    Example:  acceptlab analyze retention --plot retention.png
    """
    analyze("retention", options, simultaneous=simultaneous)


@app.command("streaks")
@spread_options
def streaks(options: AnalysisOptions) -> None:
    """Variance of the accepted length within and between texts, and runs of steps with at most one token.

    Example:  acceptlab analyze streaks --format csv
    """
    analyze("streaks", options)


@app.command("covariance")
@spread_options
def covariance(
    options: AnalysisOptions,
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
    analyze("covariance", options, scores=str(scores) if scores else None)


app.add_typer(analyze_certificates.app)
