"""The promise of a certificate: a divergence below the threshold and a rejection must never meet."""

from __future__ import annotations

import numpy as np
import pytest

from acceptlab.rules import RuleKind, parse_rule
from acceptlab.theory.certificates import Direction, Ties, certificate, is_certified
from acceptlab.theory.criteria import rejected_mask
from acceptlab.theory.divergences import kl_draft_target, kl_target_draft
from tests.theory.samples import RULES, random_drafts, random_targets

N_PAIRS = 6000


def could_be_rejected(target: np.ndarray, draft: np.ndarray, text: str, ties: Ties) -> np.ndarray:
    """Whether the draft's argmax, or for trees its top m, can be rejected; ties of the draft decided against
    it.
    """
    rule = parse_rule(text)
    rows = np.arange(len(target))
    if rule.kind is RuleKind.TREE:
        top = target.argmax(axis=1)
        return (draft >= draft[rows, top][:, None]).sum(axis=1) - 1 >= int(rule.m or 0)
    proposals = draft == draft.max(axis=1, keepdims=True)
    return (proposals & rejected_mask(target, rule, ties)).any(axis=1)


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("text", RULES)
def test_certified_is_never_rejected_and_the_check_can_fail(text: str, direction: Direction) -> None:
    rng = np.random.default_rng(20)
    measure = kl_target_draft if direction is Direction.FORWARD else kl_draft_target
    n_certified = n_violations = n_tripled = 0
    for vocab_size in (3, 6, 12):
        target = random_targets(rng, N_PAIRS // 3, vocab_size)
        found = certificate(target, parse_rule(text), direction)
        draft = random_drafts(rng, target, found.nearest_draft)
        rejected = could_be_rejected(target, draft, text, Ties.IDENTITY)
        divergence = measure(target, draft)
        certified = is_certified(divergence, found.threshold) & np.isfinite(found.threshold)
        n_certified += certified.sum()
        n_violations += (certified & rejected).sum()
        n_tripled += (is_certified(divergence, 3.0 * found.threshold) & rejected).sum()
    assert n_certified > 300
    assert n_violations == 0
    assert n_tripled > 50


def test_level_ties_are_sound_for_a_rule_that_accepts_ties() -> None:
    rng = np.random.default_rng(21)
    weights = rng.integers(1, 4, size=(N_PAIRS, 5)).astype(float)  # many exact ties
    target = weights / weights.sum(axis=1, keepdims=True)
    for text in ("greedy", "top:2"):
        found = certificate(target, parse_rule(text), Direction.FORWARD, Ties.LEVEL)
        draft = random_drafts(rng, target, found.nearest_draft)
        rejected = could_be_rejected(target, draft, text, Ties.LEVEL)
        certified = is_certified(kl_target_draft(target, draft), found.threshold)
        assert (certified & np.isfinite(found.threshold)).sum() > 300
        assert not (certified & rejected).any()
        # an engine that compares ids rejects some of these: the convention matters
        assert (certified & could_be_rejected(target, draft, text, Ties.IDENTITY)).any()
