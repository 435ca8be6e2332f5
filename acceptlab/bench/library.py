"""The transformers library's own loops as ways to decode: `generate`, alone or assisted by a draft.

Boundary: a transformers model and token ids in, samples out; nothing here touches the engine.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from acceptlab.bench.arms import Sample, now_ms
from acceptlab.engine import Settings
from acceptlab.rng import generator


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
