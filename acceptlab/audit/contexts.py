"""Real contexts kept at full vocabulary: both models' logits at stretches of real texts.

A stretch is DEPTH + 1 consecutive prefixes of one text, so that a chain of DEPTH tokens can be verified in it. When
verifiers are drawn again (`redraw`), the rows of a stretch serve at their depths whatever was drafted before: that is
a pair of language models too, made of real distributions, and a lossless rule is lossless for it.

Boundary: texts and plain forwards in, arrays out, kept as two .npy files in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from acceptlab.audit.plain import Reference
from acceptlab.audit.texts import AuditText
from acceptlab.errors import RunError, UsageError
from acceptlab.files import replacing
from acceptlab.rng import generator

DEPTH = 3
"""Tokens of a chain; a stretch has one context more, for the bonus token."""

Place = tuple[int, int]
"""A stretch: which text, and which of its tokens comes first."""


@dataclass(frozen=True, eq=False)
class Contexts:
    """Logits of both models, by stretch and depth."""

    target: Float32[Tensor, "stretches depths vocab"]
    draft: Float32[Tensor, "stretches depths vocab"]

    @property
    def n_contexts(self) -> int:
        """Number of contexts."""
        return int(self.target.shape[0] * self.target.shape[1])


def choose_places(text_lens: Sequence[int], n_contexts: int, seed: int) -> list[Place]:
    """Stretches that do not overlap, chosen at random among all texts, in the order of the texts.

    Raises:
        UsageError: the texts have too few tokens.
    """
    size = DEPTH + 1
    all_places = [
        (text, start) for text, length in enumerate(text_lens) for start in range(0, length - size + 1, size)
    ]
    wanted = -(-n_contexts // size)
    if len(all_places) < wanted:
        raise UsageError(
            f"the texts hold {size * len(all_places)} contexts of the {n_contexts} wanted: "
            "raise --n-tokens or lower --n-contexts"
        )
    order = generator(seed, "contexts", 0, "audit stretches").permutation(len(all_places))
    return sorted(all_places[int(i)] for i in order[:wanted])


def collect_contexts(
    reference: Reference,
    texts: Sequence[AuditText],
    n_contexts: int,
    seed: int,
    on_context: Callable[[int], None] = lambda n: None,
) -> Contexts:
    """Run both models over texts and keep the logits of stretches of them.

    Args:
        reference: plain forwards.
        texts: real texts, best of the target alone.
        n_contexts: at least so many; rounded up to whole stretches.
        seed: which stretches.
        on_context: called with the number of contexts so far.
    """
    places = choose_places([len(text.token_ids) for text in texts], n_contexts, seed)
    sides: tuple[list[Tensor], list[Tensor]] = ([], [])
    rows: tuple[Tensor, Tensor] | None = None
    for n_done, (index, start) in enumerate(places, start=1):
        if n_done == 1 or places[n_done - 2][0] != index:
            text = texts[index]
            token_ids, first = [*text.prompt_ids, *text.token_ids[:-1]], len(text.prompt_ids)
            rows = (reference.target_logits(token_ids, first), reference.draft_logits(token_ids, first))
        if rows is not None:
            for side, logits in zip(sides, rows, strict=True):
                side.append(logits[start : start + DEPTH + 1].clone())
        on_context(n_done * (DEPTH + 1))
    return Contexts(torch.stack(sides[0]), torch.stack(sides[1]))


def save_contexts(folder: Path, contexts: Contexts) -> None:
    """Keep contexts in a folder; the target's file comes last and says that both are there."""
    for name in ("draft", "target"):
        with replacing(folder / f"contexts-{name}.npy") as temporary:
            np.save(temporary, getattr(contexts, name).numpy())


def load_contexts(folder: Path) -> Contexts | None:
    """Contexts kept earlier, or None.

    Raises:
        RunError: a damaged file.
    """
    paths = [folder / f"contexts-{name}.npy" for name in ("target", "draft")]
    if not all(path.is_file() for path in paths):
        return None
    try:
        target, draft = (torch.from_numpy(np.load(path)) for path in paths)
    except (OSError, ValueError, EOFError):
        raise RunError(
            f"the contexts in '{folder}' cannot be read: delete them and repeat the command"
        ) from None
    return Contexts(target, draft)
