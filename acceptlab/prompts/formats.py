"""Benchmark files as they ship: how each is recognised by its columns, and how a row of it becomes a prompt.

A benchmark's own words are kept. A neutral instruction is put around them only where the benchmark ships bare
content that nobody would send to a chat model as it is: `Benchmark.wrapping` states it, `prompts list
--formats` prints it, and every prompt of a benchmark gets the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acceptlab.prompts.files import stem

Values = Mapping[str, Any]


class BadRowError(Exception):
    """A row that cannot become a prompt; the message is the reason."""


@dataclass(frozen=True)
class Place:
    """Where a row stands: name of the file, number of the row from 1, whether it is the file's only one."""

    name: str
    number: int
    is_alone: bool

    def id(self, prefix: str) -> str:
        """An id for a row that has none: prefix, file without its ending, row number."""
        return f"{prefix}/{stem(self.name)}/{self.number}"


@dataclass(frozen=True)
class Content:
    """What a row holds, not validated yet: ids may be any scalar, texts may be anything at all."""

    id: Any
    domain: Any
    turns: Sequence[Any]
    reference: Any = None


@dataclass(frozen=True)
class Benchmark:
    """One benchmark file format.

    Attributes:
        name: As printed, and the start of the ids where the file has none of its own.
        file: The file that its authors ship.
        columns: The columns by which it is recognised, in words.
        domain: The domain of its prompts, in words where it depends on the row.
        wrapping: What is put around the content, or `none`.
        fits: Whether a row looks like this format.
        convert: Row values and their place to content; raises `BadRowError`.
    """

    name: str
    file: str
    columns: str
    domain: str
    wrapping: str
    fits: Callable[[Values], bool]
    convert: Callable[[Values, Place], Content]


def detect(rows: Sequence[Values]) -> Benchmark | None:
    """The format of a file, judged by the first row that looks like any; None for files of users.

    MT-Bench and Spec-Bench share their columns: a file with a category of Spec-Bench's own is Spec-Bench.
    """
    for values in rows:
        for benchmark in BENCHMARKS:
            if benchmark.fits(values):
                if benchmark is MT_BENCH and any(row.get("category") in _SPEC_BENCH_OWN for row in rows):
                    return SPEC_BENCH
                return benchmark
    return None


def _has(*names: str) -> Callable[[Values], bool]:
    return lambda values: all(name in values for name in names)


def _need(values: Values, name: str) -> Any:
    if name not in values:
        raise BadRowError(f"it has no '{name}'")
    return values[name]


def _text(values: Values, name: str) -> str:
    """A text that becomes part of a longer one, whose check would not see that it is empty."""
    value = _need(values, name)
    if value is not None and not isinstance(value, str):
        raise BadRowError(f"'{name}' is not a text")
    if not value or not value.strip():
        raise BadRowError(f"'{name}' is empty")
    return value


def _humaneval(values: Values, place: Place) -> Content:
    code = _text(values, "prompt").strip("\n")
    prompt = f"Complete the following Python function.\n\n```python\n{code}\n```"
    return Content(_need(values, "task_id"), "code", (prompt,), values.get("canonical_solution"))


def _mbpp(values: Values, place: Place) -> Content:
    tests = _need(values, "test_list")
    if not isinstance(tests, (list, tuple)) or not all(isinstance(test, str) for test in tests):
        raise BadRowError("'test_list' is not a list of texts")
    task = _text(values, "text" if "text" in values else "prompt")
    checks = "\n".join(test.strip() for test in tests)
    prompt = f"{task}\n\nThe code should pass these tests:\n\n```python\n{checks}\n```" if checks else task
    return Content(f"mbpp/{_need(values, 'task_id')}", "code", (prompt,), values.get("code"))


def _gsm8k(values: Values, place: Place) -> Content:
    return Content(place.id("gsm8k"), "math", (_need(values, "question"),), values.get("answer"))


def _math(values: Values, place: Place) -> Content:
    unique = values.get("unique_id")
    # the original ships one problem a file, named by folder and number; in lists the rows are counted
    own = stem(str(unique)) if unique else stem(place.name)
    id_ = f"math/{own}" if unique or place.is_alone else place.id("math")
    return Content(id_, "math", (_need(values, "problem"),), values.get("solution"))


def _bbh(values: Values, place: Place) -> Content:
    text = _text(values, "input")
    if text.rstrip().endswith((" is", " =")):
        text = f"Evaluate this expression.\n\n{text}"
    return Content(place.id("bbh"), "logic", (text,), values.get("target"))


def _logiqa(values: Values, place: Place) -> Content:
    options = _need(values, "options")
    if not isinstance(options, (list, tuple)) or not options:
        raise BadRowError("'options' is not a list of texts")
    context = _text(values, "context" if "context" in values else "text")
    question = _text(values, "question" if "question" in values else "query")
    labelled = [
        str(option) if str(option).startswith(f"{letter}.") else f"{letter}. {option}"
        for letter, option in zip("ABCDEFGH", options, strict=False)
    ]
    prompt = "\n".join([context, "", question, *labelled])
    own = values.get("id")
    id_ = place.id("logiqa") if own is None else f"logiqa/{own}"
    answer = values.get("answer", values.get("correct_option"))
    if isinstance(answer, int) and 0 <= answer < len(options):
        answer = "abcdefgh"[answer]
    return Content(id_, "logic", (prompt,), answer)


def _turns(values: Values) -> Sequence[Any]:
    turns = _need(values, "turns")
    if not isinstance(turns, (list, tuple)) or not turns:
        raise BadRowError("'turns' is not a list of texts")
    return turns


def _first_reference(values: Values) -> Any:
    reference = values.get("reference")
    return reference[0] if isinstance(reference, list) and reference else None


def _mt_bench(values: Values, place: Place) -> Content:
    return Content(
        f"mtbench/{_need(values, 'question_id')}", "chat", _turns(values), _first_reference(values)
    )


def _spec_bench(values: Values, place: Place) -> Content:
    domain = _SPEC_BENCH_DOMAINS.get(str(values.get("category")), "chat")
    return Content(
        f"specbench/{_need(values, 'question_id')}", domain, _turns(values), _first_reference(values)
    )


def _alpaca_eval(values: Values, place: Place) -> Content:
    return Content(
        f"alpacaeval/{place.number}", "chat", (_need(values, "instruction"),), values.get("output")
    )


_SPEC_BENCH_OWN = frozenset({"translation", "summarization", "qa", "math_reasoning", "rag"})
_SPEC_BENCH_DOMAINS = {"coding": "code", "math": "math", "math_reasoning": "math", "reasoning": "logic"}

HUMANEVAL = Benchmark(
    "HumanEval",
    "HumanEval.jsonl.gz",
    "task_id, prompt, entry_point",
    "code",
    "'Complete the following Python function.', then the prompt in a Python code block",
    _has("task_id", "prompt", "entry_point"),
    _humaneval,
)
MBPP = Benchmark(
    "MBPP",
    "mbpp.jsonl, sanitized-mbpp.json",
    "task_id, text or prompt, test_list",
    "code",
    "the text, then 'The code should pass these tests:' and the tests in a Python code block",
    lambda values: "test_list" in values and "task_id" in values and ("text" in values or "prompt" in values),
    _mbpp,
)
GSM8K = Benchmark(
    "GSM8K",
    "train.jsonl, test.jsonl",
    "question, answer with ####",
    "math",
    "none",
    lambda values: "question" in values and "####" in str(values.get("answer")),
    _gsm8k,
)
MATH = Benchmark(
    "MATH",
    "MATH/test/algebra/1.json and so on (give the folder), or JSON lines",
    "problem, solution",
    "math",
    "none",
    _has("problem", "solution"),
    _math,
)
BBH = Benchmark(
    "BBH",
    "bbh/navigate.json and so on (a file or the folder)",
    "examples of input, target",
    "logic",
    "'Evaluate this expression.' before inputs that end in 'is' or '='; else none",
    lambda values: set(values) == {"input", "target"},
    _bbh,
)
LOGIQA = Benchmark(
    "LogiQA",
    "Train.txt, Eval.txt, Test.txt (blocks of lines), LogiQA 2.0 (JSON lines)",
    "context or text, question or query, options",
    "logic",
    "none: context, question and lettered options, one under the other",
    lambda values: (
        "options" in values
        and ("context" in values or "text" in values)
        and ("question" in values or "query" in values)
    ),
    _logiqa,
)
MT_BENCH = Benchmark(
    "MT-Bench", "question.jsonl", "question_id, category, turns", "chat", "none",
    _has("question_id", "category", "turns"), _mt_bench,
)  # fmt: skip
SPEC_BENCH = Benchmark(
    "Spec-Bench",
    "question.jsonl",
    "question_id, category (translation, rag, ... among them), turns",
    "coding: code; math, math_reasoning: math; reasoning: logic; all other categories: chat",
    "none",
    _has("question_id", "category", "turns"),
    _spec_bench,
)
ALPACA_EVAL = Benchmark(
    "AlpacaEval",
    "alpaca_eval.json",
    "instruction, with generator or dataset",
    "chat",
    "none",
    lambda values: "instruction" in values and ("generator" in values or "dataset" in values),
    _alpaca_eval,
)
BENCHMARKS = (HUMANEVAL, MBPP, GSM8K, MATH, BBH, LOGIQA, MT_BENCH, SPEC_BENCH, ALPACA_EVAL)
"""All formats, in the order in which they are tried."""
