"""The reference side of the audit: plain, cache-free forwards, and texts that the target writes alone.

Shares no code with the engine: a transformers model over a whole text at once, and the library's own sampling.
Boundary: a loaded pair and token ids in, logits or token ids out.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from acceptlab.drafters.cross_model import CrossModel, text_rows
from acceptlab.drafters.head_model import HeadModel
from acceptlab.errors import UsageError
from acceptlab.rng import generator
from acceptlab.sampling import Warp

if TYPE_CHECKING:
    from acceptlab.pairs import Pair


class Reference(Protocol):
    """What the audit wants to know of a pair, beside what the engine runs."""

    def target_logits(self, token_ids: Sequence[int], first: int) -> Float[Tensor, "rows vocab"]:
        """Target logits after every prefix of at least `first` tokens, the whole text included."""
        ...

    def draft_logits(self, token_ids: Sequence[int], first: int) -> Float[Tensor, "rows vocab"]:
        """The same of the draft."""
        ...

    def sample(
        self, token_ids: Sequence[int], settings: Warp, max_new_tokens: int, seed: int, key: str, n_texts: int
    ) -> list[list[int]]:
        """Continuations that the target samples alone, each with its end-of-text token if it has one."""
        ...


class PlainPair:
    """The plain transformers models of a pair."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._width = pair.target.vocab_size
        known = set(pair.tokenizer.get_vocab().values())
        self._gone = [token_id for token_id in range(self._width) if token_id not in known]

    def target_logits(self, token_ids: Sequence[int], first: int) -> Float[Tensor, "rows vocab"]:
        """Logits of one full forward, ids without a token masked as they are for the engine."""
        return self._fitted(_full_forward(self._pair.target_model, token_ids, first))

    def draft_logits(self, token_ids: Sequence[int], first: int) -> Float[Tensor, "rows vocab"]:
        """Logits of one full forward of the draft; a draft that is no transformers model runs the text as one row run.

        Raises:
            UsageError: a draft that has no distribution after every prefix (a head for whole blocks).
        """
        if self._pair.draft_model is not None:
            return self._fitted(_full_forward(self._pair.draft_model, token_ids, first))
        tokens = torch.tensor(list(token_ids))
        target, draft = self._pair.target, self._pair.draft
        core = getattr(draft, "inner", draft)
        if isinstance(core, HeadModel | CrossModel):  # it reads the target's states
            target.reset()
            target.prefill(tokens)
        draft.reset()
        logits = text_rows(draft, tokens)
        if len(logits) != len(tokens):
            raise UsageError(
                f"the draft '{draft.name}' has no distribution after every prefix: audit another draft"
            )
        return logits[first - 1 :].cpu()

    def sample(
        self, token_ids: Sequence[int], settings: Warp, max_new_tokens: int, seed: int, key: str, n_texts: int
    ) -> list[list[int]]:
        """Sampling by the transformers library itself, one token a pass, several texts side by side."""
        model, eos = self._pair.target_model, sorted(self._pair.eos_ids)
        prompt = torch.tensor([list(token_ids)], device=model.device)
        options: dict[str, Any] = {"suppress_tokens": self._gone} if self._gone else {}
        with torch.random.fork_rng():
            torch.manual_seed(int(generator(seed, key, 0, "target alone").integers(2**62)))
            output = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=max_new_tokens,
                do_sample=True,
                num_beams=1,
                num_return_sequences=n_texts,
                temperature=settings.temperature,
                top_k=settings.top_k or 0,
                top_p=settings.top_p,
                repetition_penalty=1.0,
                eos_token_id=eos or None,
                pad_token_id=eos[0] if eos else 0,
                **options,
            )
        return [self._until_end(text) for text in output[:, len(token_ids) :].tolist()]

    def _until_end(self, token_ids: list[int]) -> list[int]:
        """A text without the padding behind its end."""
        ends = [place for place, token in enumerate(token_ids) if token in self._pair.eos_ids]
        return token_ids[: ends[0] + 1] if ends else token_ids

    def _fitted(self, logits: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows vocab"]:
        fitted = logits[:, : self._width]
        if fitted.shape[1] < self._width:
            fitted = torch.nn.functional.pad(fitted, (0, self._width - fitted.shape[1]), value=-torch.inf)
        if self._gone:
            fitted = fitted.clone()
            fitted[:, self._gone] = -torch.inf
        return fitted


@torch.no_grad()
def _full_forward(model: Any, token_ids: Sequence[int], first: int) -> Float[Tensor, "rows columns"]:
    """Logits after every prefix of at least `first` tokens."""
    text = torch.tensor([list(token_ids)], device=model.device)
    n_rows = len(token_ids) - first + 1
    can_skip = (
        "logits_to_keep" in inspect.signature(model.forward).parameters
    )  # the prompt's rows cost a fifth
    options = {"logits_to_keep": n_rows} if can_skip else {}
    logits: Tensor = model(input_ids=text, use_cache=False, **options).logits[0]
    return logits[-n_rows:].float().cpu()
