"""Rows of the audit's table, and the verdict of each. No model, no drawing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import pandas as pd

from acceptlab.audit.repeat import Case, Repeated, fewest_catches, most_rejections
from acceptlab.audit.suite import TOLERANCE, ExactCheck
from acceptlab.audit.uniformity import ALPHA, Outcome, detectable_tv, holm

TIE = 1e-5
"""A probability margin below which two correct float32 passes may choose differently."""


@dataclass(frozen=True)
class Row:
    """One check. Undefined numbers are None."""

    level: str
    what: str
    test: str
    n: int
    """Lists or texts enumerated, tokens, or prompts; for repeated draws the tokens a seed."""
    statistic: float
    dof: int | None = None
    p_value: float | None = None
    p_holm: float | None = None
    threshold: float | None = None
    detects_tv: float | None = None
    """Smallest total-variation fault that the test catches with 90% power, at the level it is judged at."""
    verdict: str = ""

    @property
    def is_good(self) -> bool:
        """Whether the check went as it should."""
        return self.verdict in {"pass", "caught"}


def to_frame(rows: Sequence[Row]) -> pd.DataFrame:
    """The table."""
    frame = pd.DataFrame([asdict(row) for row in rows])
    return frame.astype({"dof": "Int64", "p_value": "float64", "p_holm": "float64", "detects_tv": "float64"})


_LEVELS = {"context": "a", "tree": "b", "text": "b"}
_NAMES = {"context": "one context", "tree": "one step on trees to depth 3", "text": "whole decoding"}


def exact_rows(checks: Iterable[ExactCheck]) -> list[Row]:
    """One row a verifier and level, with the worst of its cases; every control has to differ."""
    groups: dict[tuple[str, str, bool], list[ExactCheck]] = {}
    for check in checks:
        groups.setdefault((check.level, check.verifier, check.is_right), []).append(check)
    rows = []
    for (level, verifier, is_right), members in groups.items():
        good = all(check.passed for check in members)
        rows.append(
            Row(
                level=_LEVELS[level] if is_right else "d",
                what=f"{verifier}, {_NAMES[level]}, vocabularies to {max(check.vocab for check in members)}",
                test="largest difference",
                n=sum(check.n_cases for check in members),
                statistic=max(check.worst for check in members),
                threshold=TOLERANCE,
                verdict=("pass" if good else "FAIL") if is_right else ("caught" if good else "MISSED"),
            )
        )
    return rows


def judged(named: Sequence[tuple[str, Outcome, bool]]) -> list[Row]:
    """Rows of p-values that are judged together: Holm's correction over all of them.

    Args:
        named: what was tested, the outcome, and whether it is a chi-square over bins, whose power is known.
    """
    adjusted = holm([outcome.p_value for _, outcome, _ in named])
    return [
        Row(
            level="c",
            what=what,
            test=outcome.name,
            n=outcome.n,
            statistic=outcome.statistic,
            dof=outcome.dof,
            p_value=outcome.p_value,
            p_holm=corrected,
            threshold=ALPHA,
            detects_tv=detectable_tv(outcome.n, alpha=ALPHA / len(named)) if has_power else None,
            verdict="pass" if corrected > ALPHA else "FAIL",
        )
        for (what, outcome, has_power), corrected in zip(named, adjusted, strict=True)
    ]


def identity_rows(identity: pd.DataFrame, dtype: str) -> list[Row]:
    """Greedy identity: prompts with equal texts; the first divergence where there is one.

    In float32 a text may part only at a tie. In lower precision the smallest margin is shown, and decides nothing.
    """
    n = len(identity)
    n_equal = int(identity["is_identical"].sum())
    total = Row(
        "c", f"greedy text against the library's, {dtype}", "identical prompts", n, n_equal, threshold=n
    )
    if n_equal == n:
        return [replace(total, verdict="pass")]
    apart = identity.loc[~identity["is_identical"].astype(bool)]
    margins = apart["margin"].to_numpy(dtype=np.float64)
    widest = apart.iloc[int(np.nanargmax(margins))]
    margin = float(np.nanmax(margins))
    good = dtype != "float32" or margin <= TIE
    where = f"widest margin at a divergence: {widest['prompt_id']}, token {int(widest['first_divergence'])}"
    verdict = "pass" if good else "FAIL"
    return [
        replace(total, verdict=verdict),
        Row("c", where, "margin", len(apart), margin, threshold=TIE, verdict=verdict),
    ]


def repeat_row(case: Case, repeated: Repeated) -> Row:
    """How many seeds reject a verifier; p_value is the median."""
    n_seeds = len(repeated.p_values)
    n_rejected = int((np.array(repeated.p_values) <= ALPHA).sum())
    if case.is_right:
        limit = most_rejections(n_seeds)
        verdict = "pass" if n_rejected <= limit else "FAIL"
    else:
        limit = fewest_catches(n_seeds)
        verdict = "caught" if n_rejected >= limit else "MISSED"
    return Row(
        level="c" if case.is_right else "d",
        what=f"{case.label}, real contexts",
        test=f"rejected of {n_seeds} seeds",
        n=repeated.n_tokens,
        statistic=n_rejected,
        p_value=float(np.median(repeated.p_values)),
        threshold=limit,
        detects_tv=detectable_tv(repeated.n_tokens),
        verdict=verdict,
    )
