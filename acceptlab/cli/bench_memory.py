"""`acceptlab bench memory`: does a collection stay within its two models and a fixed rest?"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from acceptlab.cli.bench_options import (
    BenchBar,
    DeviceOption,
    DomainOption,
    DraftOption,
    DtypeOption,
    PairOption,
    TargetOption,
)
from acceptlab.cli.output import FormatOption, OutputFormat, OutputOption, emit

app = typer.Typer()


@app.command()
def memory(
    pair: PairOption = None,
    target: TargetOption = None,
    draft: DraftOption = None,
    domain: DomainOption = "all",
    limit: Annotated[int, typer.Option(min=1, help="Prompts of each domain.")] = 50,
    tree: Annotated[str, typer.Option(help="Tree, as for collect.")] = "kary:depth=3,branch=2",
    rule: Annotated[str, typer.Option(help="Rule, as for collect.")] = "greedy",
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Longest output of a prompt, in tokens.")] = 4,
    allowed: Annotated[int, typer.Option(min=0, help="MB (10^6 bytes) allowed beside the two models.")] = 600,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    fmt: FormatOption = OutputFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Watch the resident memory of a collection of many short answers; ends with 1 if it takes more than allowed.

    Example:  acceptlab bench memory --limit 2
    """
    from acceptlab.bench.memory import COLUMNS, MB, memory_of_collection, weight_bytes
    from acceptlab.run import Request, plan, prepare

    request = Request(
        domains=tuple(domain.split(",")),
        pair=pair,
        target=target,
        draft=draft,
        limit=limit,
        tree=tree,
        rule=rule,
        max_new_tokens=max_new_tokens,
        device=device,
        dtype=dtype,
    )
    planned = plan(request)
    loaded, settings = prepare(planned)
    with BenchBar("prompts") as bar:
        frame, is_whole = memory_of_collection(loaded, planned.prompts, settings, bar)
    weights_mb, most = weight_bytes(loaded) / MB, float(frame["over_models_mb"].iloc[-1])
    within = most <= allowed
    emit(
        frame,
        fmt=fmt,
        output=output,
        title=f"Memory of a collection: {planned.config['pair']}, {request.tree}, {len(planned.prompts)} prompts",
        notes=[
            *([] if is_whole else ["interrupted: only what was measured until then"]),
            f"both models take {weights_mb:,.0f} MB; the process took {most:,.0f} MB more at its peak, "
            f"{'within' if within else 'over'} the {allowed:,} MB that are allowed",
            *(f"{name}: {meaning}" for name, meaning in COLUMNS.items() if fmt is OutputFormat.TABLE),
        ],
    )
    if not is_whole:
        raise typer.Exit(130)
    if not within:
        print("failed: the collection takes more memory than allowed", file=sys.stderr)
        raise typer.Exit(1)
