"""Files of one's own: JSONL, JSON, CSV, Parquet, text; packing, marks, line ends; what is refused."""

from __future__ import annotations

import codecs
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from acceptlab.errors import UsageError
from acceptlab.prompts import Columns, Problem, load_prompts
from acceptlab.prompts.rows import TextMode, read_rows

ROWS = [
    {"id": "a", "domain": "tea", "prompt": "Boil water.\nThen wait."},
    {"id": "b", "domain": "milk", "prompt": "Warm it, slowly: “simmer”."},
]
JSONL = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
CSV = 'id,domain,prompt\na,tea,"Boil water.\nThen wait."\nb,milk,"Warm it, slowly: “simmer”."\n'
TEXT = "Boil water.\nThen wait.\n\nWarm it, slowly: “simmer”.\n"

DIRT: dict[str, Callable[[str], bytes]] = {
    "clean": lambda text: text.encode(),
    "bom": lambda text: codecs.BOM_UTF8 + text.encode(),
    "crlf": lambda text: text.replace("\n", "\r\n").encode(),
    "bom and crlf": lambda text: codecs.BOM_UTF8 + text.replace("\n", "\r\n").encode(),
    "gzip": lambda text: gzip.compress(text.encode()),
    "gzip, bom and crlf": lambda text: gzip.compress(codecs.BOM_UTF8 + text.replace("\n", "\r\n").encode()),
    "utf-16": lambda text: codecs.BOM_UTF16_LE + text.encode("utf-16-le"),
    "no last line end": lambda text: text.rstrip("\n").encode(),
}


@pytest.mark.parametrize("dirt", DIRT)
@pytest.mark.parametrize(
    ("name", "text", "mode"),
    [("own.jsonl", JSONL, "lines"), ("own.csv", CSV, "lines"), ("own.txt", TEXT, "blocks")],
)
def test_dirty_copies_give_the_prompts_of_the_clean_file(
    tmp_path: Path, name: str, text: str, mode: TextMode, dirt: str
) -> None:
    path = tmp_path / name
    path.write_bytes(DIRT[dirt](text))
    prompts = load_prompts(path, text=mode)
    assert [prompt.prompt for prompt in prompts] == [row["prompt"] for row in ROWS]
    if mode == "lines":
        assert [(prompt.id, prompt.domain) for prompt in prompts] == [("a", "tea"), ("b", "milk")]


def test_marks_of_joined_files_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "joined.jsonl"
    first, second = JSONL.splitlines(keepends=True)
    path.write_bytes(codecs.BOM_UTF8 + first.encode() + codecs.BOM_UTF8 + second.encode())
    assert [prompt.id for prompt in load_prompts(path)] == ["a", "b"]


def test_other_unicode_line_ends_do_not_cut_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"id": 1, "prompt": "one\u2028two\u0085three"}\n', encoding="utf-8", newline="\n")
    assert load_prompts(path)[0].prompt == "one\u2028two\u0085three"


def test_json_list_without_ids_is_numbered_and_unlabelled(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text(json.dumps([{"prompt": "One"}, {"prompt": "Two", "id": 7}]))
    prompts = load_prompts(path)
    assert [(p.id, p.domain, p.source) for p in prompts] == [
        ("list/1", "unlabelled", "list.json"),
        ("7", "unlabelled", "list.json"),
    ]


def test_named_columns_in_csv_with_semicolons(tmp_path: Path) -> None:
    path = tmp_path / "survey.csv"
    path.write_text("no;topic;text\n007;tea;Boil it, please\n008;milk;Warm it\n")
    prompts = load_prompts(path, columns=Columns(prompt="text", id="no", domain="topic"))
    assert [(p.id, p.domain, p.prompt) for p in prompts] == [
        ("007", "tea", "Boil it, please"),
        ("008", "milk", "Warm it"),
    ]


def test_tabs_and_parquet(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("id\tprompt\nx\tsay, hello\n")
    assert load_prompts(tmp_path / "a.tsv")[0].prompt == "say, hello"
    table = pa.table({"key": [1, 2], "q": ["One", "Two"], "turns": [["x"], None]})
    pq.write_table(table, tmp_path / "a.parquet")
    prompts = load_prompts(tmp_path / "a.parquet", columns=Columns(prompt="q", id="key"))
    assert [(p.id, p.prompt) for p in prompts] == [("1", "One"), ("2", "Two")]


def test_a_named_column_overrides_the_one_of_a_benchmark(tmp_path: Path) -> None:
    path = tmp_path / "gsm.jsonl"
    path.write_text(json.dumps({"question": "Q?", "answer": "#### 1", "key": "k", "kind": "hard"}) + "\n")
    prompt = load_prompts(path, columns=Columns(id="key", domain="kind"))[0]
    assert (prompt.id, prompt.domain, prompt.prompt) == ("k", "hard", "Q?")


def test_turns_alone_are_enough(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps({"id": "a", "turns": ["One", "Two"]}) + "\n")
    prompt = load_prompts(path)[0]
    assert (prompt.prompt, prompt.turns) == ("One", ("One", "Two"))


def test_text_one_prompt_a_line(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("Boil it\nWarm it\n\n\n")
    assert [(p.id, p.prompt) for p in load_prompts(path)] == [("lines/1", "Boil it"), ("lines/2", "Warm it")]


def test_a_blank_line_among_lines_is_refused_with_the_option_to_set(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("Boil it\n\nWarm it\n")
    with pytest.raises(UsageError, match=r"row 2 \(line 2\): the prompt is empty .*--text blocks"):
        load_prompts(path)
    assert [p.prompt for p in load_prompts(path, text="blocks")] == ["Boil it", "Warm it"]


def test_blocks_know_the_line_in_which_they_start(tmp_path: Path) -> None:
    path = tmp_path / "blocks.txt"
    path.write_text("\n\nBoil it\nand wait\n\n \nWarm it\n")
    assert [(row.number, row.line) for row in read_rows(path, "blocks.txt", "blocks").rows] == [
        (1, 3),
        (2, 7),
    ]


def test_a_folder_is_read_in_order_and_other_files_are_passed_over(tmp_path: Path) -> None:
    for name in ("part10.jsonl", "part9.jsonl", ".hidden.jsonl", "README.md"):
        (tmp_path / name).write_text(json.dumps({"prompt": name}) + "\n")
    prompts = load_prompts(tmp_path)
    assert [(p.id, p.source) for p in prompts] == [
        ("part9/1", "part9.jsonl"),
        ("part10/1", "part10.jsonl"),
    ]


BAD_ROWS = {
    "the prompt is empty": {"id": "x", "prompt": ""},
    "only white space": {"id": "x", "prompt": " \n\t"},
    "the prompt is missing (null)": {"id": "x", "prompt": None},
    "the prompt is a number, not a text": {"id": "x", "prompt": 3},
    "the prompt is a list, not a text": {"id": "x", "prompt": ["One"]},
    "it has no 'prompt'": {"id": "x", "text": "One"},
    "half a character": {"id": "x", "prompt": "\ud83d"},
    "turn 2 is empty": {"id": "x", "prompt": "One", "turns": ["One", ""]},
    "the first of its turns differ": {"id": "x", "prompt": "One", "turns": ["Two", "Three"]},
    "'turns' is not a list": {"id": "x", "prompt": "One", "turns": "One"},
    "its id is empty or no plain value": {"id": ["x"], "prompt": "One"},
    "its domain is a number": {"id": "x", "prompt": "One", "domain": 3},
    "'all' cannot be a domain": {"id": "x", "prompt": "One", "domain": "all"},
    "'a,b' cannot be a domain": {"id": "x", "prompt": "One", "domain": "a,b"},
    "found a list": ["One"],
}


@pytest.mark.parametrize("reason", BAD_ROWS)
def test_a_bad_row_is_named_with_its_reason(tmp_path: Path, reason: str) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(
        json.dumps({"id": "good", "prompt": "Fine"}) + "\n\n" + json.dumps(BAD_ROWS[reason]) + "\n"
    )
    with pytest.raises(UsageError) as caught:
        load_prompts(path)
    # the blank line counts as a line, not as a row
    assert str(caught.value).startswith("own.jsonl: row 2 (line 3): ")
    assert reason in str(caught.value)
    prompts, problems = load_prompts(path, strict=False)
    assert [prompt.id for prompt in prompts] == ["good"]
    assert [(problem.row, problem.line) for problem in problems] == [(2, 3)]


def test_broken_json_names_the_line_and_the_lenient_mode_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(
        '{"id": "a", "prompt": "One"}\n{"id": "b", "prompt": "Two"\n{"id": "c", "prompt": "Three"}\n'
    )
    with pytest.raises(UsageError, match=r"row 2 \(line 2\): broken JSON: .* column 28"):
        load_prompts(path)
    prompts, problems = load_prompts(path, strict=False)
    assert [prompt.id for prompt in prompts] == ["a", "c"]
    assert [problem.line for problem in problems] == [2]
    path = tmp_path / "list.json"
    path.write_text('[\n{"prompt": "One"},\n{"prompt": }\n]')
    with pytest.raises(UsageError, match=r"list.json: line 3: broken JSON"):
        load_prompts(path)


def test_duplicate_ids_name_the_id_and_both_rows(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(
        '{"id": 1, "prompt": "One"}\n{"id": 2, "prompt": "Two"}\n{"id": "1", "prompt": "Three"}\n'
    )
    with pytest.raises(UsageError, match=r"row 3 \(line 3\): the id '1' stands already in row 1 \(line 1\)"):
        load_prompts(path)
    prompts, problems = load_prompts(path, strict=False)
    assert [prompt.prompt for prompt in prompts] == ["One", "Two"]
    assert problems[0].prompt_id == "1"
    (tmp_path / "second.jsonl").write_text('{"id": 2, "prompt": "Two"}\n')
    path.write_text('{"id": 2, "prompt": "Two"}\n')
    with pytest.raises(UsageError, match=r"second.jsonl: row 1 .*row 1 \(line 1\) of own.jsonl"):
        load_prompts(tmp_path)


def test_several_problems_are_counted_and_ordered(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"id": 1, "prompt": ""}\n{\n{"id": 2, "prompt": "Two"}\n')
    with pytest.raises(
        UsageError, match=r"row 1 .*the prompt is empty \(and 1 more problems: acceptlab prompts"
    ):
        load_prompts(path)
    _, problems = load_prompts(path, strict=False)
    assert [problem.row for problem in problems] == [1, 2]


CSV_FAULTS = {
    "3 cells under 2 columns": "id,prompt\na,One\nb,Two,Three\n",
    "broken CSV": 'id,prompt\na,One\nb,"Two" and\n',
    "the prompt is empty": "id,prompt\na,One\nb,\n",
}


@pytest.mark.parametrize("reason", CSV_FAULTS)
def test_csv_faults_name_row_and_line(tmp_path: Path, reason: str) -> None:
    path = tmp_path / "own.csv"
    path.write_text(CSV_FAULTS[reason])
    with pytest.raises(UsageError, match=rf"own.csv: row 2 \(line 3\): {reason}"):
        load_prompts(path)


def test_csv_rows_of_several_lines_keep_the_line_count(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text('prompt\n"One\nmore"\n\nThree\n')
    _, problems = load_prompts(path, strict=False)
    assert [(problem.row, problem.line) for problem in problems] == [(2, 4)]
    path.write_text("prompt,prompt\nOne,Two\n")
    with pytest.raises(UsageError, match="two columns bear the same name"):
        load_prompts(path)


@pytest.mark.parametrize("name", ["e.jsonl", "e.json", "e.csv", "e.txt", "e.jsonl.gz"])
@pytest.mark.parametrize("content", ["", "\n\n", "\ufeff\n"])
def test_empty_files_are_refused_in_either_mode(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    data = content.encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    with pytest.raises(UsageError, match=f"{name}: the file is empty"):
        load_prompts(path)
    with pytest.raises(UsageError, match=f"{name}: the file is empty"):
        load_prompts(path, strict=False)


def test_files_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    (tmp_path / "page.jsonl").write_text("\n<!DOCTYPE html>\n<html></html>")
    with pytest.raises(UsageError, match="is a web page"):
        load_prompts(tmp_path / "page.jsonl")
    (tmp_path / "latin.txt").write_bytes("One\nTwo caf\xe9\n".encode("latin-1"))
    with pytest.raises(UsageError, match=r"latin.txt: line 2: not valid UTF-8"):
        load_prompts(tmp_path / "latin.txt")
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(JSONL.encode())[:-9])
    with pytest.raises(UsageError, match="cut off or broken gzip"):
        load_prompts(tmp_path / "cut.jsonl.gz")
    for content in (b"PAR1 nothing", b"nothing"):
        (tmp_path / "bad.parquet").write_bytes(content)
        with pytest.raises(UsageError, match=r"bad.parquet' is (a broken|not a) Parquet file"):
            load_prompts(tmp_path / "bad.parquet")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="holds no prompt file"):
        load_prompts(tmp_path / "folder")


def test_columns_that_are_not_there_are_named(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(JSONL)
    for option in ("prompt", "id", "domain"):
        columns = Columns(**{option: "txt"})
        with pytest.raises(UsageError, match=rf"no column 'txt' .*id, domain, prompt.*--{option}-column"):
            load_prompts(path, columns=columns)


def test_problems_print_as_one_sentence() -> None:
    assert str(Problem("f.txt", None, None, "it is empty")) == "f.txt: it is empty"
    assert str(Problem("f.txt", 2, None, "no text")) == "f.txt: row 2: no text"
    assert str(Problem("f.txt", None, 4, "no text")) == "f.txt: line 4: no text"
