"""Every benchmark file loads as it ships. Shapes are the real ones, contents are invented."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from acceptlab.errors import UsageError
from acceptlab.prompts import Prompt, load_prompts
from acceptlab.prompts.formats import BENCHMARKS


def jsonl(path: Path, rows: Sequence[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def only(prompts: list[Prompt]) -> Prompt:
    assert len(prompts) == 1
    return prompts[0]


HUMANEVAL_ROW = {
    "task_id": "HumanEval/7",
    "prompt": '\n\ndef brew(cups: int) -> int:\n    """ Spoons.\n    >>> brew(2)\n    3\n    """\n',
    "entry_point": "brew",
    "canonical_solution": "    return cups + 1\n",
    "test": "def check(candidate):\n    assert candidate(2) == 3\n",
}


def test_humaneval_as_gzipped_lines(tmp_path: Path) -> None:
    path = tmp_path / "HumanEval.jsonl.gz"
    path.write_bytes(gzip.compress((json.dumps(HUMANEVAL_ROW) + "\n").encode()))
    prompt = only(load_prompts(path))
    assert (prompt.id, prompt.domain, prompt.source) == ("HumanEval/7", "code", "HumanEval.jsonl.gz")
    start = "Complete the following Python function.\n\n```python\ndef brew(cups: int) -> int:\n"
    assert prompt.prompt.startswith(start)
    assert prompt.prompt.endswith('    """\n```')
    assert prompt.reference == "    return cups + 1\n"


def test_mbpp_lines_and_the_sanitized_list(tmp_path: Path) -> None:
    row = {
        "text": "Write a function to count the spoons.",
        "code": "def spoons(n): \r\n  return n",
        "task_id": 11,
        "test_setup_code": "",
        "test_list": ["assert spoons(2) == 2 ", "assert spoons(0) == 0"],
        "challenge_test_list": [],
    }
    expected = (
        "Write a function to count the spoons.\n\nThe code should pass these tests:\n\n"
        "```python\nassert spoons(2) == 2\nassert spoons(0) == 0\n```"
    )
    prompt = only(load_prompts(jsonl(tmp_path / "mbpp.jsonl", [row])))
    assert (prompt.id, prompt.domain, prompt.prompt) == ("mbpp/11", "code", expected)
    clean = {
        "source_file": "x",
        "task_id": 11,
        "prompt": row["text"],
        "code": row["code"],
        "test_imports": [],
    }
    path = tmp_path / "sanitized-mbpp.json"
    path.write_text(json.dumps([{**clean, "test_list": row["test_list"]}]))
    assert only(load_prompts(path)).prompt == expected


def test_gsm8k_question_as_it_is(tmp_path: Path) -> None:
    rows = [
        {"question": "Ann has 2 pears.  How many has she?", "answer": "She has 2.\n#### 2"},
        {"question": "And Tom?", "answer": "None. #### 0"},
    ]
    prompts = load_prompts(jsonl(tmp_path / "test.jsonl", rows))
    assert [(p.id, p.domain, p.prompt) for p in prompts] == [
        ("gsm8k/test/1", "math", "Ann has 2 pears.  How many has she?"),
        ("gsm8k/test/2", "math", "And Tom?"),
    ]


def test_math_in_folders_of_single_problems_in_natural_order(tmp_path: Path) -> None:
    for number in (10, 2):
        path = tmp_path / "MATH" / "test" / "algebra" / f"{number}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        row = {"problem": f"What is ${number}$?", "level": "Level 1", "type": "Algebra", "solution": "x"}
        path.write_text(json.dumps(row, indent=4))
    prompts = load_prompts(tmp_path / "MATH")
    assert [p.id for p in prompts] == ["math/test/algebra/2", "math/test/algebra/10"]
    assert (prompts[0].domain, prompts[0].prompt) == ("math", "What is $2$?")


def test_math_as_lines_with_and_without_ids(tmp_path: Path) -> None:
    row = {"problem": "Why?", "solution": "So.", "answer": "1", "subject": "Algebra", "level": 2}
    rows = [{**row, "unique_id": "test/algebra/7.json"}, row]
    prompts = load_prompts(jsonl(tmp_path / "test.jsonl", rows))
    assert [p.id for p in prompts] == ["math/test/algebra/7", "math/test/2"]


def test_big_bench_hard_tasks_in_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "bbh"
    folder.mkdir()
    tasks = {"boolean_expressions": "not ( False ) is", "navigate": "Take 2 steps.\nOptions:\n- Yes\n- No"}
    for task, text in tasks.items():
        examples = [{"input": text, "target": "True"}]
        (folder / f"{task}.json").write_text(json.dumps({"canary": "c", "examples": examples}, indent=2))
    prompts = load_prompts(folder)
    assert [(p.id, p.prompt) for p in prompts] == [
        ("bbh/boolean_expressions/1", "Evaluate this expression.\n\nnot ( False ) is"),
        ("bbh/navigate/1", "Take 2 steps.\nOptions:\n- Yes\n- No"),
    ]
    assert {p.domain for p in prompts} == {"logic"}


LOGIQA_TXT = """
c
All kettles whistle.This one does not.
Which of these follows?
A.It is a kettle.
B.It whistles.
C.It is not a kettle.
D.Nothing.

A
No spoon is a fork.
What follows?
A.No fork is a spoon.
B.Some are.
C.All are.
D.Nothing.
"""


def test_logiqa_blocks_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "Eval.txt"
    path.write_text(LOGIQA_TXT)
    prompts = load_prompts(path)
    assert [(p.id, p.domain, p.reference) for p in prompts] == [
        ("logiqa/Eval/1", "logic", "c"),
        ("logiqa/Eval/2", "logic", "a"),
    ]
    assert prompts[0].prompt == (
        "All kettles whistle.This one does not.\n\nWhich of these follows?\n"
        "A.It is a kettle.\nB.It whistles.\nC.It is not a kettle.\nD.Nothing."
    )


def test_a_logiqa_line_that_is_a_single_letter_starts_no_block(tmp_path: Path) -> None:
    path = tmp_path / "Eval.txt"
    path.write_text(LOGIQA_TXT.replace("What follows?", "b"))
    assert load_prompts(path)[1].prompt.startswith("No spoon is a fork.\n\nb\nA.No")


def test_a_short_logiqa_block_is_named(tmp_path: Path) -> None:
    path = tmp_path / "Eval.txt"
    path.write_text(LOGIQA_TXT.replace("C.All are.\n", ""))
    with pytest.raises(UsageError, match=r"row 2 \(line 10\).*7 lines, found 6"):
        load_prompts(path)


def test_logiqa_2_ships_json_lines_in_a_text_file(tmp_path: Path) -> None:
    options = ["It is a kettle.", "It is not.", "Both.", "Neither."]
    row = {"id": 2920, "answer": 1, "text": "All whistle.", "question": "So?", "options": options, "type": {}}
    prompt = only(load_prompts(jsonl(tmp_path / "test.txt", [row])))
    assert (prompt.id, prompt.domain, prompt.reference) == ("logiqa/2920", "logic", "b")
    assert prompt.prompt == "All whistle.\n\nSo?\nA. It is a kettle.\nB. It is not.\nC. Both.\nD. Neither."


def test_mt_bench_keeps_both_turns(tmp_path: Path) -> None:
    rows = [
        {"question_id": 81, "category": "writing", "turns": ["Write a note.", "Shorter."]},
        {
            "question_id": 122,
            "category": "coding",
            "turns": ["Sort.", "Faster."],
            "reference": ["sorted", "x"],
        },
    ]
    first, second = load_prompts(jsonl(tmp_path / "question.jsonl", rows))
    assert (first.id, first.domain, first.turns) == ("mtbench/81", "chat", ("Write a note.", "Shorter."))
    assert (first.prompt, second.domain, second.reference) == ("Write a note.", "chat", "sorted")


def test_spec_bench_takes_the_domain_from_the_category(tmp_path: Path) -> None:
    categories = ["writing", "reasoning", "math", "coding", "translation", "qa", "math_reasoning", "rag"]
    rows = [
        {"question_id": number, "category": category, "turns": [f"Ask {category}."], "reference": []}
        for number, category in enumerate(categories, 1)
    ]
    prompts = load_prompts(jsonl(tmp_path / "question.jsonl", rows))
    expected = ["chat", "logic", "math", "code", "chat", "chat", "math", "chat"]
    assert [prompt.domain for prompt in prompts] == expected
    assert prompts[4].id == "specbench/5"
    assert prompts[0].turns is None


def test_alpaca_eval_list(tmp_path: Path) -> None:
    row = {"instruction": "Name a tea.", "output": "Assam.", "generator": "m", "dataset": "koala"}
    path = tmp_path / "alpaca_eval.json"
    path.write_text(json.dumps([{**row, "datasplit": "eval"}], indent=2))
    prompt = only(load_prompts(path))
    assert (prompt.id, prompt.domain, prompt.prompt) == ("alpacaeval/1", "chat", "Name a tea.")


def test_the_same_columns_in_parquet_are_recognised(tmp_path: Path) -> None:
    path = tmp_path / "test-00000-of-00001.parquet"
    pq.write_table(pa.table({"question": ["How many?"], "answer": ["#### 1"]}), path)
    prompt = only(load_prompts(path))
    assert (prompt.id, prompt.domain) == ("gsm8k/test-00000-of-00001/1", "math")


def test_a_bad_benchmark_row_is_named(tmp_path: Path) -> None:
    rows = [HUMANEVAL_ROW, {**HUMANEVAL_ROW, "task_id": "HumanEval/8", "prompt": " \n"}]
    with pytest.raises(UsageError, match=r"HumanEval.jsonl: row 2 \(line 2\): 'prompt' is empty"):
        load_prompts(jsonl(tmp_path / "HumanEval.jsonl", rows))
    with pytest.raises(UsageError, match=r"row 2 \(line 2\): it has no 'question'"):
        load_prompts(
            jsonl(tmp_path / "t.jsonl", [{"question": "Q?", "answer": "#### 1"}, {"answer": "#### 2"}])
        )


def test_question_and_answer_alone_are_not_taken_for_gsm8k(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "qa.jsonl", [{"question": "Who?", "answer": "Ann"}])
    with pytest.raises(
        UsageError, match=r"columns: question, answer\); name the column with --prompt-column"
    ):
        load_prompts(path)


def test_own_prompts_with_a_domain_are_never_taken_for_a_benchmark(tmp_path: Path) -> None:
    row = {"id": "a", "domain": "tea", "prompt": "Mine.", "question": "Q?", "answer": "#### 1"}
    prompt = only(load_prompts(jsonl(tmp_path / "own.jsonl", [row])))
    assert (prompt.id, prompt.domain, prompt.prompt) == ("a", "tea", "Mine.")


def test_every_format_says_what_it_adds() -> None:
    assert [b.name for b in BENCHMARKS if b.wrapping.startswith("none")] == [
        "GSM8K",
        "MATH",
        "LogiQA",
        "MT-Bench",
        "Spec-Bench",
        "AlpacaEval",
    ]
