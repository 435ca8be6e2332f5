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


def p_values(
    case: Case,
    contexts: Contexts,
    *,
    seeds: Sequence[int],
    n_draws: int,
    top_k: int = 0,
    on_context: Callable[[int], None] = lambda n: None,
) -> list[float]:
    """The p-value of the transform test for every seed; each seed draws every context n_draws times.

    Given the contexts the draws of one context are independent of those of the others, so one chi-square takes all.
    For chains the lag-1 correlation within a chain joins it, and the smaller p-value counts twice (Bonferroni).

    Args:
        case: what is drawn.
        contexts: kept logits.
        seeds: of the draws.
        n_draws: draws of every context, or of every chain, a seed.
        top_k: look at the K most probable tokens of both models only; 0 looks at all.
        on_context: called with the number of contexts done.
    """
    settings = Warp(case.temperature, top_k)
    points = _chain_points if case.verifier is None else _single_points
    by_stretch = []
    for stretch, (target, draft) in enumerate(_stretches(contexts, settings)):
        by_stretch.append(points(case, target, draft, stretch, seeds, n_draws))
        on_context((stretch + 1) * (DEPTH + 1))
    every_seed = np.stack(by_stretch, axis=1)
    return [_p_value(case, drawn) for drawn in every_seed]


def _p_value(case: Case, drawn: Float64[np.ndarray, "stretches draws depths"]) -> float:
    if np.isnan(drawn).any():  # a token that the target cannot emit
        return 0.0
    uniform = chi_square_uniform(drawn.reshape(-1)).p_value
    if case.verifier is not None:
        return uniform
    return min(1.0, 2 * min(uniform, lag_one(list(drawn.reshape(-1, DEPTH + 1))).p_value))


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
    case: Case, target: Tensor, draft: Tensor, stretch: int, seeds: Sequence[int], n_draws: int
) -> Float64[np.ndarray, "seeds draws depths"]:
    if case.verifier is None:
        raise TypeError("a chain has no verifier of single contexts")
    before = mass_before(target, draft)
    columns = []
    for depth in range(DEPTH + 1):
        width = 2 * case.verifier.n_siblings + 2
        draws = _uniforms(case, stretch * (DEPTH + 1) + depth, seeds, n_draws, width)
        tokens = torch.from_numpy(emit_many(case.verifier, target[depth], draft[depth], draws))
        columns.append(_points(target[depth], before[depth], tokens, draws[:, -1]))
    return np.stack(columns, axis=1).reshape(len(seeds), n_draws, DEPTH + 1)


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
    """How many rejections of a right verifier are let pass: 3 of 20."""
    return max(1, math.floor(0.15 * n_seeds))


def fewest_catches(n_seeds: int) -> int:
    """In how many seeds a control must be caught: 19 of 20."""
    return math.ceil(0.95 * n_seeds)


def false_alarm(n_seeds: int, n_right: int, alpha: float = ALPHA) -> float:
    """The chance that some of n_right right verifiers has more rejections than are let pass."""
    return float(1.0 - stats.binom.cdf(most_rejections(n_seeds), n_seeds, alpha) ** n_right)
