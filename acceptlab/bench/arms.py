"""Ways to decode a prompt, each timed in the same parts: prefill, drafting, verifying, the rest.

Boundary: token ids in, the new token ids and their times out. Which ways are compared, and how, is decided elsewhere.
Prefill is everything but the last token of the prompt, on every model that takes part: what follows is decoding, and
all ways then emit the same number of tokens from the same state.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from acceptlab.engine import Settings, decode
from acceptlab.models import LanguageModel
from acceptlab.rng import uniforms
from acceptlab.sampling import draw, warp

if TYPE_CHECKING:
    from acceptlab.pairs import Pair


@dataclass(frozen=True)
class Sample:
    """One prompt decoded once. Times in ms; `survivors[d - 1]` counts steps that accepted d tokens or more.

    What a way of decoding does not tell is None: a library's own loop does not say what it tested.
    """

    token_ids: tuple[int, ...]
    prefill_ms: float
    decode_ms: float
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    record_ms: float = 0.0
    n_steps: int = 0
    n_drafted: int = 0
    n_levels: int = 0
    n_nodes: int = 0
    n_tested: int | None = 0
    n_accepted: int = 0
    survivors: tuple[int, ...] = ()


class Arm(Protocol):
    """One way to decode. `shape` is the tree in words, empty where nothing is drafted, and `depth` its levels."""

    name: str
    shape: str
    depth: int

    def decode(self, token_ids: Sequence[int], prompt_id: str, max_new_tokens: int) -> Sample:
        """Decode one prompt and time it."""
        ...


_CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
_CLOCK: ContextVar[str] = ContextVar("clock", default="wall")


@contextmanager
def timed_by(clock: str) -> Iterator[None]:
    """Measure with this clock inside: `wall`, or `cpu`, the processor time of this process.

    Processor time does not see what else runs on the machine. It adds up over threads, so it says how long something
    takes only where one thread does the work.
    """
    token = _CLOCK.set(clock)
    try:
        yield
    finally:
        _CLOCK.reset(token)


def now_ms(device: torch.device) -> float:
    """The time of the chosen clock, once the device has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    return 1000.0 * _CLOCKS[_CLOCK.get()]()


class PrefillClock:
    """A language model that adds up the time of its prefills; everything else is handed through."""

    def __init__(self, inner: LanguageModel) -> None:
        self._inner = inner
        self.ms = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def reset(self) -> None:
        """Timed."""
        started = now_ms(self._inner.device)
        self._inner.reset()
        self.ms += now_ms(self._inner.device) - started

    def prefill(self, token_ids: Tensor) -> None:
        """Timed."""
        started = now_ms(self._inner.device)
        self._inner.prefill(token_ids)
        self.ms += now_ms(self._inner.device) - started


@dataclass
class SpeculativeArm:
    """The engine, with a tree and a rule."""

    pair: Pair
    settings: Settings
    name: str

    def __post_init__(self) -> None:
        self.shape = self.settings.tree.text
        self.depth = self.settings.tree.depth

    def decode(self, token_ids: Sequence[int], prompt_id: str, max_new_tokens: int) -> Sample:
        """Draft, verify, commit until the limit."""
        target, draft = PrefillClock(self.pair.target), PrefillClock(self.pair.draft)
        settings = replace(self.settings, max_new_tokens=max_new_tokens)
        output: list[int] = []
        times = {"draft": 0.0, "verify": 0.0, "record": 0.0, "other": 0.0}
        counts = dict.fromkeys(("n_steps", "n_drafted", "n_levels", "n_nodes", "n_tested", "n_accepted"), 0)
        survivors = [0] * settings.tree.depth
        started = now_ms(self.pair.target.device)
        for step in decode(target, draft, token_ids, prompt_id, settings):
            output.extend(step.emitted)
            for part in times:
                times[part] += step.times_ms[part]
            counts["n_steps"] += 1
            counts["n_drafted"] += step.tree.n_nodes > 0
            counts["n_levels"] += step.tree.depth
            counts["n_nodes"] += step.tree.n_nodes
            counts["n_tested"] += step.verdict.n_tested
            counts["n_accepted"] += step.verdict.accepted_len
            for depth in range(step.verdict.accepted_len):
                survivors[depth] += 1
        prefill_ms = target.ms + draft.ms
        decode_ms = now_ms(self.pair.target.device) - started - prefill_ms
        # the engine has a wall clock of its own: on another clock its parts keep their shares
        steps_ms = float(sum(times.values()))
        scale = 1.0 if _CLOCK.get() == "wall" or steps_ms == 0 else decode_ms / steps_ms
        return Sample(
            token_ids=tuple(output),
            prefill_ms=prefill_ms,
            decode_ms=decode_ms,
            draft_ms=scale * times["draft"],
            verify_ms=scale * times["verify"],
            record_ms=scale * times["record"],
            survivors=tuple(survivors),
            **counts,
        )


@dataclass
class PlainArm:
    """The target alone, one token a pass, without anything that speculation needs: the time to beat."""

    target: LanguageModel
    settings: Settings
    name: str = "plain"
    shape: str = field(default="", init=False)
    depth: int = field(default=0, init=False)

    def decode(self, token_ids: Sequence[int], prompt_id: str, max_new_tokens: int) -> Sample:
        """One pass a token."""
        target = self.target
        started = now_ms(target.device)
        target.reset()
        target.prefill(torch.tensor(token_ids[:-1], dtype=torch.int64))
        prefilled = now_ms(target.device)
        output: list[int] = []
        token, verify_ms = int(token_ids[-1]), 0.0
        for index in range(max_new_tokens):
            place = len(token_ids) - 1 + index
            before = now_ms(target.device)
            visible = torch.ones((1, place + 1), dtype=torch.bool)
            logits = target.forward(torch.tensor([token]), torch.tensor([place]), visible)
            token = self._choose(logits, prompt_id, index)
            verify_ms += now_ms(target.device) - before
            output.append(token)
            if token in self.settings.eos_ids:
                break
        return Sample(
            token_ids=tuple(output),
            prefill_ms=prefilled - started,
            decode_ms=now_ms(target.device) - prefilled,
            verify_ms=verify_ms,
            n_steps=len(output),
        )

    def _choose(self, logits: Float[Tensor, "1 vocab"], prompt_id: str, index: int) -> int:
        if self.settings.rule.is_argmax:
            return int(logits[0].argmax())
        uniform = uniforms(self.settings.seed, prompt_id, index, "plain", 1)
        return draw(warp(logits, self.settings.warp)[0], float(uniform[0]))
