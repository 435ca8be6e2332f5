"""Ways to decode a prompt, each timed in the same parts: prefill, drafting, verifying, the rest.

Boundary: token ids in, the new token ids and their times out. Which ways are compared, and how, is decided elsewhere.
Prefill is everything but the last token of the prompt, on every model that takes part: what follows is decoding, and
all ways then emit the same number of tokens from the same state.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from acceptlab.engine import Settings, decode
from acceptlab.models import LanguageModel
from acceptlab.rng import generator, uniforms
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


def now_ms(device: torch.device) -> float:
    """The time, once the device has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    return 1000.0 * time.perf_counter()


class PrefillClock:
    """A language model that adds up the time of its prefills; everything else is handed through."""

    def __init__(self, inner: LanguageModel) -> None:
        self._inner = inner
        self.ms = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

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
        times = {"draft": 0.0, "verify": 0.0, "record": 0.0}
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
        return Sample(
            token_ids=tuple(output),
            prefill_ms=prefill_ms,
            decode_ms=now_ms(self.pair.target.device) - started - prefill_ms,
            draft_ms=times["draft"],
            verify_ms=times["verify"],
            record_ms=times["record"],
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


class _Watch:
    """Times and counts the passes of a transformers model, through its public hooks."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.ms = 0.0
        self.n_passes = 0

    def __enter__(self) -> _Watch:
        self._hooks = [
            self._model.register_forward_pre_hook(self._begin),
            self._model.register_forward_hook(self._end),
        ]
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _begin(self, *passed: Any) -> None:
        self._started = now_ms(self._model.device)

    def _end(self, *passed: Any) -> None:
        self.ms += now_ms(self._model.device) - self._started
        self.n_passes += 1


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's advice on how it calls itself."""
    log = logging.getLogger("transformers")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


@dataclass
class LibraryArm:
    """`generate` of the transformers library, alone or assisted by a draft that is a transformers model.

    Its prefill is inside its first passes, so bare passes over the same prompt are timed right before and taken off.
    """

    model: Any
    assistant: Any | None
    settings: Settings
    name: str
    n_drafted_tokens: int = 0
    """Tokens that the assistant drafts each time."""

    def __post_init__(self) -> None:
        self.shape = f"chain:{self.n_drafted_tokens}" if self.assistant is not None else ""
        self.depth = self.n_drafted_tokens

    @torch.inference_mode()
    def decode(self, token_ids: Sequence[int], prompt_id: str, max_new_tokens: int) -> Sample:
        """Generate, and take the prefill off."""
        prompt = torch.tensor([list(token_ids)], device=self.model.device)
        target_ms = self._bare_ms(self.model, prompt)
        draft_ms = 0.0 if self.assistant is None else self._bare_ms(self.assistant, prompt)
        watched = self.model if self.assistant is None else self.assistant
        with _Watch(self.model) as target, _Watch(watched) as draft, torch.random.fork_rng():
            stream = generator(self.settings.seed, prompt_id, 0, self.name)
            torch.manual_seed(int(stream.integers(2**62)))
            started = now_ms(self.model.device)
            output = self._generate(prompt, max_new_tokens)
            wall_ms = now_ms(self.model.device) - started
        new = tuple(int(token) for token in output[0, len(token_ids) :])
        assisted = self.assistant is not None
        return Sample(
            token_ids=new,
            prefill_ms=target_ms + draft_ms,
            decode_ms=wall_ms - target_ms - draft_ms,
            draft_ms=draft.ms - draft_ms if assisted else 0.0,
            verify_ms=target.ms - target_ms,
            n_steps=target.n_passes,
            n_drafted=target.n_passes if assisted else 0,
            n_tested=None if assisted else 0,
            # every pass of the target gives one token of its own
            n_accepted=len(new) - target.n_passes if assisted else 0,
        )

    def _generate(self, prompt: Tensor, max_new_tokens: int) -> Tensor:
        eos, settings = sorted(self.settings.eos_ids), self.settings
        options: dict[str, Any] = {"do_sample": False}
        if not settings.rule.is_argmax:
            options = {
                "do_sample": True,
                "temperature": settings.warp.temperature,
                "top_k": settings.warp.top_k,
                "top_p": settings.warp.top_p,
            }
        if self.assistant is not None:
            chain = self.assistant.generation_config
            chain.num_assistant_tokens = self.n_drafted_tokens
            chain.num_assistant_tokens_schedule = "constant"
            chain.assistant_confidence_threshold = 0.0  # always the whole chain
            options["assistant_model"] = self.assistant
        with _quiet():
            output: Tensor = self.model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=max_new_tokens,
                eos_token_id=eos or None,
                pad_token_id=eos[0] if eos else 0,
                repetition_penalty=1.0,
                **options,
            )
        return output

    def _bare_ms(self, model: Any, prompt: Tensor) -> float:
        """Time of one pass over all of the prompt but its last token."""
        if prompt.shape[1] < 2:
            return 0.0
        started = now_ms(model.device)
        model(input_ids=prompt[:, :-1], use_cache=True, logits_to_keep=1)
        return now_ms(model.device) - started
