"""What a step costs: draft time a level, verification time by tokens in the pass, from a run or a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from acceptlab.errors import UsageError
from acceptlab.tree import Tree

_MIN_STEPS = 5
"""Fewest steps of a size for its mean time to be used, where another size has more."""


@dataclass(frozen=True, eq=False)
class Costs:
    """Times of a step. Between the sizes of `verify_tokens` a straight line, beyond them the nearest size."""

    draft_level_ms: float
    other_ms: float
    verify_tokens: Int[np.ndarray, " sizes"]
    verify_ms: Float[np.ndarray, " sizes"]
    source: str

    def step_ms(self, n_nodes: int, n_levels: int) -> float:
        """Time of a step that drafts so many nodes in so many levels; the pass has the root as well."""
        verify = float(np.interp(n_nodes + 1, self.verify_tokens, self.verify_ms))
        return n_levels * self.draft_level_ms + verify + self.other_ms

    def tokens_per_s(self, accepted_len: float, tree: Tree) -> float:
        """Tokens a second of steps that accept so many tokens on average and emit one more."""
        return 1000.0 * (1.0 + accepted_len) / self.step_ms(tree.n_nodes, tree.depth)


def costs_from(passes: pd.DataFrame, costs_file: Path | None = None) -> Costs | None:
    """Costs from the steps of a run (`queries.trees.pass_costs`); None where it has no drafted step or no times.

    Args:
        passes: mean times by n_nodes and n_levels. Time that went into recording is no part of them.
        costs_file: CSV with columns n (tokens in a target pass, the root included) and ms, which replaces the
            verification times.

    Raises:
        UsageError: the file cannot be read or lacks the columns.
    """
    drafted = passes[passes["n_levels"] > 0]
    if drafted.empty or not (drafted["verify_ms"] > 0).any():
        return None
    weights = drafted["n_steps"].to_numpy(dtype=np.float64)
    levels = float((drafted["n_levels"] * weights).sum())
    draft_level_ms = float((drafted["draft_ms"] * weights).sum()) / levels
    other_ms = float((drafted["other_ms"] * weights).sum() / weights.sum())
    if costs_file is not None:
        tokens, ms = _read(costs_file)
        return Costs(draft_level_ms, other_ms, tokens, ms, f"verification times from '{costs_file}'")
    tokens, ms = _measured(passes)
    sizes = ", ".join(map(str, tokens))
    flat = "; with one size only, every tree seems to verify at the same price" if len(tokens) == 1 else ""
    return Costs(
        draft_level_ms,
        other_ms,
        tokens,
        ms,
        f"verification times from the run's own passes of {sizes} tokens: a straight line between them, the nearest "
        f"beyond; --costs FILE (columns n, ms) gives a measured curve{flat}",
    )


def _measured(passes: pd.DataFrame) -> tuple[Int[np.ndarray, " sizes"], Float[np.ndarray, " sizes"]]:
    timed = passes.assign(total=passes["verify_ms"] * passes["n_steps"], tokens=passes["n_nodes"] + 1)
    sizes = timed.groupby("tokens")[["total", "n_steps"]].sum().sort_index()
    often = sizes[sizes["n_steps"] >= _MIN_STEPS]
    sizes = sizes if often.empty else often
    means = sizes["total"].to_numpy(dtype=np.float64) / sizes["n_steps"].to_numpy(dtype=np.float64)
    return sizes.index.to_numpy(dtype=np.int64), means


def _read(path: Path) -> tuple[Int[np.ndarray, " sizes"], Float[np.ndarray, " sizes"]]:
    try:
        frame = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the costs '{path}': {error}") from None
    if not {"n", "ms"} <= set(frame.columns):
        raise UsageError(
            f"the costs '{path}' need columns n and ms, not {', '.join(map(str, frame.columns))}"
        )
    numbers = frame[["n", "ms"]].apply(pd.to_numeric, errors="coerce")
    if numbers.empty or numbers.isna().to_numpy().any() or (numbers <= 0).to_numpy().any():
        raise UsageError(
            f"the costs '{path}' hold a value that is not a number above 0: write lines such as 16,95.2"
        )
    means = numbers.groupby("n")["ms"].mean().sort_index()
    return means.index.to_numpy(dtype=np.int64), means.to_numpy(dtype=np.float64)
