"""From a file to rows of named values: JSONL, JSON, CSV, Parquet, text, LogiQA's blocks. No meaning yet.

Which parser reads a file is decided by its content first and its ending second: benchmarks ship JSON lines in
files called .txt, and indented JSON in files called .jsonl.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from acceptlab.errors import UsageError
from acceptlab.prompts.files import decode, read_bytes, suffix
from acceptlab.prompts.prompt import Problem, Row

TextMode = Literal["lines", "blocks"]
"""How plain text is cut into prompts: one a line, or blocks with blank lines between them."""

_PARQUET_MAGIC = b"PAR1"
_LOGIQA_LABEL = re.compile(r"[a-dA-D]")
_LOGIQA_LINES = 7
_LARGEST_FIELD = 1 << 27


@dataclass(frozen=True)
class FileRows:
    """Rows of one file, and what could not be read of it.

    Attributes:
        source: Name of the file in messages.
        rows: Its records in order.
        problems: Broken records and the like.
        columns: Column names of the file in their order.
    """

    source: str
    rows: list[Row]
    problems: list[Problem]
    columns: tuple[str, ...]


def read_rows(path: Path, name: str, text_mode: TextMode = "lines") -> FileRows:
    """Read one file, packed or not.

    Args:
        path: The file.
        name: Its name in messages.
        text_mode: How plain text is cut; other formats ignore it.

    Raises:
        UsageError: the file cannot be read or decoded at all.
    """
    data = read_bytes(path)
    if data.startswith(_PARQUET_MAGIC):
        return _collect(name, _parquet(data, name))
    if suffix(name) == ".parquet" and data:
        raise UsageError(f"'{path}' is not a Parquet file, whatever its name says: fetch it again")
    text = decode(data, name)
    if text.lstrip()[:14].lower().startswith(("<!doctype html", "<html")):
        raise UsageError(f"'{path}' is a web page, not the data itself: download the raw file")
    return _collect(name, _parse(text, name, text_mode))


def _collect(name: str, parsed: Iterator[Row | Problem]) -> FileRows:
    rows: list[Row] = []
    problems: list[Problem] = []
    columns: dict[str, None] = {}
    for item in parsed:
        if isinstance(item, Row):
            rows.append(item)
            columns.update(dict.fromkeys(item.values))
        else:
            problems.append(item)
    if not rows and not problems:
        problems.append(Problem(name, None, None, "the file is empty: it holds no prompt"))
    return FileRows(name, rows, problems, tuple(columns))


def _parse(text: str, name: str, text_mode: TextMode) -> Iterator[Row | Problem]:
    ending = suffix(name)
    if not text.strip():
        return iter(())
    if ending in (".csv", ".tsv"):
        return _csv(text.strip("\n"), name, "\t" if ending == ".tsv" else None)
    if ending in (".jsonl", ".ndjson", ".json") or _looks_like_json_lines(text):
        whole = _whole_json(text)
        if whole is not None:
            return _objects(whole, name)
        if ending == ".json" and not _looks_like_json_lines(text):
            return iter([_broken_json(text, name)])
        return _json_lines(text, name)
    if _is_logiqa(text):
        return _logiqa(text, name)
    return _text(text, name, text_mode)


def _looks_like_json_lines(text: str) -> bool:
    first = next((line for line in text.split("\n") if line.strip()), "")
    return first.startswith("{") and isinstance(_loads(first), dict)


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _whole_json(text: str) -> list[Any] | None:
    """The records of a file that is one JSON value: a list, a BIG-Bench-Hard task, or a single object."""
    value = _loads(text)
    if isinstance(value, dict):
        if isinstance(value.get("examples"), list):
            return list(value["examples"])
        # a file of one JSON line keeps its line number
        return [value] if "\n" in text.strip() else None
    return value if isinstance(value, list) else None


def _objects(values: list[Any], name: str) -> Iterator[Row | Problem]:
    for number, value in enumerate(values, 1):
        if isinstance(value, dict):
            yield Row(number, None, value)
        else:
            yield Problem(name, number, None, f"expected an object with named values, found {_kind(value)}")


def _json_lines(text: str, name: str) -> Iterator[Row | Problem]:
    # not splitlines(): U+2028 and its kin are allowed inside JSON strings
    number = 0
    for line, content in enumerate(text.split("\n"), 1):
        if not content.strip():
            continue
        number += 1
        try:
            value = json.loads(content)
        except ValueError as error:
            yield Problem(name, number, line, f"broken JSON: {_json_message(error)}")
            continue
        if isinstance(value, dict):
            yield Row(number, line, value)
        else:
            yield Problem(name, number, line, f"expected a JSON object, found {_kind(value)}")


def _broken_json(text: str, name: str) -> Problem:
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return Problem(name, None, error.lineno, f"broken JSON: {_json_message(error)}")
    return Problem(name, None, 1, "expected a list or an object")


def _json_message(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at column {error.colno}"
    return str(error)


def _kind(value: Any) -> str:
    kinds = {str: "a string", list: "a list", bool: "a truth value", int: "a number", float: "a number"}
    return "nothing (null)" if value is None else kinds.get(type(value), "an object")


def _csv(text: str, name: str, delimiter: str | None) -> Iterator[Row | Problem]:
    header_line = text.split("\n", 1)[0]
    if delimiter is None:
        # spreadsheets in many countries write semicolons or tabs
        delimiter = "," if "," in header_line else ";" if ";" in header_line else "\t"
    previous = csv.field_size_limit(_LARGEST_FIELD)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        yield from _csv_rows(reader, name)
    finally:
        csv.field_size_limit(previous)


def _csv_rows(reader: Any, name: str) -> Iterator[Row | Problem]:
    header: list[str] | None = None
    number = 0
    line = 1
    try:
        for record in reader:
            cells = list(record)
            start, line = line, reader.line_num + 1
            if header is None:
                header = [cell.strip() for cell in cells]
                if len(set(header)) < len(header):
                    yield Problem(name, None, start, "two columns bear the same name")
                continue
            if not cells and len(header) > 1:
                continue
            number += 1
            cells = cells or [""]
            if len(cells) == len(header):
                yield Row(number, start, dict(zip(header, cells, strict=True)))
            else:
                yield Problem(name, number, start, f"{len(cells)} cells under {len(header)} columns")
    except csv.Error as error:
        yield Problem(name, number + 1, line, f"broken CSV: {error}")


def _parquet(data: bytes, name: str) -> Iterator[Row | Problem]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(data))
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"'{name}' is a broken Parquet file ({reason}): fetch it again") from None
    for number, values in enumerate(table.to_pylist(), 1):
        yield Row(number, None, values)


def _text(text: str, name: str, text_mode: TextMode) -> Iterator[Row | Problem]:
    lines = text.rstrip("\n \t").split("\n") if text.strip() else []
    if text_mode == "lines":
        for number, content in enumerate(lines, 1):
            if content.strip():
                yield Row(number, number, {"prompt": content})
            else:
                hint = "one prompt a line is expected; add --text blocks if blank lines part the prompts"
                yield Problem(name, number, number, f"the prompt is empty ({hint})")
        return
    for number, (line, block) in enumerate(_blocks(lines), 1):
        yield Row(number, line, {"prompt": "\n".join(block)})


def _blocks(lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Runs of non-blank lines, each with the number of its first line."""
    block: list[str] = []
    for line, content in enumerate([*lines, ""], 1):
        if content.strip():
            block.append(content)
        elif block:
            yield line - len(block), block
            block = []


def _is_logiqa(text: str) -> bool:
    lines = text.lstrip("\n").split("\n")[:_LOGIQA_LINES]
    return (
        len(lines) == _LOGIQA_LINES
        and _LOGIQA_LABEL.fullmatch(lines[0].strip()) is not None
        and all(line.startswith(f"{letter}.") for letter, line in zip("ABCD", lines[3:], strict=True))
    )


def _logiqa(text: str, name: str) -> Iterator[Row | Problem]:
    """LogiQA 1.0: a blank line, the answer's letter, context, question, four options with their letters."""
    lines = text.rstrip("\n").split("\n")
    starts = [
        i
        for i, line in enumerate(lines)
        if _LOGIQA_LABEL.fullmatch(line.strip()) and (i == 0 or not lines[i - 1].strip())
    ]
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], len(lines)], strict=True), 1):
        block = lines[start:end]
        while block and not block[-1].strip():
            block.pop()
        if len(block) != _LOGIQA_LINES:
            yield Problem(
                name, number, start + 1, f"a LogiQA block has {_LOGIQA_LINES} lines, found {len(block)}"
            )
            continue
        answer, context, question, *options = (line.strip() for line in block)
        values = {"answer": answer.lower(), "context": context, "question": question, "options": options}
        yield Row(number, start + 1, values)
