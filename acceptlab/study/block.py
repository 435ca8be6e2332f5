"""Tables inside a study's Markdown file, between two marks, so that no number there is typed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from acceptlab.analysis import AnalysisTable
from acceptlab.report.cells import cell, plain
from acceptlab.report.saved import write_text

BEGIN = "<!-- begin: tables written by acceptlab study run; edits here are lost -->"
END = "<!-- end -->"
_BLOCK = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), flags=re.DOTALL)


def write_block(path: Path, tables: Sequence[tuple[AnalysisTable, Sequence[str]]]) -> None:
    """Replace the block of a Markdown file, or add one at its end.

    Args:
        path: the file; it is made where it is missing.
        tables: tables, each with the columns to show; bounds stand behind their value.
    """
    text = path.read_text(encoding="utf-8") if path.is_file() else "# Verdict\n"
    parts = [BEGIN, *(markdown(table, columns) for table, columns in tables), END]
    block = "\n\n".join(parts)
    text = text if _BLOCK.search(text) else f"{text.rstrip()}\n\n{BEGIN}{END}\n"
    written = _BLOCK.sub(lambda _: block, text)
    write_text(path, written)


def without_block(text: str) -> str:
    """The text that people wrote."""
    return _BLOCK.sub("", text)


def markdown(table: AnalysisTable, columns: Sequence[str]) -> str:
    """A table with its title and caption."""
    lines = [" | ".join(columns), " | ".join("---" for _ in columns)]
    lines += [
        " | ".join(_cell(row, name, table.frame) for name in columns)
        for row in table.frame.to_dict("records")
    ]
    rows = "\n".join(f"| {line} |" for line in lines)
    return f"## {table.title}\n\n{table.caption}\n\n{rows}"


def _cell(row: dict[object, object], name: str, frame: pd.DataFrame) -> str:
    bounds = [plain(row[f"{name}_{end}"]) for end in ("lo", "hi")] if f"{name}_lo" in frame else None
    shown = cell(plain(row[name]), (bounds[0], bounds[1]) if bounds else None)
    return f"{shown.text} ({shown.interval})" if shown.interval else shown.text
