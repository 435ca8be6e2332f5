"""Hidden states inside the target along trajectories: what cross heads read, kept in files beside the trajectories.

A tap is a layer of the target, in front of which its hidden states are taken. They take a pass of the target over all
text once, and 16 bits a number on disk, so that training reads them as often as it likes. A file that is there is
whole; deleting it costs that pass again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acceptlab.drafters.llama import LlamaStack
from acceptlab.errors import RunError, UsageError
from acceptlab.files import replacing
from acceptlab.training.trajectories import read_part, taps_path, whole_parts

_PASS_TOKENS = 3_000
"""Most tokens in one pass, padding included."""
_LARGEST = torch.finfo(torch.float16).max


def write_taps(
    folders: Sequence[Path],
    target: LlamaStack,
    layers: Sequence[int],
    report: Callable[[int, int], None] | None = None,
) -> None:
    """Write what is missing: one file for every part and tap.

    Args:
        folders: trajectories.
        target: the target that wrote them.
        layers: taps, from 0.
        report: called after every part with the parts done and all that were missing.

    Raises:
        UsageError: the target has no such layer, or trajectories lack what else training needs.
    """
    wanted = sorted(set(layers))
    wrong = [layer for layer in wanted if not 0 <= layer < target.shape.n_layers]
    if wrong:
        raise UsageError(
            f"the target has no layer {wrong[0]}: name taps from 0 to {target.shape.n_layers - 1}"
        )
    parts = whole_parts(folders)
    missing = [part for part in parts if not all(taps_path(part, layer).exists() for layer in wanted)]
    for done, part in enumerate(missing, start=1):
        _write_part(part, target, wanted)
        if report is not None:
            report(done, len(missing))


def read_taps(part: Path, layer: int, rows: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """The hidden states of a part, memory-mapped; `rows` are the part's own.

    Raises:
        RunError: no such file, or not that of these rows.
    """
    path = taps_path(part, layer)
    try:
        states: np.ndarray = np.load(path, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path} ({error}): delete it and train again") from None
    n_tokens = sum(len(row["prompt_token_ids"]) + len(row["output_token_ids"]) - 1 for row in rows)
    if len(states) != n_tokens:
        raise RunError(
            f"{path} has {len(states):,} rows, not the {n_tokens:,} of its part: delete it and train again"
        )
    return states


@torch.inference_mode()
def _write_part(part: Path, target: LlamaStack, layers: Sequence[int]) -> None:
    texts = [
        torch.tensor((row["prompt_token_ids"] + row["output_token_ids"])[:-1])
        for row in read_part(part).to_pylist()
    ]
    ends = np.cumsum([len(text) for text in texts])
    size = target.shape.hidden_size
    found = {layer: np.zeros((int(ends[-1]) if len(ends) else 0, size), np.float16) for layer in layers}
    for group in _groups(texts):
        states = tap_states(target, [texts[number] for number in group], layers)
        for layer, padded in states.items():
            for number, rows in zip(group, padded, strict=True):
                end, n = int(ends[number]), len(texts[number])
                found[layer][end - n : end] = rows[:n].clamp(-_LARGEST, _LARGEST).half().numpy()
    for layer, rows in found.items():
        with replacing(taps_path(part, layer)) as temporary:
            np.save(temporary, rows)


def tap_states(target: LlamaStack, texts: Sequence[Tensor], layers: Sequence[int]) -> dict[int, Tensor]:
    """Hidden states (texts, length, size) in front of these layers, texts right-padded."""
    length = max(len(text) for text in texts)
    token_ids = torch.zeros(len(texts), length, dtype=torch.long)
    for row, text in enumerate(texts):
        token_ids[row, : len(text)] = text
    rotary = target.rotary(torch.arange(length)[None])
    x, found = target.embed(token_ids), {}
    for number, layer in enumerate(target.layers[: max(layers) + 1]):
        if number in layers:
            found[number] = x
        if number < max(layers):
            x = layer(x, rotary)
    return found


def _groups(texts: Sequence[Tensor]) -> Iterator[list[int]]:
    """Numbers of texts of similar length, as many as a pass holds."""
    group: list[int] = []
    for number in sorted(range(len(texts)), key=lambda number: len(texts[number])):
        if group and (len(group) + 1) * len(texts[number]) > _PASS_TOKENS:
            yield group
            group = []
        group.append(number)
    if group:
        yield group
