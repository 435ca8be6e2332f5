"""`acceptlab bench memory`: does a collection stay within its two models and a fixed rest?"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from acceptlab.cli.bench_options import (
    BenchBar,
    LimitOption,
    MaxNewTokensOption,
    RuleOption,
    TableOptions,
    TreeOption,
    show,
)
from acceptlab.cli.options import DecodingOptions, DtypeOption, spread_options

app = typer.Typer()


@app.command()
@spread_options
def memory(
    decoding: DecodingOptions,
    where: TableOptions,
    limit: LimitOption = 50,
    tree: TreeOption = "kary:depth=3,branch=2",
    rule: RuleOption = "greedy",
    max_new_tokens: MaxNewTokensOption = 4,
    allowed: Annotated[int, typer.Option(min=0, help="MB (10^6 bytes) allowed beside the two models.")] = 600,
    dtype: DtypeOption = "auto",
) -> None:
    """Watch the resident memory of a collection of many short answers; ends with 1 if it takes more than allowed.

    Example:  acceptlab bench memory --limit 2
    """
    from acceptlab.bench.memory import COLUMNS, MB, memory_of_collection, weight_bytes
    from acceptlab.run import plan, prepare

    request = decoding.request(limit=limit, tree=tree, rule=rule, max_new_tokens=max_new_tokens, dtype=dtype)
    planned = plan(request)
    loaded, settings = prepare(planned, only_this=True)
    with BenchBar("prompts") as bar:
        frame, is_whole = memory_of_collection(loaded, planned.prompts, settings, bar)
    weights_mb, most = weight_bytes(loaded) / MB, float(frame["over_models_mb"].iloc[-1])
    within = most <= allowed
    show(
        frame,
        where,
        title=f"Memory of a collection: {planned.config['pair']}, {request.tree}, {len(planned.prompts)} prompts",
        notes=[
            f"both models take {weights_mb:,.0f} MB; the process took {most:,.0f} MB more at its peak, "
            f"{'within' if within else 'over'} the {allowed:,} MB that are allowed"
        ],
        columns=COLUMNS,
        is_whole=is_whole,
    )
    if not within:
        print("failed: the collection takes more memory than allowed", file=sys.stderr)
        raise typer.Exit(1)
