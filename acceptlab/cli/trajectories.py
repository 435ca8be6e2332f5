"""`acceptlab trajectories`: training text that the target writes itself, or its answers to given prompts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from acceptlab.cli.options import SeedOption, TargetOption

if TYPE_CHECKING:
    from acceptlab.drafters.llama import LlamaStack
    from acceptlab.training.trajectories import GivenPrompt, Progress, TrajectorySettings


def command(
    *,
    pair: Annotated[str | None, typer.Option(help="Pair whose target writes (acceptlab pairs list).")] = None,
    target: TargetOption = None,
    prompts: Annotated[
        str | None,
        typer.Option(help="Prompt set or file to answer; left out, the target writes its own prompts."),
    ] = None,
    n_prompts: Annotated[int, typer.Option(min=1, help="Prompts to write (may grow on a repeat).")] = 1000,
    answers_per_prompt: Annotated[int, typer.Option(min=1, help="Answers to each prompt.")] = 2,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Longest answer, in tokens.")] = 200,
    batch_size: Annotated[int, typer.Option(min=1, help="Answers sampled at once; one part a batch.")] = 128,
    seed: SeedOption = 0,
    greedy: Annotated[bool, typer.Option("--greedy", help="Answer by argmax instead of sampling.")] = False,
    features: Annotated[
        bool, typer.Option(help="Keep the target's hidden states, which training needs (1.2 kB a token).")
    ] = True,
    tokens: Annotated[
        Path | None, typer.Option(help="Score this file of token ids again instead of sampling.")
    ] = None,
    draft: Annotated[
        Path | None,
        typer.Option(help="Trained drafter to score along the text too: draft_log_probs and overlaps."),
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

    Both models along the text: acceptlab trajectories --n-prompts 64 --max-new-tokens 60
    --output data/trajectories/try --draft data/drafter/smollm2-135m

    Finished parts are kept: repeat the command to go on, with a larger --n-prompts for more text.
    """
    if export is not None:
        _export(output, export)
        return
    from acceptlab.training.target import target_name
    from acceptlab.training.trajectories import TrajectorySettings

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
    _write(output, settings, prompts=prompts, tokens=tokens, draft=draft)
    print(output)


def _export(output: Path, export: Path) -> None:
    from acceptlab.training.exchange import export_tokens

    n_tokens = export_tokens([output], export)
    print(f"{n_tokens:,} answer tokens in {export}", file=sys.stderr)
    print(export)


def _write(
    output: Path,
    settings: TrajectorySettings,
    *,
    prompts: str | None,
    tokens: Path | None,
    draft: Path | None,
) -> None:
    from acceptlab.training.exchange import import_tokens
    from acceptlab.training.static_cache import StaticDecoder
    from acceptlab.training.target import load_target
    from acceptlab.training.trajectories import generate_trajectories, open_folder

    given = _given(prompts) if prompts is not None else None
    if draft is not None:
        _check_draft(draft, settings)
    open_folder(output, settings)
    loaded = load_target(settings.target)
    if tokens is not None:
        n_tokens = import_tokens(
            tokens,
            output,
            loaded.stack,
            loaded.tokenizer.decode,
            batch_size=settings.batch_size,
            report=_show_scored,
        )
        print(f"{n_tokens:,} answer tokens in {output}", file=sys.stderr)
    else:
        done = generate_trajectories(
            output, StaticDecoder(loaded.stack), loaded.tokenizer, settings, given=given, report=_show
        )
        print(f"{done.n_items:,} prompts and {done.n_tokens:,} answer tokens in {output}", file=sys.stderr)
    if draft is not None:
        _score_draft(output, draft, loaded.stack)


def _check_draft(draft: Path, settings: TrajectorySettings) -> None:
    """Find out before an hour of sampling that the draft cannot be scored."""
    from acceptlab.drafters.files import load_config
    from acceptlab.errors import UsageError

    load_config(draft)
    if not settings.keep_features:
        raise UsageError("--draft needs the target's hidden states: leave --no-features out")


def _score_draft(output: Path, draft: Path, stack: LlamaStack) -> None:
    from acceptlab.drafters.files import load_drafter
    from acceptlab.training.draft_scores import score_parts
    from acceptlab.training.taps import write_taps

    drafter = load_drafter(draft, stack.embed_tokens.weight)
    if drafter.tap_layers:
        write_taps([output], stack, drafter.tap_layers)
    mean = score_parts(output, drafter, stack.output_weight, name=draft.as_posix(), report=_show_draft)
    print(f"mean overlap of {draft} with the target {mean:.4f}", file=sys.stderr)


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


def _show_draft(n_done: int, n_all: int, overlap: float) -> None:
    print(f"{n_done:,} of {n_all:,} parts scored with the draft, overlap {overlap:.4f}", file=sys.stderr)
