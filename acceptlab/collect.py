"""Prompts x engine -> store: ids, seeds, resume. No arithmetic, no printing.

Every prompt becomes durable before the next one starts, so that an interruption loses at most the prompt in hand.
The random streams are keyed by prompt and step, so a resumed run holds the rows of an uninterrupted one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from acceptlab.engine import Settings, Step, decode
from acceptlab.errors import UsageError
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
) -> None:
    """Decode the prompts that the run does not hold yet and complete it.

    Args:
        pair: loaded target and draft.
        prompts: all prompts of the run, in order.
        settings: how to decode.
        writer: an open run; complete runs are left as they are.
        on_progress: called after every step.
    """
    if writer.is_complete:
        return
    done = writer.done_prompt_ids
    counts = {"n_nodes": 0, "n_tested": 0, "n_accepted": 0, "n_new_tokens": 0}
    n_done = len(done)
    n_prompt_tokens_new = 0

    def count(step: Step) -> None:
        nonlocal n_prompt_tokens_new
        n_prompt_tokens_new += len(step.emitted)
        counts["n_nodes"] += step.tree.n_nodes
        counts["n_tested"] += step.verdict.n_tested
        counts["n_accepted"] += step.verdict.accepted_len
        counts["n_new_tokens"] += len(step.emitted)
        on_progress(Progress(n_done, n_prompt_tokens_new / settings.max_new_tokens, len(prompts), **counts))

    for prompt in prompts:
        if prompt.id in done:
            continue
        n_prompt_tokens_new = 0
        writer.write(collect_prompt(pair, prompt, settings, count))
        n_done += 1
        on_progress(Progress(n_done, 0.0, len(prompts), **counts))
    writer.finish()


def collect_prompt(
    pair: Pair, prompt: Prompt, settings: Settings, on_step: Callable[[Step], None] = lambda step: None
) -> Tables:
    """Decode one prompt into rows of the four tables; a prompt that cannot run becomes a row with its reason."""
    token_ids, problem = _encode(pair, prompt)
    keys = {"domain": prompt.domain, "prompt_id": prompt.id}
    row: dict[str, Any] = {
        **keys,
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
    if row["skip_reason"] is not None:
        return {"prompts": {name: [value] for name, value in row.items()}}
    started = time.perf_counter()
    rows: dict[str, list[dict[str, Any]]] = {"steps": [], "nodes": [], "contexts": []}
    output: list[int] = []
    for step in decode(pair.target, pair.draft, token_ids, prompt.id, settings):
        rows["steps"].append(_step_row(step))
        if step.nodes:
            rows["nodes"].append(_node_rows(step))
            rows["contexts"].append(_context_rows(step))
        output.extend(step.emitted)
        row["stop_reason"] = str(step.stop_reason)
        on_step(step)
    row.update(
        n_new_tokens=len(output),
        output_token_ids=output,
        output_text=pair.decode(output),
        wall_ms=1000.0 * (time.perf_counter() - started),
    )
    tables: Tables = {}
    for name, parts in rows.items():
        if not parts:
            continue
        columns = _stack(parts)
        n_rows = len(next(iter(columns.values()), []))
        tables[name] = {**columns, **{key: [value] * n_rows for key, value in keys.items()}}
    tables["prompts"] = {name: [value] for name, value in row.items()}
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
