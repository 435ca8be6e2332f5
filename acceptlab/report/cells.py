"""A frame as cells of an HTML table: formatted numbers with the exact ones beside them. No arithmetic, no HTML.

An estimate and its bounds become one cell. A column that says the same in every row moves below the table,
one that says nothing is left out, and long tables are cut into one block a group.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from acceptlab.analysis import ALL

MISSING = "–"
LONG_TABLE = 30
"""More rows than this are shown in blocks, one a value of the first column."""

_SHARED = ("method", "reason")
_BELOW = {"method": "Intervals", "reason": "Missing values"}


@dataclass(frozen=True)
class Cell:
    """One cell: what is shown, the interval under it, and the exact values for scripts and tests."""

    text: str
    interval: str = ""
    exact: str = ""
    is_number: bool = False


@dataclass(frozen=True)
class Block:
    """Rows that stand together; `label` is empty where the table is one block."""

    label: str
    rows: tuple[tuple[Cell, ...], ...]
    is_open: bool = True


@dataclass(frozen=True)
class Header:
    """A column's name, its meaning, and whether it holds numbers."""

    name: str
    meaning: str
    is_number: bool


@dataclass(frozen=True)
class View:
    """A table as the page shows it."""

    headers: tuple[Header, ...]
    blocks: tuple[Block, ...]
    below: tuple[str, ...]
    n_rows: int


def view_of(frame: pd.DataFrame, meanings: dict[str, str]) -> View:
    """Arrange a frame for the page.

    Args:
        frame: a table; `x_lo` and `x_hi` are the bounds of `x`.
        meanings: what each column is.
    """
    names = [str(name) for name in frame.columns]
    bounds = {f"{name}_{end}" for name in names for end in ("lo", "hi") if f"{name}_lo" in names}
    below: list[str] = []
    kept: list[str] = []
    for name in names:
        if name in bounds:
            continue
        distinct = {str(value) for value in map(plain, frame[name]) if value is not None}
        if name in _SHARED and len(distinct) <= 1 and (name == "method" or not distinct):
            below += [f"{_BELOW[name]}: {distinct.pop()}."] if distinct else []
            continue
        kept.append(name)
    columns = {name: _column(frame, name, has_bounds=f"{name}_lo" in names) for name in kept}
    rows = list(zip(*columns.values(), strict=True)) if kept else []
    headers = tuple(Header(name, meanings.get(name, ""), _is_numeric(columns[name])) for name in kept)
    return View(headers, _blocks(rows), tuple(below), len(rows))


def _column(frame: pd.DataFrame, name: str, *, has_bounds: bool) -> list[Cell]:
    values = [plain(value) for value in frame[name]]
    if not has_bounds:
        return [cell(value) for value in values]
    ends = zip(map(plain, frame[f"{name}_lo"]), map(plain, frame[f"{name}_hi"]), strict=True)
    return [cell(value, interval=end) for value, end in zip(values, ends, strict=True)]


def _blocks(rows: Sequence[tuple[Cell, ...]]) -> tuple[Block, ...]:
    labels = list(dict.fromkeys(row[0].text for row in rows))
    if len(rows) <= LONG_TABLE or not 1 < len(labels) <= len(rows) // 2:
        return (Block("", tuple(rows)),)
    open_label = ALL if ALL in labels else labels[0]
    return tuple(
        Block(label, tuple(row for row in rows if row[0].text == label), label == open_label)
        for label in labels
    )


def _is_numeric(cells: Iterable[Cell]) -> bool:
    shown = [found for found in cells if found.text != MISSING]
    return bool(shown) and all(found.is_number for found in shown)


def cell(value: Any, interval: tuple[Any, Any] | None = None) -> Cell:
    """One value, with its interval where both bounds are there."""
    ends = interval if interval and None not in interval else None
    exact = " ".join(map(str, (value, *(ends or ())))) if isinstance(value, (int, float)) else ""
    shown = f"{number(ends[0])} to {number(ends[1])}" if ends else ""
    return Cell(shown_text(value), shown, exact, is_number(value))


def is_number(value: Any) -> bool:
    """Whether a plain value is a number; a truth value is none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def shown_text(value: Any) -> str:
    """A plain value for reading."""
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if is_number(value):
        return number(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(map(shown_text, value))
    return str(value)


def number(value: float) -> str:
    """A number for reading: counts in full with separators, else three decimals or three digits."""
    if isinstance(value, int):
        text = f"{value:,}"
    elif math.isinf(value):
        text = "∞" if value > 0 else "-∞"
    elif value == 0 or 1e-3 <= abs(value) < 10:
        text = f"{value:.3f}"
    elif abs(value) < 1e-3:
        text = f"{value:.2g}"
    else:
        text = f"{value:,.2f}" if abs(value) < 100 else f"{value:,.1f}"
    return text.replace("-", "−")


def plain(value: Any) -> Any:
    """A Python value without NumPy or pandas types; None for every kind of missing."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or value is pd.NA or value is pd.NaT:
        return None
    if isinstance(value, float) and math.isnan(value):
        return None
    return value
