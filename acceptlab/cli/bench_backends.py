"""`acceptlab bench backends`: does speculation pay on each way to run the target?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from acceptlab.cli.bench_options import (
    BenchBar,
    ChainsOption,
    Clock,
    ClockOption,
    ContestOptions,
    FigureOptions,
    LimitOption,
    MaxNewTokensOption,
    RepeatsOption,
    backend_names,
    check_clock,
    show,
)
from acceptlab.cli.options import spread_options
from acceptlab.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from acceptlab.run import Request

app = typer.Typer()


@app.command()
@spread_options
def backends(
    decoding: ContestOptions,
    where: FigureOptions,
    backends: Annotated[
        str,
        typer.Option("--backends", "--backend", help="Which; the first one is what all are compared with."),
    ] = "float32,packed,compile,int8,bfloat16,llama.cpp",
    limit: LimitOption = 3,
    chains: ChainsOption = "3,5",
    repeats: RepeatsOption = 2,
    max_new_tokens: MaxNewTokensOption = 48,
    clock: ClockOption = Clock.WALL,
) -> None:
    """Decode with and without speculation on several backends in turn; says which of them slow down, and why.

    Example:  acceptlab bench backends --backends float32,packed,int8 --limit 1 --chains 3 --repeats 1

    A backend that is not to be had here is named and left out. llama.cpp comes with the extra `llama-cpp`. Ctrl-C
    prints what there is. Intervals need ten prompts or more.
    """
    notes = check_clock(clock)
    from acceptlab.bench.contest import parse_lengths

    names = backend_names(backends)
    lengths = parse_lengths(chains)
    if not lengths:
        raise UsageError("--chains is empty: name at least one chain length, such as 5")
    request = decoding.request(
        limit=limit, tree=f"chain:{max(lengths)}", max_new_tokens=max_new_tokens, dtype="float32"
    )
    _compare(request, names, lengths, repeats, clock, notes, where)


def _compare(
    request: Request,
    names: Sequence[str],
    lengths: list[int],
    repeats: int,
    clock: Clock,
    notes: list[str],
    where: FigureOptions,
) -> None:
    """Decode on every backend in turn and show what came out."""
    from acceptlab.bench.arms import PlainArm, timed_by
    from acceptlab.bench.backend_table import COLUMNS, backend_arms, backend_table
    from acceptlab.bench.interleave import measure, tasks_of
    from acceptlab.bench.speedup import sums_of
    from acceptlab.figures.backends import figure_backends
    from acceptlab.run import plan, prepare

    planned = plan(request)
    loaded, settings = prepare(planned)
    arms, said = backend_arms(loaded, settings, names, lengths)
    targets = [arm.target for arm in arms if isinstance(arm, PlainArm)]
    tasks, left_out = tasks_of(loaded, planned.prompts, request.max_new_tokens, max(lengths), targets)
    with BenchBar("decodes") as bar, timed_by(clock):
        done = measure(arms, tasks, repeats, request.max_new_tokens, bar)
    frame = backend_table(sums_of(done.frame))
    title = (
        f"Backends: {planned.config['pair']}, {planned.config['rule']}, temperature {request.temperature:g}, "
        f"{frame['n_prompts'].iloc[0]} prompts, {repeats} repeats"
    )
    show(
        frame,
        where,
        title=title,
        notes=[*notes, *said, *left_out],
        columns=COLUMNS,
        figure=figure_backends(frame, f"{title}; bars: 95% intervals that resample prompts."),
        samples=done.frame,
        is_whole=done.is_whole,
    )
