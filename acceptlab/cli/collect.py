"""`acceptlab collect`: run a pair over prompts and write a row for every drafted node."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acceptlab.cli.options import (
    DecodingOptions,
    DomainColumnOption,
    DtypeOption,
    IdColumnOption,
    PromptColumnOption,
    ResumeOption,
    SeedOption,
    TemperatureOption,
    TextOption,
    spread_options,
)

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from acceptlab.collect import Progress
    from acceptlab.run import Request


@dataclass(frozen=True)
class CollectOptions(DecodingOptions):
    """What to collect: fields of `Request`."""

    prompts: Annotated[
        str | None,
        typer.Option(
            "--prompts", help="Prompt set or file (acceptlab prompts list); the shipped set if left out."
        ),
    ] = None
    prompt_column: PromptColumnOption = None
    id_column: IdColumnOption = None
    domain_column: DomainColumnOption = None
    text: TextOption = "lines"
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave bad prompt rows out and name them.")] = (
        False
    )
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Only the first N prompts of each domain.")
    ] = None
    tree: Annotated[
        str,
        typer.Option(
            "--tree",
            help="chain:K, kary:depth=D,branch=B, branches:4,2,1, dynamic:nodes=N,depth=D,topk=K, "
            "opt:nodes=N,threshold=T, dp:nodes=N,from=RUN or file:tree.json.",
        ),
    ] = "kary:depth=3,branch=2"
    rule: Annotated[str, typer.Option("--rule", help="Verification rule.")] = "greedy"
    proposal: Annotated[
        str,
        typer.Option(
            "--proposal", help="auto (what the rule is made for), or argmax for a chain of draft argmaxes."
        ),
    ] = "auto"
    temperature: TemperatureOption = 1.0
    top_k: Annotated[
        int, typer.Option("--top-k", min=0, help="Keep the K most probable tokens; 0 keeps all.")
    ] = 0
    top_p: Annotated[
        float, typer.Option("--top-p", min=0.0, max=1.0, help="Keep the smallest set of this probability.")
    ] = 1.0
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", min=1, help="Longest output of a prompt, in tokens.")
    ] = 128
    stop: Annotated[
        str | None,
        typer.Option(
            "--stop", help="entropy:NATS drafts nothing below a context where the draft is less sure."
        ),
    ] = None
    seed: SeedOption = 0
    batch_size: Annotated[
        int,
        typer.Option(
            "--batch-size", min=1, help="Prompts decoded at once, in one pass; the rows stay the same."
        ),
    ] = 1
    dtype: DtypeOption = "auto"


@spread_options
def command(
    options: CollectOptions,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run", help="Folder of the run; by default one under data/runs named after the options."
        ),
    ] = None,
    resume: ResumeOption = False,
) -> None:
    """Run draft and target over prompts; write one row for every drafted node.

    Example:  acceptlab collect --domain code --limit 3 --max-new-tokens 32

    An interrupted run keeps every finished prompt: repeat it with --resume. Repeating a finished one changes nothing.
    """
    _collect(options.request(), run, resume)


def _collect(request: Request, folder: Path | None, resume: bool) -> None:
    from acceptlab.run import run_collection
    from acceptlab.store.reader import RUNS_FOLDER

    outcome = run_collection(
        request, folder=folder, runs_folder=RUNS_FOLDER, resume=resume, show=CollectionBar()
    )
    print(outcome.summary, file=sys.stderr)
    print(outcome.folder)


class CollectionBar:
    """A progress bar on stderr: prompts, nodes a second, acceptance so far, time left. Silent off a terminal."""

    def __init__(self) -> None:
        self._bar: Bar | None = None
        self._task: Any = None

    def say(self, message: str) -> None:
        """Print one line on stderr."""
        print(message, file=sys.stderr)

    def start(self, n_prompts: int, n_done: int) -> None:
        """Show the bar."""
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._bar = Progress(
            TextColumn("collecting"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("prompts  {task.fields[rate]}  {task.fields[acceptance]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
            speed_estimate_period=600,
        )
        self._task = self._bar.add_task("", total=n_prompts, completed=n_done, rate="", acceptance="")
        self._bar.start()

    def update(self, progress: Progress) -> None:
        """Show a step."""
        if self._bar is None or self._bar.disable:
            return
        elapsed = self._bar.tasks[0].elapsed or 0.0
        rate = f"{progress.n_nodes / elapsed:,.0f} nodes/s" if elapsed > 0 else ""
        acceptance = (
            f"accepted {progress.n_accepted / progress.n_tested:.3f} of tested" if progress.n_tested else ""
        )
        completed = progress.n_prompts_done + progress.part_of_prompt
        self._bar.update(self._task, completed=completed, rate=rate, acceptance=acceptance)

    def stop(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
