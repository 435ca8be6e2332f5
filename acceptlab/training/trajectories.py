"""Training text on disk: Parquet parts of trajectories and float16 hidden states beside them, resumable.

One part is one batch of candidates. A part is written to a temporary name and renamed, its features first, so
a part that is there is whole; parts present are skipped. `trajectories.json` holds the settings, and other
settings in the same folder are refused.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from acceptlab.errors import RunError, UsageError
from acceptlab.files import replacing
from acceptlab.training.generate import (
    ChatFrame,
    ChatTokenizer,
    Sampled,
    drop_repeats,
    sample_batch,
    write_prompts,
)
from acceptlab.training.prompting import choose_opener, classify, item_stream, load_openers, normalise
from acceptlab.training.static_cache import StaticDecoder

SCHEMA = pa.schema(
    [
        pa.field("item", pa.int32(), nullable=False),
        pa.field("answer", pa.int32(), nullable=False),
        pa.field("domain", pa.string(), nullable=False),
        pa.field("prompt_source", pa.string(), nullable=False),
        pa.field("prompt", pa.string(), nullable=False),
        pa.field("prompt_token_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("output_token_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("ended_by_eos", pa.bool_(), nullable=False),
        pa.field("shared_len", pa.int32(), nullable=False),
        pa.field("target_log_probs", pa.list_(pa.float32()), nullable=False),
        pa.field("target_log_norms", pa.list_(pa.float32()), nullable=False),
    ]
)
_SETTINGS = "trajectories.json"


@dataclass(frozen=True)
class TrajectorySettings:
    """What decides the text; the batch size is among them because a part is one batch of answers."""

    target: str
    n_prompts: int
    answers_per_prompt: int
    max_new_tokens: int
    seed: int
    batch_size: int
    greedy: bool
    prompts: str
    keep_features: bool


@dataclass(frozen=True)
class GivenPrompt:
    """A prompt of the user's own."""

    domain: str
    text: str


@dataclass(frozen=True)
class Progress:
    """Counts after a part; `seconds` covers the work of this process only."""

    n_items: int
    n_candidates: int
    n_tokens: int
    new_tokens: int
    seconds: float


def open_folder(folder: Path, settings: TrajectorySettings) -> None:
    """Create the folder with its settings, or check that those there are the same (n_prompts may grow).

    Raises:
        UsageError: another setting in the same folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _SETTINGS
    wanted = asdict(settings)
    if path.exists():
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for name, value in wanted.items():
            if name != "n_prompts" and stored.get(name) != value:
                raise UsageError(
                    f"{folder} was begun with {name} = {stored.get(name)}, not {value}: "
                    "use the same value or another --output"
                )
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(wanted, indent=1) + "\n", encoding="utf-8")


def list_parts(folder: Path) -> list[Path]:
    """The finished parts, in order."""
    return sorted(folder.glob("part-*.parquet"))


def whole_parts(folders: Sequence[Path]) -> list[Path]:
    """The parts of these folders, all of them with the target's hidden states beside them.

    Raises:
        UsageError: no part in a folder, or parts without hidden states.
    """
    found: list[Path] = []
    for folder in folders:
        if not (parts := list_parts(folder)):
            raise UsageError(f"{folder} holds no trajectories: run acceptlab trajectories --output {folder}")
        found += parts
    for part in found:
        check_features(part)
    return found


def check_features(part: Path) -> None:
    """Refuse a part without its hidden states; one without trajectories needs none."""
    if not features_path(part).exists() and len(read_part(part)):
        raise UsageError(f"{part} has no hidden states beside it: run acceptlab trajectories with --features")


def read_part(path: Path) -> pa.Table:
    """One part.

    Raises:
        RunError: the file is not a part of trajectories.
    """
    try:
        return pq.read_table(path, schema=SCHEMA)
    except (pa.ArrowInvalid, OSError) as error:
        raise RunError(f"{path} is not a readable part of trajectories: delete it and run again") from error


def features_path(part: Path) -> Path:
    """Where the hidden states of a part lie.

    Float16 (tokens, size), the rows of its items one after the other.
    """
    return part.with_suffix(".features.npy")


def taps_path(part: Path, layer: int) -> Path:
    """Where the hidden states in front of a layer of the target lie.

    Float16 (tokens, size), the rows of its items one after the other: all tokens of prompt and output but the last.
    """
    return part.with_suffix(f".layer-{layer}.npy")


def generate_trajectories(
    folder: Path,
    decoder: StaticDecoder,
    tokenizer: ChatTokenizer,
    settings: TrajectorySettings,
    *,
    given: Sequence[GivenPrompt] | None = None,
    report: Callable[[Progress], None] | None = None,
) -> Progress:
    """Write parts until `n_prompts` items are there (all of `given`, where prompts are given).

    Args:
        folder: output folder, from `open_folder`.
        decoder: the target.
        tokenizer: its tokenizer.
        settings: as in `open_folder`.
        given: prompts to answer instead of the target's own.
        report: called after every part.
    """
    frame = ChatFrame.of(tokenizer)
    seen: set[str] = set()
    n_items = n_tokens = new_tokens = candidate = 0
    began = time.monotonic()
    progress = Progress(0, 0, 0, 0, 0.0)
    end = len(given) if given is not None else None
    while (candidate < end) if end is not None else (n_items < settings.n_prompts):
        part = folder / f"part-{candidate:06d}.parquet"
        stop = candidate + max(1, settings.batch_size // settings.answers_per_prompt)
        stop = stop if end is None else min(stop, end)
        if end is not None and part.exists():
            # A file of prompts that has grown since: its last part of then is a short one.
            stop = int(pc.max(read_part(part).column("item")).as_py()) + 1
        if not part.exists():
            items = range(candidate, stop)
            rows = (
                _given_rows(items, given)
                if given is not None
                else _own_rows(
                    items, decoder=decoder, tokenizer=tokenizer, frame=frame, seed=settings.seed, seen=seen
                )
            )
            rows = [{**row, "answer": k} for row in rows for k in range(settings.answers_per_prompt)]
            new_tokens += _answer(
                part, rows, decoder=decoder, tokenizer=tokenizer, frame=frame, settings=settings
            )
        table = read_part(part)
        seen.update(normalise(text) for text in table.column("prompt").to_pylist())
        n_items += len(table) // settings.answers_per_prompt
        n_tokens += sum(len(ids) for ids in table.column("output_token_ids").to_pylist())
        candidate = stop
        progress = Progress(n_items, candidate, n_tokens, new_tokens, time.monotonic() - began)
        if report is not None:
            report(progress)
    return progress


def _own_rows(
    items: range,
    *,
    decoder: StaticDecoder,
    tokenizer: ChatTokenizer,
    frame: ChatFrame,
    seed: int,
    seen: set[str],
) -> list[dict[str, Any]]:
    shipped = load_openers()
    openers = [(item, choose_opener(item, seed, shipped)) for item in items]
    texts = drop_repeats(write_prompts(decoder, tokenizer, frame, openers, seed=seed), seen)
    return [
        {"item": item, "domain": classify(text), "prompt_source": f"self:{opener.source}", "prompt": text}
        for (item, opener), text in zip(openers, texts, strict=True)
        if text is not None
    ]


def _given_rows(items: range, given: Sequence[GivenPrompt]) -> list[dict[str, Any]]:
    return [
        {"item": item, "domain": given[item].domain, "prompt_source": "file", "prompt": given[item].text}
        for item in items
    ]


def _answer(
    part: Path,
    rows: list[dict[str, Any]],
    *,
    decoder: StaticDecoder,
    tokenizer: ChatTokenizer,
    frame: ChatFrame,
    settings: TrajectorySettings,
) -> int:
    prompts = [frame.prompt_ids(tokenizer, row["prompt"]) for row in rows]
    shared_len = min(len(frame.before), *(len(ids) - 1 for ids in prompts)) if prompts else len(frame.before)
    if any(ids[:shared_len] != prompts[0][:shared_len] for ids in prompts):
        raise RunError("the chat template's beginning is encoded differently from prompt to prompt")
    uniforms = [
        item_stream(settings.seed, row["item"], f"answer{row['answer']}").random(settings.max_new_tokens)
        for row in rows
    ]
    sampled: list[Sampled] = (
        sample_batch(
            decoder,
            prompts,
            np.stack(uniforms),
            shared_len=shared_len,
            eos_id=tokenizer.eos_token_id,
            greedy=settings.greedy,
            keep_features=settings.keep_features,
        )
        if rows
        else []
    )
    for row, ids, result in zip(rows, prompts, sampled, strict=True):
        row |= {
            "prompt_token_ids": ids,
            "output_token_ids": result.token_ids,
            "ended_by_eos": result.ended_by_eos,
            "shared_len": shared_len,
        }
    write_part(part, rows, sampled, keep_features=settings.keep_features)
    return sum(len(result.token_ids) for result in sampled)


def write_part(
    part: Path, rows: Sequence[dict[str, Any]], scored: Sequence[Sampled], *, keep_features: bool
) -> None:
    """Write one part: its rows, the target's scores beside them, and the hidden states in a file of their own."""
    full = [
        {**row, "target_log_probs": result.log_probs, "target_log_norms": result.log_norms}
        for row, result in zip(rows, scored, strict=True)
    ]
    if keep_features and full:
        with replacing(features_path(part)) as temporary:
            np.save(temporary, np.concatenate([one.features for one in scored if one.features is not None]))
    with replacing(part) as temporary:
        pq.write_table(pa.Table.from_pylist(full, SCHEMA), temporary, compression="zstd")
