"""`acceptlab bench batches`: does it pay to decode several prompts in one pass?"""

from __future__ import annotations

from typing import Annotated

import typer

from acceptlab.cli.bench_options import (
    BenchBar,
    DeviceOption,
    DomainOption,
    DraftOption,
    DtypeOption,
    FolderOption,
    PairOption,
    RepeatsOption,
    SeedOption,
    TargetOption,
    show,
)
from acceptlab.cli.output import FormatOption, OutputFormat, OutputOption
from acceptlab.errors import UsageError

app = typer.Typer()


@app.command()
def batches(
    pair: PairOption = None,
    target: TargetOption = None,
    draft: DraftOption = None,
    domain: DomainOption = "all",
    limit: Annotated[int, typer.Option(min=1, help="Prompts of each domain.")] = 4,
    sizes: Annotated[
        str, typer.Option(help="Batch sizes; the first one is what all are compared with.")
    ] = "1,2,4,8,16",
    tree: Annotated[str, typer.Option(help="Tree, as for collect.")] = "chain:5",
    rule: Annotated[str, typer.Option(help="Rule, as for collect.")] = "greedy",
    temperature: Annotated[float, typer.Option(min=0.0, help="Of the sampling distribution.")] = 1.0,
    repeats: RepeatsOption = 2,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Longest output of a prompt, in tokens.")] = 48,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    folder: FolderOption = None,
    fmt: FormatOption = OutputFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Decode the same prompts 1, 2, 4 ... at a time, in turn: tokens a second and accepted length by batch size.

    Example:  acceptlab bench batches --sizes 1,4 --limit 1 --repeats 1 --max-new-tokens 16

    Ctrl-C prints what there is. Intervals need ten prompts or more.
    """
    from acceptlab.bench.batches import COLUMNS, PREFIX, measure_batches
    from acceptlab.bench.interleave import tasks_of
    from acceptlab.bench.speedup import sums_of, table
    from acceptlab.run import Request, plan, prepare

    parts = [part.strip() for part in sizes.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= 256 for part in parts):
        raise UsageError(f"--sizes is '{sizes}': write batch sizes from 1 to 256, such as 1,4,16")
    wanted = list(dict.fromkeys(map(int, parts)))
    request = Request(
        domains=tuple(domain.split(",")),
        pair=pair,
        target=target,
        draft=draft,
        limit=limit,
        tree=tree,
        rule=rule,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        seed=seed,
        device=device,
        dtype=dtype,
    )
    planned = plan(request)
    loaded, settings = prepare(planned)
    tasks, left_out = tasks_of(loaded, planned.prompts, max_new_tokens, settings.tree.depth)
    with BenchBar("rounds of all prompts") as bar:
        done = measure_batches(loaded, tasks, settings, wanted, repeats, bar)
    sums = sums_of(done.frame)
    frame = table(sums, baseline=next(iter(sums)))
    frame.insert(0, "batch_size", frame.pop("arm").str.removeprefix(PREFIX).astype(int))
    frame = frame.drop(columns=["predicted", "break_even_len", "prefill_ms"])
    few = (
        [f"only {len(tasks)} prompts: batches of {max(wanted)} are never full"]
        if len(tasks) < max(wanted)
        else []
    )
    show(
        frame,
        title=f"Batch sizes: {planned.config['pair']}, {tree}, {rule}, {len(tasks)} prompts, {repeats} repeats",
        notes=[*left_out, *few],
        columns=COLUMNS,
        figure=None,
        samples=done.frame,
        fmt=fmt,
        output=output,
        plots=None,
        folder=folder,
        is_whole=done.is_whole,
    )
