"""An analysis on disk: a CSV file for other tools, and a JSON file that holds the whole `AnalysisTable`.

The JSON file is read back without loss, so that a page can be made anew without the runs being read.
"""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import pandas as pd

from acceptlab.analysis import AnalysisTable
from acceptlab.files import replacing
from acceptlab.report.cells import plain


def table_paths(folder: Path, stem: str) -> tuple[Path, Path]:
    """Where the CSV and the JSON file of an analysis lie in a report's folder."""
    return folder / "tables" / f"{stem}.csv", folder / "tables" / f"{stem}.json"


def save_table(table: AnalysisTable, folder: Path, stem: str, fingerprint: str = "") -> None:
    """Write both files, the JSON file last.

    Args:
        table: what to write.
        folder: the report's folder.
        stem: name of the files.
        fingerprint: what the table was made from, kept for `load_table`.

    Raises:
        RunError: the folder cannot be written.
    """
    csv_path, json_path = table_paths(folder, stem)
    content = {
        "name": table.name,
        "title": table.title,
        "caption": table.caption,
        "notes": table.notes,
        "columns": table.columns,
        "fingerprint": fingerprint,
        "types": {str(name): str(kind) for name, kind in table.frame.dtypes.items()},
        "rows": [_row(record) for record in table.frame.to_dict("records")],
    }
    write_text(csv_path, str(table.frame.to_csv(index=False, lineterminator="\n")))
    write_text(json_path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def load_table(folder: Path, stem: str, fingerprint: str) -> AnalysisTable | None:
    """Read a saved analysis; None where there is none, or where it was made from something else."""
    csv_path, json_path = table_paths(folder, stem)
    with contextlib.suppress(OSError, ValueError, KeyError):
        content = json.loads(json_path.read_text(encoding="utf-8"))
        if content["fingerprint"] != fingerprint or not csv_path.is_file():
            return None
        names = ("name", "title", "caption", "notes", "columns")
        return AnalysisTable(**{name: content[name] for name in names}, frame=_frame(content))
    return None


def _row(record: dict[Any, Any]) -> dict[str, Any]:
    return {str(name): _json_value(plain(value)) for name, value in record.items()}


def _json_value(value: Any) -> Any:
    """JSON has no infinity: it is written in words."""
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


def _frame(content: dict[str, Any]) -> pd.DataFrame:
    types: dict[str, str] = content["types"]
    columns = {}
    for name, kind in types.items():
        values = [row[name] for row in content["rows"]]
        if kind == "float64":
            values = [math.nan if value is None else float(value) for value in values]
        columns[name] = pd.Series(values, dtype=kind)
    return pd.DataFrame(columns)


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all.

    Raises:
        RunError: the folder cannot be written.
    """
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_bytes(path: Path, content: bytes) -> None:
    """As `write_text`, for bytes."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)
