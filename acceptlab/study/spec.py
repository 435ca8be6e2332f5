"""The study file: TOML -> checked data. Runs nothing and loads no model.

    name = "quick"
    question = "..."
    prediction = "..."                     # written before the first run

    [[collect]]                            # the words of `acceptlab collect`
    name = "all"
    domains = ["code", "math"]             # or "all"
    limit = 12

    [[analyze]]
    analysis = "domains"
    runs = ["all"]                         # names of collections; all of them if left out
    by = "domain"

    [report]
    title = "..."

A [training] table (see `training_spec`) trains and compares drafters first. Unknown keys are refused by name.
`studies/NAME.md` beside the file, where there is one, holds the verdict.
"""

from __future__ import annotations

import difflib
import inspect
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from acceptlab.analysis import ANALYSES
from acceptlab.errors import UsageError
from acceptlab.queries import GROUPINGS
from acceptlab.resampling import Resampling
from acceptlab.run import Request
from acceptlab.study.block import without_block
from acceptlab.study.training_spec import Training, parse_training

STUDIES_FOLDER = Path("studies")
REPORTS_FOLDER = Path("reports")

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_TOP_KEYS = ("name", "question", "prediction", "training", "collect", "analyze", "report")
_REPORT_KEYS = ("title", "folder")
_RESAMPLING = {
    "interval": "kind",
    "resamples": "n_resamples",
    "level": "level",
    "seed": "seed",
    "simultaneous": "simultaneous",
}
"""Keys of an analysis that say how its intervals are made, with their names in `Resampling`."""


@dataclass(frozen=True)
class Collect:
    """One collection. `folder` is None for the usual one under data/runs, named after the configuration."""

    name: str
    request: Request
    folder: Path | None = None


@dataclass(frozen=True)
class Analyze:
    """One analysis of some of the study's runs; `name` names its files."""

    name: str
    analysis: str
    runs: tuple[str, ...]
    options: Mapping[str, Any]
    resampling: Resampling
    plot: bool = True


@dataclass(frozen=True)
class Study:
    """A checked study file."""

    path: Path
    name: str
    question: str
    prediction: str
    collections: tuple[Collect, ...]
    analyses: tuple[Analyze, ...]
    title: str
    folder: Path
    """Where the report goes."""
    verdict: str = ""
    training: Training | None = None
    """Drafters that are trained and compared first."""


def find_studies(folder: Path = STUDIES_FOLDER) -> list[Path]:
    """Study files of a folder by name; empty where there is no folder."""
    return sorted(folder.glob("*.toml"))


def load_study(study: Path) -> Study:
    """Read a study file.

    Args:
        study: its path, or the bare name of one under studies/.

    Raises:
        UsageError: no such file, not TOML, or an unknown or missing key, analysis, run or value (named).
    """
    path = _find(study)
    content = _parse(path)
    where = f"'{path}'"
    _check_keys(content, _TOP_KEYS, where)
    name, question, prediction = (_text(content, key, where) for key in ("name", "question", "prediction"))
    if not _NAME.fullmatch(name):
        raise UsageError(f"{where} is named '{name}': use lower-case letters, digits, '-', '_' and '.'")
    collections = tuple(
        _collect(entry, f"{where}, collect {i}") for i, entry in _entries(content, "collect", where)
    )
    _check_distinct([entry.name for entry in collections], f"{where}: collection")
    known = [entry.name for entry in collections]
    analyses = tuple(
        _analyze(entry, known, f"{where}, analyze {i}") for i, entry in _entries(content, "analyze", where)
    )
    _check_distinct([entry.name for entry in analyses], f"{where}: analysis", "give one a name of its own")
    report = content.get("report", {})
    if not isinstance(report, dict):
        raise UsageError(f"{where}: 'report' is a table: write [report]")
    _check_keys(report, _REPORT_KEYS, f"{where}, report")
    return Study(
        path=path,
        name=name,
        question=question,
        prediction=prediction,
        collections=collections,
        analyses=analyses,
        title=_text(report, "title", f"{where}, report") if "title" in report else f"Study: {name}",
        folder=Path(_text(report, "folder", f"{where}, report"))
        if "folder" in report
        else REPORTS_FOLDER / name,
        verdict=_verdict(path),
        training=parse_training(content["training"], where) if "training" in content else None,
    )


def _find(study: Path) -> Path:
    if study.is_file():
        return study
    named = STUDIES_FOLDER / f"{study}.toml"
    if len(study.parts) == 1 and not study.suffix and named.is_file():
        return named
    found = ", ".join(path.stem for path in find_studies()) or "none here"
    raise UsageError(f"there is no study '{study}': name a TOML file, or one of studies/ ({found})")


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read '{path}': {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"'{path}' is not a TOML file: {error}") from None


def _verdict(path: Path) -> str:
    """The text beside the study file, without headings and without tables that a study wrote."""
    try:
        text = path.with_suffix(".md").read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    return re.sub(r"^#+ .*$", "", without_block(text), flags=re.MULTILINE).strip()


def _entries(content: Mapping[str, Any], key: str, where: str) -> list[tuple[int, dict[str, Any]]]:
    entries = content.get(key, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UsageError(f"{where}: '{key}' is a list of tables: write [[{key}]]")
    if not entries:
        raise UsageError(f"{where} has no [[{key}]]: add at least one")
    return list(enumerate(entries, start=1))


def _collect(entry: dict[str, Any], where: str) -> Collect:
    kinds = {field.name: str(field.type) for field in fields(Request)}
    _check_keys(entry, ("name", "folder", *kinds), where)
    name = _text(entry, "name", where)
    folder = Path(_text(entry, "folder", where)) if "folder" in entry else None
    words = {key: value for key, value in entry.items() if key not in {"name", "folder"}}
    return Collect(
        name, Request(**{key: _word(key, value, kinds[key], where) for key, value in words.items()}), folder
    )


def _word(key: str, value: Any, kind: str, where: str) -> Any:
    """A value of the type that `Request` declares for the key."""
    if key == "domains":
        listed = value.split(",") if isinstance(value, str) else value
        if isinstance(listed, list) and listed and all(isinstance(item, str) for item in listed):
            return tuple(item.strip() for item in listed)
        raise UsageError(f'{where}: domains is {value!r}: write "all" or a list such as ["code", "math"]')
    types: tuple[type, ...] = (str,)
    if kind.startswith("int"):
        types = (int,)
    elif kind.startswith("float"):
        types = (int, float)
    elif kind.startswith("bool"):
        types = (bool,)
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise UsageError(
            f"{where}: {key} is {value!r}: write a value of type {kind.split(' |', maxsplit=1)[0]}"
        )
    checked: Any = value
    if key in {"limit", "max_new_tokens"} and checked < 1:
        raise UsageError(f"{where}: {key} is {value}: it must be at least 1")
    return float(checked) if kind.startswith("float") else checked


def _analyze(entry: dict[str, Any], known: list[str], where: str) -> Analyze:
    analysis = _text(entry, "analysis", where)
    if analysis not in ANALYSES:
        raise UsageError(f"{where}: unknown analysis '{analysis}'{_instead(analysis, ANALYSES)}")
    own = _own_options(ANALYSES[analysis])
    _check_keys(entry, ("analysis", "name", "runs", "plot", *own, *_RESAMPLING), where)
    runs = entry.get("runs", known)
    if not isinstance(runs, list) or not runs or not all(isinstance(run, str) for run in runs):
        raise UsageError(f"{where}: runs is {runs!r}: write a list of names of collections")
    for run in runs:
        if run not in known:
            raise UsageError(f"{where}: unknown run '{run}'{_instead(run, known)}")
    plot = entry.get("plot", True)
    if not isinstance(plot, bool):
        raise UsageError(f"{where}: plot is {plot!r}: write true or false")
    if entry.get("by", GROUPINGS[0]) not in GROUPINGS:
        raise UsageError(f"{where}: cannot group by {entry['by']!r}{_instead(str(entry['by']), GROUPINGS)}")
    options = {key: entry[key] for key in own if key in entry}
    name = _text(entry, "name", where) if "name" in entry else "-".join([analysis, *_distinction(entry)])
    if not _NAME.fullmatch(name):
        raise UsageError(f"{where}: name is '{name}': use lower-case letters, digits, '-', '_' and '.'")
    return Analyze(name, analysis, tuple(dict.fromkeys(runs)), options, _resampling(entry, where), plot)


def _own_options(analysis: Callable[..., Any]) -> list[str]:
    """Keywords of an analysis beside the runs and the resampling."""
    return [name for name in inspect.signature(analysis).parameters if name not in {"runs", "resampling"}]


def _distinction(entry: Mapping[str, Any]) -> list[str]:
    """What sets an analysis apart from the usual one, for the name of its files."""
    return ["by", entry["by"]] if entry.get("by", "domain") != "domain" else []


def _resampling(entry: Mapping[str, Any], where: str) -> Resampling:
    given = {field: entry[key] for key, field in _RESAMPLING.items() if key in entry}
    if given.get("kind", "percentile") not in ("percentile", "bca"):
        raise UsageError(f"{where}: interval is {given['kind']!r}: write percentile or bca")
    if not 0 < given.get("level", 0.95) < 1:
        raise UsageError(f"{where}: level is {given['level']}: write a share between 0 and 1, such as 0.95")
    for key in ("n_resamples", "seed"):
        if not isinstance(given.get(key, 1), int) or given.get(key, 1) < (key == "n_resamples"):
            raise UsageError(f"{where}: {key.removeprefix('n_')} is {given[key]!r}: write a whole number")
    return Resampling(**given)


def _text(content: Mapping[str, Any], key: str, where: str) -> str:
    value = content.get(key)
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{where} has no text for '{key}': write {key} = \"...\"")
    return value.strip()


def _check_keys(content: Mapping[str, Any], known: Collection[str], where: str) -> None:
    for key in content:
        if key not in known:
            raise UsageError(f"{where}: unknown key '{key}'{_instead(key, known)}")


def _check_distinct(names: list[str], what: str, remedy: str = "rename one") -> None:
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{what} '{name}' stands there twice: {remedy}")


def _instead(wrong: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(wrong, list(known), n=1)
    return f": did you mean '{close[0]}'?" if close else f": use one of {', '.join(known)}"
