"""Several prompts at once: their passes are put together, everything else stays as for one.

Boundary: models, prompts and settings in, steps out, each with the index of its prompt. Every prompt runs the loop of
`engine` on a sequence of its own, with random streams of its own; what is shared is only the pass. So the steps are
those of one prompt after the other, up to how float32 sums round in products of another size.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from acceptlab.engine import Clock, Settings, Step, write_text
from acceptlab.models import LanguageModel
from acceptlab.passes import Pass, fork, run_together


@dataclass
class _Lane:
    """A prompt under way: its sequences, its loop and the pass that the loop waits for."""

    prompt: int
    models: tuple[LanguageModel, LanguageModel]
    clock: Clock
    text: Generator[Pass | Step, Tensor | None, None]
    wanted: Pass | None = None
    since: float = field(default=0.0)

    def go_on(self, logits: Tensor | None) -> Iterator[Step]:
        """Run the loop to its next pass, or to its end (`wanted` None)."""
        self.wanted = None
        for item in _items(self.text, logits):
            if isinstance(item, Pass):
                self.wanted, self.since = item, self.clock.now()
                return
            yield item


def _items(text: Generator[Pass | Step, Tensor | None, None], logits: Tensor | None) -> Iterator[Pass | Step]:
    """What the loop gives after the logits; steps want no answer."""
    try:
        yield text.send(logits)
        while True:
            yield next(text)
    except StopIteration:
        return


@torch.inference_mode()
def decode_many(
    target: LanguageModel,
    draft: LanguageModel,
    prompts: Iterable[tuple[str, Sequence[int]]],
    settings: Settings,
    batch_size: int = 1,
) -> Iterator[tuple[int, Step]]:
    """Decode prompts, up to `batch_size` at a time, and yield steps with the index of their prompt.

    Each prompt's steps come in order and the last one has a stop reason; prompts without a step give nothing. The next
    prompt starts as soon as one has ended.

    Args:
        target: the model whose text is produced.
        draft: the model that proposes.
        prompts: identifier and tokens of each prompt; taken from only as lanes become free.
        settings: how to decode.
        batch_size: at most so many prompts are in one pass.

    Raises:
        UsageError: one of the models can hold one sequence only, and the batch size is larger.
    """
    free = [(target, draft)]
    free += [(fork(target), fork(draft)) for _ in range(batch_size - 1)]
    numbered = enumerate(prompts)
    lanes: list[_Lane] = []
    while True:
        while free and (following := next(numbered, None)) is not None:
            number, (prompt_id, token_ids) = following
            models, clock = free.pop(), Clock(target.device)
            text = write_text(*models, token_ids, prompt_id, settings, clock)
            lane = _Lane(number, models, clock, text)
            lanes.append(lane)
            yield from ((number, step) for step in lane.go_on(None))
        lanes, ended = [lane for lane in lanes if lane.wanted], [lane for lane in lanes if not lane.wanted]
        free += [lane.models for lane in ended]
        if lanes:
            yield from _round(lanes)
        elif not ended:
            return


def _round(lanes: list[_Lane]) -> Iterator[tuple[int, Step]]:
    """One pass: of the draft as long as a lane waits for it, so that the target's pass is one over all lanes."""
    drafting = [lane for lane in lanes if lane.wanted and lane.wanted.model is lane.models[1]]
    chosen = drafting or lanes
    started = chosen[0].clock.now()
    logits = run_together([lane.wanted for lane in chosen if lane.wanted])
    seconds = chosen[0].clock.now() - started
    for lane, own in zip(chosen, logits, strict=True):
        # a lane bears its share of the pass, and nothing of the time in which it waited for others
        lane.clock.skip(lane.clock.now() - lane.since - seconds / len(chosen))
        yield from ((lane.prompt, step) for step in lane.go_on(own))
