"""What the commands of `acceptlab bench` share: options, progress, the folder that a study keeps."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from acceptlab.cli.options import DecodingOptions, SeedOption, TemperatureOption, check_plot, comma_list
from acceptlab.cli.output import FormatOption, OutputFormat, OutputOption, emit, to_display, warn
from acceptlab.cli.progress import TenthsBar
from acceptlab.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

LimitOption = Annotated[int, typer.Option("--limit", min=1, help="Prompts of each domain.")]
TreeOption = Annotated[str, typer.Option("--tree", help="Tree, as for collect.")]
RuleOption = Annotated[str, typer.Option("--rule", help="Rule, as for collect.")]
ChainsOption = Annotated[str, typer.Option("--chains", help="Chain lengths, such as 1-10 or 1,3,5.")]
MaxNewTokensOption = Annotated[
    int, typer.Option("--max-new-tokens", min=2, help="Longest output of a prompt, in tokens.")
]
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


def backend_names(text: str) -> list[str]:
    """The backends of a comma list, each once.

    Raises:
        UsageError: none, or one that does not exist.
    """
    from acceptlab.bench.backends import BACKENDS

    names = list(dict.fromkeys(comma_list(text)))
    if not names:
        raise UsageError(f"--backends is empty: name some of {', '.join(BACKENDS)}")
    for name in names:
        if name not in BACKENDS:
            raise UsageError(f"unknown backend '{name}': use one of {', '.join(BACKENDS)}")
    return names


@dataclass(frozen=True)
class ContestOptions(DecodingOptions):
    """What all arms of a comparison decode, and how."""

    rule: RuleOption = "greedy"
    temperature: TemperatureOption = 1.0
    seed: SeedOption = 0


@dataclass(frozen=True)
class TableOptions:
    """Where a table goes."""

    fmt: FormatOption = OutputFormat.TABLE
    output: OutputOption = None


@dataclass(frozen=True)
class FolderOptions(TableOptions):
    """Where a table goes, and the files of the study that it belongs to."""

    folder: FolderOption = None


@dataclass(frozen=True)
class FigureOptions(FolderOptions):
    """Where a table, its figure and the files of the study go; made only with names that can be drawn to."""

    plot: PlotOption = None

    def __post_init__(self) -> None:
        """Refuse other names before anything is measured."""
        for plot in self.plot or ():
            check_plot(plot)


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


class BenchBar:
    """Progress on stderr while something is measured; called with what is done and the total."""

    def __init__(self, what: str) -> None:
        self._bar = TenthsBar("measuring", what)

    def __enter__(self) -> BenchBar:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def __call__(self, done: int, total: int) -> None:
        """Show what is done."""
        self._bar.update(done, total)


def show(
    frame: pd.DataFrame,
    where: TableOptions,
    *,
    title: str,
    notes: Sequence[str],
    columns: dict[str, str],
    figure: Figure | None = None,
    samples: pd.DataFrame | None = None,
    is_whole: bool = True,
) -> None:
    """Print a table, draw its figure, fill the folder; ends with 130 where the run was interrupted."""
    notes = [*notes] if is_whole else ["interrupted: only what was measured until then", *notes]
    if figure is not None and isinstance(where, FigureOptions):
        _draw(figure, where.plot or ())
    if isinstance(where, FolderOptions) and where.folder is not None:
        _keep(frame, title, notes, figure, samples, where.folder)
    explained = [f"{name}: {meaning}" for name, meaning in columns.items() if name in frame]
    emit(
        frame,
        fmt=where.fmt,
        output=where.output,
        title=title,
        notes=[*notes, *(explained if where.fmt is OutputFormat.TABLE else [])],
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
