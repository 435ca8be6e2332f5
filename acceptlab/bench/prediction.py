"""Speed-ups that a cost model predicts, to stand beside the measured ones, and where speculation stops to pay.

Boundary: sums of timed decodes and times of bare passes in, numbers out. The model knows the survival curve and the
times of one arm, the longest chain, and the time of a target pass by its tokens; a chain of K then costs K draft passes
and one target pass over K + 1 tokens, and emits 1 + S_1 + ... + S_K tokens (Leviathan et al. 2023, arXiv 2211.17192,
section 3.3, with measured instead of constant acceptance and a target pass that is not free).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float

from acceptlab.analysis.costs import Costs
from acceptlab.bench.interleave import Task
from acceptlab.bench.passes import ChainPasses, pass_times
from acceptlab.bench.speedup import Sums
from acceptlab.errors import UsageError
from acceptlab.models import LanguageModel

FURTHEST = 64
"""Longest chain for which a break-even is looked for."""
_SIZES = (1, 2, 3, 4, 6, 8, 11, 16, 24, 40, 65)
_ROUNDS = 5


@dataclass(frozen=True, eq=False)
class CostModel:
    """What a step costs, what a token costs without speculation, and the survival S_1, S_2, ... along a chain."""

    costs: Costs
    plain_ms: float
    survival: Float[np.ndarray, " depths"]

    def chain(self, length: int) -> float:
        """Predicted speed-up of a chain; beyond the measured depths survival falls on at its last rate."""
        emitted = 1.0 + float(extended(self.survival, length).sum())
        return emitted * self.plain_ms / self.costs.step_ms(length, length)

    def tree(self, n_nodes: int, depth: int, emitted_len: float) -> float:
        """Predicted speed-up of a tree whose emitted length is known: only its cost is predicted."""
        return emitted_len * self.plain_ms / self.costs.step_ms(n_nodes, depth)

    def best_chain(self) -> int:
        """The length with the largest predicted speed-up."""
        return 1 + int(np.argmax([self.chain(length) for length in range(1, FURTHEST + 1)]))

    def break_even(self) -> int | None:
        """The longest chain that is at least as fast as no speculation; 0 if none is, None if all up to 64 are."""
        return break_even([self.chain(length) for length in range(1, FURTHEST + 1)])


def break_even(speed_ups: Sequence[float]) -> int | None:
    """The last length of which the speed-up is at least 1; 0 where there is none, None where it is the very last.

    Args:
        speed_ups: of lengths 1, 2, ...
    """
    paying = [length for length, value in enumerate(speed_ups, start=1) if value >= 1.0]
    if not paying:
        return 0
    return None if paying[-1] == len(speed_ups) else paying[-1]


def extended(survival: Float[np.ndarray, " depths"], length: int) -> Float[np.ndarray, " length"]:
    """The first S_d, continued with the last conditional rate S_d / S_(d-1) where more are wanted."""
    if length <= len(survival):
        return survival[:length]
    before = survival[-2] if len(survival) > 1 else 1.0
    last = survival[-1] / before if before > 0 else 0.0
    return np.concatenate([survival, survival[-1] * last ** np.arange(1, length - len(survival) + 1)])


def cost_model(plain: Sums, longest: Sums, passes: pd.DataFrame) -> CostModel:
    """The cost model of a run.

    Args:
        plain: the baseline.
        longest: the longest chain.
        passes: columns n and ms: times of target passes (several rows an n are pooled by their median).

    Raises:
        UsageError: the longest chain has drafted nothing.
    """
    parts = {name: float(values.sum()) for name, values in longest.columns.items()}
    if not parts["n_levels"] or not parts["n_drafted"]:
        raise UsageError(
            "the longest chain drafted nothing, so no cost can be read off: raise --max-new-tokens"
        )
    medians = passes.groupby("n")["ms"].median().sort_index()
    sizes, ms = medians.index.to_numpy(dtype=np.int64), medians.to_numpy(dtype=np.float64)
    draft_level_ms = parts["draft_ms"] / parts["n_levels"]
    # what is left of a step is bookkeeping, whatever the length of its chain
    mean_tokens = 1.0 + parts["n_nodes"] / parts["n_steps"]
    rest_ms = (parts["decode_ms"] - parts["draft_ms"]) / parts["n_steps"] - float(
        np.interp(mean_tokens, sizes, ms)
    )
    return CostModel(
        Costs(draft_level_ms, max(rest_ms, 0.0), sizes, ms, "bare target passes of the same run"),
        plain.ms_per_token,
        np.asarray(longest.survivors.sum(axis=0) / parts["n_drafted"]),
    )


def pass_curve(target: LanguageModel, tasks: Sequence[Task], max_new_tokens: int, seed: int) -> pd.DataFrame:
    """Times of bare target passes of 1 to 65 tokens, behind a text as long as a typical one of the run."""
    text = [token for task in tasks for token in task.token_ids]
    length = int(np.median([len(task.token_ids) for task in tasks])) + max_new_tokens // 2
    text = (text * (1 + length // len(text)))[:length]
    frame, _ = pass_times([ChainPasses(target, text, "target")], _SIZES, _ROUNDS, seed)
    return frame


def predict(sums: dict[str, Sums], passes: pd.DataFrame) -> tuple[dict[str, float], list[str]]:
    """Predicted speed-up by arm, and what the model says about the length of chains.

    Args:
        sums: by arm, the baseline `plain` among them.
        passes: see `pass_curve`.
    """
    chains = {name: one for name, one in sums.items() if name.startswith("chain:") and name == one.shape}
    if not chains or not len(passes):
        return {}, []
    lengths = {name: int(name.partition(":")[2]) for name in chains}
    longest = max(chains, key=lambda name: lengths[name])
    if not sums[longest].columns["n_drafted"].sum():
        return {}, ["nothing was drafted, so nothing is predicted: raise --max-new-tokens"]
    model = cost_model(sums["plain"], sums[longest], passes)
    predicted = {name: model.chain(lengths[name]) for name in chains}
    for name, one in sums.items():
        if name == one.shape and name not in chains and one.columns["n_drafted"].sum():
            predicted[name] = _tree(model, one)
    end = model.break_even()
    limit = f"chains up to {end} pay" if end else "no chain pays" if end == 0 else f"all up to {FURTHEST} pay"
    speed = sums["plain"].ms_per_token
    measured = {name: speed / one.ms_per_token for name, one in chains.items()}
    best = max(measured, key=lambda name: measured[name])
    paying = [lengths[name] for name, value in measured.items() if value >= 1.0]
    seen = f"chains up to {max(paying)} pay" if paying else "no chain pays"
    return predicted, [
        f"cost model (acceptance and times of {longest}, bare target passes): best chain {model.best_chain()}, {limit}",
        f"measured: best {best}, {seen}",
    ]


def _tree(model: CostModel, one: Sums) -> float:
    """Predicted speed-up of a tree arm, with the shape and length that it had."""
    parts = {name: float(values.sum()) for name, values in one.columns.items()}
    nodes = round(parts["n_nodes"] / parts["n_drafted"])
    levels = round(parts["n_levels"] / parts["n_drafted"])
    return model.tree(nodes, levels, parts["n_new_tokens"] / parts["n_steps"])
