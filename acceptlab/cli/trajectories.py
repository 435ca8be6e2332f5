"""`acceptlab trajectories`: training text that the target writes itself, or its answers to given prompts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from acceptlab.training.trajectories import GivenPrompt, Progress


def command(
    *,
    pair: Annotated[str | None, typer.Option(help="Pair whose target writes (acceptlab pairs list).")] = None,
    target: Annotated[str | None, typer.Option(help="Target: hub id, folder or .gguf file.")] = None,
    prompts: Annotated[
        str | None,
        typer.Option(help="Prompt set or file to answer; left out, the target writes its own prompts."),
    ] = None,
    n_prompts: Annotated[int, typer.Option(min=1, help="Prompts to write (may grow on a repeat).")] = 1000,
    answers_per_prompt: Annotated[int, typer.Option(min=1, help="Answers to each prompt.")] = 2,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Longest answer, in tokens.")] = 200,
    batch_size: Annotated[int, typer.Option(min=1, help="Answers sampled at once; one part a batch.")] = 128,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random streams.")] = 0,
    greedy: Annotated[bool, typer.Option("--greedy", help="Answer by argmax instead of sampling.")] = False,
    features: Annotated[
        bool, typer.Option(help="Keep the target's hidden states, which training needs (1.2 kB a token).")
    ] = True,
    tokens: Annotated[
        Path | None, typer.Option(help="Score this file of token ids again instead of sampling.")
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="Only write the token ids of --output to this Parquet file.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder of the trajectories.")] = Path("data/trajectories/own"),
) -> None:
    """Let the target write training text: prompts of its own, and answers at temperature 1.

    Example:  acceptlab trajectories --n-prompts 64 --max-new-tokens 60 --output data/trajectories/try

    Token ids are what is worth keeping: --export FILE writes them, --tokens FILE gives them their hidden
    states back.

    Finished parts are kept: repeat the command to go on, with a larger --n-prompts for more text.
    """
    from acceptlab.training.exchange import export_tokens, import_tokens
    from acceptlab.training.static_cache import StaticDecoder
    from acceptlab.training.target import load_target, target_name
    from acceptlab.training.trajectories import TrajectorySettings, generate_trajectories, open_folder

    if export is not None:
        n_tokens = export_tokens([output], export)
        print(f"{n_tokens:,} answer tokens in {export}", file=sys.stderr)
        print(export)
        return
    settings = TrajectorySettings(
        target=target_name(pair, target),
        n_prompts=n_prompts,
        answers_per_prompt=1 if greedy else answers_per_prompt,
        max_new_tokens=max_new_tokens,
        seed=seed,
        batch_size=batch_size,
        greedy=greedy,
        prompts=prompts or ("self" if tokens is None else f"tokens:{tokens.name}"),
        keep_features=features,
    )
    given = _given(prompts) if prompts is not None else None
    open_folder(output, settings)
    loaded = load_target(settings.target)
    if tokens is not None:
        n_tokens = import_tokens(
            tokens, output, loaded.stack, loaded.tokenizer.decode, batch_size=batch_size, report=_show_scored
        )
        print(f"{n_tokens:,} answer tokens in {output}", file=sys.stderr)
        print(output)
        return
    done = generate_trajectories(
        output, StaticDecoder(loaded.stack), loaded.tokenizer, settings, given=given, report=_show
    )
    print(f"{done.n_items:,} prompts and {done.n_tokens:,} answer tokens in {output}", file=sys.stderr)
    print(output)


def _given(prompts: str) -> list[GivenPrompt]:
    from acceptlab.prompts import load_prompts
    from acceptlab.training.trajectories import GivenPrompt

    return [GivenPrompt(prompt.domain, prompt.prompt) for prompt in load_prompts(prompts)]


def _show(progress: Progress) -> None:
    rate = (
        f"{progress.new_tokens / progress.seconds:,.0f} tokens/s"
        if progress.new_tokens
        else "was there already"
    )
    print(f"{progress.n_items:,} prompts, {progress.n_tokens:,} answer tokens, {rate}", file=sys.stderr)


def _show_scored(n_done: int, n_all: int, n_tokens: int) -> None:
    print(f"{n_done:,} of {n_all:,} trajectories, {n_tokens:,} answer tokens", file=sys.stderr)
