"""Toy pairs whose truth is known, in the shapes that the audit takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from acceptlab.audit.contexts import DEPTH, Contexts
from acceptlab.audit.texts import Question, Writer
from acceptlab.engine import Settings
from acceptlab.pairing import proposal_for
from acceptlab.rng import generator
from acceptlab.rules import parse_rule
from acceptlab.sampling import Warp, warp
from acceptlab.toy import TableModel, blended, random_table
from acceptlab.tree import parse_tree

VOCAB = 8
EOS = VOCAB - 1
TREES = {
    "rejection": "kary:depth=2,branch=2",
    "rejection-iid": "branches:2,1",
    "onehot": "branches:3,2",
    "block": "chain:3",
}


@dataclass
class TableReference:
    """The plain side of a pair of tables: no cache, no engine."""

    target: TableModel
    draft: TableModel
    n_forwards: int = 0

    def target_logits(self, token_ids: Sequence[int], first: int) -> Tensor:
        self.n_forwards += 1
        return torch.stack(
            [self.target.logits(tuple(token_ids[:end])) for end in range(first, len(token_ids) + 1)]
        )

    def draft_logits(self, token_ids: Sequence[int], first: int) -> Tensor:
        return torch.stack(
            [self.draft.logits(tuple(token_ids[:end])) for end in range(first, len(token_ids) + 1)]
        )

    def sample(
        self, token_ids: Sequence[int], settings: Warp, max_new_tokens: int, seed: int, key: str, n_texts: int
    ) -> list[list[int]]:
        return [self._one(token_ids, settings, max_new_tokens, seed, f"{key}|{i}") for i in range(n_texts)]

    def _one(
        self, token_ids: Sequence[int], settings: Warp, max_new_tokens: int, seed: int, key: str
    ) -> list[int]:
        rng = generator(seed, key, 0, "toy")
        new: list[int] = []
        while len(new) < max_new_tokens and EOS not in new:
            probs = warp(self.target.logits((*token_ids, *new))[None], settings)[0].numpy()
            new.append(int(rng.choice(VOCAB, p=probs / probs.sum())))
        return new


def toy_writer(
    *, written_by_another: bool = False, temperature: float = 1.0, rules: Sequence[str] = tuple(TREES)
) -> Writer:
    """A pair of tables; with `written_by_another` the decoder's target is another table than the reference's."""
    target, draft = random_table(VOCAB, 0), blended(random_table(VOCAB, 0), random_table(VOCAB, 1), 0.6)
    reference = TableReference(TableModel(target, VOCAB), TableModel(draft, VOCAB))
    decoding = blended(target, random_table(VOCAB, 2), 0.4) if written_by_another else target
    settings = Warp(temperature)
    methods = {
        rule: Settings(
            tree=parse_tree(TREES[rule]),
            rule=parse_rule(rule),
            proposal=proposal_for(parse_rule(rule)),
            warp=settings,
            max_new_tokens=12,
            seed=0,
            eos_ids=frozenset({EOS}),
            record=False,
        )
        for rule in rules
    }
    return Writer(TableModel(decoding, VOCAB), TableModel(draft, VOCAB), reference, methods, settings, 12, 0)


QUESTIONS = [Question(f"q{i}", (i % VOCAB, (3 * i) % VOCAB)) for i in range(7)]


def toy_contexts(n_stretches: int, vocab: int = 12, seed: int = 0) -> Contexts:
    """Random logits; the draft is the target with noise."""
    rng = np.random.default_rng(seed)
    target = rng.normal(size=(n_stretches, DEPTH + 1, vocab)) * 1.5
    draft = target + rng.normal(size=target.shape)
    return Contexts(torch.from_numpy(target).float(), torch.from_numpy(draft).float())


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
