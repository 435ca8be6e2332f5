"""`acceptlab bench speedup`: what speculation gains over plain decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

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
    check_clock,
    show,
)
from acceptlab.cli.options import DtypeOption, spread_options
from acceptlab.cli.output import warn

if TYPE_CHECKING:
    import pandas as pd

    from acceptlab.run import Request

app = typer.Typer()


@app.command()
@spread_options
def speedup(
    decoding: ContestOptions,
    where: FigureOptions,
    limit: LimitOption = 3,
    chains: ChainsOption = "1-10",
    tree: Annotated[
        list[str] | None, typer.Option(help="A tree to add, as for collect; may be given again.")
    ] = None,
    library: Annotated[
        bool, typer.Option(help="Add transformers' own loops: generate, and assisted with the same draft.")
    ] = True,
    assisted: Annotated[str, typer.Option(help="Chain lengths of the assisted loop.")] = "5",
    repeats: RepeatsOption = 2,
    max_new_tokens: MaxNewTokensOption = 64,
    dtype: DtypeOption = "auto",
    clock: ClockOption = Clock.WALL,
) -> None:
    """Time plain decoding against chains, trees and transformers' assisted generation, in turn on the same prompts.

    Example:  acceptlab bench speedup --limit 1 --chains 1,3,5 --repeats 1 --max-new-tokens 24

    Prefill is left out of every rate. `chain:5+records` is the collector: it writes down every node as well. Ctrl-C
    prints what there is. Intervals need ten prompts or more.
    """
    notes = check_clock(clock)
    from acceptlab.bench.contest import parse_lengths

    lengths = parse_lengths(chains)
    request = decoding.request(
        limit=limit, tree=f"chain:{max(lengths, default=1)}", max_new_tokens=max_new_tokens, dtype=dtype
    )
    trees = tree if tree is not None else ["kary:depth=3,branch=2"]
    found = _compare(request, lengths, trees, parse_lengths(assisted) if library else None, repeats, clock)
    _show(found, notes, decoding.temperature, repeats, where)


@dataclass(frozen=True)
class _Found:
    """What was measured, and what to say about it."""

    frame: pd.DataFrame
    samples: pd.DataFrame
    notes: list[str]
    config: dict[str, Any]
    n_prompts: int
    is_whole: bool


def _compare(
    request: Request,
    lengths: list[int],
    trees: list[str],
    their_lengths: list[int] | None,
    repeats: int,
    clock: Clock,
) -> _Found:
    """Decode with every arm in turn; `their_lengths` is None without the library's loops."""
    from acceptlab.bench import contest
    from acceptlab.bench import speedup as arithmetic
    from acceptlab.bench.arms import timed_by
    from acceptlab.bench.interleave import measure, tasks_of
    from acceptlab.run import plan, prepare

    theirs_at = their_lengths or []
    recorded = f"chain:{theirs_at[0]}" if theirs_at else None
    planned = plan(request)
    loaded, settings = prepare(planned)
    notes = [note for note in (loaded.draft_note, *loaded.notes) if note]
    arms = contest.own_arms(loaded, settings, lengths, trees, recorded)
    if their_lengths is not None:
        theirs, said = contest.library_arms(loaded.target_model, loaded, settings, their_lengths)
        arms, notes = [*arms, *theirs], [*notes, *said]
    depth = max(arm.depth for arm in arms)
    tasks, left_out = tasks_of(loaded, planned.prompts, request.max_new_tokens, depth)
    with BenchBar("decodes") as bar, timed_by(clock):
        done = measure(arms, tasks, repeats, request.max_new_tokens, bar)
    sums = arithmetic.sums_of(done.frame)
    predicted: dict[str, float] = {}
    model_notes = ["no prediction: the bare passes were not timed"]
    if done.is_whole:
        predicted, model_notes = _predict(loaded, tasks, sums, request, clock)
    against = [f"{contest.ASSISTED}:{n}" for n in theirs_at]
    frame = arithmetic.table(sums, predicted=predicted, against=against)
    if recorded is not None:
        model_notes += _against_library(frame, f"{recorded}{contest.RECORDS}", against[0])
    notes = [*notes, *left_out, *model_notes]
    return _Found(frame, done.frame, notes, planned.config, len(tasks), done.is_whole)


def _predict(
    loaded: Any, tasks: Any, sums: Any, request: Request, clock: Clock
) -> tuple[dict[str, float], list[str]]:
    """What the cost model says of every arm."""
    from acceptlab.bench import prediction
    from acceptlab.bench.arms import timed_by

    warn("timing bare passes of the target for the cost model")
    with timed_by(clock):
        passes = prediction.pass_curve(loaded.target, tasks, request.max_new_tokens, request.seed)
    return prediction.predict(sums, passes)


def _show(found: _Found, notes: list[str], temperature: float, repeats: int, where: FigureOptions) -> None:
    from acceptlab.bench import speedup as arithmetic
    from acceptlab.figures.speedup import figure_speedup

    show(
        found.frame,
        where,
        title=f"Speed-up over plain decoding: {found.config['pair']}, {found.config['rule']}, "
        f"temperature {temperature:g}, {found.n_prompts} prompts, {repeats} repeats",
        notes=[*notes, *found.notes],
        columns=arithmetic.COLUMNS,
        figure=figure_speedup(found.frame, _caption(found.frame, found.config)),
        samples=found.samples,
        is_whole=found.is_whole,
    )


def _against_library(frame: pd.DataFrame, ours: str, theirs: str) -> list[str]:
    """How many times the tokens a second of the library's assisted loop the collector makes."""
    column = f"over_{theirs.replace(':', '_')}"
    if column not in frame or ours not in set(frame["arm"]):
        return []
    row = frame.set_index("arm").loc[ours]
    ends = "" if row.isna()[f"{column}_lo"] else f" [{row[f'{column}_lo']:.3f}, {row[f'{column}_hi']:.3f}]"
    return [
        f"{ours} makes {row[column]:.3f}{ends} times the tokens a second of {theirs}, which records nothing"
    ]


def _caption(frame: pd.DataFrame, config: dict[str, object]) -> str:
    first = frame.iloc[0]
    return (
        f"{config['pair']}, {config['rule']}, {first['n_prompts']} prompts, {first['n_tokens']:,} tokens an arm; "
        "bars: 95% intervals that resample prompts."
    )
