"""`acceptlab runs`: list, show, check and merge the runs on disk. Parses, calls the store, prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acceptlab.cli.output import FormatOption, OutputFormat, OutputOption, emit
from acceptlab.errors import RunError

if TYPE_CHECKING:
    from acceptlab.store import Run

app = typer.Typer(no_args_is_help=True, help="List, show, check and merge runs.")

RunArgument = Annotated[Path, typer.Argument(help="Folder of a run.", metavar="RUN")]
RunsArgument = Annotated[list[Path], typer.Argument(help="Folders of runs.", metavar="RUN...")]


@app.command("list")
def list_runs(
    folder: Annotated[
        Path | None, typer.Option(help="Where to look; data/runs, else the shipped sample, if left out.")
    ] = None,
    fmt: FormatOption = OutputFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """List runs, complete ones first, the newest first.

    Example:  acceptlab runs list
    """
    import pandas as pd

    from acceptlab.store import find_runs, open_run
    from acceptlab.store.reader import RUNS_FOLDER, damaged_runs

    place = folder or RUNS_FOLDER
    paths = find_runs(folder, sample=folder is None)
    runs = [open_run(path, strict=False) for path in paths]
    columns = [
        "run",
        "created",
        "pair",
        "rule",
        "tree",
        "temperature",
        "source",
        "prompts",
        "nodes",
        "complete",
    ]
    frame = pd.DataFrame([_list_row(run) for run in runs], columns=columns)
    notes = [] if paths else [f"no runs under '{place}': collect one with acceptlab collect --domain code"]
    notes += [
        f"{run.path}: {len(run.faults)} parts cannot be read; see acceptlab runs check"
        for run in runs
        if run.faults
    ]
    notes += damaged_runs(place)
    emit(frame, fmt=fmt, output=output, title="Runs", notes=notes)


def _list_row(run: Run) -> tuple[Any, ...]:
    config = run.config
    named = [config.get(name) for name in ("pair", "rule", "tree", "temperature", "prompts")]
    counts = [run.n_rows(table) for table in ("prompts", "nodes")]
    return (str(run.path), run.manifest.get("created"), *named, *counts, run.is_complete)


@app.command()
def show(run: RunArgument, fmt: FormatOption = OutputFormat.TABLE, output: OutputOption = None) -> None:
    """Show what a run is: configuration, models, machine, and the size of its tables.

    Example:  acceptlab runs show data/sample
    """
    import pandas as pd

    from acceptlab.store import open_run

    opened = open_run(run, strict=False)
    rows = list(_described(opened))
    emit(
        pd.DataFrame(rows, columns=["field", "value"]),
        fmt=fmt,
        output=output,
        title=f"Run {opened.run_id}",
        notes=list(opened.faults),
    )


def _described(run: Run) -> list[tuple[str, str]]:
    """Fields of the manifest, one a row, nested ones with a dotted name, then the tables."""
    manifest = run.manifest
    rows = [
        (name, _plain(manifest.get(name)))
        for name in ("run_id", "complete", "created", "ended", "wall_s", "command", "schema_version")
    ]
    for name in ("config", "models", "machine", "packages"):
        rows += [(f"{name}.{key}", _plain(value)) for key, value in (manifest.get(name) or {}).items()]
    rows += [(name, _plain(manifest.get(name))) for name in ("tokenizer_sha256", "git_commit", "git_dirty")]
    for source in manifest.get("merged_from", []):
        rows.append(("merged_from", f"{source['run_id']} ({source['folder']})"))
    for table in manifest["parts"]:
        n_rows, n_bytes = run.n_rows(table), sum(int(part["bytes"]) for part in run.parts(table))
        size = f", {n_bytes / n_rows:.1f} bytes a row" if n_rows else ""
        rows.append((f"table.{table}", f"{n_rows} rows in {len(run.parts(table))} parts{size}"))
    return rows


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@app.command()
def check(runs: RunsArgument) -> None:
    """Check runs: every checksum and schema, unique keys, and what must hold in every row.

    Prints one line a fault; exit 1 if there is any.

    Example:  acceptlab runs check data/sample
    """
    from acceptlab.store.check import check_run

    n_faults = 0
    for run in runs:
        try:
            faults = check_run(run)
        except RunError as error:  # a damaged manifest is a fault of this run; the others are still checked
            faults = [str(error)]
        n_faults += len(faults)
        for fault in faults or ["sound"]:
            typer.echo(f"{run}: {fault}")
    if n_faults:
        raise RunError(f"{n_faults} faults in {len(runs)} runs: restore the files or collect again")


@app.command()
def merge(
    runs: RunsArgument,
    output: Annotated[Path, typer.Option(help="Folder of the new run.")],
    force: Annotated[
        bool, typer.Option("--force", help="Merge different configurations and incomplete runs too.")
    ] = False,
) -> None:
    """Merge runs of different prompts into one; rows keep their run_id.

    Example:  acceptlab runs merge data/runs/code data/runs/math --output data/runs/both
    """
    from acceptlab.store import open_run
    from acceptlab.store.merge import merge_runs

    merged = open_run(merge_runs(runs, output, force=force))
    counts = ", ".join(f"{merged.n_rows(table)} {table}" for table in ("prompts", "steps", "nodes"))
    typer.echo(f"merged {len(runs)} runs into {output}: {counts}", err=True)
