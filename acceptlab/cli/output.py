"""How commands print tables: data to stdout or a file, everything else to stderr. No computing here.

A quantity with an interval is three columns, `x`, `x_lo` and `x_hi`. Files keep the three; the table view
joins them into one cell, `0.5123 [0.4810, 0.5436]`. Undefined values are `-` in a table, empty in CSV, null
in JSON and Parquet.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from acceptlab.errors import UsageError
from acceptlab.files import replacing

if TYPE_CHECKING:
    import pandas as pd

MISSING = "-"
_GAP = "  "
_KEY_NAMES = frozenset({"depth", "step", "node"})


class OutputFormat(StrEnum):
    """Formats in which every table can be had."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


FormatOption = Annotated[OutputFormat, typer.Option("--format", help="How to print the table.")]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", help="Write the table to this file; .csv, .json and .parquet imply the format."),
]


def warn(message: str) -> None:
    """Print one line on stderr."""
    print(message, file=sys.stderr)


def emit(
    frame: pd.DataFrame,
    *,
    fmt: OutputFormat | Literal["table", "csv", "json", "parquet"] = OutputFormat.TABLE,
    output: Path | None = None,
    title: str = "",
    notes: Sequence[str] = (),
) -> None:
    """Print a table on stdout or write it to a file; the title and the notes go to stderr.

    Args:
        frame: One row a line of the table; the index is not printed.
        fmt: The format; with the default, the suffix of `output` decides.
        output: File to write, folders made as needed; None prints on stdout.
        title: Printed above.
        notes: Printed below, one a line.

    Raises:
        UsageError: Parquet without an output file.
        RunError: the file cannot be written.
    """
    chosen = OutputFormat(fmt)
    suffix = output.suffix.removeprefix(".").lower() if output else ""
    if chosen is OutputFormat.TABLE and suffix in set(OutputFormat):
        chosen = OutputFormat(suffix)
    if chosen is OutputFormat.PARQUET and output is None:
        raise UsageError("the format parquet needs a file: add --output FILE.parquet")
    if title:
        warn(title)
    sys.stderr.flush()
    if output is not None:
        _write(frame, chosen, output)
    elif chosen is OutputFormat.TABLE and sys.stdout.isatty():
        _print_rich(frame)
    else:
        sys.stdout.write(_text(frame, chosen))
    sys.stdout.flush()
    for note in notes:
        warn(f"note: {note}")


def format_number(value: float) -> str:
    """A number for reading: at most four decimals, or four significant digits for the small and the large."""
    size = abs(value)
    if math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if size == 0:
        return "0"
    if not 1e-2 <= size < 1e4:
        return f"{value:.4g}"
    return f"{value:.{4 if size < 10 else 3 if size < 100 else 2 if size < 1000 else 1}f}"


def to_display(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The table view of a frame: strings only, intervals joined to their estimates.

    A `method` that all rows share is taken out and returned as a line to print under the table.

    Returns:
        The frame of strings, and the lines that belong under it.
    """
    import pandas as pd

    view: dict[str, list[str]] = {}
    below: list[str] = []
    bounds = {
        f"{name}_{end}" for name in frame.columns for end in ("lo", "hi") if _has_bounds(frame, str(name))
    }
    for name in map(str, frame.columns):
        if name in bounds:
            continue
        cells = [_cell(value) for value in frame[name]]
        methods = set(cells) - {MISSING}
        if name == "method" and len(cells) > 1 and len(methods) == 1:
            below.append(f"method: {methods.pop()}")
            continue
        if _has_bounds(frame, name):
            ends = zip(cells, map(_cell, frame[f"{name}_lo"]), map(_cell, frame[f"{name}_hi"]), strict=True)
            cells = [cell if MISSING in (lo, hi) else f"{cell} [{lo}, {hi}]" for cell, lo, hi in ends]
        view[name] = cells
    return pd.DataFrame(view, dtype="object"), below


def _has_bounds(frame: pd.DataFrame, name: str) -> bool:
    return f"{name}_lo" in frame.columns and f"{name}_hi" in frame.columns


def _cell(value: Any) -> str:
    plain = _plain(value)
    if plain is None:
        return MISSING
    if isinstance(plain, bool):
        return "yes" if plain else "no"
    if isinstance(plain, float):
        return format_number(plain)
    if isinstance(plain, list):
        return ", ".join(_cell(item) for item in plain)
    return " ".join(str(plain).split())


def _plain(value: Any) -> Any:
    """A Python value without NumPy or pandas types; None for every kind of missing."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, float) and math.isnan(value):
        return None
    return value


def _text(frame: pd.DataFrame, fmt: OutputFormat) -> str:
    if fmt is OutputFormat.CSV:
        return str(frame.to_csv(index=False, lineterminator="\n"))
    if fmt is OutputFormat.JSON:
        return _json(frame)
    view, below = to_display(frame)
    return "\n".join([*_lines(view), *below]) + "\n"


def _json(frame: pd.DataFrame) -> str:
    names = [str(name) for name in frame.columns]
    rows = (frame[column].tolist() for column in frame.columns)
    records = [
        json.dumps(dict(zip(names, map(_json_value, row), strict=True)), ensure_ascii=False, allow_nan=False)
        for row in zip(*rows, strict=True)
    ]
    return "[\n" + ",\n".join(records) + "\n]\n" if records else "[]\n"


def _json_value(value: Any) -> Any:
    plain = _plain(value)
    if isinstance(plain, list):
        return [_json_value(item) for item in plain]
    if isinstance(plain, float) and math.isinf(plain):
        return "inf" if plain > 0 else "-inf"
    if isinstance(plain, (str, int, float, type(None), dict)):
        return plain
    return str(plain)


def _write(frame: pd.DataFrame, fmt: OutputFormat, output: Path) -> None:
    with replacing(output) as temporary:
        if fmt is OutputFormat.PARQUET:
            frame.to_parquet(temporary, index=False)
        else:
            temporary.write_text(_text(frame, fmt), encoding="utf-8", newline="\n")
    warn(f"wrote {len(frame)} rows to {output}")


def _is_number(cells: Iterable[str]) -> bool:
    return all(cell == MISSING or cell[:1] in "+-.0123456789" or cell == "inf" for cell in cells)


def _widths(view: pd.DataFrame) -> list[int]:
    return [max([len(str(name)), *map(len, view[name])]) for name in view.columns]


def _lines(view: pd.DataFrame) -> list[str]:
    """Plain text, every column in full however wide."""
    columns = []
    for name, width in zip(view.columns, _widths(view), strict=True):
        cells = list(view[name])
        adjust = str.rjust if _is_number(cells) else str.ljust
        columns.append([adjust(cell, width) for cell in [str(name), *cells]])
    return [_GAP.join(row).rstrip() for row in zip(*columns, strict=True)]


def _blocks(view: pd.DataFrame, width: int) -> list[pd.DataFrame]:
    """Cut a wide table into blocks of columns that fit, the leading text and key columns repeated in each."""
    widths = [size + 3 for size in _widths(view)]
    is_value = [_is_number(view[name]) and name not in _KEY_NAMES for name in view.columns]
    n_keys = is_value.index(True) if True in is_value else 0
    keys = list(range(n_keys))
    blocks: list[list[int]] = [list(keys)]
    for i in range(n_keys, len(widths)):
        if len(blocks[-1]) > len(keys) and sum(widths[j] for j in blocks[-1]) + widths[i] >= width:
            blocks.append(list(keys))
        blocks[-1].append(i)
    return [view.iloc[:, block] for block in blocks]


def _print_rich(frame: pd.DataFrame) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(width=shutil.get_terminal_size().columns)
    view, below = to_display(frame)
    for block in _blocks(view, console.width):
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in block.columns:
            number = _is_number(block[name])
            table.add_column(str(name), justify="right" if number else "left", overflow="fold", no_wrap=False)
        for row in block.itertuples(index=False):
            table.add_row(*row)
        console.print(table, markup=False, highlight=False)
    for line in below:
        console.print(line, markup=False, highlight=False)
