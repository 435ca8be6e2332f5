"""Running several ways of decoding in turn on the same prompts, so that ratios are taken between neighbours in time.

Boundary: arms and prompts in, one row an arm, prompt and repeat out. No ratios here, no printing. An interrupt ends the
run and keeps what was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import pandas as pd

from acceptlab.bench.arms import Arm, Sample
from acceptlab.errors import UsageError

if TYPE_CHECKING:
    from acceptlab.models import LanguageModel
    from acceptlab.pairs import Pair
    from acceptlab.prompts import Prompt

T = TypeVar("T")
_WARM_UP_TOKENS = 4


@dataclass(frozen=True)
class Task:
    """A prompt ready to be decoded."""

    prompt_id: str
    domain: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Measured:
    """Rows of `rows_of`; `is_whole` is false where the run was interrupted."""

    frame: pd.DataFrame
    is_whole: bool


def tasks_of(
    pair: Pair,
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    depth: int,
    others: Sequence[LanguageModel] = (),
) -> tuple[list[Task], list[str]]:
    """The prompts that fit the models with the deepest tree, and a note on every one that does not.

    `others` are models that decode as well, in place of the pair's own.

    Raises:
        UsageError: none fits.
    """
    models = (pair.target, pair.draft, *others)
    limits = [model.max_len for model in models if model.max_len is not None]
    limits += [pair.window_limit] if pair.window_limit is not None else []
    tasks, notes = [], []
    for prompt in prompts:
        token_ids = tuple(pair.encode(prompt.prompt))
        needed = len(token_ids) + max_new_tokens + depth
        if limits and needed > min(limits):
            notes.append(
                f"left out {prompt.id}: it needs {needed} positions and the models have {min(limits)}"
            )
        else:
            tasks.append(Task(prompt.id, prompt.domain, token_ids))
    if notes and not tasks:
        raise UsageError(
            f"none of {len(notes)} prompts fits the models' {min(limits)} positions: lower --max-new-tokens"
        )
    return tasks, notes


def in_turn(arms: Sequence[T], n_tasks: int, repeats: int) -> Iterator[tuple[int, int, T]]:
    """Repeat, task and arm in the order of a run: all arms on a task before the next, the first arm another each time.

    So every arm stands at every place about equally often, and what slows the machine for a while slows all of them.
    """
    for repeat in range(repeats):
        for task in range(n_tasks):
            shift = (repeat * n_tasks + task) % len(arms)
            for arm in (*arms[shift:], *arms[:shift]):
                yield repeat, task, arm


def measure(
    arms: Sequence[Arm],
    tasks: Sequence[Task],
    repeats: int,
    max_new_tokens: int,
    on_done: Callable[[int, int], None] = lambda done, total: None,
) -> Measured:
    """Decode every task with every arm, several times, interleaved; one short decode each warms up.

    Args:
        arms: ways to decode.
        tasks: prompts.
        repeats: how often every arm decodes every prompt.
        max_new_tokens: longest output.
        on_done: called with the number of decodes done and their total.
    """
    rows: list[dict[str, Any]] = []
    total = len(arms) * len(tasks) * repeats
    try:
        for arm in arms:
            arm.decode(tasks[0].token_ids, tasks[0].prompt_id, min(_WARM_UP_TOKENS, max_new_tokens))
        for repeat, place, arm in in_turn(arms, len(tasks), repeats):
            task = tasks[place]
            sample = arm.decode(task.token_ids, task.prompt_id, max_new_tokens)
            rows.append(_row(arm, task, repeat, sample))
            on_done(len(rows), total)
    except KeyboardInterrupt:
        return Measured(pd.DataFrame(rows), is_whole=False)
    return Measured(pd.DataFrame(rows), is_whole=True)


def _row(arm: Arm, task: Task, repeat: int, sample: Sample) -> dict[str, Any]:
    values = asdict(sample)
    return {
        "arm": arm.name,
        "shape": arm.shape,
        "domain": task.domain,
        "prompt_id": task.prompt_id,
        "repeat": repeat,
        "n_prompt_tokens": len(task.token_ids),
        "n_new_tokens": len(sample.token_ids),
        **{name: list(value) if isinstance(value, tuple) else value for name, value in values.items()},
    }
