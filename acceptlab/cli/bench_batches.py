"""`acceptlab bench batches`: does it pay to decode several prompts in one pass?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from acceptlab.cli.bench_options import (
    BenchBar,
    ContestOptions,
    FolderOptions,
    LimitOption,
    MaxNewTokensOption,
    RepeatsOption,
    TreeOption,
    show,
)
from acceptlab.cli.options import DtypeOption, spread_options
from acceptlab.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

    from acceptlab.bench.speedup import Sums

app = typer.Typer()


@app.command()
@spread_options
def batches(
    decoding: ContestOptions,
    where: FolderOptions,
    limit: LimitOption = 4,
    sizes: Annotated[
        str, typer.Option(help="Batch sizes; the first one is what all are compared with.")
    ] = "1,2,4,8,16",
    tree: TreeOption = "chain:5",
    repeats: RepeatsOption = 2,
    max_new_tokens: MaxNewTokensOption = 48,
    dtype: DtypeOption = "auto",
) -> None:
    """Decode the same prompts 1, 2, 4 ... at a time, in turn: tokens a second and accepted length by batch size.

    Example:  acceptlab bench batches --sizes 1,4 --limit 1 --repeats 1 --max-new-tokens 16

    Ctrl-C prints what there is. Intervals need ten prompts or more.
    """
    wanted = _sizes(sizes)
    from acceptlab.bench.batches import COLUMNS, measure_batches
    from acceptlab.bench.interleave import tasks_of
    from acceptlab.bench.speedup import sums_of
    from acceptlab.run import plan, prepare

    request = decoding.request(limit=limit, tree=tree, max_new_tokens=max_new_tokens, dtype=dtype)
    planned = plan(request)
    loaded, settings = prepare(planned)
    tasks, left_out = tasks_of(loaded, planned.prompts, max_new_tokens, settings.tree.depth)
    with BenchBar("rounds of all prompts") as bar:
        done = measure_batches(loaded, tasks, settings, wanted, repeats, bar)
    few = f"only {len(tasks)} prompts: batches of {max(wanted)} are never full"
    show(
        _table(sums_of(done.frame)),
        where,
        title=f"Batch sizes: {planned.config['pair']}, {tree}, {request.rule}, {len(tasks)} prompts, {repeats} repeats",
        notes=[*left_out, *([few] if len(tasks) < max(wanted) else [])],
        columns=COLUMNS,
        samples=done.frame,
        is_whole=done.is_whole,
    )


def _sizes(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= 256 for part in parts):
        raise UsageError(f"--sizes is '{text}': write batch sizes from 1 to 256, such as 1,4,16")
    return list(dict.fromkeys(map(int, parts)))


def _table(sums: dict[str, Sums]) -> pd.DataFrame:
    """The table of speeds with the batch size in place of the arm, and without what batches do not have."""
    from acceptlab.bench.batches import PREFIX
    from acceptlab.bench.speedup import table

    frame = table(sums, baseline=next(iter(sums)))
    frame.insert(0, "batch_size", frame.pop("arm").str.removeprefix(PREFIX).astype(int))
    return frame.drop(columns=["predicted", "break_even_len", "prefill_ms"])
