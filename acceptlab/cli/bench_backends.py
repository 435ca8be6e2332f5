"""`acceptlab bench backends`: does speculation pay on each way to run the target?"""

from __future__ import annotations

from typing import Annotated

import typer

from acceptlab.cli.bench_options import (
    BenchBar,
    Clock,
    ClockOption,
    DeviceOption,
    DomainOption,
    DraftOption,
    FolderOption,
    PairOption,
    PlotOption,
    RepeatsOption,
    SeedOption,
    TargetOption,
    check_clock,
    check_plots,
    show,
)
from acceptlab.cli.output import FormatOption, OutputFormat, OutputOption
from acceptlab.errors import UsageError

app = typer.Typer()


@app.command()
def backends(
    pair: PairOption = None,
    target: TargetOption = None,
    draft: DraftOption = None,
    backend: Annotated[
        str, typer.Option(help="Which, the first one is what all are compared with.")
    ] = "float32,packed,compile,int8,bfloat16,llama.cpp",
    domain: DomainOption = "all",
    limit: Annotated[int, typer.Option(min=1, help="Prompts of each domain.")] = 3,
    chains: Annotated[str, typer.Option(help="Chain lengths, such as 3,5.")] = "3,5",
    rule: Annotated[str, typer.Option(help="Rule, as for collect.")] = "greedy",
    temperature: Annotated[float, typer.Option(min=0.0, help="Of the sampling distribution.")] = 1.0,
    repeats: RepeatsOption = 2,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Longest output of a prompt, in tokens.")] = 48,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    clock: ClockOption = Clock.WALL,
    plot: PlotOption = None,
    folder: FolderOption = None,
    fmt: FormatOption = OutputFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Decode with and without speculation on several backends in turn; says which of them slow down, and why.

    Example:  acceptlab bench backends --backend float32,packed,int8 --limit 1 --chains 3 --repeats 1

    A backend that is not to be had here is named and left out. llama.cpp comes with the extra `llama-cpp`. Ctrl-C
    prints what there is. Intervals need ten prompts or more.
    """
    check_plots(plot)
    clock_notes = check_clock(clock)
    from acceptlab.bench.arms import timed_by
    from acceptlab.bench.backend_table import COLUMNS, backend_arms, backend_table
    from acceptlab.bench.contest import parse_lengths
    from acceptlab.bench.interleave import measure, tasks_of
    from acceptlab.bench.speedup import sums_of
    from acceptlab.figures.backends import figure_backends
    from acceptlab.run import Request, plan, prepare

    lengths = parse_lengths(chains)
    if not lengths:
        raise UsageError("--chains is empty: name at least one chain length, such as 5")
    request = Request(
        domains=tuple(domain.split(",")),
        pair=pair,
        target=target,
        draft=draft,
        limit=limit,
        tree=f"chain:{max(lengths)}",
        rule=rule,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        seed=seed,
        device=device,
        dtype="float32",
    )
    planned = plan(request)
    loaded, settings = prepare(planned)
    arms, notes = backend_arms(loaded, settings, [name.strip() for name in backend.split(",")], lengths)
    tasks, left_out = tasks_of(loaded, planned.prompts, max_new_tokens, max(lengths))
    with BenchBar("decodes") as bar, timed_by(clock):
        done = measure(arms, tasks, repeats, max_new_tokens, bar)
    frame = backend_table(sums_of(done.frame))
    title = (
        f"Backends: {planned.config['pair']}, {planned.config['rule']}, temperature {temperature:g}, "
        f"{frame['n_prompts'].iloc[0]} prompts, {repeats} repeats"
    )
    show(
        frame,
        title=title,
        notes=[*clock_notes, *notes, *left_out],
        columns=COLUMNS,
        figure=figure_backends(frame, f"{title}; bars: 95% intervals that resample prompts."),
        samples=done.frame,
        fmt=fmt,
        output=output,
        plots=plot,
        folder=folder,
        is_whole=done.is_whole,
    )
