"""`acceptlab train`: fit a drafter to trajectories, as a TOML file says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from acceptlab.drafters.llama import LlamaStack
    from acceptlab.training.corpus import Example
    from acceptlab.training.settings import TrainSettings
    from acceptlab.training.train import Trainer


def command(
    *,
    config: Annotated[
        Path, typer.Argument(help="TOML file with a [train] table, such as studies/training/drafter.toml.")
    ],
    output: Annotated[
        Path | None, typer.Option(help="Folder of the run; by default under data/drafters.")
    ] = None,
    init: Annotated[Path | None, typer.Option(help="Drafter folder to go on from.")] = None,
    loss: Annotated[
        str | None, typer.Option(help="Another loss than the file's (ce, kl, real, dpal, ...).")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Another number of steps.")] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Train for so many minutes instead of a number of steps.")
    ] = None,
    stage: Annotated[
        str | None,
        typer.Option(help="supervised, or grpo to reinforce the --init drafter by its own rollouts."),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Another seed.")] = None,
) -> None:
    """Train a drafter on trajectories; the best and the last one are kept as drafter folders.

    Example:  acceptlab train studies/training/drafter.toml --output data/drafters/mine

    Hot continuation with another loss:  acceptlab train studies/training/drafter.toml --init data/drafters/mine/best
    --loss real

    An interrupted run goes on where its last checkpoint was: repeat the command. Use the result with
    acceptlab collect --draft data/drafters/mine/best
    """
    from acceptlab.training.settings import read_settings

    changes = {
        "init": None if init is None else str(init),
        "loss": loss,
        "steps": steps,
        "minutes": minutes,
        "stage": stage,
        "seed": seed,
    }
    settings = read_settings(config, {name: value for name, value in changes.items() if value is not None})
    name = settings.loss if settings.stage == "supervised" else settings.stage
    folder = output or Path("data/drafters") / f"{config.stem}-{name}-seed{settings.seed}"
    _train(folder, settings)
    print(folder / "best")


def _train(folder: Path, settings: TrainSettings) -> None:
    """Read, train and score; what cannot be trained is refused before anything that takes long."""
    from acceptlab.training.corpus import load_examples
    from acceptlab.training.start import tap_layers
    from acceptlab.training.target import load_target
    from acceptlab.training.train import Trainer, check_begun, check_enough

    texts, scored = [Path(name) for name in settings.data], [Path(name) for name in settings.score]
    check_begun(folder, settings)
    loaded = load_target(settings.target)
    taps = tap_layers(settings, loaded.stack)
    if taps:
        check_enough(load_examples(texts))
        _run_target([*texts, *scored], loaded.stack, taps)
    examples = load_examples(texts, tap_layers=taps)
    trainer = Trainer(folder, settings, loaded.stack, examples, _show)
    n_tokens = sum(example.output_len for example in trainer.train_examples)
    print(f"{len(trainer.train_examples):,} trajectories, {n_tokens:,} tokens to train on", file=sys.stderr)
    print(f"best held-out overlap {trainer.run():.4f}", file=sys.stderr)
    if scored:
        _score(trainer, load_examples(scored, tap_layers=taps))


def _run_target(texts: list[Path], target: LlamaStack, taps: tuple[int, ...]) -> None:
    """Write the hidden states that a cross head reads, where they are missing."""
    from acceptlab.cli.progress import TenthsBar
    from acceptlab.training.taps import write_taps

    bar = TenthsBar("running the target", "parts of the text")
    bar.start()
    try:
        write_taps(texts, target, taps, bar.update)
    finally:
        bar.stop()


def _score(trainer: Trainer, examples: list[Example]) -> None:
    scores = trainer.score(examples)
    print(f"mean overlap over domains {scores['mean_overlap_over_domains']:.4f}", file=sys.stderr)


def _show(line: dict[str, Any]) -> None:
    print(
        f"step {line['step']:,}  loss {line['loss']:.4f}  overlap {line['overlap']:.4f}  "
        f"match {line['match']:.4f}  length {line['branch']:.3f} (branch) {line['product']:.3f} (product)  "
        f"{line['tokens_per_s']:,.0f} tokens/s",
        file=sys.stderr,
    )
