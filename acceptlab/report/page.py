"""Sections and runs -> one HTML file. Arranges and renders; every number comes from a table or a manifest."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

from acceptlab import __version__
from acceptlab.analysis import ALL, AnalysisTable
from acceptlab.report.cells import Cell, View, cell, plain, view_of
from acceptlab.report.facts import RunFacts, duration, facts_of
from acceptlab.report.pictures import Picture, picture_of
from acceptlab.report.saved import save_table, table_paths, write_bytes, write_text
from acceptlab.store import Run

PAGE = "index.html"
TEMPLATES = Path(__file__).resolve().parents[1] / "templates"

_HEADLINE = ("acceptance", "EL_joint")
_FINGERPRINT = re.compile(r'<meta name="fingerprint" content="([0-9a-f]*)">')


@dataclass(frozen=True)
class Section:
    """One analysis on the page; `stem` names its files and its anchor."""

    table: AnalysisTable
    stem: str
    plot: bool = True
    runs: Sequence[str] = ()
    """Names of the runs that it rests on, said where the page has several."""


@dataclass(frozen=True)
class Report:
    """All that a page holds. Question, prediction and verdict are in Markdown."""

    title: str
    runs: Sequence[Run]
    sections: Sequence[Section]
    command: str
    run_names: Mapping[str, str] = field(default_factory=dict)
    """Names of runs for readers, by run id; the folder's name where there is none."""
    question: str = ""
    prediction: str = ""
    verdict: str = ""
    fingerprint: str = ""
    """What the page was made from; lets a study see that it is up to date."""


@dataclass(frozen=True)
class Headline:
    """One group's numbers at the top of the page."""

    label: str
    acceptance: Cell
    length: Cell
    n_prompts: str
    n_nodes: str
    reason: str


@dataclass(frozen=True)
class _Shown:
    """A section as the template takes it."""

    section: Section
    view: View
    picture: Picture | None
    notes: Sequence[str]
    files: Sequence[str]


def write_report(report: Report, folder: Path, *, tables: bool = True) -> Path:
    """Write the page, and beside it the tables (CSV, JSON) and the figures (PNG, SVG).

    Args:
        report: what to write.
        folder: the report's folder, made if needed.
        tables: write the tables too; a study has written them by then.

    Returns:
        The page's path.

    Raises:
        RunError: the folder cannot be written.
    """
    pictures = {section.stem: picture_of(section.table) for section in report.sections if section.plot}
    for section in report.sections:
        if tables:
            save_table(section.table, folder, section.stem)
        picture = pictures.get(section.stem)
        if picture is not None:
            for path, content in zip(
                figure_paths(folder, section.stem), (picture.svg, picture.png), strict=True
            ):
                write_bytes(path, content)
    page = folder / PAGE
    write_text(page, render_page(report, pictures))
    return page


def figure_paths(folder: Path, stem: str) -> tuple[Path, Path]:
    """Where the SVG and the PNG file of a figure lie in a report's folder."""
    return folder / "figures" / f"{stem}.svg", folder / "figures" / f"{stem}.png"


def fingerprint_of(page: Path) -> str | None:
    """What a written page says that it was made from; None where there is no page."""
    try:
        found = _FINGERPRINT.search(page.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None
    return found.group(1) if found else None


def render_page(report: Report, pictures: Mapping[str, Picture | None]) -> str:
    """The page as text.

    Args:
        report: what it holds.
        pictures: figures by the stem of their section; missing or None where there is none.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    runs = [facts_of(run, report.run_names.get(run.run_id, run.path.name)) for run in report.runs]
    common = _common_notes(report.sections)
    headline = _headline_section(report.sections)
    warnings = _warnings(report.runs, runs)
    context: dict[str, Any] = {
        "report": report,
        "runs": runs,
        "lead": _lead(report.runs, runs),
        "wall_time": duration(sum(float(run.manifest.get("wall_s") or 0) for run in report.runs)),
        "warnings": warnings,
        "common_notes": [note for note in common if note not in warnings],  # those stand at the top
        "headlines": _headlines(headline),
        "headline_runs": headline.runs if headline else (),
        "sections": [_shown(section, pictures.get(section.stem), common) for section in report.sections],
        "style": Markup((TEMPLATES / "style.css").read_text(encoding="utf-8")),  # ours, without user text
        "prose": prose,
        "sentence": sentence,
        "version": __version__,
    }
    return environment.get_template("page.html").render(context)


def _shown(section: Section, picture: Picture | None, common: Sequence[str]) -> _Shown:
    table = section.table
    notes = [note for note in table.notes if note not in common]
    folder = Path()
    paths = [*table_paths(folder, section.stem), *(figure_paths(folder, section.stem) if picture else ())]
    view = view_of(table.frame, table.columns)
    below = [line for line in view.below if line.removeprefix("Intervals: ").rstrip(".") not in table.caption]
    files = [path.as_posix() for path in paths]
    return _Shown(section, replace(view, below=tuple(below)), picture, notes, files)


def _common_notes(sections: Sequence[Section]) -> list[str]:
    """Notes that every table carries: said once at the top."""
    if not sections:
        return []
    first = sections[0].table.notes
    return [note for note in first if all(note in section.table.notes for section in sections)]


def _warnings(runs: Sequence[Run], facts: Sequence[RunFacts]) -> list[str]:
    """What a reader must know before any number: a stand-in draft, an interrupted or damaged run."""
    notes = [str(run.config["draft_note"]) for run in runs if run.config.get("draft_note")]
    for run, fact in zip(runs, facts, strict=True):
        if not run.is_complete:
            asked = run.manifest.get("request") or {}
            of = f" of each domain's first {asked['limit']}" if asked.get("limit") else ""
            n_prompts = run.n_rows("prompts")
            notes.append(
                f"Run {fact.name} is incomplete: it holds {n_prompts} finished prompts{of}, and no others."
            )
        notes += [f"Left out of run {fact.name}: {fault}" for fault in run.faults]
    return list(dict.fromkeys(notes))


def _lead(runs: Sequence[Run], facts: Sequence[RunFacts]) -> list[dict[str, str]]:
    """What was measured, one entry a run."""
    keys = ("pair", "target", "draft", "tree", "rule", "temperature", "max_new_tokens", "seed")
    return [
        {**{key: _text(run.config.get(key)) for key in keys}, "name": fact.name}
        | {name: f"{count:,}" for name, count in fact.counts.items()}
        for run, fact in zip(runs, facts, strict=True)
    ]


def _text(value: Any) -> str:
    return "not stated" if value is None else str(value)


def _headline_section(sections: Sequence[Section]) -> Section | None:
    """The first section whose table has acceptance and length."""
    return next((section for section in sections if set(_HEADLINE) <= set(section.table.frame.columns)), None)


def _headlines(section: Section | None) -> list[Headline]:
    """The rows of that section, the pooled group last."""
    if section is None:
        return []
    frame = section.table.frame
    found = []
    for record in frame.to_dict("records"):
        row = {str(name): plain(value) for name, value in record.items()}
        acceptance, length = (cell(row[name], (row[f"{name}_lo"], row[f"{name}_hi"])) for name in _HEADLINE)
        label = str(row[str(frame.columns[0])])
        found.append(
            Headline(
                label="All together" if label == ALL else label,
                acceptance=acceptance,
                length=length,
                n_prompts=cell(row.get("n_prompts")).text,
                n_nodes=cell(row.get("n_nodes")).text,
                reason=row.get("reason") or "",
            )
        )
    return found


@cache
def _markdown() -> MarkdownIt:
    # no HTML of the text's own; links and pictures are written for the place where the text lies
    return MarkdownIt("commonmark", {"html": False}).enable("table").disable(["link", "image", "autolink"])


def prose(text: str) -> Markup:
    """A text in Markdown as HTML: paragraphs, lists, tables, emphasis and code; pictures are left out."""
    shown = re.sub(r"^!\[[^\]]*\]\([^)]*\)\s*$", "", text, flags=re.MULTILINE)
    return Markup(_markdown().render(shown))  # escaped by the renderer


def sentence(text: str) -> str:
    """A note with a capital letter and a full stop."""
    stopped = text if text.endswith((".", "!", "?")) else f"{text}."
    return stopped[:1].upper() + stopped[1:]
