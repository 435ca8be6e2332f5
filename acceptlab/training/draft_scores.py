"""A draft's scores beside the target's, in the parts of trajectories: both models along the same tokens.

The columns are added to a part's Parquet file once it is written, under the name of the draft; readers that
want the target only do not see them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from jaxtyping import Float
from torch import Tensor

from acceptlab.drafters.base import Drafter
from acceptlab.drafters.heads import BlockHead
from acceptlab.files import replacing
from acceptlab.training.corpus import Example, make_batch, read_examples
from acceptlab.training.local_losses import overlap, token_log_probs
from acceptlab.training.trajectories import list_parts

DRAFT_FIELDS = (
    pa.field("draft_log_probs", pa.list_(pa.float32()), nullable=False),
    pa.field("overlaps", pa.list_(pa.float32()), nullable=False),
)
"""Of every output token: its log probability under the draft (nats), and the sum of min(target, draft) there."""

_DRAFT_KEY = b"acceptlab_draft"
_WINDOW = 8
"""Feature-level heads are scored as they draft: in windows, behind whose beginning they see their own states."""


def score_parts(
    folder: Path,
    drafter: Drafter,
    output_weight: Float[Tensor, "vocab size"],
    *,
    name: str,
    report: Callable[[int, int, float], None] | None = None,
) -> float:
    """Add a draft's scores to every part of a folder that does not have those of this draft yet.

    Args:
        folder: of trajectories with hidden states, those of the layers that the draft reads included.
        drafter: the draft.
        output_weight: the target's output layer.
        name: what the draft is called in the files; another name's columns are replaced.
        report: called after every part with parts so far, parts in all, and the mean overlap of the part.

    Returns:
        The mean overlap over all output tokens.

    Raises:
        UsageError: a part has no hidden states.
    """
    parts = list_parts(folder)
    total, n_tokens = 0.0, 0
    for number, part in enumerate(parts, start=1):
        table = pq.read_table(part)
        if (table.schema.metadata or {}).get(_DRAFT_KEY) != name.encode():
            table = _with_scores(table, part, drafter, output_weight, name)
            _write_part(part, table)
        overlaps = table.column("overlaps").combine_chunks().flatten().to_numpy()
        total, n_tokens = total + float(overlaps.sum(dtype="float64")), n_tokens + len(overlaps)
        if report is not None:
            report(number, len(parts), float(overlaps.mean()) if len(overlaps) else 0.0)
    return total / n_tokens if n_tokens else 0.0


def _write_part(part: Path, table: pa.Table) -> None:
    with replacing(part) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def _with_scores(table: pa.Table, part: Path, drafter: Drafter, output_weight: Tensor, name: str) -> pa.Table:
    examples = read_examples(part, min_output_len=1, tap_layers=drafter.tap_layers)
    scored = [score_example(drafter, e, output_weight) for e in examples]
    for i, field in enumerate(DRAFT_FIELDS):
        if field.name in table.column_names:
            table = table.drop_columns([field.name])
        table = table.append_column(field, pa.array([scores[i].tolist() for scores in scored], field.type))
    return table.replace_schema_metadata({**(table.schema.metadata or {}), _DRAFT_KEY: name.encode()})


@torch.inference_mode()
def score_example(
    drafter: Drafter, example: Example, output_weight: Float[Tensor, "vocab size"]
) -> tuple[Float[Tensor, " rows"], Float[Tensor, " rows"]]:
    """Log probability of every output token under the draft, and the overlap with the target there."""
    gamma = int(drafter.gamma) if isinstance(drafter, BlockHead) else _WINDOW
    batch = make_batch([example], gamma=gamma, offsets=[0], with_features=drafter.needs_features)
    draft_logits = drafter.output.expand(drafter.row_logits(batch.rows))
    target_probs = (batch.features @ output_weight.T).softmax(dim=-1)
    return token_log_probs(draft_logits, batch.labels), overlap(draft_logits, target_probs)
