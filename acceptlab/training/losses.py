"""Every training objective by name: from logits along trajectories to one number to go down.

Here the losses of single positions (`local_losses`), the values of windows (`chain_losses`) and the position
weights come together. Pure functions; denominators are fixed: a per-position loss is summed over a window and
divided by gamma.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from acceptlab.errors import UsageError
from acceptlab.training import chain_losses as chain
from acceptlab.training import local_losses as local
from acceptlab.training.position_weights import DPACE_RHO, DPAL_RHO, position_weights

Auxiliary = Literal["ce", "dpace-ce", "kl", "none"]


@dataclass(frozen=True)
class LossOptions:
    """Terms and ablations; only the objectives that have a term look at it.

    `aux_weight` is the coefficient of the auxiliary term of the length objectives, which the papers do not
    publish: 0.1 is our choice. `temperature` divides the draft's logits and sharpens or flattens the target
    alike.
    """

    aux: Auxiliary = "ce"
    aux_weight: float = 0.1
    rao_blackwell: bool = True
    detach_prefix: bool = False
    variance_weight: float = 0.0
    truncate: int | None = None
    rho: float | None = None
    base: str | None = None
    eta: float = 3.0
    ce_weight: float = 0.1
    dblast_threshold: float = -4.0
    temperature: float = 1.0


@dataclass(frozen=True)
class BestTokens:
    """The target's most probable token of every row among a drafter's output classes.

    A class may be shared by many tokens, of which this one has its share; a token with a class of its own has 1.
    """

    classes: Int[Tensor, " rows"]
    shares: Float[Tensor, " rows"]


@dataclass(frozen=True)
class Scores:
    """Both models along target-sampled trajectories, and the windows that the objectives sum over.

    Args:
        draft_logits: one row a predicted token.
        target_probs: the target's distribution at the same rows; data, never differentiated.
        labels: the tokens that the target sampled.
        windows: rows of each window in order, -1 behind its end.
        best: the target's most probable tokens; left out where every class is one token.
    """

    draft_logits: Float[Tensor, "rows vocab"]
    target_probs: Float[Tensor, "rows vocab"]
    labels: Int[Tensor, " rows"]
    windows: Int[Tensor, "windows gamma"]
    best: BestTokens | None = None

    @property
    def gamma(self) -> int:
        """Width of the windows."""
        return self.windows.shape[1]

    @cached_property
    def mask(self) -> Tensor:
        """Valid positions of the windows."""
        mask = self.windows >= 0
        chain.check_mask(mask)
        return mask

    @cached_property
    def log_probs(self) -> Float[Tensor, " rows"]:
        """Log probability that the draft gives to the labels."""
        chosen = self.draft_logits.gather(-1, self.labels[:, None])[:, 0]
        return chosen - self.draft_logits.logsumexp(dim=-1)

    @cached_property
    def target_log_probs(self) -> Float[Tensor, " rows"]:
        """Log probability that the target gives to the labels."""
        chosen = self.target_probs.gather(-1, self.labels[:, None])[:, 0]
        return chosen.clamp_min(torch.finfo(chosen.dtype).tiny).log()

    @cached_property
    def overlaps(self) -> Float[Tensor, " rows"]:
        """Sum of min(target, draft) of every row."""
        return local.overlap(self.draft_logits, self.target_probs)

    @cached_property
    def greedy_probs(self) -> Float[Tensor, " rows"]:
        """Probability that the draft gives to the target's most probable token."""
        classes = self.target_probs.argmax(dim=-1) if self.best is None else self.best.classes
        probs = self.draft_logits.softmax(dim=-1).gather(-1, classes[:, None])[:, 0]
        return probs if self.best is None else probs * self.best.shares

    @cached_property
    def accepts(self) -> Float[Tensor, " rows"]:
        """min(1, draft / target) at the labels."""
        return chain.accept_probs(self.log_probs, self.target_log_probs)

    def by_window(self, rows: Float[Tensor, " rows"]) -> Float[Tensor, "windows gamma"]:
        """Arrange one value a row into windows, 0 where a window has ended."""
        return torch.where(self.mask, rows[self.windows.clamp_min(0)], torch.zeros((), dtype=rows.dtype))

    def mean(self, rows: Float[Tensor, " rows"], weights: Tensor | None = None) -> Float[Tensor, ""]:
        """Sum of the (weighted) values of a window, divided by gamma, averaged over windows."""
        values = self.by_window(rows)
        values = values if weights is None else values * weights
        return values.sum() / self.windows.numel()

    def at_temperature(self, temperature: float) -> Scores:
        """Both distributions at another temperature."""
        if temperature == 1:
            return self
        target = self.target_probs ** (1 / temperature)
        target = target / target.sum(dim=-1, keepdim=True)
        return replace(self, draft_logits=self.draft_logits / temperature, target_probs=target)


Local = Callable[[Scores, LossOptions], Tensor]
LOCAL: dict[str, Local] = {
    "ce": lambda s, o: -s.log_probs,
    "kl": lambda s, o: local.soft_cross_entropy(s.draft_logits, s.target_probs),
    "kl-reverse": lambda s, o: local.kl_reverse(s.draft_logits, s.target_probs),
    "tv": lambda s, o: 1 - s.overlaps,
    "la": lambda s, o: local.log_acceptance(s.draft_logits, s.target_probs),
    "renyi": lambda s, o: local.renyi_half(s.draft_logits, s.target_probs),
    "static-lk": lambda s, o: o.ce_weight * -s.log_probs + (1 - o.ce_weight) * (1 - s.overlaps),
    "adaptive-lk": lambda s, o: local.adaptive_lk(s.draft_logits, s.target_probs, eta=o.eta),
}
"""Objectives that are a plain mean over positions.

"kl" is shifted by the target's entropy, which no draft changes.
"""

LENGTH = ("real", "wtv", "eal", "dblast")
WEIGHTED = ("dpace", "dpal")
OBJECTIVES = (*LOCAL, *LENGTH, *WEIGHTED, "vsd")


def objective(name: str, scores: Scores, options: LossOptions | None = None) -> Float[Tensor, ""]:
    """The loss of this name.

    `dpace` weighs cross-entropy and `dpal` Renyi-1/2 unless `base` names another local loss. Length
    objectives are 1 - value / gamma plus `aux_weight` times the auxiliary term.

    Raises:
        UsageError: unknown name, or an option out of range.
    """
    options = options or LossOptions()
    check_objective(name, options)
    scores = scores.at_temperature(options.temperature)
    if name in LOCAL:
        return scores.mean(LOCAL[name](scores, options))
    if name in WEIGHTED:
        return _weighted(name, scores, options)
    if name == "vsd":
        ce = scores.by_window(-scores.log_probs)
        return chain.vsd_loss(scores.by_window(scores.accepts), ce, scores.mask)
    values = _length_values(name, scores, options)
    loss = chain.length_loss(values, scores.gamma, variance_weight=options.variance_weight)
    # EAL and WTV are published without an auxiliary term.
    return loss + options.aux_weight * _auxiliary(scores, options) if name in ("real", "dblast") else loss


def reads_target(name: str, options: LossOptions) -> bool:
    """Whether the loss looks at the target's distributions at all, or at its tokens only."""
    return name != "ce" and (name != "dpace" or options.base not in (None, "ce"))


def reads_best_tokens(name: str) -> bool:
    """Whether the loss looks at the target's most probable tokens."""
    return name == "eal"


def check_objective(name: str, options: LossOptions) -> None:
    """Refuse what cannot be trained with.

    Raises:
        UsageError: unknown name or base, temperature or truncation out of range.
    """
    if name not in OBJECTIVES:
        raise UsageError(f"unknown loss '{name}': use one of {', '.join(OBJECTIVES)}")
    if options.base is not None and options.base not in LOCAL:
        raise UsageError(f"unknown base loss '{options.base}': use one of {', '.join(LOCAL)}")
    if options.aux not in ("ce", "dpace-ce", "kl", "none"):
        raise UsageError(f"unknown auxiliary term '{options.aux}': use ce, dpace-ce, kl or none")
    if not options.temperature > 0:
        raise UsageError(f"loss temperature {options.temperature} must be above 0")
    if options.truncate is not None and options.truncate < 1:
        raise UsageError(f"truncation {options.truncate} must be at least 1 position")


def _weighted(name: str, scores: Scores, options: LossOptions) -> Tensor:
    if name == "dpace":
        alphas, rho, base = scores.log_probs.exp(), DPACE_RHO, "ce"
    else:
        alphas, rho, base = scores.overlaps, DPAL_RHO, "renyi"
    rho = rho if options.rho is None else options.rho
    weights = position_weights(scores.by_window(alphas), rho, scores.mask)
    return scores.mean(LOCAL[options.base or base](scores, options), weights)


def _length_values(name: str, scores: Scores, options: LossOptions) -> Tensor:
    mask = scores.mask if options.truncate is None else chain.truncate_mask(scores.mask, options.truncate)
    if name == "wtv":
        return chain.wtv_value(scores.by_window(scores.overlaps), mask)
    if name == "eal":
        return chain.eal_value(scores.by_window(scores.greedy_probs), mask)
    if name == "dblast":
        logs, target_logs = scores.by_window(scores.log_probs), scores.by_window(scores.target_log_probs)
        return chain.dblast_value(logs, target_logs, mask, threshold=options.dblast_threshold)
    accepts = scores.by_window(scores.accepts)
    if not options.rao_blackwell:
        return chain.path_value(accepts, mask)
    overlaps = scores.by_window(scores.overlaps)
    return chain.branch_value(accepts, overlaps, mask, detach_prefix=options.detach_prefix)


def _auxiliary(scores: Scores, options: LossOptions) -> Tensor:
    if options.aux == "none":
        return torch.zeros((), dtype=scores.draft_logits.dtype)
    if options.aux == "dpace-ce":
        return _weighted("dpace", scores, replace(options, base="ce"))
    return scores.mean(LOCAL[options.aux](scores, options))
