"""From the rows of one file to checked prompts: which columns mean what, and what a usable row must hold."""

from __future__ import annotations

import math
from typing import Any

from acceptlab.errors import UsageError
from acceptlab.prompts.formats import BadRowError, Benchmark, Content, Place, Values, detect
from acceptlab.prompts.prompt import UNLABELLED, Columns, Problem, Prompt, Row
from acceptlab.prompts.rows import FileRows

ALL = "all"
"""The word that stands for every domain, so no domain may bear it."""

_KINDS = {bool: "a truth value", int: "a number", float: "a number", list: "a list", dict: "an object"}


def convert_file(file: FileRows, label: str, columns: Columns) -> list[tuple[Row, Prompt | Problem]]:
    """Turn every row into a prompt or into the reason why it is none.

    Args:
        file: Rows of one file.
        label: `Prompt.source` of its prompts.
        columns: Named columns; where `columns.prompt` is named, benchmark formats are not looked for.

    Raises:
        UsageError: a named column, or any column that could hold prompts, is missing from the whole file.
    """
    _check_columns(file, columns)
    benchmark = None
    if columns.prompt is None and not {"prompt", "domain"} <= set(file.columns):
        benchmark = detect([row.values for row in file.rows])
        if file.rows and benchmark is None and not {"prompt", "turns"} & set(file.columns):
            raise UsageError(
                f"{file.source}: no column 'prompt', and no benchmark file that is known here "
                f"(columns: {', '.join(file.columns) or 'none'}); name the column with --prompt-column"
            )
    results: list[tuple[Row, Prompt | Problem]] = []
    for row in file.rows:
        place = Place(file.source, row.number, len(file.rows) == 1)
        content_id = None
        try:
            content = _content(row.values, place, benchmark, columns)
            content_id = content.id
            results.append((row, _prompt(content, place, label, columns)))
        except BadRowError as error:
            known = None if content_id in (None, "") else str(content_id)
            results.append((row, Problem(file.source, row.number, row.line, str(error), known)))
    return results


def _check_columns(file: FileRows, columns: Columns) -> None:
    named = (
        ("--prompt-column", columns.prompt),
        ("--id-column", columns.id),
        ("--domain-column", columns.domain),
    )
    for option, name in named:
        if name is not None and file.rows and name not in file.columns:
            raise UsageError(
                f"{file.source}: no column '{name}' (columns: {', '.join(file.columns)}); "
                f"choose another with {option}"
            )


def _content(values: Values, place: Place, benchmark: Benchmark | None, columns: Columns) -> Content:
    """The row's content, with the named columns laid over what a benchmark format says."""
    if benchmark is not None:
        content = benchmark.convert(values, place)
    else:
        id_ = values.get("id")
        # a file's own prompts may lack ids: they are numbered then
        fallback = place.id("").lstrip("/") if id_ in (None, "") else id_
        content = Content(
            fallback, values.get("domain"), _own_turns(values, columns), values.get("reference")
        )
    return Content(
        content.id if columns.id is None else values.get(columns.id),
        content.domain if columns.domain is None else values.get(columns.domain),
        content.turns,
        content.reference,
    )


def _own_turns(values: Values, columns: Columns) -> list[Any]:
    name = columns.prompt or "prompt"
    turns = values.get("turns") if columns.prompt is None else None
    if turns in (None, ""):
        if name not in values:
            raise BadRowError(f"it has no '{name}'")
        return [values[name]]
    if not isinstance(turns, (list, tuple)) or not turns:
        raise BadRowError("'turns' is not a list of texts")
    if name in values and values[name] != turns[0]:
        raise BadRowError("'prompt' and the first of its turns differ")
    return list(turns)


def _prompt(content: Content, place: Place, label: str, columns: Columns) -> Prompt:
    turns = [_checked_text(turn, number, len(content.turns)) for number, turn in enumerate(content.turns, 1)]
    domain = content.domain
    if domain in (None, ""):
        if columns.domain is not None:
            raise BadRowError(f"its domain, column '{columns.domain}', is empty")
        domain = UNLABELLED
    reference = content.reference
    return Prompt(
        id=_checked_id(content.id, columns),
        domain=_checked_domain(domain),
        prompt=turns[0],
        turns=tuple(turns) if len(turns) > 1 else None,
        source=label,
        reference=reference if reference is None or isinstance(reference, str) else str(reference),
    )


def _checked_text(text: Any, number: int, n_turns: int) -> str:
    what = "the prompt" if n_turns == 1 else f"turn {number}"
    if text is None or (isinstance(text, float) and math.isnan(text)):
        raise BadRowError(f"{what} is missing (null)")
    if not isinstance(text, str):
        raise BadRowError(f"{what} is {_KINDS.get(type(text), type(text).__name__)}, not a text")
    if not text.strip():
        raise BadRowError(f"{what} is empty" if not text else f"{what} is empty (only white space)")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRowError(f"{what} holds half a character (an unpaired surrogate)") from None
    return text


def _checked_id(id_: Any, columns: Columns) -> str:
    if id_ in (None, "") or isinstance(id_, (list, dict)):
        where = f", column '{columns.id}'," if columns.id else ""
        raise BadRowError(f"its id{where} is empty or no plain value")
    return str(id_)


def _checked_domain(domain: Any) -> str:
    if not isinstance(domain, str):
        raise BadRowError(f"its domain is {_KINDS.get(type(domain), type(domain).__name__)}, not a label")
    if domain.strip() != domain or "," in domain or domain == ALL:
        raise BadRowError(
            f"'{domain}' cannot be a domain: no comma, no outer white space, and not the word '{ALL}'"
        )
    return domain
