"""`acceptlab bench rules`: what every verification rule costs of a step."""

from __future__ import annotations

from typing import Annotated

import typer

from acceptlab.cli.bench_options import (
    BenchBar,
    DeviceOption,
    DomainOption,
    DraftOption,
    DtypeOption,
    PairOption,
    SeedOption,
    TargetOption,
)
from acceptlab.cli.output import FormatOption, OutputFormat, OutputOption, emit

app = typer.Typer()


@app.command()
def rules(
    pair: PairOption = None,
    target: TargetOption = None,
    draft: DraftOption = None,
    domain: DomainOption = "all",
    limit: Annotated[int, typer.Option(min=1, help="Prompts of each domain.")] = 3,
    rule: Annotated[
        list[str] | None,
        typer.Option(help="A rule, as for collect; may be given again. Default: every kind."),
    ] = None,
    tree: Annotated[str, typer.Option(help="Static tree, as for collect.")] = "kary:depth=3,branch=2",
    chain: Annotated[str, typer.Option(help="Chain of block verification.")] = "chain:5",
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Longest output of a prompt, in tokens.")] = 16,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    fmt: FormatOption = OutputFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Time every rule on the same prompts, in turn: its share of a whole step, which should be under 5%.

    Example:  acceptlab bench rules --limit 1
    """
    from acceptlab.bench.rules import ALL_RULES, COLUMNS, rule_costs, settings_of
    from acceptlab.resampling import Resampling
    from acceptlab.rules import parse_rule
    from acceptlab.run import Request, plan, prepare
    from acceptlab.tree import parse_tree

    request = Request(
        domains=tuple(domain.split(",")),
        pair=pair,
        target=target,
        draft=draft,
        limit=limit,
        tree=tree,
        max_new_tokens=max_new_tokens,
        seed=seed,
        device=device,
        dtype=dtype,
    )
    wanted, chain_shape = [parse_rule(text) for text in rule or ALL_RULES], parse_tree(chain)
    planned = plan(request)
    loaded, settings = prepare(planned)
    texts = [(prompt.id, loaded.encode(prompt.prompt)) for prompt in planned.prompts]
    methods = settings_of(settings, wanted, chain_shape)

    with BenchBar("texts") as bar:
        frame = rule_costs(loaded, texts, methods, Resampling(seed=seed), bar)
    emit(
        frame,
        fmt=fmt,
        output=output,
        title=f"What a rule costs: {planned.config['pair']}",
        notes=[
            *filter(None, [loaded.draft_note]),
            *(f"{name}: {meaning}" for name, meaning in COLUMNS.items() if fmt is OutputFormat.TABLE),
        ],
    )
