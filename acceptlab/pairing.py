"""Which proposal goes with which rule and tree, and which combinations would bias the output.

Standard library only. A lossless rule is lossless only for candidates drawn in the way that its ratio
assumes. Every other combination emits text that does not follow the target, so it is refused before a run.
"""

from __future__ import annotations

from enum import StrEnum

from acceptlab.errors import UsageError
from acceptlab.rules import RANKED_KINDS, Rule, RuleKind
from acceptlab.tree import TreeShape

ADAPTIVE_TREES = frozenset({"dynamic", "opt"})
"""Shapes that keep candidates by the draft's confidence: which siblings survive depends on their values."""


class ProposalKind(StrEnum):
    """How the candidates of a context are taken from the draft's distribution."""

    RANKED = "ranked"
    WITHOUT_REPLACEMENT = "without-replacement"
    WITH_REPLACEMENT = "with-replacement"
    ARGMAX = "argmax"


def proposal_for(rule: Rule) -> ProposalKind:
    """The proposal that a rule is made for; `argmax` (greedy serving) has to be asked for."""
    if rule.kind in RANKED_KINDS:
        return ProposalKind.RANKED
    if rule.kind is RuleKind.REJECTION_IID:
        return ProposalKind.WITH_REPLACEMENT
    return ProposalKind.WITHOUT_REPLACEMENT


def check_pairing(rule: Rule, shape: TreeShape, proposal: ProposalKind) -> None:
    """Refuse a combination whose output would not follow the target.

    Raises:
        UsageError: says what is wrong and what to use instead.
    """
    if rule.kind is RuleKind.TREE:
        raise UsageError(f"rule '{rule}' is for certificates only: decode a tree with greedy or top:M")
    _check_proposal(rule, proposal)
    is_chain = _is_chain(shape)
    if proposal is ProposalKind.ARGMAX and not is_chain:
        raise UsageError(
            f"--proposal argmax drafts one token a context, which tree '{shape.text}' has no use for: "
            "use chain:K, or --proposal ranked"
        )
    if rule.kind is RuleKind.BLOCK and not is_chain:
        raise UsageError(
            f"rule 'block' is for chains, not for tree '{shape.text}': use chain:K, or rule rejection"
        )
    if shape.kind in ADAPTIVE_TREES and rule.kind not in RANKED_KINDS:
        raise UsageError(
            f"rule '{rule}' on tree '{shape.text}' would bias the output, since which siblings stay "
            "depends on the tokens drawn: use rule onehot, or a static tree"
        )


def _check_proposal(rule: Rule, proposal: ProposalKind) -> None:
    fitting = {proposal_for(rule)}
    if rule.kind in RANKED_KINDS:
        fitting.add(ProposalKind.ARGMAX)
    if rule.kind is RuleKind.BLOCK:
        fitting.add(ProposalKind.WITH_REPLACEMENT)  # one child a context: both draws are the same
    if proposal in fitting:
        return
    remedy = f"use --proposal {proposal_for(rule)}"
    if proposal in {ProposalKind.RANKED, ProposalKind.ARGMAX}:
        raise UsageError(
            f"rule '{rule}' needs candidates sampled from the draft, and with --proposal {proposal} its "
            f"output would be biased: {remedy}, or rule onehot"
        )
    raise UsageError(f"rule '{rule}' does not take candidates drawn {proposal}: {remedy}")


def _is_chain(shape: TreeShape) -> bool:
    """Whether every context has at most one child. Shapes that grow as they go may branch."""
    return shape.static is not None and all(len(nodes) <= 1 for nodes in shape.static.children)
