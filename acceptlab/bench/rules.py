"""What a rule costs: the time from the target's logits to the verdict, as a share of the step that it decides.

Every rule decodes the same prompts with the real pair, in turn, and each share is taken between times of the same
steps, so that a slow hour slows both sides. What to run comes from the caller; nothing here prints.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from acceptlab.engine import Settings, decode
from acceptlab.models import LanguageModel
from acceptlab.pairing import check_pairing, proposal_for
from acceptlab.resampling import Resampling, Totals
from acceptlab.rules import Rule, RuleKind
from acceptlab.stats import bootstrap, ratio
from acceptlab.tree import TreeShape

if TYPE_CHECKING:
    from acceptlab.pairs import Pair

ALL_RULES = (
    "greedy",
    "additive:0.1",
    "ratio:0.5",
    "top:2",
    "typical:eps=0.09,delta=0.3",
    "rejection",
    "rejection-iid",
    "onehot",
    "block",
)
LIMIT = 0.05
"""Share of a step that a rule may cost."""

COLUMNS = {
    "rule": "verification rule",
    "tree": "tree that it verifies; block verifies chains",
    "rule_ms": "time a step from the target's logits to the verdict (ms)",
    "step_ms": "time of a step: drafting, target pass, rule, measures, bookkeeping (ms)",
    "share": "rule_ms / step_ms, sums over all steps; the interval resamples prompts",
    "verdict": f"under {LIMIT:.0%} where the upper end of the interval (the share, if there is none) is",
    "n_steps": "drafted steps",
    "n_prompts": "prompts",
}
_WARM_UP_TOKENS = 4
_SUMS = ("rule_ms", "step_ms", "n_steps")


class _TimedPass:
    """The target, which remembers how long its last pass took; everything else is handed through."""

    def __init__(self, inner: LanguageModel) -> None:
        self._inner = inner
        self.last_ms = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def forward(self, token_ids: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        """Timed; accelerators are waited for, since the rule begins when the logits are there."""
        started = time.perf_counter()
        logits = self._inner.forward(token_ids, positions, visible)
        if logits.device.type == "cuda":
            torch.cuda.synchronize(logits.device)
        elif logits.device.type == "mps":
            torch.mps.synchronize()
        self.last_ms = 1000.0 * (time.perf_counter() - started)
        return logits


def settings_of(base: Settings, rules: Sequence[Rule], chain: TreeShape) -> dict[str, Settings]:
    """Settings of every rule: its own kind of candidates, and the chain for block verification.

    Raises:
        UsageError: a rule that would bias the output on this tree.
    """
    found = {}
    for rule in rules:
        tree = chain if rule.kind is RuleKind.BLOCK else base.tree
        check_pairing(rule, tree, proposal_for(rule))
        found[str(rule)] = replace(base, rule=rule, proposal=proposal_for(rule), tree=tree)
    return found


def rule_costs(
    pair: Pair,
    texts: Sequence[tuple[str, Sequence[int]]],
    methods: dict[str, Settings],
    resampling: Resampling,
    on_text: Callable[[int, int], None] = lambda done, total: None,
) -> pd.DataFrame:
    """One row a rule; see `COLUMNS`.

    Args:
        pair: loaded target and draft.
        texts: id and tokens of every prompt.
        methods: settings by rule; all rules decode a prompt before the next one begins.
        resampling: how intervals are made.
        on_text: called with the number of decoded texts and their total.
    """
    target = _TimedPass(pair.target)
    for settings in methods.values():
        list(decode(target, pair.draft, texts[0][1], texts[0][0], _short(settings)))
    sums = {name: np.zeros((len(texts), len(_SUMS))) for name in methods}
    names = list(methods)
    for place, (prompt_id, token_ids) in enumerate(texts):
        shift = place % len(names)  # every rule goes first about equally often
        for turn, name in enumerate((*names[shift:], *names[:shift])):
            sums[name][place] = _decode(target, pair, prompt_id, token_ids, methods[name])
            on_text(place * len(names) + turn + 1, len(texts) * len(names))
    return pd.DataFrame([_row(name, methods[name].tree.text, sums[name], resampling) for name in names])


def _short(settings: Settings) -> Settings:
    return replace(settings, max_new_tokens=min(_WARM_UP_TOKENS, settings.max_new_tokens))


def _decode(
    target: _TimedPass, pair: Pair, prompt_id: str, token_ids: Sequence[int], settings: Settings
) -> Float[np.ndarray, " sums"]:
    """Sums over the drafted steps of one text."""
    rule_ms, step_ms, n_steps = 0.0, 0.0, 0
    for step in decode(target, pair.draft, token_ids, prompt_id, settings):
        if step.tree.n_nodes == 0:
            continue
        rule_ms += step.times_ms["verify"] - target.last_ms
        step_ms += sum(step.times_ms.values())
        n_steps += 1
    return np.array([rule_ms, step_ms, n_steps])


def _row(
    name: str, tree: str, sums: Float[np.ndarray, "prompts sums"], resampling: Resampling
) -> dict[str, Any]:
    def statistic(totals: Totals) -> Totals:
        return ratio(totals[:, :1], totals[:, 1:2])

    [share] = bootstrap(sums, statistic, sums[:, 2:].astype(np.int64), resampling)
    rule_ms, step_ms, n_steps = sums.sum(axis=0)
    highest = share.value if share.hi is None else share.hi
    return {
        "rule": name,
        "tree": tree,
        "rule_ms": rule_ms / n_steps if n_steps else None,
        "step_ms": step_ms / n_steps if n_steps else None,
        "share": share.value,
        "share_lo": share.lo,
        "share_hi": share.hi,
        "verdict": None if highest is None else f"{'under' if highest < LIMIT else 'OVER'} {LIMIT:.0%}",
        "n_steps": int(n_steps),
        "n_prompts": int((sums[:, 2] > 0).sum()),
    }
