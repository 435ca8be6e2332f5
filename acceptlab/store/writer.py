"""Writing a run: whole prompts in, durable Parquet parts out, and a manifest that is always true.

Nothing is computed here. After a kill at any instant the folder holds a readable run of the prompts that were
listed; `RunWriter.resume` goes on from there. One writer a folder, guarded by an advisory lock.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from acceptlab.errors import RunError, UsageError
from acceptlab.records import SCHEMA_VERSION, TABLES, Table
from acceptlab.store import provenance
from acceptlab.store.convert import Values, to_arrow
from acceptlab.store.lock import lock, unlock
from acceptlab.store.manifest import (
    MANIFEST,
    TEMPORARY,
    first_difference,
    has_manifest,
    new_manifest,
    read_manifest,
    write_manifest,
)
from acceptlab.store.parts import join_parts, part_batches, write_part
from acceptlab.store.schema import FAST_LEVEL, FINAL_LEVEL, TABLE_NAMES, arrow_schema, table_named

MAX_SMALL_PARTS = 64
"""Parts of one level that a table may have before they are joined into one of the next level."""


class RunWriter:
    """Writes one run; make it with `create` or `resume`.

    `write` is durable when it returns. `finish` completes the run; until then it can be resumed.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self.manifest = manifest
        self._done: set[str] = set(_done_prompts(folder, manifest))
        self._wall_before_s = float(manifest["wall_s"])
        self._started = time.monotonic()

    @classmethod
    def create(cls, folder: Path | str, manifest_fields: dict[str, Any]) -> RunWriter:
        """Start a run in a new or empty folder; the manifest (incomplete) is written first.

        Args:
            folder: the run's folder; its parents are made.
            manifest_fields: `config` and what else the caller knows (models, command, machine ...).

        Raises:
            UsageError: the folder holds a run or other files already.
            RunError: the folder cannot be written.
        """
        folder = Path(folder)
        if has_manifest(folder):
            state = "a complete run" if read_manifest(folder)["complete"] else "an incomplete run"
            raise UsageError(
                f"'{folder}' already holds {state}: add --resume to go on, or choose another --run"
            )
        _prepare(folder)
        lock(folder)
        try:
            manifest = new_manifest(json.loads(json.dumps(manifest_fields)))
            write_manifest(folder, manifest)
            return cls(folder, manifest)
        except BaseException:
            unlock(folder)
            raise

    @classmethod
    def resume(cls, folder: Path | str, manifest_fields: dict[str, Any]) -> RunWriter:
        """Go on with a run, or start one where the folder is missing or empty.

        A complete run is left byte for byte as it is (`is_complete` says so).

        Raises:
            UsageError: the run has another configuration, model or schema; names the first difference.
            RunError: the manifest or a part is damaged, or the folder cannot be written.
        """
        folder = Path(folder)
        if not has_manifest(folder):
            return cls.create(folder, manifest_fields)
        manifest = read_manifest(folder)
        _require_same(folder, manifest, manifest_fields)
        if manifest["complete"]:
            return cls(folder, manifest)
        lock(folder)
        try:
            manifest = read_manifest(folder)  # another process may have written until it let go of the lock
            _remove_unlisted(folder, manifest)
            return cls(folder, manifest)
        except BaseException:
            unlock(folder)
            raise

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to write."""
        return bool(self.manifest["complete"])

    @property
    def run_id(self) -> str:
        """The identifier in every row of the run."""
        return str(self.manifest["run_id"])

    @property
    def done_prompt_ids(self) -> frozenset[str]:
        """Prompts that are stored already, skipped ones included."""
        return frozenset(self._done)

    def write(self, tables: Mapping[str, Mapping[str, Values]]) -> None:
        """Store whole prompts: columns by table and name, without run_id; a table left out has no rows.

        Durable when it returns: parts are flushed and renamed, then the manifest lists them. Not-a-number
        becomes null where the column may be null.

        Raises:
            RunError: a column is missing, of another length or type, or holds a value that it cannot store; a
                prompt is stored already; the disk is full (the run stays readable and can be resumed).
        """
        self._require_open()
        unknown = set(tables) - set(TABLE_NAMES)
        if unknown:
            raise RunError(f"unknown table '{min(unknown)}': a run has {', '.join(TABLE_NAMES)}")
        given = {name for name, columns in tables.items() if any(len(values) for values in columns.values())}
        arrow = {
            table.name: to_arrow(table, tables[table.name], self.run_id)
            for table in TABLES
            if table.name in given
        }
        prompt_ids = self._new_prompts(arrow)
        number = self._next_number()
        entries = {
            name: write_part(self.folder, table_named(name), number, iter([rows]))
            for name, rows in arrow.items()
        }
        parts = self.manifest["parts"]
        self._commit(parts={**parts, **{name: [*parts[name], entry] for name, entry in entries.items()}})
        self._done |= prompt_ids
        for name in entries:
            self._roll_up(name)

    def adopt(self, table: Table, rows: Iterator[pa.Table]) -> None:
        """Stream rows of other runs, run_id included, into one part of a table that has none yet."""
        self._require_open()
        entry = write_part(self.folder, table, self._next_number(), rows, level=1, compression=FINAL_LEVEL)
        self._commit(parts={**self.manifest["parts"], table.name: [entry]})

    def finish(self, extra: dict[str, Any] | None = None, *, compression: int = FINAL_LEVEL) -> None:
        """Join the parts of every table into one, add `extra` to the manifest, mark the run complete.

        Args:
            extra: further fields of the manifest.
            compression: level of zstd of the joined parts.
        """
        self._require_open()
        for table in TABLES:
            parts = self.manifest["parts"]
            entries = parts[table.name]
            if not entries:  # an empty part carries the schema, so that every table can be queried
                empty = arrow_schema(table).empty_table()
                entry = write_part(self.folder, table, self._next_number(), iter([empty]))
                self._commit(parts={**parts, table.name: [entry]})
            elif len(entries) > 1 or entries[0]["compression"] < compression:
                self._join(table.name, entries, compression)
        _remove_unlisted(self.folder, self.manifest)
        self._commit(**json.loads(json.dumps(extra or {})), complete=True, ended=provenance.now())
        self.close()

    def close(self) -> None:
        """Let other processes write the run; the end of the process does the same."""
        unlock(self.folder)

    def _require_open(self) -> None:
        if self.is_complete:
            raise RunError(f"run '{self.folder}' is complete: choose another --run for more prompts")

    def _new_prompts(self, arrow: Mapping[str, pa.Table]) -> set[str]:
        """Prompt ids of this call; every table must speak of them only, and none may be stored already."""
        listed = arrow["prompts"]["prompt_id"].to_pylist() if "prompts" in arrow else []
        prompt_ids = set(listed)
        again = prompt_ids & self._done
        if again or len(listed) > len(prompt_ids):
            twice = min(again) if again else next(i for i in listed if listed.count(i) > 1)
            raise RunError(
                f"prompt '{twice}' would be stored twice in '{self.folder}': prompt ids must be unique"
            )
        for name, rows in arrow.items():
            foreign = set(rows["prompt_id"].unique().to_pylist()) - prompt_ids
            if foreign:
                raise RunError(
                    f"table '{name}' has rows of prompt '{min(foreign)}' that table 'prompts' lacks: "
                    "write whole prompts at once"
                )
        return prompt_ids

    def _next_number(self) -> int:
        entries = [entry for name in TABLE_NAMES for entry in self.manifest["parts"][name]]
        return 1 + max((int(Path(entry["file"]).stem.rpartition("-")[2]) for entry in entries), default=0)

    def _commit(self, **changes: Any) -> None:
        """Write the manifest with these fields changed; where that fails, this writer stays as it was, too."""
        wall_s = round(self._wall_before_s + time.monotonic() - self._started, 3)
        manifest = {**self.manifest, **changes, "wall_s": wall_s}
        write_manifest(self.folder, manifest)
        self.manifest = manifest

    def _roll_up(self, name: str) -> None:
        """Join the parts of a level that has too many; a row is rewritten once a level."""
        level = 0
        while True:
            entries = [entry for entry in self.manifest["parts"][name] if entry["level"] == level]
            if not entries:
                return
            if len(entries) > MAX_SMALL_PARTS:
                self._join(name, entries, FAST_LEVEL)
            level += 1

    def _join(self, name: str, entries: list[dict[str, Any]], compression: int) -> None:
        """Put one part in the place of several; the manifest changes before the old files go."""
        joined = join_parts(self.folder, name, entries, self._next_number(), compression)
        parts = self.manifest["parts"]
        kept = [entry for entry in parts[name] if entry not in entries]  # earlier rows, of higher levels
        self._commit(parts={**parts, name: [*kept, joined]})
        for entry in entries:
            (self.folder / entry["file"]).unlink(missing_ok=True)


def _done_prompts(folder: Path, manifest: dict[str, Any]) -> list[str]:
    prompts = table_named("prompts")
    return [
        str(prompt_id)
        for entry in manifest["parts"]["prompts"]
        for batch in part_batches(folder / entry["file"], prompts, ["prompt_id"])
        for prompt_id in batch["prompt_id"].to_pylist()
    ]


def _prepare(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        others = [path.name for path in folder.iterdir() if path.name != MANIFEST + TEMPORARY]
    except OSError as error:
        raise RunError(
            f"cannot make the run folder '{folder}': {error.strerror}; choose another --run"
        ) from None
    if others:
        raise UsageError(f"'{folder}' is not empty and holds no run: choose another --run")


def _require_same(folder: Path, manifest: dict[str, Any], fields: dict[str, Any]) -> None:
    if manifest["schema_version"] != SCHEMA_VERSION:
        raise UsageError(
            f"run '{folder}' has schema version {manifest['schema_version']}, not {SCHEMA_VERSION}: "
            "choose another --run"
        )
    difference = first_difference(manifest["config"], fields.get("config", {}))
    for name in ("models", "tokenizer_sha256"):
        if difference is None and name in fields:
            difference = first_difference({name: manifest.get(name)}, {name: fields[name]})
    if difference is not None:
        raise UsageError(
            f"cannot resume '{folder}': {difference}; repeat its settings or choose another --run"
        )


def _remove_unlisted(folder: Path, manifest: dict[str, Any]) -> None:
    """Remove temporary files and parts that a killed writer left; the manifest does not list them."""
    listed = {entry["file"] for entries in manifest["parts"].values() for entry in entries}
    for name in TABLE_NAMES:
        for path in sorted((folder / name).glob("part-*.parquet*")):
            if f"{name}/{path.name}" not in listed:
                path.unlink(missing_ok=True)
    (folder / (MANIFEST + TEMPORARY)).unlink(missing_ok=True)
