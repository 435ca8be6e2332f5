"""`acceptlab certify`: the certificate calculator. Parses, calls `theory`, prints; no arithmetic here."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acceptlab.cli.output import FormatOption, OutputFormat, OutputOption, emit
from acceptlab.errors import UsageError
from acceptlab.rules import Rule, parse_rule

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

_SUM_TOLERANCE = 1e-6
"""Probabilities typed by hand may miss 1 by this much."""

_EXACT_TOLERANCE = 1e-12
"""Nearer than this to 1 they are left as they are: scaling would break ties and equalities meant by the
user.
"""


class TiesChoice(StrEnum):
    """What the rule does with a token exactly as probable as the last accepted one."""

    LEVEL = "level"
    IDENTITY = "identity"


def command(
    *,
    probs: Annotated[
        str | None,
        typer.Option("--probs", help="Target probabilities by token id; without it, JSON lines."),
    ] = None,
    rule: Annotated[
        str,
        typer.Option(
            "--rule", help="greedy, additive:EPS, ratio:GAMMA, top:M, typical:eps=E,delta=D or tree:M."
        ),
    ] = "greedy",
    ties: Annotated[
        TiesChoice,
        typer.Option(
            "--ties",
            help="A tied token: 'level' accepts it, 'identity' rejects it, as engines do that compare ids. "
            "Matters to greedy and top:M only.",
        ),
    ] = TiesChoice.IDENTITY,
    draft_probs: Annotated[
        str | None, typer.Option("--draft-probs", help="Draft probabilities to test against the thresholds.")
    ] = None,
    fmt: FormatOption = OutputFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """How far may a draft be from this target before the rule can reject its top token?

    Prints, for both divergences, the exact threshold, the bound from the margin alone and the nearest draft
    that is rejected. A divergence below the threshold proves acceptance.

    Example:  acceptlab certify --probs 0.5,0.3,0.2 --rule greedy --draft-probs 0.45,0.35,0.2

    Without --probs, every line on stdin is one question, every line on stdout its answer:

    echo '{"probs": [0.5, 0.3, 0.2], "rule": "tree:2", "ties": "identity"}' | acceptlab certify
    """
    if probs is None:
        if draft_probs is not None:
            raise UsageError("--draft-probs needs a target: add --probs, for example --probs 0.5,0.3,0.2")
        if output is not None:
            raise UsageError(
                f"--output '{output}' needs --probs: answers to JSON lines go to stdout, use > FILE"
            )
        if sys.stdin.isatty():
            print('one question a line, such as {"probs": [0.5, 0.3, 0.2]}; Ctrl-D ends', file=sys.stderr)
        for line in _answers(sys.stdin.buffer, rule, ties):
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
        return
    target = _distribution(_numbers(probs, "--probs"), "--probs")
    draft = None
    if draft_probs is not None:
        draft = _distribution(_numbers(draft_probs, "--draft-probs"), "--draft-probs")
        if len(draft) != len(target):
            raise UsageError(
                f"--draft-probs has {len(draft)} numbers and --probs {len(target)}: give one for each token"
            )
    frame = _table(target, draft, parse_rule(rule, to_prove=True), ties)
    emit(frame, fmt=fmt, output=output, title=f"Certificates for {rule}, {ties} ties", notes=_notes(frame))


def _table(target: np.ndarray, draft: np.ndarray | None, rule: Rule, ties: TiesChoice) -> pd.DataFrame:
    """One row a direction: thresholds, nearest rejecting draft and, for a given draft, its divergence."""
    import pandas as pd

    from acceptlab.theory import divergences
    from acceptlab.theory.certificates import Direction, Ties, certificate, is_certified
    from acceptlab.theory.margins import margin_bound

    margins = divergences.margins(target)
    bounds = margin_bound(margins.margin, rule, margins.one_minus_margin, vocab_size=len(target))
    rows = []
    for direction, bound in zip(Direction, bounds, strict=True):
        found = certificate(target[None, :], rule, direction, Ties(ties.value))
        threshold = float(found.threshold[0])
        is_forward = direction is Direction.FORWARD
        row: dict[str, Any] = {
            "divergence": "KL(target || draft)" if is_forward else "KL(draft || target)",
            "threshold_nats": threshold,
            "margin_only_nats": float(bound),
            "nearest_rejecting_draft": found.nearest_draft[0].tolist() if math.isfinite(threshold) else None,
            "rejected_token_id": int(found.token_index[0]) if math.isfinite(threshold) else None,
        }
        if draft is not None:
            measure = divergences.kl_target_draft if is_forward else divergences.kl_draft_target
            row["draft_nats"] = float(measure(target, draft))
            row["certified"] = bool(is_certified(row["draft_nats"], found.threshold)[0])
        rows.append(row)
    frame = pd.DataFrame(rows)
    return frame.astype({"rejected_token_id": "Int64"})


def _notes(frame: pd.DataFrame) -> list[str]:
    notes = [
        "a divergence strictly below a threshold proves acceptance; margin_only is never above the exact one"
    ]
    if frame["threshold_nats"].map(math.isinf).any():
        notes.append("inf: no draft of finite divergence can be rejected, so every finite one is certified")
    return notes


def _answers(lines: Iterable[bytes], rule: str, ties: TiesChoice) -> Iterator[str]:
    """One JSON answer a JSON question; lines of white space alone are passed over."""
    from acceptlab.theory.certificates import Ties, thresholds

    for number, raw in enumerate(lines, start=1):
        try:
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            if not text:
                continue
            target, line_rule, line_ties = _question(text, rule, ties)
            forward, reverse = thresholds(target[None, :], [line_rule], Ties(line_ties.value))
        except UnicodeDecodeError:
            raise UsageError(f"line {number} of stdin is not UTF-8: write plain JSON") from None
        except UsageError as error:
            raise UsageError(f"line {number} of stdin: {error}") from None
        yield json.dumps(
            {"threshold_forward": _json_number(forward), "threshold_reverse": _json_number(reverse)}
        )


def _question(text: str, rule: str, ties: TiesChoice) -> tuple[np.ndarray, Rule, TiesChoice]:
    """Read one question; `rule` and `ties` hold where it names none."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    probs = content.get("probs") if isinstance(content, dict) else None
    if not isinstance(probs, list) or not all(type(prob) in (int, float) for prob in probs):
        raise UsageError('not a question: write {"probs": [0.5, 0.3, 0.2], "rule": "greedy"}')
    assert isinstance(content, dict)
    named_rule, named_ties = content.get("rule", rule), content.get("ties", ties)
    if not isinstance(named_rule, str):
        raise UsageError(f'the rule {json.dumps(named_rule)} is not text: write for example "greedy"')
    if named_ties not in tuple(TiesChoice):
        raise UsageError(f'ties {json.dumps(named_ties)}: write "level" or "identity"')
    return _distribution(probs, "probs"), parse_rule(named_rule, to_prove=True), TiesChoice(named_ties)


def _numbers(text: str, name: str) -> list[float]:
    numbers = []
    for part in text.split(","):
        try:
            numbers.append(float(part))
        except ValueError:
            raise UsageError(f"{name}: '{part.strip()}' is not a number, write like 0.5,0.3,0.2") from None
    return numbers


def _distribution(numbers: Sequence[float], name: str) -> np.ndarray:
    """Check a distribution; scale it only where it misses 1 by more than rounding.

    Raises:
        UsageError: empty, negative or not finite, or a sum that is not 1 within 1e-6.
    """
    import numpy as np

    if not numbers:
        raise UsageError(f"{name} is empty: give at least one probability")
    for index, number in enumerate(numbers):
        if not 0.0 <= number <= 1.0 + _SUM_TOLERANCE:
            raise UsageError(
                f"{name}: probability {str(number)[:20]} of token {index} is not a number from 0 to 1"
            )
    total = math.fsum(numbers)
    if abs(total - 1.0) > _SUM_TOLERANCE:
        raise UsageError(f"{name} sums to {total:.8g}: divide by the sum, or add what is missing, to make 1")
    array = np.array(numbers, dtype=np.float64)
    return array / total if abs(total - 1.0) > _EXACT_TOLERANCE else array


def _json_number(values: np.ndarray) -> float | str:
    value = float(values[0, 0])
    return "inf" if math.isinf(value) else value
