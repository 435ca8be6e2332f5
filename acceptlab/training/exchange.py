"""Trajectories as a small file of token ids, and back: the hidden states are computed again, not shipped.

A file of token ids is a hundredth of the size of the hidden states, and scoring it takes half as long as
sampling it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from acceptlab.drafters.llama import LlamaStack
from acceptlab.errors import RunError, UsageError
from acceptlab.files import replacing
from acceptlab.training.generate import Sampled
from acceptlab.training.static_cache import StaticDecoder
from acceptlab.training.trajectories import SCHEMA, list_parts, read_part, write_part

_TOKEN_COLUMNS = (
    "item",
    "answer",
    "domain",
    "prompt_source",
    "prompt_token_ids",
    "output_token_ids",
    "ended_by_eos",
    "shared_len",
)
TOKEN_SCHEMA = pa.schema([SCHEMA.field(name) for name in _TOKEN_COLUMNS])


def export_tokens(folders: Sequence[Path], path: Path) -> int:
    """Write the token ids of all trajectories of these folders to one Parquet file; returns the answer tokens.

    Items of later folders are numbered behind those of earlier ones.

    Raises:
        UsageError: a folder without trajectories.
    """
    tables = []
    first = 0
    for folder in folders:
        parts = [read_part(part) for part in list_parts(folder)]
        if not parts:
            raise UsageError(f"{folder} holds no trajectories: nothing to export")
        table = pa.concat_tables(parts)
        items = table.column("item").to_numpy()
        renumbered = pa.array(items + first, type=pa.int32())
        tables.append(table.set_column(0, SCHEMA.field("item"), renumbered).select(_TOKEN_COLUMNS))
        first += int(items.max()) + 1
    whole = pa.concat_tables(tables).cast(TOKEN_SCHEMA)
    with replacing(path) as temporary:
        pq.write_table(whole, temporary, compression="zstd", compression_level=12)
    return sum(len(ids) for ids in whole.column("output_token_ids").to_pylist())


def import_tokens(
    path: Path,
    folder: Path,
    target: LlamaStack,
    decode: Callable[[Sequence[int]], str],
    *,
    batch_size: int,
    report: Callable[[int, int, int], None] | None = None,
) -> int:
    """Score a file of token ids with the target and write parts with hidden states; parts present are skipped.

    Args:
        path: as `export_tokens` wrote it.
        folder: output folder, which exists.
        target: the target that wrote the tokens.
        decode: token ids to text, for the prompt column.
        batch_size: trajectories a part.
        report: called after every part with trajectories so far, trajectories in all, and answer tokens so
        far.

    Returns:
        The answer tokens.

    Raises:
        RunError: the file is no file of token ids.
    """
    try:
        rows = pq.read_table(path, schema=TOKEN_SCHEMA).to_pylist()
    except (pa.ArrowInvalid, OSError, KeyError) as error:
        raise RunError(f"{path} is not a readable file of token ids: name one that was exported") from error
    n_tokens = 0
    for first in range(0, len(rows), batch_size):
        group = rows[first : first + batch_size]
        part = folder / f"part-{first:06d}.parquet"
        if not part.exists():
            scored = [
                score_text(target, row["prompt_token_ids"], row["output_token_ids"], row["shared_len"])
                for row in group
            ]
            full = [{**row, "prompt": decode(row["prompt_token_ids"][row["shared_len"] :])} for row in group]
            write_part(part, full, scored, keep_features=True)
        n_tokens += sum(len(row["output_token_ids"]) for row in group)
        if report is not None:
            report(first + len(group), len(rows), n_tokens)
    return n_tokens


@torch.inference_mode()
def score_text(
    target: LlamaStack, prompt_ids: Sequence[int], output_ids: Sequence[int], shared_len: int
) -> Sampled:
    """What sampling would have recorded of this text: log probabilities, normalisers and hidden states."""
    decoder = StaticDecoder(target)
    text = [*prompt_ids, *output_ids]
    hidden = decoder.prefill([text[:-1]], shared_len=shared_len, room=0)[0]
    n = len(output_ids)
    logits = decoder.logits(hidden[-n:])
    norms = logits.logsumexp(dim=-1)
    logs = logits.gather(1, torch.tensor(output_ids)[:, None])[:, 0] - norms
    features: np.ndarray = hidden.half().numpy()
    return Sampled(list(output_ids), False, logs.tolist(), norms.tolist(), features)
