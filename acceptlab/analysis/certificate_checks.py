"""Is a context certified, and is its proposal accepted: decided from stored numbers, whose rounding is known.

A run stores divergences and margins as float32 rounded to nearest, probabilities of lists and thresholds rounded
down. Here every comparison takes the unfavourable end: a context counts as certified only if the true divergence is
below the true threshold for certain, and as accepted or rejected only if the rule's comparison cannot come out
otherwise. What stays between is undecided and counted. So rounding makes neither a certificate nor a violation.

Pure arithmetic: columns of `queries.certificates` in, masks out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from acceptlab.records import CERTIFICATE_RULES
from acceptlab.rules import Rule, RuleKind, parse_rule
from acceptlab.store.rounding import prob_upper_bounds
from acceptlab.theory.certificates import is_certified
from acceptlab.theory.criteria import VALUE_KINDS, acceptance_level, rank_limit
from acceptlab.theory.margins import margin_bound

RULES = tuple(parse_rule(text) for text in CERTIFICATE_RULES)
"""The rules of `CERTIFICATE_RULES`, in the order of the stored thresholds."""

DIRECTIONS = ("forward", "reverse")
"""KL(target || draft) and KL(draft || target)."""

_DIVERGENCES = {"forward": "kl_target_draft", "reverse": "kl_draft_target"}
_FLOAT64_ERROR = 1e-12
"""More than the rounding of any probability or level computed in float64."""
_BOUND_SLACK = 1e-6
"""A margin bound moves by less than this part of itself within two float32 steps of the margin."""

Columns = Mapping[str, np.ndarray]
Mask = Bool[np.ndarray, " contexts"]
Bounds = tuple[Float[np.ndarray, " contexts"], Float[np.ndarray, " contexts"]]


@dataclass(frozen=True, eq=False)
class Outcomes:
    """What a rule does with the draft's argmax (for tree:M with its top M); what is neither is undecided."""

    accepted: Mask
    rejected: Mask


def proposal_outcomes(columns: Columns, rule: Rule) -> Outcomes:
    """Whether each context's proposal is accepted under a rule of the certificate family.

    Rules that compare ids are decided from the stored ids. The others compare the target's probability of the draft's
    argmax, known between two ends, with a level that is known to a float32 step.
    """
    if rule.kind is RuleKind.TREE:
        return _listed_within(columns["draft_place"], rank_limit(rule))
    if rule.kind not in VALUE_KINDS:
        return _listed_within(columns["target_place"], rank_limit(rule))
    is_argmax = columns["target_place"] == 1
    low, high = _proposal_probs(columns)
    level_low, level_high = _levels(columns, rule)
    # the argmax itself is at least as probable as any level of these rules, which the ends may not show
    accepted = is_argmax | (low >= level_high + _FLOAT64_ERROR)
    rejected = ~is_argmax & (high < level_low - _FLOAT64_ERROR)
    return Outcomes(accepted, rejected)


def certified(columns: Columns, rule_index: int, direction: str, scale: float = 1.0) -> Mask:
    """Contexts whose stored divergence is below the stored exact threshold for certain.

    Args:
        columns: a batch of contexts.
        rule_index: which rule of `RULES`.
        direction: forward or reverse.
        scale: thresholds are multiplied by this; anything but 1 is a test that the check can fail.
    """
    threshold = columns[f"thresholds_{direction}"][:, rule_index].astype(np.float64) * scale
    return is_certified(_divergence(columns, direction), threshold)


def margin_thresholds(columns: Columns, rule: Rule) -> Bounds:
    """Margin-only thresholds, forward and reverse: the smaller value at the two ends of the stored margin."""
    margin = columns["target_margin"].astype(np.float32)
    ends = [_step(margin, toward) for toward in (0.0, 1.0)]
    found = [margin_bound(end, rule) for end in ends]
    low = [np.minimum(a, b) * (1.0 - _BOUND_SLACK) for a, b in zip(*found, strict=True)]
    return low[0], low[1]


def margin_certified(columns: Columns, thresholds: Bounds, direction: str, scale: float = 1.0) -> Mask:
    """Contexts whose stored divergence is below a margin-only threshold for certain."""
    return is_certified(_divergence(columns, direction), thresholds[DIRECTIONS.index(direction)] * scale)


def nearness(columns: Columns, rule_index: int, direction: str) -> Float[np.ndarray, " contexts"]:
    """Stored divergence over the exact threshold: below 1 is certified, inf where the draft has no bound.

    nan where both are infinite, or both 0.
    """
    threshold = columns[f"thresholds_{direction}"][:, rule_index].astype(np.float64)
    divergence = columns[_DIVERGENCES[direction]].astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(divergence / threshold)


def _divergence(columns: Columns, direction: str) -> Float[np.ndarray, " contexts"]:
    """The upper end of a stored divergence."""
    return _step(columns[_DIVERGENCES[direction]].astype(np.float32), np.inf)


def _step(values: np.ndarray, toward: float) -> Float[np.ndarray, "..."]:
    """The next float32: what was rounded to `values` lies on the near side of it."""
    return np.asarray(np.nextafter(values, np.float32(toward)), dtype=np.float64)


def _listed_within(place: Any, limit: int) -> Outcomes:
    accepted = (place >= 1) & (place <= limit)
    return Outcomes(np.asarray(accepted), np.asarray(~accepted))


def _proposal_probs(columns: Columns) -> Bounds:
    """Ends of the target's probability of the draft's argmax; outside of the list it is below the last one there."""
    is_listed = columns["target_place"] >= 1
    stored = np.where(is_listed, columns["listed_prob"], 0.0)
    high = np.where(is_listed, prob_upper_bounds(stored), prob_upper_bounds(columns["last_prob"]))
    return stored.astype(np.float64), high


def _levels(columns: Columns, rule: Rule) -> Bounds:
    """Ends of the probability that the rule asks for: it rises with the top probability, and falls with entropy."""
    top = columns["target_top_prob"].astype(np.float32)
    entropy = columns["target_entropy"].astype(np.float32)
    low = acceptance_level(_step(top, 0.0), _step(entropy, np.inf), rule)
    high = acceptance_level(np.minimum(_step(top, 2.0), 1.0), _step(entropy, -1.0), rule)
    return low, high
