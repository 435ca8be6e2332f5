"""`acceptlab bench analyze`: how long the analyses of a large run take, and how much memory."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from acceptlab.cli.options import comma_list
from acceptlab.cli.output import FormatOption, OutputFormat, OutputOption, emit, warn
from acceptlab.errors import UsageError

app = typer.Typer()


@app.command("analyze")
def analyze(
    nodes: Annotated[int, typer.Option(min=1, help="Fewest nodes of the run.")] = 10_000_000,
    run: Annotated[
        Path | None, typer.Option(help="A run to analyse, instead of one that toy models make.")
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="Analyses, separated by commas; all of them if left out.")
    ] = None,
    contexts: Annotated[
        bool, typer.Option(help="Make the contexts too: several hundred bytes a context, and minutes.")
    ] = True,
    keep: Annotated[Path | None, typer.Option(help="Make the run in this folder and leave it there.")] = None,
    fmt: FormatOption = OutputFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Time every analysis on a large run, with its peak memory; ends with 1 if one takes too much.

    Example:  acceptlab bench analyze --nodes 50000 --only domains,entropy

    The run is made by toy models: texts decoded by the real engine, repeated under other names. Limits are 60 seconds
    (certificates, replay and predictors: 600) and 4 GiB, which ten million nodes must keep on two cores.
    """
    from acceptlab.analysis import ANALYSES
    from acceptlab.bench.analyses import NOT_ALONE, Timed, time_analyses

    names = list(comma_list(only)) if only else [n for n in ANALYSES if n not in NOT_ALONE]
    if run is not None and keep is not None:
        raise UsageError(
            "--keep says where a run is made, and --run names one that is there: give one of them"
        )
    folder = run or keep or Path("data/runs/.bench-analyze")
    if run is None:
        _make(folder, nodes, contexts=contexts, is_scratch=keep is None)

    def tell(timed: Timed) -> None:
        warn(
            f"{timed.command}: {timed.seconds:.1f} s, {timed.peak_gib:.2f} GiB{timed.said and ', ' + timed.said}"
        )

    try:
        frame = time_analyses(folder, names, tell)
    finally:
        if run is None and keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    emit(frame, fmt=fmt, output=output, title="Time and peak memory of the analyses")
    if not frame["within"].all():
        raise typer.Exit(1)


def _make(folder: Path, nodes: int, *, contexts: bool, is_scratch: bool) -> None:
    from acceptlab.bench.toy_run import make_toy_run

    if is_scratch:
        shutil.rmtree(folder, ignore_errors=True)
    told = 0

    def tell(done: int) -> None:
        nonlocal told
        if 10 * done // nodes > told:
            told = 10 * done // nodes
            warn(f"made {done:,} of {nodes:,} nodes")

    make_toy_run(folder, nodes, contexts=contexts, on_nodes=tell)
