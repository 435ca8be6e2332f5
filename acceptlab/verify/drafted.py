"""What a rule sees of a step, the draft's and the target's side, and the decision that comes out.

Data only. Rows of per-context arrays have the root first: row 0 is the root, row i + 1 is node i.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Int8, Shaped
from torch import Tensor

from acceptlab.errors import UsageError
from acceptlab.records import Outcome
from acceptlab.tree import Tree
from acceptlab.walk import OUTCOMES, UNTESTED, blocked_below


def rows_of(
    matrix: Shaped[Tensor, "rows columns"], rows: Int[np.ndarray, " some"]
) -> Shaped[Tensor, "some columns"]:
    """Rows of a matrix: a view where they are consecutive, else a copy."""
    first = int(rows[0]) if len(rows) else 0
    if (rows == np.arange(first, first + len(rows))).all():
        return matrix[first : first + len(rows)]
    return matrix[torch.from_numpy(rows).to(matrix.device)]


@dataclass(frozen=True, eq=False)
class Drafted:
    """The draft's side of a step."""

    tree: Tree
    token_ids: Int[np.ndarray, " nodes"]
    """The token of every node; -1 for a place of the shape that stayed empty."""
    draft_rows: Int[np.ndarray, " contexts"]
    """The row of `draft_probs` for every context, -1 where the draft has none."""
    draft_probs: Float[Tensor, "rows vocab"] | None = None
    """The draft's sampling distributions (float64); read by rejection, rejection-iid and block only."""

    def __post_init__(self) -> None:
        n_nodes = self.tree.n_nodes
        if self.token_ids.shape != (n_nodes,) or self.draft_rows.shape != (n_nodes + 1,):
            raise UsageError(
                f"a drafted tree of {n_nodes} nodes needs {n_nodes} tokens and {n_nodes + 1} draft rows, "
                f"not {self.token_ids.shape} and {self.draft_rows.shape}"
            )

    def blocked(self, eos_ids: frozenset[int]) -> Bool[np.ndarray, " nodes"]:
        """Nodes below an end of text, and nodes without a token (id -1): no rule tests them."""
        missing = self.token_ids < 0
        is_end = missing | np.isin(self.token_ids, list(eos_ids)) if eos_ids else missing
        return np.asarray(missing | blocked_below(self.tree, is_end))


@dataclass(frozen=True, eq=False)
class Target:
    """The target's side of a step. A rule reads only the parts it needs; `read_target` fills exactly those.

    Lossless rules read `probs`. The argmax rules read the model distribution (temperature 1, untruncated):
    `argmax` always; `node_rank` for top; `node_prob` and `top_prob` for additive, ratio, typical; `entropy`
    for typical.
    """

    probs: Float[Tensor, "rows vocab"] | None = None
    """Sampling distributions; float64, which a rule checks. A row a context, unless `prob_rows` says otherwise."""
    prob_rows: Int[np.ndarray, " contexts"] | None = None
    """The row of `probs` for every context, -1 where it is made only if it is asked for (`late`)."""
    late: Callable[[int], Tensor] | None = None
    """The sampling distribution of one context, as one row. Of the leaves at most one is ever needed."""
    argmax: Int[np.ndarray, " contexts"] | None = None
    """The target's argmax in every context, the lowest id among exact ties; -1 where it is read only if it is asked
    for (`late_argmax`)."""
    late_argmax: Callable[[int], int] | None = None
    """The argmax in one context. Of the leaves at most one is ever needed."""
    node_prob: Float64[np.ndarray, " nodes"] | None = None
    """Model probability of each drafted token in its parent's context."""
    node_rank: Int[np.ndarray, " nodes"] | None = None
    """Its rank there, 0 the argmax, ties by lower id."""
    top_prob: Float64[np.ndarray, " contexts"] | None = None
    """Largest model probability; needed only in contexts with children."""
    entropy: Float64[np.ndarray, " contexts"] | None = None
    """Entropy of the model distribution in nats; needed only in contexts with children."""

    @property
    def is_on_cpu(self) -> bool:
        """Whether the sampling distributions lie in the computer's own memory."""
        return self.probs is not None and self.probs.device.type == "cpu"

    def probs_of(self, contexts: Int[np.ndarray, " some"]) -> Float[Tensor, "some vocab"]:
        """Sampling distributions of some contexts, in that order: a view where they lie one after the other.

        Raises:
            UsageError: there are none, or not of these contexts.
        """
        if self.probs is None:
            raise UsageError("the target's sampling distributions were not read")
        rows = contexts if self.prob_rows is None else self.prob_rows[contexts]
        if (rows >= 0).all():
            return rows_of(self.probs, rows)
        if self.late is None:
            raise UsageError(
                f"the target's sampling distribution of context {contexts[rows < 0][0]} is missing"
            )
        each = [
            self.late(int(c)) if row < 0 else self.probs[row : row + 1]
            for c, row in zip(contexts, rows, strict=True)
        ]
        return torch.cat(each) if len(each) > 1 else each[0]


@dataclass(frozen=True, eq=False)
class Verdict:
    """What a rule decided in a step. Probabilities are conditional on the drafted tree."""

    outcome: Int8[np.ndarray, " nodes"]
    """Codes of `walk.OUTCOMES`."""
    accepted: tuple[int, ...]
    """Accepted nodes from the root's child to the leaf."""
    next_token: int | None
    """The bonus or correction token; None where the accepted path ends the text."""
    accept_prob: Float64[np.ndarray, " nodes"]
    """Probability of acceptance once tested; nan where test_prob is 0."""
    test_prob: Float64[np.ndarray, " nodes"]
    expected_accepted_len: float
    """Expectation of `accepted_len`, without the bonus token."""

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The outcomes by name."""
        return tuple(OUTCOMES[code] for code in self.outcome)

    @property
    def accepted_len(self) -> int:
        """Drafted tokens accepted, without the bonus token."""
        return len(self.accepted)

    @property
    def n_tested(self) -> int:
        """Nodes that were accepted or rejected."""
        return int((self.outcome != UNTESTED).sum())
