"""Prompts x engine -> store: ids, seeds, resume. No arithmetic, no printing.

Every prompt becomes durable as soon as it has ended, so that an interruption loses at most the prompts in hand.
The random streams are keyed by prompt and step, so a resumed run holds the rows of an uninterrupted one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from acceptlab.engine import Settings, Step
from acceptlab.errors import UsageError
from acceptlab.lanes import decode_many
from acceptlab.records import StopReason
from acceptlab.store import RunWriter

if TYPE_CHECKING:
    from acceptlab.pairs import Pair
    from acceptlab.prompts import Prompt

Tables = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Progress:
    """What a progress bar shows after a step or a prompt."""

    n_prompts_done: int
    part_of_prompt: float
    n_prompts: int
    n_nodes: int
    n_tested: int
    n_accepted: int
    n_new_tokens: int


def collect(
    pair: Pair,
    prompts: Sequence[Prompt],
    settings: Settings,
    writer: RunWriter,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    batch_size: int = 1,
) -> None:
    """Decode the prompts that the run does not hold yet and complete it.

    Args:
        pair: loaded target and draft.
        prompts: all prompts of the run, in order.
        settings: how to decode.
        writer: an open run; complete runs are left as they are.
        on_progress: called after every step.
        batch_size: how many prompts are decoded at once; the rows do not depend on it.
    """
    if writer.is_complete:
        return
    done = writer.done_prompt_ids
    counts = {"n_nodes": 0, "n_tested": 0, "n_accepted": 0, "n_new_tokens": 0}
    n_done = len(done)
    under_way: dict[str, int] = {}
    """Tokens so far of the prompts that are being decoded."""

    def count(prompt_id: str, step: Step) -> None:
        under_way[prompt_id] = under_way.get(prompt_id, 0) + len(step.emitted)
        counts["n_nodes"] += step.tree.n_nodes
        counts["n_tested"] += step.verdict.n_tested
        counts["n_accepted"] += step.verdict.accepted_len
        counts["n_new_tokens"] += len(step.emitted)
        part = sum(under_way.values()) / settings.max_new_tokens
        on_progress(Progress(n_done, part, len(prompts), **counts))

    left = [prompt for prompt in prompts if prompt.id not in done]
    for prompt_id, tables in collect_prompts(pair, left, settings, count, batch_size):
        writer.write(tables)
        n_done += 1
        under_way.pop(prompt_id, None)
        on_progress(
            Progress(n_done, sum(under_way.values()) / settings.max_new_tokens, len(prompts), **counts)
        )
    writer.finish()


def collect_prompt(
    pair: Pair, prompt: Prompt, settings: Settings, on_step: Callable[[Step], None] = lambda step: None
) -> Tables:
    """Decode one prompt into rows of the four tables; a prompt that cannot run becomes a row with its reason."""
    ((_, tables),) = collect_prompts(pair, [prompt], settings, lambda prompt_id, step: on_step(step))
    return tables


def collect_prompts(
    pair: Pair,
    prompts: Sequence[Prompt],
    settings: Settings,
    on_step: Callable[[str, Step], None] = lambda prompt_id, step: None,
    batch_size: int = 1,
) -> Iterator[tuple[str, Tables]]:
    """Decode prompts, several at once, and give each one's tables as soon as it has ended.

    Args:
        pair: loaded target and draft.
        prompts: what to decode, in this order; a prompt that cannot run becomes a row with its reason.
        settings: how to decode.
        on_step: called after every step, with the prompt's id.
        batch_size: how many prompts are decoded at once.

    Raises:
        UsageError: the draft or the target can decode one prompt at a time only.
    """
    skipped: list[_Rows] = []
    running: dict[int, _Rows] = {}

    def starting() -> Iterator[tuple[str, Sequence[int]]]:
        """Hand out prompts as they are wanted, so that each one's time starts with its prefill."""
        n_started = 0
        for prompt in prompts:
            rows = _Rows.of(pair, prompt, settings)
            if rows.row["skip_reason"] is None:
                running[n_started] = rows
                n_started += 1
                yield prompt.id, rows.token_ids
            else:
                skipped.append(rows)

    for number, step in decode_many(pair.target, pair.draft, starting(), settings, batch_size):
        rows = running[number]
        rows.add(step)
        on_step(rows.prompt_id, step)
        while skipped:
            yield skipped[0].prompt_id, skipped.pop(0).tables(pair)
        if step.stop_reason is not None:
            yield rows.prompt_id, running.pop(number).tables(pair)
    for rows in skipped:
        yield rows.prompt_id, rows.tables(pair)


@dataclass
class _Rows:
    """The rows of one prompt while they grow."""

    row: dict[str, Any]
    token_ids: list[int]
    started: float = field(default_factory=time.perf_counter)
    parts: dict[str, list[dict[str, Any]]] = field(
        default_factory=lambda: {"steps": [], "nodes": [], "contexts": []}
    )
    output: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, pair: Pair, prompt: Prompt, settings: Settings) -> _Rows:
        """Before its first step; `skip_reason` says why there will be none."""
        token_ids, problem = _encode(pair, prompt)
        row = {
            "domain": prompt.domain,
            "prompt_id": prompt.id,
            "source": prompt.source,
            "prompt_sha256": prompt.sha256,
            "n_prompt_tokens": len(token_ids),
            "n_new_tokens": 0,
            "output_token_ids": [],
            "output_text": "",
            "stop_reason": str(StopReason.SKIPPED),
            "wall_ms": 0.0,
            "skip_reason": problem or _why_skip(pair, len(token_ids), settings),
        }
        return cls(row, token_ids)

    @property
    def prompt_id(self) -> str:
        """The prompt's id."""
        return str(self.row["prompt_id"])

    def add(self, step: Step) -> None:
        """Add a step's rows."""
        self.parts["steps"].append(_step_row(step))
        if step.nodes:
            self.parts["nodes"].append(_node_rows(step))
            self.parts["contexts"].append(_context_rows(step))
        self.output.extend(step.emitted)
        self.row["stop_reason"] = str(step.stop_reason)

    def tables(self, pair: Pair) -> Tables:
        """All rows, once the prompt has ended."""
        if self.row["skip_reason"] is None:
            self.row.update(
                n_new_tokens=len(self.output),
                output_token_ids=self.output,
                output_text=pair.decode(self.output),
                wall_ms=1000.0 * (time.perf_counter() - self.started),
            )
        tables: Tables = {}
        for name, parts in self.parts.items():
            if not parts:
                continue
            columns = _stack(parts)
            n_rows = len(next(iter(columns.values()), []))
            keys = {key: [self.row[key]] * n_rows for key in ("domain", "prompt_id")}
            tables[name] = {**columns, **keys}
        tables["prompts"] = {name: [value] for name, value in self.row.items()}
        return tables


def _encode(pair: Pair, prompt: Prompt) -> tuple[list[int], str | None]:
    """Token ids of a prompt, or none and the reason: one bad prompt must not end a run."""
    try:
        return pair.encode(prompt.prompt), None
    except UsageError as error:
        return [], str(error)


def _why_skip(pair: Pair, n_prompt_tokens: int, settings: Settings) -> str | None:
    """Why a prompt cannot run at all; None where it can."""
    if n_prompt_tokens == 0:
        return "the prompt has no tokens"
    needed = n_prompt_tokens + settings.max_new_tokens + settings.tree.depth
    if pair.window_limit is not None and needed > pair.window_limit:
        return f"needs {needed} positions, and the attention window is exact up to {pair.window_limit}"
    limits = [model.max_len for model in (pair.target, pair.draft) if model.max_len is not None]
    if limits and n_prompt_tokens + settings.tree.depth > min(limits):
        return f"its {n_prompt_tokens} tokens and the tree need more than the model's {min(limits)} positions"
    return None


def _step_row(step: Step) -> dict[str, Any]:
    return {
        "step": [step.index],
        "context_len": [step.context_len],
        "n_nodes": [step.tree.n_nodes],
        "n_tested": [step.verdict.n_tested],
        "accepted_len": [step.verdict.accepted_len],
        "expected_accepted_len": [step.verdict.expected_accepted_len],
        "emitted_len": [len(step.emitted)],
        "bonus_token_id": [step.bonus_token_id],
        "stop_reason": [None if step.stop_reason is None else str(step.stop_reason)],
        **{f"{part}_ms": [step.times_ms[part]] for part in ("draft", "verify", "record", "other")},
    }


def _node_rows(step: Step) -> dict[str, Any]:
    tree = step.tree
    return {
        "step": np.full(tree.n_nodes, step.index),
        "node": np.arange(tree.n_nodes),
        "parent": np.asarray(tree.parents, dtype=np.int64),  # an empty tree has no type of its own
        "depth": tree.depths,
        "child_rank": tree.child_ranks,
        "position": step.context_len - 1 + tree.depths,
        "token_id": step.token_ids.numpy(),
        "test_prob": step.verdict.test_prob,
        "accept_prob": step.verdict.accept_prob,
        "outcome": [str(outcome) for outcome in step.verdict.outcomes],
        **step.nodes,
    }


def _context_rows(step: Step) -> dict[str, Any]:
    depth = step.contexts["depth"]
    return {
        "step": np.full(len(depth), step.index),
        "position": step.context_len - 1 + depth,
        **step.contexts,
    }


def _stack(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Put the columns of several steps below each other; arrays stay arrays."""
    if not parts:
        return {}
    stacked: dict[str, Any] = {}
    for name, first in parts[0].items():
        if isinstance(first, np.ndarray):
            stacked[name] = np.concatenate([part[name] for part in parts])
        else:
            stacked[name] = [value for part in parts for value in part[name]]
    return stacked
