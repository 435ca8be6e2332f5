"""Table models: language models whose every next-token distribution is known, for tests and for teaching.

A `TableModel` looks its distribution up in a table, given the tokens before. It behaves like a cached
transformer: tokens enter as slots with positions, a mask says which slots a row sees, and slots can be
dropped. But it uses none of that to save work. It rebuilds every row's text from the slots it sees and
checks that the text makes sense, so a wrong mask, a wrong position or a cache that kept the wrong slots
ends with an error instead of a plausible number.

    >>> target = TableModel(random_table(4, seed=0), vocab_size=4)
    >>> draft = TableModel(blended(target.table, random_table(4, seed=1), weight=0.3), vocab_size=4)
    >>> round(overlap(target.next_probs((1, 2)), draft.next_probs((1, 2))), 3) > 0.7  # it shares 0.7 at least
    True
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from acceptlab.errors import UsageError
from acceptlab.rng import generator

Text = tuple[int, ...]
Probs = Float64[np.ndarray, " vocab"]
Table = Callable[[Text], Probs]
"""The next-token distribution after a text. It must give the same answer every time."""


def listed_table(rows: Mapping[Text, Sequence[float]], otherwise: Sequence[float] | None = None) -> Table:
    """A table that lists its texts: the longest listed ending of the text decides.

    Args:
        rows: endings of texts, each with its distribution; `()` fits every text.
        otherwise: what to use where no ending fits; the same as listing `()`.

    Raises:
        UsageError: a row is no distribution; when asked, a text that nothing fits.
    """
    listed = {tuple(text): _checked(text, probs) for text, probs in rows.items()}
    if otherwise is not None:
        listed.setdefault((), _checked((), otherwise))

    def look_up(text: Text) -> Probs:
        for start in range(len(text) + 1):
            if text[start:] in listed:
                return listed[text[start:]]
        raise UsageError(f"the table has no row for the text {text}: list () to cover all texts")

    return look_up


def random_table(vocab_size: int, seed: int, *, order: int = 2, concentration: float = 1.0) -> Table:
    """A random distribution for every combination of the last `order` tokens (Dirichlet, seeded by the text).

    Args:
        vocab_size: number of tokens.
        seed: another seed, another table.
        order: how many tokens the model looks back.
        concentration: below 1 the distributions are peaked, above 1 they are flat.
    """

    @lru_cache(maxsize=65536)
    def row(ending: Text) -> Probs:
        stream = generator(seed, "table", 0, repr(ending))
        weights = stream.dirichlet(np.full(vocab_size, concentration))
        return np.asarray(weights / weights.sum())

    return lambda text: row(text[len(text) - min(order, len(text)) :])


def blended(table: Table, other: Table, weight: float) -> Table:
    """A draft at a controlled distance: (1 - weight) * table + weight * other.

    Its overlap with `table` in a context is 1 - weight * TV(table, other); so at least 1 - weight, and
    exactly that where the two share no token.
    """
    if not 0 <= weight <= 1:
        raise UsageError(f"weight {weight} is not from 0 to 1: 0 copies the first table, 1 the second")
    return lambda text: (1.0 - weight) * table(text) + weight * other(text)


def overlap(target_probs: Probs, draft_probs: Probs) -> float:
    """Sum of min(target, draft): the chance that rejection sampling accepts one draft token here."""
    return float(np.minimum(target_probs, draft_probs).sum())


def _checked(text: Text, probs: Sequence[float]) -> Probs:
    row = np.asarray(probs, dtype=np.float64)
    # a row written with a few decimals is meant to sum to 1
    if row.ndim != 1 or (row < 0).any() or abs(row.sum() - 1) > 1e-6:
        raise UsageError(f"the row {list(probs)} of text {text} is no distribution: make it sum to 1")
    return np.asarray(row / row.sum())


@dataclass(frozen=True)
class _Slot:
    """One cached token: its position, and the text up to it as it was seen when the token entered."""

    position: int
    text: Text


class TableModel:
    """A language model (`models.LanguageModel`) that answers from a table.

    Args:
        table: the next-token distribution after a text.
        vocab_size: width of the logits; the table's rows must be that long.
        name: how reports call it.
        max_len: largest number of positions, None for no limit.
    """

    def __init__(
        self, table: Table, vocab_size: int, name: str = "table", max_len: int | None = None
    ) -> None:
        self.table = table
        self.vocab_size = vocab_size
        self.name = name
        self.max_len = max_len
        self.device = torch.device("cpu")
        self._slots: list[_Slot] = []

    @property
    def n_slots(self) -> int:
        """Slots in the cache."""
        return len(self._slots)

    def reset(self) -> None:
        """Empty the cache."""
        self._slots = []

    def logits(self, text: Text) -> Float[Tensor, " vocab"]:
        """The logits after a text, float32 as all models give them: the logarithm of the table's row."""
        row = self.table(text)
        if row.shape != (self.vocab_size,):
            raise UsageError(f"the table gives {row.shape} for {text}, not {self.vocab_size} probabilities")
        return torch.from_numpy(row).log().float()

    def next_probs(self, text: Text) -> Probs:
        """The distribution that the logits stand for, in float64: the table's row up to float32 rounding."""
        return np.asarray(torch.softmax(self.logits(text).double(), dim=0).numpy())

    def prefill(self, token_ids: Int[Tensor, " tokens"]) -> None:
        """Append a plain run of tokens at positions n_slots onward; the cache must be a dense prefix."""
        for index, slot in enumerate(self._slots):
            if slot.position != index or slot.text != self._slots[-1].text[: index + 1]:
                raise UsageError(
                    f"prefill after slot {index} at position {slot.position}: the cache is not dense"
                )
        text = self._slots[-1].text if self._slots else ()
        for token in token_ids.tolist():
            text = (*text, self._valid(token))
            self._slots.append(_Slot(self._position(len(text) - 1), text))

    def forward(
        self,
        token_ids: Int[Tensor, " rows"],
        positions: Int[Tensor, " rows"],
        visible: Bool[Tensor, "rows slots"],
    ) -> Float[Tensor, "rows vocab"]:
        """Append one slot a row and give the logits of every row.

        Raises:
            UsageError: the mask has the wrong width, a row does not see itself, or what a row sees is no
                text: two slots at one position, a gap, or a slot that was computed after another text.
        """
        n_rows, past = len(token_ids), self.n_slots
        if visible.shape != (n_rows, past + n_rows):
            raise UsageError(f"the mask has shape {tuple(visible.shape)}, not {(n_rows, past + n_rows)}")
        tokens = [self._valid(token) for token in token_ids.tolist()]
        at = [slot.position for slot in self._slots] + [self._position(p) for p in positions.tolist()]
        texts: dict[int, Text] = {index: slot.text for index, slot in enumerate(self._slots)}
        for row in sorted(range(n_rows), key=lambda row: at[past + row]):
            seen = torch.nonzero(visible[row])[:, 0].tolist()
            texts[past + row] = self._text(past + row, tokens[row], seen, at, texts)
        new = [_Slot(at[past + row], texts[past + row]) for row in range(n_rows)]
        self._slots.extend(new)
        if not new:
            return torch.empty((0, self.vocab_size))
        return torch.stack([self.logits(slot.text) for slot in new])

    def keep(self, slots: Int[Tensor, " kept"]) -> None:
        """Keep exactly these slots of the cache, in this order."""
        chosen = slots.tolist()
        if len(set(chosen)) != len(chosen) or not all(0 <= slot < self.n_slots for slot in chosen):
            raise UsageError(f"cannot keep slots {chosen} of {self.n_slots}: each at most once, from 0")
        self._slots = [self._slots[slot] for slot in chosen]

    @staticmethod
    def _text(own: int, token: int, seen: list[int], at: list[int], texts: Mapping[int, Text]) -> Text:
        """The text of a new row: what it sees, sorted by position, must be a text that ends in itself."""
        if own not in seen:
            raise UsageError(f"row at position {at[own]} does not see itself")
        order = sorted(seen, key=lambda slot: at[slot])
        if [at[slot] for slot in order] != list(range(at[own] + 1)):
            raise UsageError(f"row at position {at[own]} sees positions {[at[slot] for slot in order]}")
        text: Text = ()
        for slot in order[:-1]:
            text = (*text, texts[slot][-1])
            if texts[slot] != text:
                raise UsageError(f"a slot computed after {texts[slot][:-1]} is seen as part of {text}")
        return (*text, token)

    def _valid(self, token: int) -> int:
        if not 0 <= token < self.vocab_size:
            raise UsageError(f"token {token} is outside the vocabulary of {self.vocab_size}")
        return int(token)

    def _position(self, position: int) -> int:
        if position < 0 or (self.max_len is not None and position >= self.max_len):
            raise UsageError(f"position {position} is outside the model's {self.max_len} positions")
        return int(position)
