"""`acceptlab bench verify-cost`: what a pass over n tokens costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from acceptlab.cli.bench_options import (
    BenchBar,
    Clock,
    ClockOption,
    FigureOptions,
    RepeatsOption,
    backend_names,
    check_clock,
    show,
)
from acceptlab.cli.options import ModelOptions, SeedOption, spread_options
from acceptlab.cli.output import emit, warn
from acceptlab.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

    from acceptlab.bench.passes import Passes
    from acceptlab.pairs import Pair

app = typer.Typer()
SIZES = "1,2,3,4,6,8,12,16,24,32,48,64"


@app.command("verify-cost")
@spread_options
def verify_cost(
    models: ModelOptions,
    where: FigureOptions,
    backends: Annotated[
        str,
        typer.Option(
            "--backends",
            "--backend",
            help="float32, packed, compile, int8, bfloat16, llama.cpp; those that are not here are named.",
        ),
    ] = "float32,packed,int8,bfloat16,llama.cpp",
    sizes: Annotated[str, typer.Option(help="Tokens in a pass; 1 is added if it is missing.")] = SIZES,
    context: Annotated[int, typer.Option(min=2, help="Tokens of the text before the pass.")] = 128,
    tree: Annotated[
        str, typer.Option(help="Tree whose pass is compared with that of plain transformers; empty for none.")
    ] = "kary:depth=3,branch=2",
    repeats: RepeatsOption = 15,
    seed: SeedOption = 0,
    clock: ClockOption = Clock.WALL,
) -> None:
    """Time target passes of 1 to 64 tokens on several backends in turn: is verification free, or as slow as stepping?

    Example:  acceptlab bench verify-cost --backends float32,packed --sizes 1,4,16 --repeats 3

    T(n) is split into a fixed and a per-token part; the serial index is the per-token share of a pass of one token. The
    root and the nodes of a tree are also verified by plain transformers, in the same run. Intervals need ten repeats.
    """
    names, wanted = backend_names(backends), _sizes(sizes)
    notes = check_clock(clock)
    from acceptlab.bench.arms import timed_by
    from acceptlab.bench.passes import pass_times

    loaded = models.load("float32")
    text = _text(loaded, context)
    chains, left_out = _chains(loaded, names, text, max(wanted))
    with BenchBar("passes") as bar, timed_by(clock):
        samples, is_whole = pass_times(chains, wanted, repeats, seed, bar)
    if not len(samples):
        raise UsageError("no round was finished before the interrupt: there is nothing to show")
    notes += left_out
    if tree and is_whole:
        with timed_by(clock):
            notes += _against_stock(loaded, text, tree, repeats, seed)
    _show(samples, f"{loaded.name}, text of {context} tokens", notes, seed, where, is_whole=is_whole)


def _show(
    samples: pd.DataFrame, what: str, notes: list[str], seed: int, where: FigureOptions, *, is_whole: bool
) -> None:
    """The curve of times and the line that fits it."""
    from acceptlab.bench import verify_cost as arithmetic
    from acceptlab.figures.verify_cost import figure_verify_cost

    curve, fits = arithmetic.curve_table(samples, seed), arithmetic.fit_table(samples, seed)
    emit(curve, title=f"Time of a target pass by its tokens: {what}")
    if where.folder is not None:
        emit(curve, output=where.folder / "curve.csv")
    rounds = int(curve["n_rounds"].iloc[0])
    show(
        fits,
        where,
        title=f"Fixed and per-token part of a target pass: {what}, {rounds} rounds",
        notes=notes,
        columns={**arithmetic.COLUMNS, **arithmetic.FIT_COLUMNS},
        figure=figure_verify_cost(curve, f"{what}, medians of {rounds} rounds in turn."),
        samples=samples,
        is_whole=is_whole,
    )


def _sizes(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= 512 for part in parts):
        raise UsageError(f"--sizes is '{text}': write numbers of tokens from 1 to 512, such as 1,4,16")
    found = sorted({1, *map(int, parts)})
    if len(found) < 2:
        raise UsageError("--sizes needs a size beside 1, such as 1,4,16")
    return found


def _text(pair: Pair, length: int) -> list[int]:
    """Token ids of a shipped prompt, repeated to a length."""
    from acceptlab.prompts import load_prompts

    ids = pair.encode(load_prompts(limit=1)[0].prompt)
    return (ids * (1 + length // len(ids)))[:length]


def _chains(
    pair: Pair, names: Sequence[str], text: list[int], largest: int
) -> tuple[list[Passes], list[str]]:
    """Passes of up to so many tokens on every backend that is to be had, and a note on every other."""
    from acceptlab.bench.backends import make_backend
    from acceptlab.bench.passes import ChainPasses

    chains: list[Passes] = []
    notes = []
    longest = len(text) + largest
    for name in names:
        try:
            model = make_backend(name, pair)
            if model.max_len is not None and longest > model.max_len:
                raise UsageError(
                    f"it has {model.max_len} positions, not {longest}: lower --context or --sizes"
                )
            chains.append(ChainPasses(model, text, name))
        except UsageError as error:
            notes.append(f"left out {name}: {error}")
    if not chains:
        reasons = "; ".join(note.removeprefix("left out ") for note in notes)
        raise UsageError(f"none of these backends can be had here: {reasons}")
    return chains, notes


def _against_stock(pair: Pair, text: list[int], shape: str, repeats: int, seed: int) -> list[str]:
    """The pass over a tree, against the same of plain transformers."""
    from acceptlab.bench.passes import pass_times
    from acceptlab.bench.tree_pass import EngineTree, StockTree, logits_apart
    from acceptlab.bench.verify_cost import pass_ratio
    from acceptlab.tree import parse_tree

    static = parse_tree(shape).static
    if static is None:
        raise UsageError(f"--tree is '{shape}': name a static tree, such as kary:depth=3,branch=2")
    warn(f"timing the pass over {static.n_nodes + 1} tokens of {shape} against plain transformers")
    ours = EngineTree(pair.target, text, static, "ours")
    stock = StockTree(pair.target_model, text, static, "transformers")
    apart = logits_apart(ours, stock)
    frame, _ = pass_times([ours, stock], [static.n_nodes + 1], max(repeats, 15), seed)
    found = pass_ratio(frame, "ours", "transformers", seed)
    medians = frame.groupby("name")["ms"].median()
    ends = "" if found["ratio_lo"] is None else f" [{found['ratio_lo']:.3f}, {found['ratio_hi']:.3f}]"
    return [
        f"verifying {shape}, {static.n_nodes + 1} tokens with the root: {medians['ours']:.1f} ms, plain transformers "
        f"{medians['transformers']:.1f} ms, ratio {found['ratio']:.3f}{ends}; largest difference of a logit {apart:.1e}"
    ]
