"""Several prompts in one pass: tokens a second and accepted length against the batch size.

Boundary: a pair and prompts in, rows of the form of `interleave.measure` out, one arm a batch size. A prompt's time is
the sum of its steps, each of which bears its share of the passes that it has with others; prefill is no part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd

from acceptlab.bench.arms import Sample
from acceptlab.bench.interleave import Measured, Task, in_turn
from acceptlab.engine import Settings, Step
from acceptlab.lanes import decode_many

if TYPE_CHECKING:
    from acceptlab.pairs import Pair

COLUMNS = {
    "batch_size": "prompts in one pass",
    "tokens_per_s": "new tokens a second of decoding over all prompts, prefill left out",
    "speed_up": "tokens_per_s / that of the first batch size",
    "accepted_len": "accepted tokens a drafted step, without the bonus token",
    "same_text": "share of prompts with the tokens of the first batch size",
}
PREFIX = "batch:"


@dataclass
class _Sums:
    """One prompt while its steps come in."""

    token_ids: list[int] = field(default_factory=list)
    times_ms: dict[str, float] = field(default_factory=dict)
    counts: dict[str, Any] = field(default_factory=dict)

    def add(self, step: Step) -> None:
        self.token_ids.extend(step.emitted)
        for part, ms in step.times_ms.items():
            self.times_ms[part] = self.times_ms.get(part, 0.0) + ms
        for name, number in (
            ("n_steps", 1),
            ("n_drafted", int(step.tree.n_nodes > 0)),
            ("n_levels", step.tree.depth),
            ("n_nodes", step.tree.n_nodes),
            ("n_tested", step.verdict.n_tested),
            ("n_accepted", step.verdict.accepted_len),
        ):
            self.counts[name] = self.counts.get(name, 0) + number

    def sample(self) -> Sample:
        return Sample(
            token_ids=tuple(self.token_ids),
            prefill_ms=0.0,
            decode_ms=sum(self.times_ms.values()),
            draft_ms=self.times_ms.get("draft", 0.0),
            verify_ms=self.times_ms.get("verify", 0.0),
            record_ms=self.times_ms.get("record", 0.0),
            **self.counts,
        )


def decode_batch(pair: Pair, tasks: Sequence[Task], settings: Settings, batch_size: int) -> list[Sample]:
    """Decode all prompts, so many at once; one sample a prompt, in order."""
    sums = [_Sums() for _ in tasks]
    prompts = ((task.prompt_id, task.token_ids) for task in tasks)
    for number, step in decode_many(pair.target, pair.draft, prompts, settings, batch_size):
        sums[number].add(step)
    return [one.sample() for one in sums]


def measure_batches(
    pair: Pair,
    tasks: Sequence[Task],
    settings: Settings,
    sizes: Sequence[int],
    repeats: int,
    on_done: Callable[[int, int], None] = lambda done, total: None,
) -> Measured:
    """Decode all prompts at every batch size in turn, several times; one short decode warms up.

    Args:
        pair: loaded target and draft.
        tasks: prompts; at least as many as the largest batch, or it is never full.
        settings: how to decode.
        sizes: batch sizes.
        repeats: how often.
        on_done: called with the number of decodes of all prompts done and their total.
    """
    rows: list[dict[str, Any]] = []
    total, done = len(sizes) * repeats, 0
    try:
        decode_batch(pair, tasks[:1], settings, 1)
        for repeat, _, size in in_turn(list(sizes), 1, repeats):
            samples = decode_batch(pair, tasks, settings, size)
            for task, sample in zip(tasks, samples, strict=True):
                rows.append(
                    {
                        "arm": f"{PREFIX}{size}",
                        "shape": settings.tree.text,
                        "domain": task.domain,
                        "prompt_id": task.prompt_id,
                        "repeat": repeat,
                        "n_prompt_tokens": len(task.token_ids),
                        "n_new_tokens": len(sample.token_ids),
                        **asdict(sample),
                    }
                )
            done += 1
            on_done(done, total)
    except KeyboardInterrupt:
        return Measured(pd.DataFrame(rows), is_whole=False)
    return Measured(pd.DataFrame(rows), is_whole=True)
