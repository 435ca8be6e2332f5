"""`acceptlab collect`: run a pair over prompts and write a row for every drafted node."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from acceptlab.collect import Progress
    from acceptlab.run import Request

RUNS_FOLDER = Path("data/runs")

DomainOption = Annotated[str, typer.Option("--domain", help="code, math, logic, chat, a comma list, or all.")]
PairOption = Annotated[
    str | None, typer.Option("--pair", help="Name of a known pair (acceptlab pairs list).")
]
TargetOption = Annotated[str | None, typer.Option("--target", help="Target: hub id, folder or .gguf file.")]
DraftOption = Annotated[
    str | None, typer.Option("--draft", help="Draft: hub id, folder, .gguf, self:skip=12,14 or ngram:n=3.")
]
PromptsOption = Annotated[
    str | None,
    typer.Option(
        "--prompts", help="Prompt set or file (acceptlab prompts list); the shipped set if left out."
    ),
]
PromptColumnOption = Annotated[
    str | None, typer.Option("--prompt-column", help="Column or key that holds the prompt.")
]
IdColumnOption = Annotated[str | None, typer.Option("--id-column", help="Column or key that holds the id.")]
DomainColumnOption = Annotated[
    str | None, typer.Option("--domain-column", help="Column or key that holds the domain.")
]
TextOption = Annotated[str, typer.Option("--text", help="Plain text: one prompt a line (lines), or blocks.")]
SkipBadOption = Annotated[bool, typer.Option("--skip-bad", help="Leave bad prompt rows out and name them.")]
LimitOption = Annotated[
    int | None, typer.Option("--limit", min=1, help="Only the first N prompts of each domain.")
]
TreeOption = Annotated[
    str,
    typer.Option(
        "--tree",
        help="chain:K, kary:depth=D,branch=B, branches:4,2,1, dynamic:nodes=N,depth=D,topk=K, "
        "opt:nodes=N,threshold=T, dp:nodes=N,from=RUN or file:tree.json.",
    ),
]
RuleOption = Annotated[str, typer.Option("--rule", help="Verification rule.")]
ProposalOption = Annotated[
    str,
    typer.Option(
        "--proposal", help="auto (what the rule is made for), or argmax for a chain of draft argmaxes."
    ),
]
TemperatureOption = Annotated[
    float, typer.Option("--temperature", min=0.0, help="Of the sampling distribution, both models.")
]
TopKOption = Annotated[
    int, typer.Option("--top-k", min=0, help="Keep the K most probable tokens; 0 keeps all.")
]
TopPOption = Annotated[
    float, typer.Option("--top-p", min=0.0, max=1.0, help="Keep the smallest set of this probability.")
]
MaxNewTokensOption = Annotated[
    int, typer.Option("--max-new-tokens", min=1, help="Longest output of a prompt, in tokens.")
]
StopOption = Annotated[
    str | None,
    typer.Option("--stop", help="entropy:NATS drafts nothing below a context where the draft is less sure."),
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of all random streams.")]
BatchSizeOption = Annotated[
    int,
    typer.Option("--batch-size", min=1, help="Prompts decoded at once, in one pass; the rows stay the same."),
]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:N or mps.")]
DtypeOption = Annotated[str, typer.Option("--dtype", help="auto, float32, bfloat16 or float16.")]
RunOption = Annotated[
    Path | None,
    typer.Option("--run", help="Folder of the run; by default one under data/runs named after the options."),
]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")]


def command(
    domain: DomainOption = "all",
    pair: PairOption = None,
    target: TargetOption = None,
    draft: DraftOption = None,
    prompts: PromptsOption = None,
    prompt_column: PromptColumnOption = None,
    id_column: IdColumnOption = None,
    domain_column: DomainColumnOption = None,
    text: TextOption = "lines",
    skip_bad: SkipBadOption = False,
    limit: LimitOption = None,
    tree: TreeOption = "kary:depth=3,branch=2",
    rule: RuleOption = "greedy",
    proposal: ProposalOption = "auto",
    temperature: TemperatureOption = 1.0,
    top_k: TopKOption = 0,
    top_p: TopPOption = 1.0,
    max_new_tokens: MaxNewTokensOption = 128,
    stop: StopOption = None,
    seed: SeedOption = 0,
    batch_size: BatchSizeOption = 1,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    run: RunOption = None,
    resume: ResumeOption = False,
) -> None:
    """Run draft and target over prompts; write one row for every drafted node.

    Example:  acceptlab collect --domain code --limit 3 --max-new-tokens 32

    An interrupted run keeps every finished prompt: repeat it with --resume. Repeating a finished one changes nothing.
    """
    from acceptlab.run import Request

    request = Request(
        domains=tuple(part.strip() for part in domain.split(",") if part.strip()),
        pair=pair,
        target=target,
        draft=draft,
        prompts=prompts,
        prompt_column=prompt_column,
        id_column=id_column,
        domain_column=domain_column,
        text=text,
        skip_bad=skip_bad,
        limit=limit,
        tree=tree,
        rule=rule,
        proposal=proposal,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        max_new_tokens=max_new_tokens,
        seed=seed,
        stop=stop,
        batch_size=batch_size,
        device=device,
        dtype=dtype,
    )
    _collect(request, run, resume)


def _collect(request: Request, folder: Path | None, resume: bool) -> None:
    from acceptlab.run import run_collection

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
