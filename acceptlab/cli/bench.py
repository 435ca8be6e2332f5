"""`acceptlab bench`: where the time goes."""

from __future__ import annotations

import typer

from acceptlab.cli import (
    bench_analyze,
    bench_backends,
    bench_batches,
    bench_memory,
    bench_rules,
    bench_speedup,
    bench_verify,
)
from acceptlab.cli.bench_options import (
    BenchBar,
    Clock,
    ClockOption,
    LimitOption,
    MaxNewTokensOption,
    RepeatsOption,
    RuleOption,
    TableOptions,
    TreeOption,
    check_clock,
    show,
)
from acceptlab.cli.options import DecodingOptions, DtypeOption, spread_options

app = typer.Typer(no_args_is_help=True, help="Measure where the time goes.")


@app.callback()
def _group() -> None:
    """Measure where the time goes."""


@app.command()
@spread_options
def collector(
    decoding: DecodingOptions,
    where: TableOptions,
    limit: LimitOption = 3,
    tree: TreeOption = "kary:depth=3,branch=2",
    rule: RuleOption = "greedy",
    max_new_tokens: MaxNewTokensOption = 48,
    repeats: RepeatsOption = 2,
    clock: ClockOption = Clock.WALL,
    dtype: DtypeOption = "auto",
) -> None:
    """Split the time of a collection: model passes, choosing and judging nodes, measures, writing.

    Example:  acceptlab bench collector --limit 1 --repeats 1

    Its passes are also run again by themselves, prompt by prompt in turn with the collection: what the collection takes
    beyond them is the price of deciding and recording. Intervals need ten prompts.
    """
    clock_notes = check_clock(clock)
    from acceptlab.bench.arms import timed_by
    from acceptlab.bench.collector import collector_split
    from acceptlab.bench.floor import floor_samples, over_floor
    from acceptlab.run import plan, prepare

    request = decoding.request(limit=limit, tree=tree, rule=rule, max_new_tokens=max_new_tokens, dtype=dtype)
    planned = plan(request)
    loaded, settings = prepare(planned, only_this=True)
    split = collector_split(loaded, planned.prompts, settings)
    with BenchBar("prompts") as bar, timed_by(clock):
        ratio = over_floor(floor_samples(loaded, planned.prompts, settings, repeats, bar))
    ends = "" if ratio.lo is None else f" [{ratio.lo:.3f}, {ratio.hi:.3f}]"
    show(
        split.frame,
        where,
        title=f"Time of a collection: {planned.config['pair']}, {request.tree}, {request.rule}",
        notes=[
            *clock_notes,
            f"{split.inside_passes:.1%} of {split.wall_s:.1f} s was spent inside model passes",
            f"collecting takes {ratio.value:.3f}{ends} times its bare model passes ({ratio.n_prompts} prompts, "
            f"{repeats} repeats in turn)",
            f"{split.n_nodes:,} nodes, {split.nodes_per_hour:,.0f} nodes an hour at this rate",
        ],
        columns={},
    )


app.add_typer(bench_analyze.app)
app.add_typer(bench_backends.app)
app.add_typer(bench_batches.app)
app.add_typer(bench_memory.app)
app.add_typer(bench_rules.app)
app.add_typer(bench_speedup.app)
app.add_typer(bench_verify.app)
