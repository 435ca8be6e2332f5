"""One run out of several: the same configuration over different prompts, or (forced) different configurations.

Rows are streamed and keep the run_id that they were collected under. Nothing is recomputed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from acceptlab.errors import UsageError
from acceptlab.records import TABLES
from acceptlab.store.manifest import CONFIG_KEYS, first_difference
from acceptlab.store.parts import strict_rows
from acceptlab.store.reader import Run, open_run
from acceptlab.store.writer import RunWriter

SHARDING_FIELDS = frozenset({"prompts", "prompts_sha256", "domains", "limit", "batch_size"})
"""Fields of a configuration that say which prompts were run and how many at once, not how one is decoded."""


def merge_runs(paths: Sequence[Path], output: Path, *, force: bool = False) -> Path:
    """Write the rows of several runs into a new, complete run.

    Args:
        paths: two or more run folders.
        output: the new run's folder; must not exist or be empty.
        force: also merge different configurations and incomplete runs.

    Returns:
        `output`.

    Raises:
        UsageError: fewer than two runs, a run twice, a prompt twice under one configuration, or without `force`
            different configurations, the same prompt in two runs, or an incomplete run.
        RunError: a part is damaged, or the disk is full (the output folder is removed again).
    """
    if len(paths) < 2:
        raise UsageError("name at least two runs to merge")
    runs = [open_run(path) for path in paths]
    _refuse_duplicates(runs, force)
    if not force:
        _refuse_differences(runs)
    existed = output.exists()
    writer = RunWriter.create(output, _fields(runs))
    try:
        for table in TABLES:
            writer.adopt(table, _rows(runs, table.name))
        writer.finish()
    except BaseException:
        writer.close()
        shutil.rmtree(output, ignore_errors=True)
        if existed:
            output.mkdir(exist_ok=True)
        raise
    return output


def _rows(runs: Sequence[Run], table: str) -> Iterator[pa.Table]:
    for run in runs:
        for path in run.files(table):
            yield from strict_rows(path, table)


def _sources(run: Run) -> list[dict[str, Any]]:
    """What a run was made of: itself, or the runs that were merged into it."""
    merged: list[dict[str, Any]] = run.manifest.get("merged_from", [])
    own = {"run_id": run.run_id, "folder": str(run.path), "created": run.manifest.get("created")}
    return merged or [{**own, "config": run.config}]


def _refuse_duplicates(runs: Sequence[Run], force: bool) -> None:
    run_owner: dict[str, Run] = {}
    prompt_owner: dict[str, list[Run]] = {}
    for run in runs:
        for source in _sources(run):
            other = run_owner.setdefault(source["run_id"], run)
            if other is not run:
                raise UsageError(
                    f"'{run.path}' and '{other.path}' hold the same run {source['run_id']}: name it once"
                )
        for prompt_id in sorted(set(run.read("prompts", ["prompt_id"])["prompt_id"].to_pylist())):
            owners = prompt_owner.setdefault(prompt_id, [])
            for other in owners:
                if not force or _difference(other, run) is None:
                    raise UsageError(
                        f"prompt '{prompt_id}' is in '{other.path}' and in '{run.path}': merge runs of different "
                        "prompts" + ("" if force else ", or add --force for different configurations")
                    )
            owners.append(run)


def _refuse_differences(runs: Sequence[Run]) -> None:
    for run in runs:
        if not run.is_complete:
            raise UsageError(f"'{run.path}' is incomplete: finish it with --resume, or add --force")
        difference = _difference(runs[0], run)
        if difference is not None:
            raise UsageError(
                f"'{runs[0].path}' and '{run.path}' differ: {difference}; add --force to merge them all the same"
            )


def _difference(first: Run, second: Run) -> str | None:
    configs = [
        {name: value for name, value in run.config.items() if name not in SHARDING_FIELDS}
        for run in (first, second)
    ]
    difference = first_difference(*configs)
    for name in ("models", "tokenizer_sha256"):
        if difference is None:
            difference = first_difference({name: first.manifest.get(name)}, {name: second.manifest.get(name)})
    return difference


def _fields(runs: Sequence[Run]) -> dict[str, Any]:
    """Manifest fields of the merged run: what all runs share, null where they differ, and every source."""
    names = dict.fromkeys([*CONFIG_KEYS, *(name for run in runs for name in run.config)])
    config = {name: _shared([run.config.get(name) for run in runs]) for name in names}
    domains = {domain for run in runs for domain in run.config.get("domains") or []}
    config["domains"] = sorted(domains)
    shared = ("models", "tokenizer_sha256", "eos_ids", "packages", "git_commit", "git_dirty", "machine")
    fields = {name: _shared([run.manifest.get(name) for run in runs]) for name in shared}
    fields["machine"] = fields["machine"] or {}
    sources = [source for run in runs for source in _sources(run)]
    collected_s = sum(float(run.manifest.get("wall_s") or 0) for run in runs)
    command = "acceptlab runs merge " + " ".join(str(run.path) for run in runs)
    return {
        **fields,
        "config": config,
        "command": command,
        "merged_from": sources,
        "collected_s": collected_s,
    }


def _shared(values: Sequence[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else None
