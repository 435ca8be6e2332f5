"""From a name, a file or a folder to checked prompts: ids, domains, empty texts, duplicates, selection.

Strict by default: whatever cannot be used is an error that names file, row, line and reason. The lenient mode
leaves such rows out and hands the problems back beside the prompts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, overload

from acceptlab.errors import UsageError
from acceptlab.prompts.convert import ALL, convert_file
from acceptlab.prompts.files import list_files
from acceptlab.prompts.hub import PREFIX, read_hub
from acceptlab.prompts.prompt import Columns, Problem, Prompt, Row
from acceptlab.prompts.rows import FileRows, TextMode, read_rows
from acceptlab.prompts.shipped import SHIPPED_SET, shipped_files

_DEFAULT_COLUMNS = Columns()


@overload
def load_prompts(
    source: str | Path | None = None,
    domains: Sequence[str] | str | None = None,
    limit: int | None = None,
    *,
    columns: Columns = ...,
    text: TextMode = ...,
    strict: Literal[True] = True,
) -> list[Prompt]: ...


@overload
def load_prompts(
    source: str | Path | None = None,
    domains: Sequence[str] | str | None = None,
    limit: int | None = None,
    *,
    columns: Columns = ...,
    text: TextMode = ...,
    strict: Literal[False],
) -> tuple[list[Prompt], list[Problem]]: ...


def load_prompts(
    source: str | Path | None = None,
    domains: Sequence[str] | str | None = None,
    limit: int | None = None,
    *,
    columns: Columns = _DEFAULT_COLUMNS,
    text: TextMode = "lines",
    strict: bool = True,
) -> list[Prompt] | tuple[list[Prompt], list[Problem]]:
    """Load, check and select prompts.

    Args:
        source: None or `acceptlab` for the shipped set, a file, a folder, `hf:owner/name[:config][:split]`.
        domains: Labels to keep, as a sequence or a comma list; None or `all` keeps every prompt.
        limit: Keep the first so many prompts of each domain, in the order of the file.
        columns: Names of the columns of a file of one's own.
        text: How plain text is cut: one prompt a line, or blocks with blank lines between them.
        strict: Raise at the first problem; False leaves bad rows out and returns the problems too.

    Returns:
        The prompts in the order of the file; with `strict=False` the pair of prompts and problems.

    Raises:
        UsageError: no such source, an unreadable file, a bad row (strict), an unknown domain, nothing usable.
        RunError: the hub cannot be reached.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"the limit is {limit}: ask for at least one prompt a domain")
    prompts, problems = read_prompts(source, columns=columns, text=text)
    if problems and (strict or not prompts):
        raise UsageError(_complaint(source, problems))
    chosen = _first_of_each(_of_domains(prompts, domains, source), limit)
    return chosen if strict else (chosen, problems)


def read_prompts(
    source: str | Path | None = None, *, columns: Columns = _DEFAULT_COLUMNS, text: TextMode = "lines"
) -> tuple[list[Prompt], list[Problem]]:
    """Every usable prompt of a source and every problem; neither selection nor complaint.

    Raises:
        UsageError: no such source, a file that cannot be read or decoded, a column that it lacks.
        RunError: the hub cannot be reached.
    """
    prompts: list[Prompt] = []
    problems: list[Problem] = []
    places: dict[str, tuple[str, str]] = {}
    for file, label in _open(source, text):
        problems.extend(file.problems)
        for row, result in convert_file(file, label, columns):
            if isinstance(result, Problem):
                problems.append(result)
            elif result.id in places:
                problems.append(_duplicate(file.source, row, result.id, *places[result.id]))
            else:
                places[result.id] = (file.source, row.where)
                prompts.append(result)
    # broken records are found before the rows are looked at: put all back into the order of the file
    order = {name: i for i, name in enumerate(dict.fromkeys(problem.source for problem in problems))}
    problems.sort(key=lambda problem: (order[problem.source], problem.row or 0, problem.line or 0))
    return prompts, problems


def _open(source: str | Path | None, text: TextMode) -> Iterator[tuple[FileRows, str]]:
    """The files of a source, each with the `Prompt.source` of its prompts."""
    if source is None or str(source) == SHIPPED_SET:
        for path, name in shipped_files():
            yield read_rows(path, name), SHIPPED_SET
        return
    if str(source).startswith(PREFIX):
        rows = read_hub(str(source))
        yield rows, rows.source
        return
    path = Path(source)
    if not path.exists():
        raise UsageError(
            f"there is no prompt file or set '{source}': give {SHIPPED_SET}, a file, a folder or "
            "hf:owner/name (acceptlab prompts list)"
        )
    for file, name in list_files(path):
        yield read_rows(file, name, text), name


def _duplicate(source: str, row: Row, prompt_id: str, first_source: str, first_where: str) -> Problem:
    first = first_where if first_source == source else f"{first_where} of {first_source}"
    reason = f"the id '{prompt_id}' stands already in {first}; every id must be unique"
    return Problem(source, row.number, row.line, reason, prompt_id)


def _complaint(source: str | Path | None, problems: Sequence[Problem]) -> str:
    first = str(problems[0])
    if len(problems) == 1:
        return first
    name = SHIPPED_SET if source is None else source
    return f"{first} (and {len(problems) - 1} more problems: acceptlab prompts check {name} lists them)"


def _of_domains(
    prompts: list[Prompt], domains: Sequence[str] | str | None, source: str | Path | None
) -> list[Prompt]:
    if domains is None:
        return prompts
    wanted = [part.strip() for part in (domains.split(",") if isinstance(domains, str) else domains)]
    wanted = [part for part in wanted if part]
    found = list(dict.fromkeys(prompt.domain for prompt in prompts))
    if not wanted:
        raise UsageError(f"no domain is named: choose from {', '.join(found)} or {ALL}")
    if ALL in wanted:
        return prompts
    for domain in wanted:
        if domain not in found:
            name = "the shipped set" if source is None else f"'{source}'"
            raise UsageError(f"{name} has no domain '{domain}': choose from {', '.join(found)} or {ALL}")
    return [prompt for prompt in prompts if prompt.domain in wanted]


def _first_of_each(prompts: list[Prompt], limit: int | None) -> list[Prompt]:
    if limit is None:
        return prompts
    counts: Counter[str] = Counter()
    kept = []
    for prompt in prompts:
        counts[prompt.domain] += 1
        if counts[prompt.domain] <= limit:
            kept.append(prompt)
    return kept
