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
    output: Annotated[Path, typer.Option(help="Folder of the trajectories.")] = Path("data/trajectories/own"),
) -> None:
    """Let the target write training text: prompts of its own, and answers at temperature 1.

    Example:  acceptlab trajectories --n-prompts 64 --max-new-tokens 60 --output data/trajectories/try

    Finished parts are kept: repeat the command to go on, with a larger --n-prompts for more text.
    """
    from acceptlab.training.target import load_target, target_name
    from acceptlab.training.trajectories import TrajectorySettings, generate_trajectories, open_folder

    settings = TrajectorySettings(
        target=target_name(pair, target),
        n_prompts=n_prompts,
        answers_per_prompt=1 if greedy else answers_per_prompt,
        max_new_tokens=max_new_tokens,
        seed=seed,
        batch_size=batch_size,
        greedy=greedy,
        prompts=prompts or "self",
        keep_features=features,
    )
    given = _given(prompts) if prompts is not None else None
    open_folder(output, settings)
    loaded = load_target(settings.target)
    from acceptlab.training.static_cache import StaticDecoder

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
