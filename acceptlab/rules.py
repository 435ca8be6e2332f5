"""Names and parameters of the verification rules. Parsing only: the arithmetic is in `verify` and `theory`.

Standard library only, so that the collector, the certificates and the analysis share one grammar:
`greedy`, `additive:EPS`, `ratio:GAMMA`, `top:M`, `typical:eps=E,delta=D`, `rejection`, `rejection-iid`, `onehot`,
`block`, and for certificates also `tree:M`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from acceptlab.errors import UsageError


class RuleKind(StrEnum):
    """The family of a rule."""

    GREEDY = "greedy"
    ADDITIVE = "additive"
    RATIO = "ratio"
    TOP = "top"
    TYPICAL = "typical"
    REJECTION = "rejection"
    REJECTION_IID = "rejection-iid"
    ONEHOT = "onehot"
    BLOCK = "block"
    TREE = "tree"


ARGMAX_KINDS = frozenset({RuleKind.GREEDY, RuleKind.ADDITIVE, RuleKind.RATIO, RuleKind.TOP, RuleKind.TYPICAL})
"""Rules that decode by the target's argmax: greedy and its relaxations."""

LOSSLESS_KINDS = frozenset({RuleKind.REJECTION, RuleKind.REJECTION_IID, RuleKind.ONEHOT, RuleKind.BLOCK})
"""Rules whose output follows the target's sampling distribution exactly."""

RANKED_KINDS = ARGMAX_KINDS | {RuleKind.ONEHOT}
"""Rules that take the draft's ranked tokens; the others need tokens sampled from the draft."""

_POSITIONAL = {RuleKind.ADDITIVE: "eps", RuleKind.RATIO: "gamma", RuleKind.TOP: "m", RuleKind.TREE: "m"}
_GRAMMAR = (
    "greedy, additive:EPS, ratio:GAMMA, top:M, typical:eps=E,delta=D, rejection, rejection-iid, onehot, block"
)
PROVABLE = "greedy, additive:EPS, ratio:GAMMA, top:M, typical:eps=E,delta=D or tree:M"
"""Rules that have a certificate, as they are written."""


@dataclass(frozen=True)
class Rule:
    """A verification rule with its parameters; `str(rule)` is the canonical text that runs store."""

    kind: RuleKind
    eps: float | None = None
    gamma: float | None = None
    m: int | None = None
    delta: float | None = None

    def __str__(self) -> str:
        """The canonical text, which `parse_rule` reads back."""
        if self.kind is RuleKind.TYPICAL:
            return f"typical:eps={self.eps:g},delta={self.delta:g}"
        name = _POSITIONAL.get(self.kind)
        return str(self.kind) if name is None else f"{self.kind}:{getattr(self, name):g}"

    @property
    def is_argmax(self) -> bool:
        """Whether the rule decodes by argmax whatever the temperature."""
        return self.kind in ARGMAX_KINDS

    @property
    def is_lossless(self) -> bool:
        """Whether the rule's output follows the target's sampling distribution."""
        return self.kind in LOSSLESS_KINDS


def parse_rule(text: str, *, to_prove: bool = False) -> Rule:
    """Read a rule such as `additive:0.1` or `typical:eps=0.09,delta=0.3`.

    Args:
        text: the rule.
        to_prove: whether a certificate is wanted, so that an error names the rules that have one.

    Raises:
        UsageError: unknown name, missing or malformed parameter.
    """
    name, _, rest = text.strip().partition(":")
    try:
        kind = RuleKind(name)
    except ValueError:
        raise UsageError(f"unknown rule '{text}': use one of {PROVABLE if to_prove else _GRAMMAR}") from None
    if kind is RuleKind.TYPICAL:
        values = _keyed(text, rest)
        return Rule(kind, eps=_number(text, values["eps"]), delta=_number(text, values["delta"]))
    if kind not in _POSITIONAL:
        if rest:
            raise UsageError(f"rule '{text}': {kind} takes no parameter")
        return Rule(kind)
    parameter = _POSITIONAL[kind]
    if not rest:
        raise UsageError(
            f"rule '{text}' needs a value, for example {kind}:{'2' if parameter == 'm' else '0.5'}"
        )
    value = _number(text, rest.removeprefix(f"{parameter}="))
    if parameter != "m":
        return Rule(kind, **{parameter: value})  # type: ignore[arg-type]
    if value < 1 or value != int(value):
        raise UsageError(f"rule '{text}': {kind} takes a whole number of at least 1")
    return Rule(kind, m=int(value))


def _keyed(text: str, rest: str) -> dict[str, str]:
    pairs = dict(part.partition("=")[::2] for part in rest.split(",") if part)
    if set(pairs) != {"eps", "delta"}:
        raise UsageError(
            f"rule '{text}': write typical:eps=E,delta=D, for example typical:eps=0.09,delta=0.3"
        )
    return pairs


def _number(text: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        raise UsageError(f"rule '{text}': '{value}' is not a number") from None
    if not math.isfinite(number):
        raise UsageError(f"rule '{text}': '{value}' is not finite")
    return number
