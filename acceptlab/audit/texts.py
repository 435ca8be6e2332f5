"""Texts of the audit: decoded one by one, transformed, and kept as one small file each.

An interrupted audit loses what it was writing. Boundary: models and prompts in, texts out; no tests here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64

from acceptlab.audit.kept import read_json, write_json
from acceptlab.audit.plain import Reference
from acceptlab.audit.transform import transform_logits
from acceptlab.engine import Settings, decode
from acceptlab.errors import RunError, UsageError
from acceptlab.models import LanguageModel
from acceptlab.records import StopReason
from acceptlab.rng import uniforms
from acceptlab.sampling import Warp

TARGET_ALONE = "target alone"
"""The method that uses no draft: sampling by the library, one token a pass."""
TEXTS_A_PROMPT = 4
"""Texts that every method writes of a prompt before the next one: the library writes them side by side."""


@dataclass(frozen=True)
class Question:
    """A prompt as the audit needs it: its id and its tokens."""

    id: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class AuditText:
    """One text of one method."""

    method: str
    index: int
    prompt_id: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    """What was emitted, the end-of-text token included."""
    points: tuple[float | None, ...]
    """The transform of every token; None where the target cannot have emitted it."""

    @property
    def transforms(self) -> Float64[np.ndarray, " n"]:
        """The points as an array, nan for None."""
        return np.array([np.nan if point is None else point for point in self.points])


class TextFolder:
    """Texts on disk, one JSON file each, for one fixed configuration."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        """Open or start a folder.

        Raises:
            UsageError: it holds the texts of another configuration.
        """
        self.folder = folder
        self.n_tokens_put = 0
        wanted = json.loads(json.dumps(dict(config)))
        path = folder / "audit.json"
        found = read_json(path)
        if found is None:
            write_json(path, wanted)
            return
        for name in sorted({*wanted, *found}):
            if found.get(name) != wanted.get(name):
                raise UsageError(
                    f"'{folder}' holds an audit with {name} {found.get(name)!r}, not {wanted.get(name)!r}: "
                    "choose another --run-folder"
                )

    def get(self, method: str, index: int) -> AuditText | None:
        """A kept text, or None."""
        content = read_json(self._path(method, index))
        if content is None:
            return None
        for name in ("prompt_ids", "token_ids", "points"):
            content[name] = tuple(content[name])
        return AuditText(**content)

    def put(self, text: AuditText) -> None:
        """Keep a text; `n_tokens_put` counts the tokens of what was written since the folder was opened."""
        self.n_tokens_put += len(text.token_ids)
        write_json(self._path(text.method, text.index), asdict(text))

    def _path(self, method: str, index: int) -> Path:
        return self.folder / "texts" / method.replace(" ", "-") / f"{index:05d}.json"


@dataclass(frozen=True)
class Writer:
    """Everything that is needed to write a text with any method."""

    target: LanguageModel
    draft: LanguageModel
    reference: Reference
    methods: Mapping[str, Settings]
    """Settings of every speculative method by name."""
    settings: Warp
    max_new_tokens: int
    seed: int

    def write(self, method: str, index: int, question: Question) -> list[AuditText]:
        """Decode a text and transform its tokens under the plain forward of its own prefix.

        The target alone writes all texts of a prompt at once; the others are given too.

        Raises:
            RunError: the text met the models' longest length, where stopping depends on speculative steps.
        """
        if method != TARGET_ALONE:
            token_ids = self._decode(method, _key(method, index, question), question)
            return [self._transformed(method, index, question, token_ids)]
        first = index - index % TEXTS_A_PROMPT
        texts = self.reference.sample(
            question.token_ids,
            self.settings,
            self.max_new_tokens,
            self.seed,
            _key(method, first, question),
            TEXTS_A_PROMPT,
        )
        return [
            self._transformed(method, place, question, token_ids)
            for place, token_ids in enumerate(texts, start=first)
        ]

    def _transformed(
        self, method: str, index: int, question: Question, token_ids: Sequence[int]
    ) -> AuditText:
        key = _key(method, index, question)
        text = [*question.token_ids, *token_ids[:-1]]
        first = len(question.token_ids)
        points = transform_logits(
            self.reference.target_logits(text, first),
            self.reference.draft_logits(text, first),
            torch.tensor(list(token_ids)),
            torch.from_numpy(uniforms(self.seed, key, 0, "audit transform", len(token_ids))),
            self.settings,
        )
        kept = tuple(None if np.isnan(point) else float(point) for point in points)
        return AuditText(method, index, question.id, question.token_ids, tuple(token_ids), kept)

    def _decode(self, method: str, key: str, question: Question) -> list[int]:
        steps = list(decode(self.target, self.draft, question.token_ids, key, self.methods[method]))
        if not steps or steps[-1].stop_reason is StopReason.CONTEXT:
            raise RunError(
                f"prompt '{question.id}' does not fit the models with {self.max_new_tokens} new tokens: "
                "leave it out, or lower --max-new-tokens"
            )
        return [token for step in steps for token in step.emitted]


def _key(method: str, index: int, question: Question) -> str:
    """Keys the random streams of a text."""
    return f"{method}|{index}|{question.id}"


def write_texts(
    writer: Writer,
    questions: Sequence[Question],
    methods: Sequence[str],
    n_tokens: int,
    folder: TextFolder,
    on_tokens: Callable[[int], None] = lambda n: None,
) -> dict[str, list[AuditText]]:
    """Texts of every method, the same prompts for all, until each method has its tokens.

    Args:
        writer: see `Writer`.
        questions: the prompts in their order; they begin anew where they do not suffice.
        methods: names in `writer.methods`, or `TARGET_ALONE`.
        n_tokens: at least so many a method.
        folder: where texts are kept; those already there are not written again.
        on_tokens: called with the number of tokens, at most n_tokens a method, that have come so far.

    Raises:
        UsageError: no prompt.
        RunError: see `Writer.write`; or a disk that is full.
    """
    if not questions:
        raise UsageError("no prompt fits the models: shorten the prompts or lower --max-new-tokens")
    texts: dict[str, list[AuditText]] = {method: [] for method in methods}
    totals = dict.fromkeys(methods, 0)
    for index in count():
        if min(totals.values()) >= n_tokens:
            return texts
        question = questions[index // TEXTS_A_PROMPT % len(questions)]
        for method in methods:
            text = folder.get(method, index)
            if text is None:
                for written in writer.write(method, index, question):
                    folder.put(written)
                    text = written if written.index == index else text
            if text is None:
                raise RunError(f"no text {index} was written with method '{method}'")
            texts[method].append(text)
            totals[method] += len(text.token_ids)
            on_tokens(sum(min(total, n_tokens) for total in totals.values()))
    raise AssertionError("unreachable")


def interleaved(prompts: Sequence[Any]) -> Iterator[Any]:
    """Prompts in turn from every domain, each domain in its order, so that few texts cover all domains."""
    by_domain: dict[str, list[Any]] = {}
    for prompt in prompts:
        by_domain.setdefault(prompt.domain, []).append(prompt)
    for place in range(max(map(len, by_domain.values()), default=0)):
        yield from (members[place] for members in by_domain.values() if place < len(members))
