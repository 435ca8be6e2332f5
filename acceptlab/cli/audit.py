"""`acceptlab audit`: is the decoder lossless where it says so, and would the checks notice if it were not?"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acceptlab.cli import audit_roads
from acceptlab.cli.output import FormatOption, OutputFormat, OutputOption, emit

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from acceptlab.audit.request import AuditRequest
    from acceptlab.audit.run import AuditResult

AUDIT_FOLDER = Path("data/runs/audit")

QuickOption = Annotated[
    bool, typer.Option("--quick", help="A minute: few tokens and contexts, 5 seeds, little power.")
]
PairOption = Annotated[str | None, typer.Option("--pair", help="Name of a known pair.")]
TargetOption = Annotated[str | None, typer.Option("--target", help="Target: hub id, folder or .gguf file.")]
DraftOption = Annotated[str | None, typer.Option("--draft", help="Draft: as for collect.")]
RulesOption = Annotated[
    str,
    typer.Option("--rules", help="Rules that decode whole texts: rejection, rejection-iid, onehot, block."),
]
TreeOption = Annotated[str, typer.Option("--tree", help="Tree of these texts; block takes chain:3.")]
TemperatureOption = Annotated[
    float, typer.Option("--temperature", min=0.0, help="Temperature of these texts.")
]
NTokensOption = Annotated[int, typer.Option("--n-tokens", min=100, help="Tokens of each method.")]
NContextsOption = Annotated[
    int,
    typer.Option(
        "--n-contexts", min=4, help="Real contexts at which all rules and controls are drawn again."
    ),
]
SeedsOption = Annotated[int, typer.Option("--seeds", min=1, help="How often each of them is tested there.")]
DrawsOption = Annotated[
    int, typer.Option("--draws", min=1, help="Draws of a context in each of these tests, on average.")
]
MaxNewTokensOption = Annotated[int, typer.Option("--max-new-tokens", min=4, help="Longest text, in tokens.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of everything that is drawn.")]
RunFolderOption = Annotated[
    Path | None,
    typer.Option(
        "--run-folder",
        help="Where texts and contexts are kept; data/runs/audit, or audit-quick, if left out.",
    ),
]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:N or mps.")]
DtypeOption = Annotated[str, typer.Option("--dtype", help="auto, float32, bfloat16 or float16.")]

app = typer.Typer(
    no_args_is_help=True, help="Check that decoding is lossless, and that the checks have power."
)

app.add_typer(audit_roads.app)


@app.callback()
def _group() -> None:
    """Check that decoding is lossless, and that the checks have power."""


@app.command()
def losslessness(
    quick: QuickOption = False,
    pair: PairOption = None,
    target: TargetOption = None,
    draft: DraftOption = None,
    rules: RulesOption = "rejection,onehot",
    tree: TreeOption = "kary:depth=2,branch=2",
    temperature: TemperatureOption = 1.0,
    n_tokens: NTokensOption = 9200,
    n_contexts: NContextsOption = 500,
    seeds: SeedsOption = 20,
    draws: DrawsOption = 80,
    max_new_tokens: MaxNewTokensOption = 64,
    seed: SeedOption = 0,
    run_folder: RunFolderOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    fmt: FormatOption = OutputFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Show that speculative decoding follows the target's distribution; ends with 1 if any check fails.

    Example:  acceptlab audit losslessness --quick

    Four levels: (a) every rule in one context, and (b) whole decoding, by enumeration on small vocabularies; (c) the
    real pair: the transform of every emitted token under the target's plain forward, token counts against the target
    alone, greedy identity, and all rules drawn again in real contexts; (d) broken verifiers, which must be caught.

    The full audit decodes 9,200 tokens with each method; --quick tells how long that would take here. It keeps every
    finished text: repeat the command to go on after an interruption.
    """
    from acceptlab.audit.request import AuditRequest

    request = AuditRequest(
        folder=run_folder or AUDIT_FOLDER.with_name("audit-quick" if quick else "audit"),
        rules=tuple(part.strip() for part in rules.split(",") if part.strip()),
        pair=pair,
        target=target,
        draft=draft,
        tree=tree,
        temperature=temperature,
        n_tokens=n_tokens,
        n_contexts=n_contexts,
        n_seeds=seeds,
        n_draws=draws,
        max_new_tokens=max_new_tokens,
        seed=seed,
        device=device,
        dtype=dtype,
    )
    result = _audit(request, quick)
    emit(result.frame, fmt=fmt, output=output, title="Is decoding lossless?", notes=result.notes)
    if result.failures:
        names = "; ".join(f"{row.what} ({row.test})" for row in result.failures)
        print(f"failed: {names}", file=sys.stderr)
        raise typer.Exit(1)
    print(f"all {len(result.rows)} checks are as they should be", file=sys.stderr)


def _audit(request: AuditRequest, quick: bool) -> AuditResult:
    from acceptlab.audit import request as requests
    from acceptlab.audit.run import losslessness as audit

    if not quick:
        return audit(request, AuditBar())
    result = audit(requests.quick(request), AuditBar(), full=request)
    little = "--quick has little power: without it 9,200 tokens of each method are tested"
    return replace(result, notes=(*result.notes, little))


class AuditBar:
    """Progress on stderr: a bar with the time left on a terminal, else a line at every tenth of a part."""

    def __init__(self) -> None:
        self._bar: Bar | None = None
        self._task: Any = None
        self._what, self._total, self._told = "", 0, 0

    def say(self, message: str) -> None:
        """Print one line on stderr."""
        print(message, file=sys.stderr, flush=True)

    def start(self, what: str, total: int) -> None:
        """Begin a part."""
        self._what, self._total, self._told = what, total, 0
        if not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("auditing"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn(what + "  left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            speed_estimate_period=600,
        )
        self._task = self._bar.add_task("", total=total)
        self._bar.start()

    def update(self, done: int) -> None:
        """Show what is done of the part."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done)
        elif 10 * done // max(self._total, 1) > self._told:
            self._told = 10 * done // self._total
            self.say(f"{done:,} of {self._total:,} {self._what}")

    def stop(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
