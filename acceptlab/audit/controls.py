"""Verifiers of one context: the right ones, and broken ones that an audit must catch.

Every broken verifier takes the right one's parts and breaks exactly one thing, each a fault seen in real
code. They work on batches of contexts (rows) with full distributions, so that real contexts can be verified
again and again. Nothing else in the package uses them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from acceptlab.errors import UsageError
from acceptlab.pairing import ProposalKind
from acceptlab.sampling import inverse_cdf, propose
from acceptlab.verify.lossless import Accepts, Probs, Tokens, deterministic_siblings, sampled_siblings

Siblings = Callable[[Probs, Probs, Tokens], tuple[Accepts, Probs]]
"""(target, draft, tokens) -> acceptance of every sibling once tested, and the law of the correction."""

CONTROL_TEMPERATURE = 0.7
"""The temperature at which the controls that lose it on one side are run."""


@dataclass(frozen=True)
class ContextVerifier:
    """How one context is verified, and how its candidates are drawn."""

    name: str
    proposal: ProposalKind
    siblings: Siblings
    n_siblings: int = 2
    temperature: float = 1.0
    breaks: str = ""
    """What is wrong with it; empty for a right verifier."""


def _deterministic(target: Probs, draft: Probs, tokens: Tokens) -> tuple[Accepts, Probs]:
    del draft  # a deterministic candidate has no draft distribution in its rule
    return deterministic_siblings(target, tokens)


def one_by_one(
    target: Probs,
    draft: Probs,
    tokens: Tokens,
    *,
    between: Callable[[Probs, Probs, Probs], Probs] | None = None,
) -> tuple[Accepts, Probs]:
    """Recursive rejection without replacement, one sibling at a time; equals `sampled_siblings`.

    Args:
        target: sampling distribution of the target.
        draft: sampling distribution of the draft.
        tokens: siblings in the order drawn.
        between: (target of this test, draft of this test, right residual) -> target of the next test; None
            keeps the residual.
    """
    accepts = []
    residual, left = target, draft
    for rank in range(tokens.shape[1]):
        token = tokens[:, rank : rank + 1]
        accept, after = sampled_siblings(residual, left, token, replace=False)
        residual = after if between is None or rank + 1 == tokens.shape[1] else between(residual, left, after)
        left = left.scatter(1, token, 0.0)
        left = left / left.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
        accepts.append(accept)
    return torch.cat(accepts, dim=1), residual


def _correction_from_target(target: Probs, draft: Probs, tokens: Tokens) -> tuple[Accepts, Probs]:
    accepts, _ = sampled_siblings(target, draft, tokens, replace=False)
    return accepts, target


def _not_renormalised(target: Probs, draft: Probs, right: Probs) -> Probs:
    return right * (target - draft).clamp(min=0).sum(dim=-1, keepdim=True)


def _tempered(probs: Probs, power: float) -> Probs:
    one = probs[:1] if probs.stride(0) == 0 else probs  # one row repeated is computed once
    weights = one**power
    return (weights / weights.sum(dim=-1, keepdim=True)).expand(len(probs), -1)


def _target_without_temperature(target: Probs, draft: Probs, tokens: Tokens) -> tuple[Accepts, Probs]:
    return sampled_siblings(_tempered(target, CONTROL_TEMPERATURE), draft, tokens, replace=False)


def _ratio_without_temperature(target: Probs, draft: Probs, tokens: Tokens) -> tuple[Accepts, Probs]:
    return sampled_siblings(target, _tempered(draft, CONTROL_TEMPERATURE), tokens, replace=False)


RIGHT = (
    ContextVerifier("rejection", ProposalKind.WITHOUT_REPLACEMENT, partial(sampled_siblings, replace=False)),
    ContextVerifier("rejection-iid", ProposalKind.WITH_REPLACEMENT, partial(sampled_siblings, replace=True)),
    ContextVerifier("onehot", ProposalKind.RANKED, _deterministic),
)
"""The lossless rules that verify one context at a time."""

CONTROLS = (
    ContextVerifier(
        "correction-from-target",
        ProposalKind.WITHOUT_REPLACEMENT,
        _correction_from_target,
        n_siblings=1,
        breaks="the correction is drawn from the target instead of the residual",
    ),
    ContextVerifier(
        "residual-not-renormalised",
        ProposalKind.WITHOUT_REPLACEMENT,
        partial(one_by_one, between=_not_renormalised),
        breaks="the residual is not renormalised before it becomes the next sibling's target",
    ),
    ContextVerifier(
        "target-without-temperature",
        ProposalKind.WITHOUT_REPLACEMENT,
        _target_without_temperature,
        temperature=CONTROL_TEMPERATURE,
        breaks="the temperature reaches the draft only",
    ),
    ContextVerifier(
        "ratio-without-temperature",
        ProposalKind.WITHOUT_REPLACEMENT,
        _ratio_without_temperature,
        temperature=CONTROL_TEMPERATURE,
        breaks="the ratio divides by the draft at temperature 1, not by what the draft sampled from",
    ),
    ContextVerifier(
        "draft-mass-not-removed",
        ProposalKind.WITHOUT_REPLACEMENT,
        partial(sampled_siblings, replace=True),
        breaks="siblings are drawn without replacement, but the ratio keeps the whole draft",
    ),
    ContextVerifier(
        "ratio-for-argmax-candidates",
        ProposalKind.RANKED,
        partial(sampled_siblings, replace=False),
        n_siblings=1,
        breaks="the draft's probabilities are used although its candidate is the argmax, not a sample",
    ),
)
"""Broken verifiers, one fault each."""


def emit(
    verifier: ContextVerifier,
    target: Probs,
    draft: Probs,
    uniforms: Float64[Tensor, "contexts draws"],
) -> Int64[Tensor, " contexts"]:
    """One token of every context, as the verifier gives it.

    Args:
        verifier: a right or a broken one.
        target: sampling distributions of the target.
        draft: sampling distributions of the draft, after the same warp.
        uniforms: 2 * n_siblings + 1 a context: proposals, tests, correction.

    Raises:
        UsageError: a context in which the draft has fewer than n_siblings tokens.
    """
    k = verifier.n_siblings
    wanted = torch.full((len(target),), k)
    tokens = propose(verifier.proposal, draft.log(), draft, uniforms[:, :k], wanted)
    if bool((tokens < 0).any()):
        raise UsageError(
            f"verifier '{verifier.name}' needs {k} tokens with draft probability in every context"
        )
    accepts, residual = verifier.siblings(target, draft, tokens)
    passed = uniforms[:, k : 2 * k] < accepts
    first = passed.to(torch.uint8).argmax(dim=1, keepdim=True)
    correction = inverse_cdf(residual, uniforms[:, 2 * k])
    return torch.where(passed.any(dim=1), tokens.gather(1, first)[:, 0], correction)
