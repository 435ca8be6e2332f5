"""What a manifest says, arranged for reading: configuration, models, machine, files. Judges nothing."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acceptlab.report.cells import number
from acceptlab.store import Run

TEXT_LIMIT = 600
"""Characters of an output that the page shows."""

_QUIET = {
    "text": ("lines",),
    "proposal": ("auto",),
    "top_k": (0,),
    "top_p": (1.0,),
    "device": ("auto",),
    "dtype": ("auto",),
}
"""Options that a command need not spell out at these values."""


@dataclass(frozen=True)
class Sample:
    """What the pair wrote for one prompt."""

    domain: str
    prompt_id: str
    text: str
    tail: str
    """Facts in words: length and how it ended."""


@dataclass(frozen=True)
class RunFacts:
    """One run for the page: lists of (name, value) pairs."""

    name: str
    path: str
    is_complete: bool
    command: str
    counts: Mapping[str, int]
    config: Sequence[tuple[str, str]]
    models: Sequence[tuple[str, Sequence[tuple[str, str]]]]
    machine: Sequence[tuple[str, str]]
    packages: Sequence[tuple[str, str]]
    provenance: Sequence[tuple[str, str]]
    parts: Sequence[tuple[str, str, str, str]]
    samples: Sequence[Sample]


def facts_of(run: Run, name: str) -> RunFacts:
    """Arrange the manifest of a run; `name` is how the page calls it."""
    manifest = run.manifest
    return RunFacts(
        name=name,
        path=str(run.path),
        is_complete=run.is_complete,
        command=collect_command(manifest),
        counts={table: run.n_rows(table) for table in ("prompts", "steps", "nodes", "contexts")},
        config=_pairs(manifest["config"]),
        models=[(role, _pairs(_flat(model))) for role, model in (manifest.get("models") or {}).items()],
        machine=[*_pairs(manifest.get("machine") or {}), ("wall time", duration(manifest.get("wall_s")))],
        packages=_pairs(manifest.get("packages") or {}),
        provenance=_provenance(run),
        parts=_parts(run),
        samples=_samples(run),
    )


def duration(seconds: float | None) -> str:
    """A time in words, such as `4 min 12 s`."""
    if seconds is None:
        return "unknown"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def collect_command(manifest: Mapping[str, Any]) -> str:
    """The command line that collects such a run, from the request in the manifest or as it was typed."""
    request = manifest.get("request")
    if not request:
        words = str(manifest.get("command") or "").split()
        return " ".join([Path(words[0]).name, *words[1:]]) if words else ""
    words = ["acceptlab", "collect"]
    for name, value in request.items():
        if value is None or value is False or value in _QUIET.get(name, ()):
            continue
        option = "--domain" if name == "domains" else f"--{name.replace('_', '-')}"
        words.append(option)
        if value is not True:  # a flag has no value
            words.append(",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value))
    return shlex.join(words)


def _provenance(run: Run) -> list[tuple[str, str]]:
    manifest = run.manifest
    dirty = {True: ", with uncommitted changes", False: "", None: ""}[manifest.get("git_dirty")]
    commit = manifest.get("git_commit")
    found = {
        "run id": run.run_id,
        "folder": str(run.path),
        "collected": f"{manifest.get('created')} to {manifest.get('ended') or 'not ended'}",
        "git commit": f"{commit}{dirty}" if commit else None,
        "tokenizer SHA-256": manifest.get("tokenizer_sha256"),
        "schema version": manifest["schema_version"],
        "typed": manifest.get("command"),
    }
    return _pairs(found)


def _parts(run: Run) -> list[tuple[str, str, str, str]]:
    entries = [entry for table in ("nodes", "contexts", "steps", "prompts") for entry in run.parts(table)]
    return [
        (str(e["file"]), number(int(e["rows"])), number(int(e["bytes"])), str(e.get("sha256", "")))
        for e in entries
    ]


def _samples(run: Run) -> list[Sample]:
    """The first prompt of every domain that ran."""
    columns = ["domain", "prompt_id", "n_new_tokens", "output_text", "stop_reason"]
    samples: dict[str, Sample] = {}
    for row in run.read("prompts", columns=columns).to_pylist():
        if row["output_text"] and row["domain"] not in samples:
            text = str(row["output_text"])
            tail = f"{row['n_new_tokens']} tokens, ended by {row['stop_reason']}"
            shown = text if len(text) <= TEXT_LIMIT else text[:TEXT_LIMIT] + " …"
            samples[row["domain"]] = Sample(str(row["domain"]), str(row["prompt_id"]), shown, tail)
    return list(samples.values())


def _flat(model: Any) -> dict[str, Any]:
    """A model's entry with the hashes of its files as entries of their own."""
    if not isinstance(model, Mapping):
        return {"id": model}
    files = model.get("files") or {}
    rest = {key: value for key, value in model.items() if key != "files"}
    return {**rest, **{f"SHA-256 of {name}": digest for name, digest in files.items()}}


def _pairs(entries: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        (str(name).replace("_", " "), _words(value))
        for name, value in entries.items()
        if value is not None and value not in ("", [])
    ]


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
