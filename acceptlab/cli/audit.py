"""`acceptlab audit`: is the decoder lossless where it says so, and would the checks notice if it were not?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acceptlab.cli import audit_roads
from acceptlab.cli.output import FormatOption, OutputFormat, OutputOption, emit

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

AUDIT_FOLDER = Path("data/runs/audit")

app = typer.Typer(
    no_args_is_help=True, help="Check that decoding is lossless, and that the checks have power."
)

app.add_typer(audit_roads.app)


@app.callback()
def _group() -> None:
    """Check that decoding is lossless, and that the checks have power."""


@app.command()
def losslessness(
    quick: Annotated[
        bool, typer.Option("--quick", help="A minute: few tokens and contexts, 5 seeds, little power.")
    ] = False,
    pair: Annotated[str | None, typer.Option(help="Name of a known pair.")] = None,
    target: Annotated[str | None, typer.Option(help="Target: hub id, folder or .gguf file.")] = None,
    draft: Annotated[str | None, typer.Option(help="Draft: as for collect.")] = None,
    rules: Annotated[
        str, typer.Option(help="Rules that decode whole texts: rejection, rejection-iid, onehot, block.")
    ] = "rejection,onehot",
    tree: Annotated[
        str, typer.Option(help="Tree of these texts; block takes chain:3.")
    ] = "kary:depth=2,branch=2",
    temperature: Annotated[float, typer.Option(min=0.0, help="Temperature of these texts.")] = 1.0,
    n_tokens: Annotated[int, typer.Option(min=100, help="Tokens of each method.")] = 9200,
    n_contexts: Annotated[
        int, typer.Option(min=4, help="Real contexts at which all rules and controls are drawn again.")
    ] = 500,
    seeds: Annotated[int, typer.Option(min=1, help="How often each of them is tested there.")] = 20,
    draws: Annotated[
        int, typer.Option(min=1, help="Draws of a context in each of these tests, on average.")
    ] = 160,
    max_new_tokens: Annotated[int, typer.Option(min=4, help="Longest text, in tokens.")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything that is drawn.")] = 0,
    run_folder: Annotated[
        Path | None,
        typer.Option(help="Where texts and contexts are kept; data/runs/audit, or audit-quick, if left out."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    fmt: FormatOption = OutputFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Show that speculative decoding follows the target's distribution; ends with 1 if any check fails.

    Example:  acceptlab audit losslessness --quick

    Four levels: (a) every rule in one context, and (b) whole decoding, by enumeration on small vocabularies; (c) the
    real pair: the transform of every emitted token under the target's plain forward, token counts against the target
    alone, greedy identity, and all rules drawn again in real contexts; (d) broken verifiers, which must be caught.

    The full audit decodes 9,200 tokens with each method, which takes hours on a CPU. It keeps every finished text:
    repeat the command to go on after an interruption.
    """
    from acceptlab.audit.run import AuditRequest
    from acceptlab.audit.run import losslessness as audit
    from acceptlab.audit.run import quick as with_little_evidence

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
    result = audit(with_little_evidence(request) if quick else request, AuditBar())
    notes = [*result.notes]
    if quick:
        notes.append("--quick has little power: without it 9,200 tokens of each method are tested")
    emit(result.frame, fmt=fmt, output=output, title="Is decoding lossless?", notes=notes)
    if result.failures:
        names = "; ".join(f"{row.what} ({row.test})" for row in result.failures)
        print(f"failed: {names}", file=sys.stderr)
        raise typer.Exit(1)
    print(f"all {len(result.rows)} checks are as they should be", file=sys.stderr)


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
