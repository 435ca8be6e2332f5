"""What the commands of `acceptlab bench` share: options, progress, the folder that a study keeps."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acceptlab.cli.output import OutputFormat, emit, to_display, warn
from acceptlab.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from rich.progress import Progress as Bar

PairOption = Annotated[str | None, typer.Option("--pair", help="Name of a known pair.")]
TargetOption = Annotated[str | None, typer.Option("--target", help="Target: hub id, folder or .gguf file.")]
DraftOption = Annotated[str | None, typer.Option("--draft", help="Draft: as for collect.")]
DomainOption = Annotated[str, typer.Option("--domain", help="Domains of the prompts.")]
RepeatsOption = Annotated[int, typer.Option("--repeats", min=1, help="How often everything is run, in turn.")]


class Clock(StrEnum):
    """What times are measured with."""

    WALL = "wall"
    CPU = "cpu"


ClockOption = Annotated[
    Clock,
    typer.Option(
        "--clock",
        help="cpu: processor time, which other work on the machine leaves alone; with OMP_NUM_THREADS=1 only.",
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of all random streams and orders.")]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:N or mps.")]
DtypeOption = Annotated[str, typer.Option("--dtype", help="auto, float32, bfloat16 or float16.")]
PlotOption = Annotated[
    list[Path] | None,
    typer.Option("--plot", help="Draw the figure to this file: .png, .svg or .pdf; may be given again."),
]
FolderOption = Annotated[
    Path | None,
    typer.Option(
        "--folder", help="Write table (.csv, .md), samples (.parquet) and figure (.png, .svg) there."
    ),
]


def check_clock(clock: Clock) -> list[str]:
    """A note on processor time; refused with more than one thread, where it is the sum over all of them."""
    if clock is Clock.WALL:
        return []
    import torch

    if torch.get_num_threads() > 1:
        raise UsageError(
            "--clock cpu adds up the time of all threads: set OMP_NUM_THREADS=1, or leave it out"
        )
    return ["times are processor time of one thread"]


def check_plots(plots: Sequence[Path] | None) -> None:
    """Refuse files that cannot be drawn to, before anything is measured."""
    for plot in plots or ():
        if plot.suffix.lower() not in (".png", ".svg", ".pdf"):
            raise UsageError(f"cannot draw to '{plot}': use a file that ends in .png, .svg or .pdf")


class BenchBar:
    """Progress on stderr: a bar with the time left on a terminal, else a line at every tenth."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._bar: Bar | None = None
        self._task: Any = None
        self._told = 0

    def __enter__(self) -> BenchBar:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("measuring"),
                BarColumn(bar_width=30),
                MofNCompleteColumn(),
                TextColumn(f"{self._what}  left"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                speed_estimate_period=600,
            )
            self._task = self._bar.add_task("", total=None)
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, total: int) -> None:
        """Show what is done."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)
        elif 10 * done // max(total, 1) > self._told:
            self._told = 10 * done // total
            warn(f"{done:,} of {total:,} {self._what}")


def show(
    frame: pd.DataFrame,
    *,
    title: str,
    notes: Sequence[str],
    columns: dict[str, str],
    figure: Figure | None,
    samples: pd.DataFrame | None,
    fmt: OutputFormat,
    output: Path | None,
    plots: Sequence[Path] | None,
    folder: Path | None,
    is_whole: bool,
) -> None:
    """Print a table, draw its figure, fill the folder; ends with 130 where the run was interrupted."""
    notes = [*notes] if is_whole else ["interrupted: only what was measured until then", *notes]
    if figure is not None:
        _draw(figure, plots or ())
    if folder is not None:
        _keep(frame, title, notes, figure, samples, folder)
    explained = [f"{name}: {meaning}" for name, meaning in columns.items() if name in frame]
    emit(
        frame,
        fmt=fmt,
        output=output,
        title=title,
        notes=[*notes, *(explained if fmt is OutputFormat.TABLE else [])],
    )
    if not is_whole:
        raise typer.Exit(130)


def _draw(figure: Figure, paths: Sequence[Path]) -> None:
    from acceptlab.figures import save

    for path in paths:
        save(figure, path)
        warn(f"drew {path}")


def _keep(
    frame: pd.DataFrame,
    title: str,
    notes: Sequence[str],
    figure: Figure | None,
    samples: pd.DataFrame | None,
    folder: Path,
) -> None:
    """The files of a study, none of them typed by hand."""
    emit(frame, output=folder / "table.csv")
    if samples is not None:
        emit(samples, output=folder / "samples.parquet")
    if figure is not None:
        _draw(figure, [folder / "figure.png", folder / "figure.svg"])
    view, below = to_display(frame)
    cells = [list(map(str, view.columns)), ["---"] * view.shape[1], *view.to_numpy().tolist()]
    lines = [f"{title}.", "", *(f"| {' | '.join(row)} |" for row in cells), ""]
    lines += [f"- {note}" for note in (*below, *notes)]
    lines += ["", f"Made by `acceptlab {' '.join(sys.argv[1:])}`."]
    (folder / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    warn(f"wrote {folder / 'table.md'}")
