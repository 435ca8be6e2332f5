"""`acceptlab report`: one HTML page about one or more runs."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from acceptlab.cli.options import ResamplingSeedOption, comma_list


def command(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN...", help="Run folders; the newest under data/runs if left out, else data/sample."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder of the report; reports/NAME-OF-THE-RUN if left out.")
    ] = None,
    title: Annotated[str, typer.Option(help="Title of the page.")] = "",
    analyses: Annotated[str, typer.Option(help="Analyses of the page, a comma list.")] = "",
    seed: ResamplingSeedOption = 0,
) -> None:
    """Write a self-contained page about runs: numbers, figures, tables, configuration, provenance.

    Example:  acceptlab report data/sample --output reports/sample

    Tables (CSV, JSON) and figures (PNG, SVG) are written beside the page. The path of the page goes to stdout.
    """
    from acceptlab.analysis import ANALYSES
    from acceptlab.errors import UsageError
    from acceptlab.report import REPORT_ANALYSES, Report, Section, standard_tables, write_report
    from acceptlab.resampling import Resampling
    from acceptlab.store import find_runs, open_run

    folders = list(runs or find_runs()[:1])
    if not folders:
        raise UsageError("there is no run under data/runs: collect one first, or name a run's folder")
    names = comma_list(analyses) or tuple(REPORT_ANALYSES)
    unknown = [name for name in names if name not in ANALYSES]
    if unknown:
        raise UsageError(f"unknown analysis '{unknown[0]}': use one of {', '.join(ANALYSES)}")
    opened = [open_run(folder) for folder in folders]
    folder = output or Path("reports") / opened[0].path.resolve().name
    words = ["acceptlab", "report", *map(str, folders), "--output", str(folder)]
    for option, value in (("--title", title), ("--analyses", analyses), ("--seed", str(seed or ""))):
        words += [option, value] if value else []
    tables = standard_tables(opened, names, Resampling(seed=seed))
    report = Report(
        title=title
        or f"When is a draft accepted? {', '.join(dict.fromkeys(str(run.config['pair']) for run in opened))}",
        runs=opened,
        sections=[Section(table, table.name) for table in tables],
        command=shlex.join(words),
    )
    page = write_report(report, folder)
    print(f"wrote {len(tables)} tables, their figures and the page", file=sys.stderr)
    print(page)
