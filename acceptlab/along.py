"""Contexts along given texts: both models after every prefix of an answer that is there already. Nothing is drafted.

A collection visits the contexts that its own trees reach. Texts that the target has written before, such as training
trajectories, hold many more, at the price of one plain pass of each model: a run made of them has contexts and
prompts, and one step without nodes for every token of the text.

Boundary: texts and a loaded pair in, rows of a run out. No arithmetic on distributions: that is in `measures`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from jaxtyping import Float
from torch import Tensor

from acceptlab.drafters.cross_model import text_rows
from acceptlab.errors import RunError, UsageError
from acceptlab.measures import Contexts, measure
from acceptlab.models import LanguageModel
from acceptlab.records import StopReason
from acceptlab.store import RunWriter
from acceptlab.training.corpus import HELD_OUT_EVERY
from acceptlab.training.exchange import TOKEN_SCHEMA
from acceptlab.training.trajectories import list_parts, read_part
from acceptlab.tree import Tree

if TYPE_CHECKING:
    from acceptlab.pairs import Pair

CHUNK = 64
"""Contexts measured at once: their float64 distributions over a large vocabulary take some 100 MB."""

Tables = dict[str, dict[str, Any]]
Result = TypeVar("Result")


@dataclass(frozen=True)
class GivenText:
    """A prompt and an answer to it, both as the target's token ids."""

    id: str
    domain: str
    source: str
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    ended_by_eos: bool


@dataclass(frozen=True)
class Progress:
    """What there is after a text."""

    n_texts: int
    n_all: int
    n_contexts: int
    seconds: float


def read_texts(path: Path, *, answers: int = 1, limit: int | None = None) -> list[GivenText]:
    """Texts of a folder that `acceptlab trajectories` wrote, or of a file of token ids that it exported.

    Every 25th prompt is one that training leaves out, and its source says so.

    Args:
        path: folder or file.
        answers: how many answers to a prompt; intervals take texts for independent, which answers to one prompt
            are not.
        limit: only so many texts.

    Raises:
        UsageError: nothing there, or no text.
        RunError: a file that is not what it should be.
    """
    if path.is_dir():
        rows = [row for part in list_parts(path) for row in read_part(part).to_pylist()]
    elif path.is_file():
        rows = _read_file(path)
    else:
        raise UsageError(
            f"there are no texts at '{path}': name a folder of acceptlab trajectories or a token file"
        )
    texts = [_text(path, row) for row in rows if row["answer"] < answers and row["output_token_ids"]]
    if not texts:
        raise UsageError(f"'{path}' holds no text: run acceptlab trajectories --output {path}")
    return texts[:limit]


def _read_file(path: Path) -> list[dict[str, Any]]:
    try:
        absent = set(TOKEN_SCHEMA.names) - set(pq.read_schema(path).names)
        if absent:  # reading with the schema would fill them with nulls
            raise KeyError(", ".join(sorted(absent)))
        rows: list[dict[str, Any]] = pq.read_table(path, schema=TOKEN_SCHEMA).to_pylist()
    except (pa.ArrowInvalid, OSError, KeyError) as error:
        raise RunError(f"{path} is not a readable file of token ids: name one that was exported") from error
    return rows


def _text(path: Path, row: dict[str, Any]) -> GivenText:
    is_held_out = row["item"] % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
    return GivenText(
        id=f"{path.stem}/{row['item']:05d}-{row['answer']}",
        domain=row["domain"],
        source=f"{path}, an item that training on it holds out" if is_held_out else str(path),
        prompt_ids=tuple(row["prompt_token_ids"]),
        output_ids=tuple(row["output_token_ids"]),
        ended_by_eos=bool(row["ended_by_eos"]),
    )


def texts_sha256(texts: Sequence[GivenText]) -> str:
    """Hash of ids and tokens: other texts are another run."""
    lines = (f"{text.id} {text.prompt_ids} {text.output_ids}" for text in texts)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def collect_along(
    pair: Pair,
    texts: Sequence[GivenText],
    writer: RunWriter,
    on_text: Callable[[Progress], None] = lambda progress: None,
) -> None:
    """Measure both models along the texts that the run does not hold yet, and complete it.

    Args:
        pair: loaded target and draft.
        texts: all texts of the run, in order.
        writer: an open run; complete runs are left as they are.
        on_text: called after every text.
    """
    if writer.is_complete:
        return
    done = writer.done_prompt_ids
    began = time.monotonic()
    n_done, n_contexts = len(done), 0
    for text in texts:
        if text.id in done:
            continue
        tables = measure_text(pair, text)
        writer.write(tables)
        n_done += 1
        n_contexts += len(tables.get("contexts", {}).get("step", ()))
        on_text(Progress(n_done, len(texts), n_contexts, time.monotonic() - began))
    writer.finish()


@torch.inference_mode()
def measure_text(pair: Pair, text: GivenText) -> Tables:
    """Rows of one text: a context after every prefix that ends before a token of the answer.

    A text longer than a model's positions becomes a prompt with a reason and no context. Contexts in which the draft
    has no proposal are left out, as in a collection.
    """
    started = time.perf_counter()
    keys = {"domain": text.domain, "prompt_id": text.id}
    reason = _why_skip(pair, text)
    if reason is not None:
        return {"prompts": _columns([keys | _prompt_row(pair, text, reason, started)])}
    target, verify_ms = _timed(lambda: _logits(pair.target, text))
    draft, draft_ms = _timed(lambda: _logits(pair.draft, text))
    columns, record_ms = _timed(lambda: _contexts(target, draft))
    n_steps = len(text.output_ids)
    n_contexts = len(columns["step"])
    first = len(text.prompt_ids)
    columns |= {
        "node": np.full(n_contexts, -1),
        "depth": np.zeros(n_contexts, dtype=np.int64),
        "position": first - 1 + columns["step"],
    }
    steps = _steps(text, {"draft_ms": draft_ms, "verify_ms": verify_ms, "record_ms": record_ms})
    tables: Tables = {
        "steps": {**{name: [value] * n_steps for name, value in keys.items()}, **steps},
        "prompts": _columns([keys | _prompt_row(pair, text, None, started)]),
    }
    if n_contexts:
        tables["contexts"] = {**{name: [value] * n_contexts for name, value in keys.items()}, **columns}
    return tables


def _why_skip(pair: Pair, text: GivenText) -> str | None:
    limits = [model.max_len for model in (pair.target, pair.draft) if model.max_len is not None]
    longest = min([*limits, *([] if pair.window_limit is None else [pair.window_limit])], default=None)
    needed = len(text.prompt_ids) + len(text.output_ids)
    if longest is not None and needed > longest:
        return f"its {needed} tokens need more than the models' {longest} positions"
    return None


def _logits(model: LanguageModel, text: GivenText) -> Float[Tensor, "steps vocab"]:
    """Next-token logits before every token of the answer: the prompt is a prefix, the answer one run of rows.

    Raises:
        UsageError: a draft that has no distribution after every prefix.
    """
    tokens = torch.tensor([*text.prompt_ids, *text.output_ids[:-1]])
    start = len(text.prompt_ids) - 1
    model.reset()
    model.prefill(tokens[:start])
    logits = text_rows(model, tokens, start)
    if len(logits) != len(text.output_ids):
        raise UsageError(
            f"the draft '{model.name}' has no distribution after every prefix: use another --draft"
        )
    return logits


def _contexts(target: Float[Tensor, "steps vocab"], draft: Float[Tensor, "steps vocab"]) -> dict[str, Any]:
    """Columns of the contexts table, in chunks; `step` is the place in the answer."""
    rows = torch.nonzero(torch.isfinite(draft).any(dim=1))[:, 0]
    parts = []
    for first in range(0, len(rows), CHUNK):
        chunk = rows[first : first + CHUNK]
        logits = target[chunk], draft[chunk]
        target_probs, draft_probs = (torch.softmax(side, dim=-1, dtype=torch.float64) for side in logits)
        nothing = np.empty(0, dtype=np.int64)
        contexts = Contexts(*logits, target_probs, draft_probs, True)
        measured = measure(contexts, nothing, torch.empty(0, dtype=torch.int64), Tree(()))
        parts.append({"step": chunk.cpu().numpy(), **measured.contexts})
    if not parts:
        return {"step": np.empty(0, dtype=np.int64)}
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _steps(text: GivenText, times_ms: dict[str, float]) -> dict[str, Any]:
    """One step without nodes a token, each with its share of the passes over the text."""
    n = len(text.output_ids)
    stop = StopReason.EOS if text.ended_by_eos else StopReason.LENGTH
    return {
        "step": np.arange(n),
        "context_len": len(text.prompt_ids) + np.arange(n),
        "n_nodes": np.zeros(n, dtype=np.int64),
        "n_tested": np.zeros(n, dtype=np.int64),
        "accepted_len": np.zeros(n, dtype=np.int64),
        "expected_accepted_len": np.zeros(n),
        "emitted_len": np.ones(n, dtype=np.int64),
        "bonus_token_id": list(text.output_ids),
        "stop_reason": [*[None] * (n - 1), str(stop)],
        **{name: np.full(n, value / n) for name, value in times_ms.items()},
        "other_ms": np.zeros(n),
    }


def _prompt_row(pair: Pair, text: GivenText, reason: str | None, started: float) -> dict[str, Any]:
    output = list(text.output_ids) if reason is None else []
    stop = StopReason.SKIPPED if reason else StopReason.EOS if text.ended_by_eos else StopReason.LENGTH
    prompt = pair.decode(text.prompt_ids, skip_special_tokens=False)
    return {
        "source": text.source,
        "prompt_sha256": hashlib.sha256(prompt.encode()).hexdigest(),
        "n_prompt_tokens": len(text.prompt_ids),
        "n_new_tokens": len(output),
        "output_token_ids": output,
        "output_text": pair.decode(output),
        "stop_reason": str(stop),
        "wall_ms": 1000.0 * (time.perf_counter() - started),
        "skip_reason": reason,
    }


def _columns(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    started = time.perf_counter()
    return work(), 1000.0 * (time.perf_counter() - started)
