"""`acceptlab study`: run, list and show studies."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from acceptlab.cli.output import FormatOption, OutputFormat, OutputOption, emit

app = typer.Typer(no_args_is_help=True, help="Run studies: collections and analyses named in a TOML file.")

StudyArgument = Annotated[Path, typer.Argument(help="A TOML file, or the name of one under studies/.")]


@app.command()
def run(study: StudyArgument) -> None:
    """Collect what is missing, analyse what has changed, write reports/NAME/index.html.

    Example:  acceptlab study run studies/quick.toml

    Whatever is complete is skipped, whatever was interrupted goes on: repeat the command after Ctrl-C.
    """
    from acceptlab.cli.collect import CollectionBar
    from acceptlab.store.reader import RUNS_FOLDER
    from acceptlab.study import load_study, run_study

    loaded = load_study(study)
    print(f"study {loaded.name}: {loaded.question}", file=sys.stderr)
    try:
        done = run_study(loaded, runs_folder=RUNS_FOLDER, show=CollectionBar())
    except KeyboardInterrupt:
        print(
            f"study {loaded.name} is not done: acceptlab study run {study} goes on where it was",
            file=sys.stderr,
        )
        raise
    print(f"{len(done.made)} parts made, {len(done.skipped)} skipped", file=sys.stderr)
    print(done.page)


@app.command("list")
def list_studies(fmt: FormatOption = OutputFormat.TABLE, output: OutputOption = None) -> None:
    """List the studies under studies/, with their questions.

    Example:  acceptlab study list
    """
    import pandas as pd

    from acceptlab.report import PAGE
    from acceptlab.study import find_studies, load_study

    rows = []
    for path in find_studies():
        loaded = load_study(path)
        page = loaded.folder / PAGE
        rows.append(
            {
                "study": loaded.name,
                "collections": len(loaded.collections),
                "analyses": len(loaded.analyses),
                "report": str(page) if page.is_file() else None,
                "verdict": bool(loaded.verdict),
                "question": loaded.question,
            }
        )
    columns = ["study", "collections", "analyses", "report", "verdict", "question"]
    emit(pd.DataFrame(rows, columns=columns), fmt=fmt, output=output)


@app.command()
def show(study: StudyArgument, fmt: FormatOption = OutputFormat.TABLE, output: OutputOption = None) -> None:
    """Show a study's question, prediction and parts, and what of its collections is there.

    Example:  acceptlab study show quick
    """
    import pandas as pd

    from acceptlab.store.reader import RUNS_FOLDER
    from acceptlab.study import load_study, run_folder, state_of

    loaded = load_study(study)
    rows = []
    for run in loaded.training.runs() if loaded.training else ():
        rows.append({"part": "train", "name": run.name, "state": run.state(), "where": str(run.folder)})
    for entry in loaded.collections:
        folder = run_folder(entry, RUNS_FOLDER)
        rows.append({"part": "collect", "name": entry.name, "state": state_of(folder), "where": str(folder)})
    for wanted in loaded.analyses:
        table = loaded.folder / "tables" / f"{wanted.name}.csv"
        state = "written" if table.is_file() else "missing"
        rows.append({"part": "analyze", "name": wanted.name, "state": state, "where": str(table)})
    notes = [f"question: {loaded.question}", f"prediction: {loaded.prediction}"]
    notes += [f"verdict: {loaded.verdict}"] if loaded.verdict else []
    emit(pd.DataFrame(rows), fmt=fmt, output=output, title=f"{loaded.name}: {loaded.title}", notes=notes)
