"""Do two models speak the same ids, and how wide are their rows: comparing tokenizers, masking logits.

Ids without a token (rows that pad the output layer to a round size) are masked to -inf on both models, so
that no distribution of a run contains them. What the target would have given them is watched and reported.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from acceptlab.errors import UsageError
from acceptlab.models import LanguageModel
from acceptlab.passes import Pass, fork, run_together

_log = logging.getLogger("acceptlab")
REPORTED_MASS = 1e-6
"""Masked probability above which a run says so."""
_REMEDY = "use a draft of the target's family, or self:skip=... or ngram:n=3"


@dataclass(frozen=True)
class Vocabulary:
    """The ids that a run may contain: those below `width` for which the target's tokenizer has a token."""

    width: int
    missing: tuple[int, ...]
    """Ids below `width` without a token."""


def vocabulary_of(tokenizer: Any) -> Vocabulary:
    """The ids that have a token."""
    ids = set(tokenizer.get_vocab().values())
    width = max(ids) + 1
    return Vocabulary(width, tuple(sorted(set(range(width)) - ids)))


def check_tokenizers(target: Any, draft: Any, draft_name: str) -> list[str]:
    """Compare two tokenizers id by id.

    Ids that only one of them has are fine (the target's tokenizer is the one that is used). Special tokens
    that were merely renamed are noted, as long as neither tokenizer begins or ends texts with them.

    Returns:
        Notes for the reader of a run.

    Raises:
        UsageError: an id has different texts; the first one is named with both.
    """
    target_texts, draft_texts = _texts(target), _texts(draft)
    shared = sorted(target_texts.keys() & draft_texts.keys())
    renamed: list[int] = []
    differing: list[int] = []
    for token_id in shared:
        if target_texts[token_id] == draft_texts[token_id] or _same_decoded(target, draft, token_id):
            continue
        (renamed if _is_spare(token_id, target, draft) else differing).append(token_id)
    if differing or not shared:
        first = differing[0] if differing else 0
        n_equal = len(shared) - len(differing)
        extent = "another tokenizer than" if n_equal < len(shared) / 2 else "other texts for some ids than"
        raise UsageError(
            f"the draft '{draft_name}' has {extent} the target: id {first} is "
            f"{target_texts.get(first)!r} in the target's and {draft_texts.get(first)!r} in the draft's "
            f"({n_equal} of {len(shared)} ids agree): {_REMEDY}"
        )
    notes = []
    if renamed:
        first = renamed[0]
        notes.append(
            f"{len(renamed)} special tokens are named differently, first id {first}: "
            f"{target_texts[first]!r} in the target's tokenizer, {draft_texts[first]!r} in the draft's"
        )
    return notes


def _texts(tokenizer: Any) -> dict[int, str]:
    vocabulary: Mapping[str, int] = tokenizer.get_vocab()
    return {token_id: text for text, token_id in vocabulary.items()}


def _same_decoded(target: Any, draft: Any, token_id: int) -> bool:
    """Whether an id decodes to the same text though its raw forms differ; parts of characters never do."""
    text = target.decode([token_id])
    return bool(text) and "\ufffd" not in text and bool(text == draft.decode([token_id]))


def _is_spare(token_id: int, target: Any, draft: Any) -> bool:
    """A special token in both tokenizers that begins or ends texts in neither."""
    ends = {target.bos_token_id, target.eos_token_id, draft.bos_token_id, draft.eos_token_id}
    special = [token_id in t.added_tokens_decoder or token_id in t.all_special_ids for t in (target, draft)]
    return all(special) and token_id not in ends


def fit(model: LanguageModel, vocabulary: Vocabulary) -> LanguageModel:
    """The model with rows of the vocabulary's width; the model itself where nothing is to be done."""
    if model.vocab_size == vocabulary.width and not vocabulary.missing:
        return model
    return PaddedModel(model, vocabulary)


def width_notes(role: str, model: LanguageModel, vocabulary: Vocabulary) -> list[str]:
    """What padding and masking do to a model's rows, as notes for the reader of a run."""
    surplus = max(0, model.vocab_size - vocabulary.width) + sum(
        i < model.vocab_size for i in vocabulary.missing
    )
    notes = []
    if surplus:
        notes.append(f"{surplus} ids of the {role}'s {model.vocab_size} logits have no token and are masked")
    if model.vocab_size < vocabulary.width:
        notes.append(f"the {role} cannot produce the last {vocabulary.width - model.vocab_size} ids")
    return notes


class PaddedModel:
    """A model whose rows have the width of a vocabulary (implements `acceptlab.models.LanguageModel`).

    Columns beyond the vocabulary are cut, missing ones are -inf, and ids without a token are -inf.
    """

    def __init__(self, inner: LanguageModel, vocabulary: Vocabulary) -> None:
        self.inner = inner
        self.name = inner.name
        self.vocab_size = vocabulary.width
        self.max_len = inner.max_len
        self.device = inner.device
        self._origin = self  # of all forks: it watches what is masked
        self._masked = torch.zeros((), device=inner.device)
        self._is_reported = False
        self._n_rows = 0
        self._next_look = 1
        self._n_shared = min(vocabulary.width, inner.vocab_size)
        gone = torch.zeros(inner.vocab_size, dtype=torch.bool)
        gone[self._n_shared :] = True
        gone[[token_id for token_id in vocabulary.missing if token_id < inner.vocab_size]] = True
        self._gone = torch.nonzero(gone)[:, 0].to(inner.device)
        self._holes = self._gone[self._gone < self._n_shared]

    @property
    def n_slots(self) -> int:
        """Slots in the cache."""
        return self.inner.n_slots

    def reset(self) -> None:
        """Empty the cache."""
        self.inner.reset()

    def prefill(self, token_ids: Int[Tensor, " tokens"]) -> None:
        """Append a plain causal run of tokens behind a dense prefix."""
        self.inner.prefill(token_ids)

    def keep(self, slots: Int[Tensor, " kept"]) -> None:
        """Keep exactly these slots of the cache, in this order."""
        self.inner.keep(slots)

    def forward(
        self,
        token_ids: Int[Tensor, " rows"],
        positions: Int[Tensor, " rows"],
        visible: Bool[Tensor, "rows slots"],
    ) -> Float[Tensor, "rows vocab"]:
        """Append one slot a row; logits at the vocabulary's width, -inf on ids that either side lacks."""
        return self._fitted(self.inner.forward(token_ids, positions, visible))

    def fork(self) -> PaddedModel:
        """Another sequence of the same model."""
        twin = copy.copy(self)
        twin.inner = fork(self.inner)
        return twin

    def forward_many(self, passes: Sequence[Pass]) -> list[Float[Tensor, "rows vocab"]]:
        """Passes of several forks in one go, where the model itself can."""
        inner = []
        for each in passes:
            assert isinstance(each.model, PaddedModel)
            inner.append(replace(each, model=each.model.inner))
        return [self._fitted(logits) for logits in run_together(inner)]

    def _fitted(self, logits: Float[Tensor, "rows own_vocab"]) -> Float[Tensor, "rows vocab"]:
        fitted = logits.new_full((len(logits), self.vocab_size), -torch.inf)
        fitted[:, : self._n_shared] = logits[:, : self._n_shared]
        fitted[:, self._holes] = -torch.inf
        self._origin._watch(logits, fitted)
        return fitted

    @property
    def masked_prob(self) -> float:
        """Largest probability that a row of the model itself had on ids that were taken away."""
        return float(self._masked)

    def _watch(self, logits: Tensor, fitted: Tensor) -> None:
        """Keep the largest masked probability, and say so once where it matters."""
        if not len(self._gone):
            return
        taken = logits[:, self._gone].logsumexp(dim=1)
        on_cpu = logits.device.type == "cpu"
        # a sum over the kept ids is at least its largest term, so this bounds the masked probability; reading it
        # is free on the CPU, where the full sum is not
        if on_cpu:
            bound = float((taken - fitted.max(dim=1).values).exp().nan_to_num(0.0).max())
            if bound <= max(self.masked_prob, REPORTED_MASS / 10):
                return
        mass = (taken - logits.logsumexp(dim=1)).exp().nan_to_num(0.0).max()
        self._masked = torch.maximum(self._masked, mass)
        self._n_rows += len(logits)
        # an accelerator is waited for at doubling numbers of rows only
        if on_cpu or self._n_rows >= self._next_look:
            self._next_look = 2 * self._n_rows
            self._report()

    def _report(self) -> None:
        if self._is_reported or self.masked_prob <= REPORTED_MASS:
            return
        self._is_reported = True
        _log.warning(
            "%s puts probability %.2g on ids without a token; they are masked", self.name, self.masked_prob
        )
