"""Three roads to the accepted length of a chain, summed over the roots of a text. Arrays in, sums out.

At every root: what was accepted; its expectation given the drafted chain; and the branch sum of B_(k-1) a_k along the
text that was written after the root, which follows the target's distribution given the root. A root counts where a
whole window fits before the length limit, whatever the text did afterwards: a choice that looked at how the text went
on, such as keeping roots near the limit because an EOS came in time, would bias the third road.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from acceptlab.errors import UsageError
from acceptlab.theory.chains import branch_lens, step_start_weights

SUMS = (
    "n_roots",
    "accepted",
    "expected",
    "branch",
    "n_positions",
    "branch_positions",
    "starts",
    "branch_starts",
)
"""Of one text: roots with the three lengths; all positions with the third; positions weighted by expected starts."""


@dataclass(frozen=True, eq=False)
class ScoredText:
    """A written text: what both models say of every token of it (EOS included), and the steps that wrote it.

    `starts`: tokens written before each step; `accepted`, `expected`: its accepted length and the expectation.
    """

    overlaps: Float[np.ndarray, " tokens"]
    ratios: Float[np.ndarray, " tokens"]
    starts: Int[np.ndarray, " steps"]
    accepted: Float[np.ndarray, " steps"]
    expected: Float[np.ndarray, " steps"]


def last_start(max_new_tokens: int, window: int) -> int:
    """The last place at which a step drafts a whole window that ends before the limit; negative if there is none.

    A step with one token left to write drafts nothing, so that a window of 1 needs two places.
    """
    return max_new_tokens - max(window, 2)


def windows(
    text: ScoredText, window: int, last: int
) -> tuple[Float[np.ndarray, "starts window"], Float[np.ndarray, "starts window"]]:
    """Ratios and overlaps after every place of the text up to `last`; 0 below its end, which is an EOS there.

    Raises:
        UsageError: the text ends before the limit without having the places, or scores and text do not fit.
    """
    if text.overlaps.shape != text.ratios.shape:
        raise UsageError(
            f"{text.overlaps.shape} overlaps and {text.ratios.shape} ratios: score the text again"
        )
    n_starts = min(len(text.ratios), last + 1)
    if n_starts <= 0:
        return np.zeros((0, window)), np.zeros((0, window))
    padded = [np.concatenate([values, np.zeros(window)]) for values in (text.ratios, text.overlaps)]
    ratios, overlaps = (np.lib.stride_tricks.sliding_window_view(values, window) for values in padded)
    return ratios[:n_starts], overlaps[:n_starts]


def text_sums(text: ScoredText, window: int, last: int) -> Float[np.ndarray, " sums"]:
    """Sums of one text in the order of SUMS.

    Args:
        text: scores and steps; a text that is shorter than `last + window` must have ended by EOS.
        window: K, drafted tokens a step.
        last: last place that counts, see `last_start`.

    Raises:
        UsageError: a step that begins behind the text.
    """
    branch = branch_lens(*windows(text, window, last))
    counts = text.starts <= last
    roots = text.starts[counts]
    if (roots >= len(branch)).any():
        raise UsageError(f"a step begins at {roots.max()} of {len(text.ratios)} tokens: score the text again")
    weights = step_start_weights(text.ratios, window)[: len(branch)]
    return np.array(
        [
            len(roots),
            text.accepted[counts].sum(),
            text.expected[counts].sum(),
            branch[roots].sum(),
            len(branch),
            branch.sum(),
            weights.sum(),
            weights @ branch,
        ]
    )
