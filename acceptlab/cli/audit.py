"""`acceptlab audit`: is the decoder lossless where it says so, and would the checks notice if it were not?"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from acceptlab.cli import audit_roads
from acceptlab.cli.options import DtypeOption, ModelOptions, SeedOption, comma_list, spread_options
from acceptlab.cli.output import FormatOption, OutputFormat, OutputOption, emit
from acceptlab.cli.progress import TenthsBar

if TYPE_CHECKING:
    from acceptlab.audit.request import AuditRequest
    from acceptlab.audit.run import AuditResult

AUDIT_FOLDER = Path("data/runs/audit")

app = typer.Typer(
    no_args_is_help=True, help="Check that decoding is lossless, and that the checks have power."
)

app.add_typer(audit_roads.app)


@app.callback()
def _group() -> None:
    """Check that decoding is lossless, and that the checks have power."""


@dataclass(frozen=True)
class AuditOptions(ModelOptions):
    """What to audit and how much of it: fields of `AuditRequest`."""

    tree: Annotated[str, typer.Option("--tree", help="Tree of these texts; block takes chain:3.")] = (
        "kary:depth=2,branch=2"
    )
    temperature: Annotated[
        float, typer.Option("--temperature", min=0.0, help="Temperature of these texts.")
    ] = 1.0
    n_tokens: Annotated[int, typer.Option("--n-tokens", min=100, help="Tokens of each method.")] = 9200
    n_contexts: Annotated[
        int,
        typer.Option(
            "--n-contexts", min=4, help="Real contexts at which all rules and controls are drawn again."
        ),
    ] = 500
    n_seeds: Annotated[
        int, typer.Option("--seeds", min=1, help="How often each of them is tested there.")
    ] = 20
    n_draws: Annotated[
        int, typer.Option("--draws", min=1, help="Draws of a context in each of these tests, on average.")
    ] = 80
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", min=4, help="Longest text, in tokens.")
    ] = 64
    seed: SeedOption = 0
    dtype: DtypeOption = "auto"


@app.command()
@spread_options
def losslessness(
    options: AuditOptions,
    quick: Annotated[
        bool, typer.Option("--quick", help="A minute: few tokens and contexts, 5 seeds, little power.")
    ] = False,
    rules: Annotated[
        str,
        typer.Option(
            "--rules", help="Rules that decode whole texts: rejection, rejection-iid, onehot, block."
        ),
    ] = "rejection,onehot",
    run_folder: Annotated[
        Path | None,
        typer.Option(
            "--run-folder",
            help="Where texts and contexts are kept; data/runs/audit, or audit-quick, if left out.",
        ),
    ] = None,
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
        rules=comma_list(rules),
        **asdict(options),
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
    """Progress on stderr, part by part."""

    def __init__(self) -> None:
        self._bar: TenthsBar | None = None
        self._total = 0

    def say(self, message: str) -> None:
        """Print one line on stderr."""
        print(message, file=sys.stderr, flush=True)

    def start(self, what: str, total: int) -> None:
        """Begin a part."""
        self._bar, self._total = TenthsBar("auditing", what), total
        self._bar.start(total)

    def update(self, done: int) -> None:
        """Show what is done of the part."""
        if self._bar is not None:
            self._bar.update(done, self._total)

    def stop(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
