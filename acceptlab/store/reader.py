"""Reading runs: open a folder, list its parts, read or stream a table, find the newest run.

Strict opening refuses a run with a missing, truncated or mistyped part and names it; lenient opening leaves
such parts out and lists the faults. Checksums are verified by `check`, not here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from acceptlab.errors import AcceptlabError, RunError, UsageError
from acceptlab.store.manifest import has_manifest, read_manifest
from acceptlab.store.parts import open_part, part_batches, schema_fault
from acceptlab.store.provenance import CHECKOUT
from acceptlab.store.schema import TABLE_NAMES, reading_schema, table_named

RUNS_FOLDER = Path("data/runs")
SAMPLE_FOLDER = Path("data/sample")


@dataclass(frozen=True)
class Run:
    """An opened run. `faults` is empty unless it was opened leniently; faulty parts are not in `files`."""

    path: Path
    manifest: dict[str, Any]
    faults: tuple[str, ...] = ()
    left_out: frozenset[str] = frozenset()

    @property
    def run_id(self) -> str:
        """The identifier in every row; a merged run has several and names itself here."""
        return str(self.manifest["run_id"])

    @property
    def is_complete(self) -> bool:
        """Whether the collection ended as planned."""
        return bool(self.manifest["complete"])

    @property
    def config(self) -> dict[str, Any]:
        """The configuration of the collection."""
        return dict(self.manifest["config"])

    def parts(self, table: str) -> list[dict[str, Any]]:
        """Manifest entries of a table's readable parts, in order."""
        entries = self.manifest["parts"].get(table, [])
        return [entry for entry in entries if entry["file"] not in self.left_out]

    def files(self, table: str) -> list[Path]:
        """The readable Parquet files of a table, in order; empty where it has none."""
        _require_table(table)
        return [self.path / entry["file"] for entry in self.parts(table)]

    def n_rows(self, table: str) -> int:
        """Rows of a table, from the manifest."""
        _require_table(table)
        return sum(int(entry["rows"]) for entry in self.parts(table))

    def batches(
        self, table: str, columns: Sequence[str] | None = None, n_rows: int = 65_536
    ) -> Iterator[pa.Table]:
        """Stream a table in pieces of at most `n_rows` rows; arguments and errors as `read`."""
        declared = table_named(_require_table(table))
        unknown = [name for name in columns or () if name not in {column.name for column in declared.columns}]
        if unknown:
            raise UsageError(f"table '{table}' has no column '{unknown[0]}': see docs/schema.md")
        for path in self.files(table):
            yield from part_batches(path, declared, columns, n_rows)

    def read(self, table: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Read a table whole, or some of its columns in declared order.

        Columns that an old part lacks are null there.

        Raises:
            UsageError: no such table or column.
            RunError: a part is damaged or has another type; names the file.
        """
        pieces = list(self.batches(table, columns))
        if pieces:
            return pa.concat_tables(pieces).unify_dictionaries()
        schema = reading_schema(table_named(table))
        wanted = [field for field in schema if columns is None or field.name in set(columns)]
        return pa.schema(wanted, metadata=schema.metadata).empty_table()


def open_run(path: Path | str, *, strict: bool = True) -> Run:
    """Open a run folder: read its manifest, and the footer of every part that it lists.

    Args:
        path: the run's folder.
        strict: refuse a run with a faulty part; else leave the part out and list the fault in `faults`.

    Raises:
        UsageError: the folder holds no run.
        RunError: the manifest is damaged, or (strict) a part is missing, truncated or mistyped (named).
    """
    folder = Path(path)
    manifest = read_manifest(folder)
    faults: list[str] = []
    left_out: set[str] = set()
    for name in TABLE_NAMES:
        for entry in manifest["parts"].get(name, []):
            fault = part_fault(folder, name, entry)
            if fault is None:
                continue
            if strict:
                raise RunError(fault)
            faults.append(fault)
            left_out.add(entry["file"])
    return Run(folder, manifest, tuple(faults), frozenset(left_out))


def part_fault(folder: Path, table: str, entry: dict[str, Any]) -> str | None:
    """One sentence on what is wrong with a listed part, its contents unread; None where it looks whole."""
    name = Path(str(entry["file"]))
    if name.parts[:-1] != (table,) or name.suffix != ".parquet":
        return (
            f"the manifest of '{folder}' lists '{name}', which is no part of table '{table}': it is damaged"
        )
    path = folder / name
    try:
        with open_part(path) as file:
            if path.stat().st_size != entry["bytes"] or file.metadata.num_rows != entry["rows"]:
                return f"part '{path}' is not the file that the manifest lists: restore it, or collect again"
            return schema_fault(path, table_named(table), file.schema_arrow)
    except RunError as error:
        return str(error)


def find_runs(folder: Path | None = None, *, sample: bool = True) -> list[Path]:
    """Run folders directly under `folder`: complete ones first, the newest first among equals.

    Args:
        folder: where to look; data/runs of the working directory by default.
        sample: where there is no run, fall back to the sample that ships with the checkout.

    Returns:
        Folders that hold a readable manifest; empty where there is none at all.
    """
    found = _runs_under(RUNS_FOLDER if folder is None else folder)
    if found or not sample:
        return found
    for place in (SAMPLE_FOLDER, CHECKOUT / SAMPLE_FOLDER):
        found = _runs_under(place)
        if found:
            return found
    return []


def _runs_under(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    places = [folder, *sorted(child for child in folder.iterdir() if child.is_dir())]
    found: list[tuple[bool, str, str, Path]] = []
    for place in places:
        if not has_manifest(place):
            continue
        try:
            manifest = read_manifest(place)
        except AcceptlabError:  # one damaged folder must not hide the others; `runs list` names it
            continue
        found.append(
            (bool(manifest["complete"]), str(manifest.get("created")), str(manifest["run_id"]), place)
        )
    return [place for *_, place in sorted(found, reverse=True)]


def damaged_runs(folder: Path) -> list[str]:
    """One sentence on every folder under `folder` whose manifest cannot be read: `find_runs` leaves them out."""
    faults = []
    for place in sorted(folder.iterdir()) if folder.is_dir() else []:
        if has_manifest(place):
            try:
                read_manifest(place)
            except AcceptlabError as error:
                faults.append(str(error))
    return faults


def _require_table(table: str) -> str:
    if table not in TABLE_NAMES:
        raise UsageError(f"a run has no table '{table}': use one of {', '.join(TABLE_NAMES)}")
    return table
