"""`acceptlab certify`: the table, JSON lines in and out, and refusals that name the fault."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from acceptlab.cli import certify
from acceptlab.errors import UsageError

app = typer.Typer()
app.command("certify")(certify.command)


def run(*arguments: str, stdin: str | bytes = b"") -> Any:
    return CliRunner().invoke(app, list(arguments), input=stdin)


def refusal(*arguments: str, stdin: str | bytes = b"") -> str:
    result = run(*arguments, stdin=stdin)
    assert isinstance(result.exception, UsageError), result.exception
    assert result.exception.exit_code == 2
    return str(result.exception)


def test_table_has_both_directions_and_judges_a_draft() -> None:
    arguments = ("--probs", "0.5,0.3,0.15,0.05", "--draft-probs", "0.45,0.35,0.15,0.05", "--format", "json")
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    forward, reverse = json.loads(result.stdout)
    assert forward["divergence"] == "KL(target || draft)"
    assert reverse["divergence"] == "KL(draft || target)"
    assert forward["threshold_nats"] == pytest.approx(0.025267153921570598, rel=1e-12, abs=0.0)
    assert reverse["threshold_nats"] == pytest.approx(0.025731566143230092, rel=1e-12, abs=0.0)
    assert forward["margin_only_nats"] == pytest.approx(0.020135513550688874, rel=1e-12, abs=0.0)
    assert forward["nearest_rejecting_draft"] == pytest.approx([0.4, 0.4, 0.15, 0.05], rel=1e-12, abs=0.0)
    assert forward["rejected_token_id"] == 1
    assert forward["certified"] is reverse["certified"] is True
    assert forward["draft_nats"] == pytest.approx(
        0.5 * math.log(0.5 / 0.45) + 0.3 * math.log(0.3 / 0.35), rel=1e-12, abs=0.0
    )


def test_a_draft_beyond_the_threshold_is_not_certified() -> None:
    result = run("--probs", "0.5,0.3,0.2", "--draft-probs", "0.1,0.1,0.8", "--format", "csv")
    assert result.exit_code == 0
    assert [line.split(",")[-1] for line in result.stdout.splitlines()] == ["certified", "False", "False"]


def test_infinite_thresholds_are_explained() -> None:
    result = run("--probs", "0.25,0.25,0.25,0.25", "--ties", "level")
    assert result.stdout.count("inf") == 2  # both thresholds; the margin bounds are 0
    assert "no draft of finite divergence can be rejected" in result.stderr


def test_json_lines_one_answer_a_question() -> None:
    questions = [
        {"probs": [0.4, 0.4, 0.2], "rule": "greedy", "ties": "level"},
        {"probs": [0.4, 0.4, 0.2], "rule": "greedy", "ties": "identity"},
        {"probs": [1, 0, 0, 0], "rule": "tree:3", "ties": "identity"},
        {"probs": [0.5, 0.3, 0.2], "rule": "tree:4", "ties": "level"},
    ]
    stdin = "\ufeff" + "\n".join(map(json.dumps, questions)) + "\n\n"
    result = run(stdin=stdin)
    assert result.exit_code == 0, result.output
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert answers[0]["threshold_forward"] == pytest.approx(0.04369212068196556, rel=1e-12, abs=0.0)
    assert answers[0]["threshold_reverse"] == pytest.approx(0.04872750339269381, rel=1e-12, abs=0.0)
    assert answers[1] == {"threshold_forward": 0.0, "threshold_reverse": 0.0}
    assert answers[2]["threshold_forward"] == pytest.approx(1.3862943611198906, rel=1e-12, abs=0.0)
    assert answers[2]["threshold_reverse"] == "inf"
    assert answers[3] == {"threshold_forward": "inf", "threshold_reverse": "inf"}


def test_options_hold_where_a_line_names_nothing() -> None:
    line = '{"probs": [0.4, 0.4, 0.2]}\n'
    identity, level = (json.loads(run("--ties", ties, stdin=line).stdout) for ties in ("identity", "level"))
    assert identity["threshold_forward"] == 0.0
    assert level["threshold_forward"] > 0.0
    assert json.loads(run("--rule", "tree:2", stdin=line).stdout)["threshold_forward"] > 0.03


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not a question"),
        ("[0.5, 0.5]", "not a question"),
        ('{"probs": "0.5,0.5"}', "not a question"),
        ('{"probs": [true, 0.0]}', "not a question"),
        ('{"probs": []}', "probs is empty"),
        ('{"probs": [0.5, 0.4]}', "sums to 0.9"),
        ('{"probs": [1.5, -0.5]}', "probability 1.5 of token 0"),
        ('{"probs": [0.75, 0.5, -0.25]}', "probability -0.25 of token 2"),
        ('{"probs": [NaN, 1.0]}', "probability nan of token 0"),
        ('{"probs": [1.0], "rule": "nucleus"}', "unknown rule 'nucleus': use one of greedy, additive:EPS, "),
        ('{"probs": [1.0], "rule": "Greedy"}', "typical:eps=E,delta=D or tree:M"),
        ('{"probs": [1.0], "rule": 3}', "the rule 3 is not text"),
        ('{"probs": [1.0], "rule": "onehot"}', "'onehot' has no certificate"),
        ('{"probs": [1.0], "ties": "fair"}', 'ties "fair"'),
        ('{"probs": [1.0], "ties": ["level"]}', 'ties ["level"]'),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_a_bad_line_is_named(line: str | bytes, message: str) -> None:
    raw = line if isinstance(line, bytes) else line.encode()
    text = refusal(stdin=b'{"probs": [1.0]}\n' + raw + b"\n")
    assert text.startswith("line 2 of stdin")
    assert message in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--probs", "0.5,0.3"), "--probs sums to 0.8: divide by the sum"),
        (("--probs", "0.5,x"), "'x' is not a number"),
        (("--probs", "0.5,,0.5"), "'' is not a number"),
        (("--probs", "1.2,-0.2"), "of token 0 is not a number from 0 to 1"),
        (("--probs", "0.5,0.5", "--draft-probs", "1"), "--draft-probs has 1 numbers and --probs 2"),
        (("--probs", "0.5,0.5", "--draft-probs", "0.6,0.6"), "--draft-probs sums to 1.2"),
        (("--draft-probs", "0.5,0.5"), "add --probs"),
        (("--output", "x.csv"), "needs --probs"),
        (("--probs", "1", "--rule", "rejection"), "has no certificate"),
    ],
)
def test_bad_options_are_refused(arguments: tuple[str, ...], message: str) -> None:
    assert message in refusal(*arguments)


def test_nearly_normalised_probabilities_are_scaled_and_exact_ones_left_alone() -> None:
    scaled = certify._distribution([0.3333333] * 3, "probs")
    assert scaled.sum() == pytest.approx(1.0, abs=1e-15)
    rounded = [0.7, 0.1, 0.2 - 1e-14]
    assert certify._distribution(rounded, "probs").tolist() == rounded
