"""How often is a verifier rejected? The transform test on the same real contexts, seed after seed.

A control must be caught nearly always, a right verifier rejected about as often as the level says. Both are counts
out of the number of seeds, with limits of their own.

Boundary: contexts and cases in, p-values out. `redraw` draws, `transform` and `uniformity` judge.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64
from scipy import stats
from torch import Tensor

from acceptlab.audit.contexts import DEPTH, Contexts
from acceptlab.audit.controls import CONTROLS, RIGHT, ContextVerifier
from acceptlab.audit.redraw import emit_chains, emit_many
from acceptlab.audit.transform import mass_before
from acceptlab.audit.uniformity import ALPHA, chi_square_uniform, lag_one
from acceptlab.rng import generator
from acceptlab.sampling import Warp, warp

_LEAST, _MOST = 0.1, 20.0
"""Draws that every context keeps, and the largest weight: both as shares of the mean."""
TEMPERATURES = (1.0, 0.7)
"""At which the right verifiers are drawn; every control has its own."""


@dataclass(frozen=True)
class Case:
    """A verifier at a temperature. `verifier` is None for block verification, which needs chains of contexts."""

    name: str
    temperature: float
    verifier: ContextVerifier | None
    is_right: bool

    @property
    def label(self) -> str:
        """Name and temperature."""
        return f"{self.name}, T={self.temperature:g}"


def all_cases(temperatures: Sequence[float] = TEMPERATURES) -> list[Case]:
    """Every right verifier at every temperature, and every control at its own."""
    right = [
        Case(verifier.name if verifier else "block", temperature, verifier, True)
        for temperature in temperatures
        for verifier in (*RIGHT, None)
    ]
    broken = [Case(verifier.name, verifier.temperature, verifier, False) for verifier in CONTROLS]
    return right + broken


@dataclass(frozen=True)
class Repeated:
    """What came out of a case: the p-value of every seed, and the tokens that each of them saw."""

    p_values: tuple[float, ...]
    n_tokens: int


def repeat(
    case: Case,
    contexts: Contexts,
    *,
    seeds: Sequence[int],
    n_draws: int,
    n_chain_draws: int,
    top_k: int = 0,
    on_context: Callable[[int], None] = lambda n: None,
) -> Repeated:
    """Test a verifier seed after seed, each seed with draws of its own in every context.

    Given the contexts the draws of one context are independent of those of the others, so one chi-square takes all.
    For chains the lag-1 correlation within a chain joins it, and the smaller p-value counts twice (Bonferroni).

    Args:
        case: what is drawn.
        contexts: kept logits.
        seeds: of the draws.
        n_draws: draws of a context a seed, on average (see `draws_by_context`).
        n_chain_draws: draws of every chain a seed.
        top_k: look at the K most probable tokens of both models only; 0 looks at all.
        on_context: called with the number of contexts done.
    """
    settings = Warp(case.temperature, top_k)
    points = []
    if case.verifier is not None:
        n_by_context = draws_by_context(contexts, settings, n_draws)
    for stretch, (target, draft) in enumerate(_stretches(contexts, settings)):
        first = stretch * (DEPTH + 1)
        if case.verifier is None:
            points.append(_chain_points(case, target, draft, stretch, seeds, n_chain_draws))
        else:
            n_by_depth = n_by_context[first : first + DEPTH + 1]
            points.append(_single_points(case, case.verifier, target, draft, first, seeds, n_by_depth))
        on_context(first + DEPTH + 1)
    every_seed = np.concatenate(points, axis=1)
    tested = [_p_value(drawn, is_chain=case.verifier is None) for drawn in every_seed]
    return Repeated(tuple(tested), every_seed[0].size)


def draws_by_context(contexts: Contexts, settings: Warp, n_draws: int) -> list[int]:
    """How often to draw every context: more often where a second sibling matters, n_draws on average.

    Where both models agree there is nothing that a verifier could get wrong. What the rejection of sibling x does to
    the tests after it grows with the odds of x under the draft, so the weight is the sum over x of
    (draft - target)+ draft / (1 - draft), twenty times its mean at most; every context keeps a tenth of n_draws. The
    numbers depend on the contexts only and stand before the first draw, so a right verifier is judged as before.
    """
    weights = []
    for target, draft in _stretches(contexts, settings):
        odds = draft / (1.0 - draft).clamp(min=1e-3)
        weights.append(((draft - target).clamp(min=0) * odds).sum(dim=-1))
    weight = torch.cat(weights).numpy()
    mean = weight.mean()
    share = np.minimum(weight / mean, _MOST) if mean > 0 else np.ones_like(weight)
    share = _LEAST + (1.0 - _LEAST) * share / share.mean()
    return [max(1, round(float(n_draws * part))) for part in share]


def _p_value(drawn: Float64[np.ndarray, "draws places"], is_chain: bool) -> float:
    if np.isnan(drawn).any():  # a token that the target cannot emit
        return 0.0
    uniform = chi_square_uniform(drawn.reshape(-1)).p_value
    return min(1.0, 2 * min(uniform, lag_one(list(drawn)).p_value)) if is_chain else uniform


def _stretches(contexts: Contexts, settings: Warp) -> Iterator[tuple[Tensor, Tensor]]:
    """Sampling distributions of every stretch, over the tokens that either model can give there.

    Leaving out tokens of probability 0 on both sides changes nothing, and after a truncation it is most of the work.
    """
    for target_logits, draft_logits in zip(contexts.target, contexts.draft, strict=True):
        target, draft = warp(target_logits, settings), warp(draft_logits, settings)
        alive = ((target > 0) | (draft > 0)).any(dim=0)
        yield target[:, alive], draft[:, alive]


def _uniforms(
    case: Case, place: int, seeds: Sequence[int], n_draws: int, width: int
) -> Float64[np.ndarray, "all_draws columns"]:
    drawn = [generator(seed, case.label, place, "audit redraw").random((n_draws, width)) for seed in seeds]
    return np.concatenate(drawn)


def _single_points(
    case: Case,
    verifier: ContextVerifier,
    target: Tensor,
    draft: Tensor,
    first: int,
    seeds: Sequence[int],
    n_by_depth: Sequence[int],
) -> Float64[np.ndarray, "seeds draws 1"]:
    before = mass_before(target, draft)
    parts = []
    for depth, n_draws in enumerate(n_by_depth):
        draws = _uniforms(case, first + depth, seeds, n_draws, 2 * verifier.n_siblings + 2)
        tokens = torch.from_numpy(emit_many(verifier, target[depth], draft[depth], draws))
        points = _points(target[depth], before[depth], tokens, draws[:, -1])
        parts.append(points.reshape(len(seeds), n_draws, 1))
    return np.concatenate(parts, axis=1)


def _chain_points(
    case: Case, target: Tensor, draft: Tensor, stretch: int, seeds: Sequence[int], n_draws: int
) -> Float64[np.ndarray, "seeds draws depths"]:
    before = mass_before(target, draft)
    n_steps = 3 * DEPTH + 1
    draws = _uniforms(case, stretch, seeds, n_draws, n_steps + DEPTH + 1)
    tokens = torch.from_numpy(emit_chains(target, draft, draws[:, :n_steps]))
    columns = [
        _points(target[depth], before[depth], tokens[:, depth], draws[:, n_steps + depth])
        for depth in range(DEPTH + 1)
    ]
    return np.stack(columns, axis=1).reshape(len(seeds), n_draws, DEPTH + 1)


def _points(
    target: Tensor, before: Tensor, tokens: Tensor, uniforms: Float64[np.ndarray, " draws"]
) -> Float64[np.ndarray, " draws"]:
    width = target[tokens]
    points = before[tokens] + torch.from_numpy(uniforms.copy()) * width
    return np.asarray(points.clamp(0.0, 1.0).masked_fill(width <= 0, torch.nan).numpy())


def most_rejections(n_seeds: int) -> int:
    """How many rejections of a right verifier are let pass: 3 of 20, which chance exceeds in under 2% of audits."""
    return int(stats.binom.ppf(0.98, n_seeds, ALPHA))


def fewest_catches(n_seeds: int) -> int:
    """In how many seeds a control must be caught: 19 of 20."""
    return math.ceil(0.95 * n_seeds)


def false_alarm(n_seeds: int, n_right: int, alpha: float = ALPHA) -> float:
    """The chance that some of n_right right verifiers has more rejections than are let pass."""
    return float(1.0 - stats.binom.cdf(most_rejections(n_seeds), n_seeds, alpha) ** n_right)
