"""Chain objectives by enumeration of all paths over explicit tables: exact answers for tests and worked
examples.

A table of depth k has shape [V] * k + [V]: the next-token law after every sequence of k tokens. Sizes grow as
V^K; meant for a handful of tokens and steps. Boundary: tables in, the arrays of `chains` out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from acceptlab.errors import UsageError


@dataclass(frozen=True)
class EnumeratedChain:
    """Every text of K tokens that the target can write, with its probability: weighted trajectories for
    `chains`.
    """

    tokens: Int[np.ndarray, "n positions"]
    path_probs: Float[np.ndarray, " n"]
    ratios: Float[np.ndarray, "n positions"]
    overlaps: Float[np.ndarray, "n positions"]


def enumerate_chain(
    target_tables: Sequence[np.ndarray], draft_tables: Sequence[np.ndarray]
) -> EnumeratedChain:
    """All paths of positive target probability, with ratios min(1, draft/target) and overlaps along them.

    Raises:
        UsageError: tables whose shapes do not fit together.
    """
    targets, drafts = _tables(target_tables), _tables(draft_tables)
    if [table.shape for table in targets] != [table.shape for table in drafts]:
        raise UsageError(
            "the target's and the draft's tables differ in shape: give one pair of tables a position"
        )
    n_tokens, n_positions = targets[0].shape[0], len(targets)
    tokens = np.array(list(np.ndindex(*[n_tokens] * n_positions)), dtype=np.int64)
    target_probs = np.stack([_along(table, tokens) for table in targets], axis=1)
    draft_probs = np.stack([_along(table, tokens) for table in drafts], axis=1)
    overlaps = np.stack(
        [
            np.minimum(target, draft).sum(axis=-1)[tuple(tokens[:, :position].T)] * np.ones(len(tokens))
            for position, (target, draft) in enumerate(zip(targets, drafts, strict=True))
        ],
        axis=1,
    )
    path_probs = target_probs.prod(axis=1)
    possible = path_probs > 0.0
    ratios = np.minimum(1.0, draft_probs[possible] / target_probs[possible])
    return EnumeratedChain(tokens[possible], path_probs[possible], ratios, overlaps[possible])


def exact_survival(
    target_tables: Sequence[np.ndarray], draft_tables: Sequence[np.ndarray]
) -> Float[np.ndarray, " positions"]:
    """S_k for k = 1..K: the sum over all sequences of k tokens of the product of min(target, draft)."""
    mass = np.ones(())
    survival = []
    for target, draft in zip(_tables(target_tables), _tables(draft_tables), strict=True):
        mass = mass[..., None] * np.minimum(target, draft)
        survival.append(mass.sum())
    return np.array(survival)


def _tables(tables: Sequence[np.ndarray]) -> list[np.ndarray]:
    arrays = [np.asarray(table, dtype=np.float64) for table in tables]
    for position, table in enumerate(arrays):
        if table.shape != (arrays[0].shape[-1],) * (position + 1):
            raise UsageError(
                f"the table of position {position} has shape {table.shape}: give {position + 1} equal axes"
            )
    return arrays


def _along(table: np.ndarray, tokens: Int[np.ndarray, "n positions"]) -> Float[np.ndarray, " n"]:
    """The entry of every path in a table: its probability at the table's position."""
    return np.asarray(table[tuple(tokens[:, : table.ndim].T)])
