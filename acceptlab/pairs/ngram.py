"""A draft without weights: prompt lookup, as a distribution over what followed the same words before.

After Saxena's prompt lookup decoding and the n-gram matching of llama.cpp and vLLM; those copy one
continuation, this gives the counts of all continuations as a distribution, so that siblings and lossless
sampling are defined.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from acceptlab.errors import UsageError

MAX_N = 16


def continuation_counts(
    tokens: Int[np.ndarray, " tokens"], n: int
) -> tuple[Int[np.ndarray, " ids"], Int[np.ndarray, " ids"]]:
    """Ids that followed earlier occurrences of the text's end, and how often each did.

    The longest suffix of at most `n` tokens that occurs earlier (with a token behind it) decides; shorter
    ones are tried only where a longer one never occurred. Both arrays are empty where even the last token is
    new.
    """
    length = len(tokens)
    for size in range(min(n, length - 1), 0, -1):
        starts = np.arange(length - size)
        matches = np.ones(length - size, dtype=bool)
        for offset in range(size):
            matches &= tokens[starts + offset] == tokens[length - size + offset]
        if matches.any():
            ids, counts = np.unique(tokens[starts[matches] + size], return_counts=True)
            return ids, counts
    empty = np.empty(0, dtype=np.int64)
    return empty, empty


class NgramModel:
    """Prompt lookup behind the `LanguageModel` protocol: a slot is one token and its position.

    Logits are the log of the relative counts, -inf for tokens that never followed; a row of all -inf where
    nothing matches. The text of a row is its visible slots by position, so that a tree's branches do not see
    each other.
    """

    max_len: int | None = None

    def __init__(self, n: int, vocab_size: int, device: torch.device | None = None) -> None:
        if not 1 <= n <= MAX_N:
            raise UsageError(f"ngram:n={n}: n is a whole number from 1 to {MAX_N}")
        self.n = n
        self.name = f"ngram:n={n}"
        self.vocab_size = vocab_size
        self.device = device or torch.device("cpu")
        self.reset()

    @property
    def n_slots(self) -> int:
        """Slots in the cache."""
        return len(self._tokens)

    def reset(self) -> None:
        """Empty the cache."""
        self._tokens = np.empty(0, dtype=np.int64)
        self._positions = np.empty(0, dtype=np.int64)

    def prefill(self, token_ids: Int[Tensor, " tokens"]) -> None:
        """Append a plain run of tokens behind a dense prefix."""
        start = self.n_slots
        self._append(token_ids, torch.arange(start, start + len(token_ids)))

    def forward(
        self,
        token_ids: Int[Tensor, " rows"],
        positions: Int[Tensor, " rows"],
        visible: Bool[Tensor, "rows slots"],
    ) -> Float[Tensor, "rows vocab"]:
        """Append one slot a row; next-token log-probabilities of every row (-inf where undefined)."""
        self._append(token_ids, positions)
        order = np.argsort(self._positions, kind="stable")
        seen = visible.cpu().numpy()[:, order]
        tokens = self._tokens[order]
        logits = torch.full((len(token_ids), self.vocab_size), -torch.inf)
        for row in range(len(token_ids)):
            ids, counts = continuation_counts(tokens[seen[row]], self.n)
            if len(ids):
                logits[row, torch.from_numpy(ids)] = torch.from_numpy(np.log(counts / counts.sum())).float()
        return logits.to(self.device)

    def keep(self, slots: Int[Tensor, " kept"]) -> None:
        """Keep exactly these slots, in this order."""
        chosen = slots.cpu().numpy()
        self._tokens = self._tokens[chosen]
        self._positions = self._positions[chosen]

    def _append(self, token_ids: Tensor, positions: Tensor) -> None:
        self._tokens = np.concatenate([self._tokens, token_ids.cpu().numpy().astype(np.int64)])
        self._positions = np.concatenate([self._positions, positions.cpu().numpy().astype(np.int64)])
