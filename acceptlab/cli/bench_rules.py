"""`acceptlab bench rules`: what every verification rule costs of a step."""

from __future__ import annotations

from typing import Annotated

import typer

from acceptlab.cli.bench_options import BenchBar, LimitOption, MaxNewTokensOption, TableOptions, show
from acceptlab.cli.options import DecodingOptions, DtypeOption, SeedOption, spread_options

app = typer.Typer()


@app.command()
@spread_options
def rules(
    decoding: DecodingOptions,
    where: TableOptions,
    limit: LimitOption = 3,
    rule: Annotated[
        list[str] | None,
        typer.Option(help="A rule, as for collect; may be given again. Default: every kind."),
    ] = None,
    tree: Annotated[str, typer.Option(help="Static tree, as for collect.")] = "kary:depth=3,branch=2",
    chain: Annotated[str, typer.Option(help="Chain of block verification.")] = "chain:5",
    max_new_tokens: MaxNewTokensOption = 16,
    seed: SeedOption = 0,
    dtype: DtypeOption = "auto",
) -> None:
    """Time every rule on the same prompts, in turn: its share of a whole step, which should be under 5%.

    Example:  acceptlab bench rules --limit 1
    """
    from acceptlab.bench.rules import ALL_RULES, COLUMNS, rule_costs, settings_of
    from acceptlab.resampling import Resampling
    from acceptlab.rules import parse_rule
    from acceptlab.run import plan, prepare
    from acceptlab.tree import parse_tree

    request = decoding.request(limit=limit, tree=tree, max_new_tokens=max_new_tokens, seed=seed, dtype=dtype)
    wanted, chain_shape = [parse_rule(text) for text in rule or ALL_RULES], parse_tree(chain)
    planned = plan(request)
    loaded, settings = prepare(planned)
    texts = [(prompt.id, loaded.encode(prompt.prompt)) for prompt in planned.prompts]
    methods = settings_of(settings, wanted, chain_shape)

    with BenchBar("texts") as bar:
        frame = rule_costs(loaded, texts, methods, Resampling(seed=seed), bar)
    show(
        frame,
        where,
        title=f"What a rule costs: {planned.config['pair']}",
        notes=[*filter(None, [loaded.draft_note])],
        columns=COLUMNS,
    )
