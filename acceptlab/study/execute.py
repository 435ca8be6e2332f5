"""Doing a study: collect what is missing, analyse what has changed, write the page. Idempotent.

Everything done is on disk at once, so an interrupted study goes on where it was. No arithmetic here.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

from acceptlab.analysis import ANALYSES, AnalysisTable
from acceptlab.figures import FIGURES
from acceptlab.report import PAGE, Report, Section, load_table, save_table, write_report
from acceptlab.report.page import figure_paths, fingerprint_of
from acceptlab.run import Show, plan, run_collection
from acceptlab.store import Run, open_run
from acceptlab.store.manifest import has_manifest
from acceptlab.study.spec import Analyze, Collect, Study

PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Done:
    """What a study did: names of parts made now, and of those that were there already."""

    page: Path
    made: tuple[str, ...]
    skipped: tuple[str, ...]


class _Parts:
    """Tells which part of how many begins, with the time since the start."""

    def __init__(self, total: int, tell: Callable[[str], None]) -> None:
        self._total, self._tell, self._n, self._started = total, tell, 0, monotonic()
        self.made: list[str] = []
        self.skipped: list[str] = []

    def say(self, message: str) -> None:
        self._tell(message)

    def begin(self, what: str) -> None:
        self._n += 1
        self._what = what
        minutes, seconds = divmod(int(monotonic() - self._started), 60)
        self._tell(f"[{self._n}/{self._total}, {minutes}:{seconds:02d} elapsed] {what}")

    def end(self, *, skipped: str = "", said: str = "") -> None:
        (self.skipped if skipped else self.made).append(self._what)
        if skipped or said:
            self._tell(f"      {f'skipped: {skipped}' if skipped else said}")


def run_study(study: Study, *, runs_folder: Path, show: Show) -> Done:
    """Do a study, or what is left of it.

    Args:
        study: a checked study file.
        runs_folder: where collections without a folder of their own go.
        show: where progress goes.

    Returns:
        The page, with what was made and what was skipped.

    Raises:
        UsageError: a collection asks for an unknown name, or its folder holds another run.
        RunError: a run or a file cannot be read or written, or models do not fit.
    """
    n_training = 0
    if study.training is not None:
        from acceptlab.study import training_part  # trains, so needs torch

        n_training = training_part.count_parts(study.training)
    parts = _Parts(n_training + len(study.collections) + len(study.analyses) + 1, show.say)
    trained = []
    if study.training is not None:
        trained = training_part.train_and_measure(study.training, parts)
    runs: dict[str, Run] = {}
    for entry in study.collections:
        parts.begin(f"collect {entry.name}")
        runs[entry.name] = _collect(entry, runs_folder, show, parts)
    code = _code_digest()
    sections, prints = [], []
    if study.training is not None:
        sections = training_part.sections_of(study.training, trained, runs, study.path)
        prints = [_keep(section, study.folder) for section in sections]
    for wanted in study.analyses:
        parts.begin(f"analyze {wanted.name}")
        section, fingerprint = _analyze(wanted, runs, study.folder, code, parts)
        sections.append(section)
        prints.append(fingerprint)
    parts.begin("figures and page")
    page = _write_page(study, runs, sections, [code, *prints], parts)
    return Done(page, tuple(parts.made), tuple(parts.skipped))


def run_folder(entry: Collect, runs_folder: Path) -> Path:
    """Where a collection lies or will lie."""
    return entry.folder or runs_folder / plan(entry.request).folder_name


def state_of(folder: Path) -> str:
    """What of a collection is there: complete, interrupted or missing."""
    if not has_manifest(folder):
        return "missing"
    return "complete" if open_run(folder, strict=False).is_complete else "interrupted"


def _collect(entry: Collect, runs_folder: Path, show: Show, parts: _Parts) -> Run:
    folder = run_folder(entry, runs_folder)
    was_complete = state_of(folder) == "complete"
    finished = run_collection(entry.request, folder=folder, runs_folder=runs_folder, resume=True, show=show)
    if was_complete:
        parts.end(skipped=f"{finished.folder} is complete")
    else:
        parts.end(said=finished.summary)
    return open_run(finished.folder)


def _analyze(
    wanted: Analyze, runs: Mapping[str, Run], folder: Path, code: str, parts: _Parts
) -> tuple[Section, str]:
    """The table, from disk where it was made from the same runs by the same code, else anew."""
    chosen = {name: runs[name] for name in wanted.runs}
    facts = [asdict(wanted), {name: _content_of(run) for name, run in chosen.items()}, code]
    fingerprint = _digest(facts)
    table = load_table(folder, wanted.name, fingerprint)
    if table is not None:
        parts.end(skipped="made from the same runs already")
    else:
        made = ANALYSES[wanted.analysis](
            list(chosen.values()), resampling=wanted.resampling, **wanted.options
        )
        table = _with_names(made, chosen, wanted)
        save_table(table, folder, wanted.name, fingerprint)
        parts.end(said=f"{len(table.frame)} rows")
    return Section(table, wanted.name, wanted.plot, wanted.runs), fingerprint


def _keep(section: Section, folder: Path) -> str:
    """Save a table that is made anew every time; its fingerprint is its content."""
    fingerprint = _digest(section.table.frame.to_csv(index=False))
    save_table(section.table, folder, section.stem, fingerprint)
    return fingerprint


def _with_names(table: AnalysisTable, runs: Mapping[str, Run], wanted: Analyze) -> AnalysisTable:
    """Groups by run have the names of the study instead of folders' names; the title says which runs, if not all."""
    if wanted.options.get("by") != "run" or "run" not in table.frame:
        return table
    names = {run.path.name: name for name, run in runs.items()}
    return replace(
        table, frame=table.frame.assign(run=table.frame["run"].map(lambda label: names.get(label, label)))
    )


def _write_page(
    study: Study, runs: Mapping[str, Run], sections: list[Section], prints: list[str], parts: _Parts
) -> Path:
    page = study.folder / PAGE
    manifests = [(run.path / "manifest.json").read_text(encoding="utf-8") for run in runs.values()]
    fingerprint = _digest([study.path.read_text(encoding="utf-8"), study.verdict, prints, manifests])
    if fingerprint_of(page) == fingerprint and all(path.is_file() for path in _figures(study, sections)):
        parts.end(skipped=f"{page} is up to date")
        return page
    report = Report(
        title=study.title,
        runs=list(runs.values()),
        sections=sections,
        command=shlex.join(["acceptlab", "study", "run", study.path.as_posix()]),
        run_names={run.run_id: name for name, run in runs.items()},
        question=study.question,
        prediction=study.prediction,
        verdict=study.verdict,
        fingerprint=fingerprint,
    )
    write_report(report, study.folder, tables=False)
    parts.end(said=str(page))
    return page


def _figures(study: Study, sections: Iterable[Section]) -> list[Path]:
    """Files of the figures that the sections have."""
    drawn = [s for s in sections if s.plot and s.table.name in FIGURES and len(s.table.frame)]
    return [path for section in drawn for path in figure_paths(study.folder, section.stem)]


def _content_of(run: Run) -> list[Any]:
    """What identifies the rows of a run."""
    parts = sorted(
        (entry["file"], entry.get("sha256")) for files in run.manifest["parts"].values() for entry in files
    )
    return [run.run_id, run.path.name, parts]


def _code_digest() -> str:
    """Hash of this package's sources: a changed definition makes every table anew."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*")):
        if path.suffix in {".py", ".sql", ".html", ".css"}:
            digest.update(path.relative_to(PACKAGE).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _digest(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
