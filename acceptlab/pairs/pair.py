"""A target and a draft that fit together, ready for the engine, with what a manifest says about them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from transformers import PreTrainedModel

from acceptlab.drafters.cross_model import CrossModel
from acceptlab.drafters.head_model import HeadModel
from acceptlab.drafters.model import DrafterModel
from acceptlab.errors import UsageError
from acceptlab.models import LanguageModel
from acceptlab.pairs import checks
from acceptlab.pairs.cached import CachedModel
from acceptlab.pairs.drafts import Draft
from acceptlab.pairs.encoding import Prompt, encode_prompt, end_ids
from acceptlab.pairs.files import cached_sha256, weight_files
from acceptlab.pairs.heap import trim_memory
from acceptlab.pairs.lean_cross import LeanCross
from acceptlab.pairs.lean_drafter import LeanDrafter, can_draft_lean
from acceptlab.pairs.probe import PROBE_LEN, plain_rows, probe
from acceptlab.pairs.source import Source
from acceptlab.pairs.trained import WatchedModel
from acceptlab.pairs.vocab import (
    PaddedModel,
    Vocabulary,
    check_tokenizers,
    fit,
    vocabulary_of,
    width_notes,
)

Kind = TypeVar("Kind", bound=CachedModel)
_PROBE = "The quick brown fox: 12,345.67 naïve\tÜber 你好\n  return x_1 != 'a'"


@dataclass
class Pair:
    """A loaded pair. `target` and `draft` are what the engine runs; both give rows over the same ids."""

    name: str
    tokenizer: Any
    target_model: PreTrainedModel
    draft_model: PreTrainedModel | None
    """The plain transformers model of the draft, where it is one."""
    target: LanguageModel
    draft: LanguageModel
    draft_note: str
    """Says so where the draft is a slow stand-in; empty otherwise."""
    eos_ids: frozenset[int]
    window_limit: int | None
    """Largest number of positions that is exact (prompt, new tokens and tree depth); None without a limit."""
    notes: list[str]
    """What a reader of the run should know: masked ids, renamed tokens, windows."""
    target_source: Source | None = None
    draft_source: Source | None = None
    draft_id: str = ""
    _description: dict[str, Any] = field(default_factory=dict, repr=False)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a text, of the first of several turns, or of a conversation (see `encode_prompt`)."""
        return encode_prompt(self.tokenizer, prompt, self.target_model.get_input_embeddings().weight.shape[0])

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids."""
        ids = [int(i) for i in token_ids]
        return str(self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

    @property
    def masked_prob(self) -> float:
        """Largest probability that the target has put on ids without a token so far."""
        return self.target.masked_prob if isinstance(self.target, PaddedModel) else 0.0

    def describe(self) -> dict[str, Any]:
        """For the manifest: `models` (ids, revisions, file hashes), `tokenizer_sha256`, `passes`, `device`, `dtype`."""
        if not self._description:
            target = _describe_model(self.target_model, self.target_source, self.target.name)
            draft = _describe_model(self.draft_model, self.draft_source, self.draft_id or self.draft.name)
            self._description = {
                "models": {"target": target, "draft": draft},
                "tokenizer_sha256": tokenizer_sha256(self.tokenizer),
                "passes": {"target": _passes(self.target), "draft": _passes(self.draft)},
                "device": str(self.target.device),
                "dtype": target["dtype"],
            }
        return self._description


def pair_from_models(
    tokenizer: Any,
    target_model: PreTrainedModel,
    draft: PreTrainedModel | Draft,
    *,
    name: str = "in memory",
    draft_tokenizer: Any | None = None,
    target_source: Source | None = None,
    lean: bool = True,
) -> Pair:
    """Make a pair of loaded models, with all checks.

    Args:
        tokenizer: the target's.
        target_model: a transformers causal model; put into evaluation mode, gradients off.
        draft: another one, or any loaded draft.
        name: the pair's name.
        draft_tokenizer: the draft's own, to be compared with the target's; None takes the target's.
        target_source: where the target came from, for the description.
        lean: run models on packed weights where that is possible (see `pairs.lean`).

    Raises:
        UsageError: a model that cannot be run exactly, or tokenizers that disagree.
    """
    target_id = target_source.id if target_source else type(target_model).__name__
    if not isinstance(draft, Draft):
        draft = Draft(type(draft).__name__, None, draft, draft_tokenizer, None, "")
    notes: list[str] = []
    if draft.tokenizer is not None:
        notes += check_tokenizers(tokenizer, draft.tokenizer, draft.name)
    vocabulary = _common_vocabulary(tokenizer, target_model)
    draft_core = _draft_core(draft, lean)
    target_core = _target_core(target_model, target_id, draft_core, lean)
    notes += width_notes("target", target_core, vocabulary)
    if draft.language_model is None:
        notes += width_notes("draft", draft_core, vocabulary)
    limits = [checks.window_limit(m.config) for m in (target_model, draft.model) if m is not None]
    limit = min((value for value in limits if value is not None), default=None)
    if limit is not None and limit < _longest(target_core, draft_core):
        notes.append(f"exact up to {limit} positions, the attention's window; longer prompts are left out")
    return Pair(
        name=name,
        tokenizer=tokenizer,
        target_model=target_model,
        draft_model=draft.model,
        target=fit(target_core, vocabulary),
        draft=fit(draft_core, vocabulary),
        draft_note=draft.note,
        eos_ids=end_ids(tokenizer, target_model),
        window_limit=limit,
        notes=notes,
        target_source=target_source,
        draft_source=draft.source,
        draft_id=draft.name,
    )


def _cached(model: PreTrainedModel, name: str, lean: bool, kind: type[Kind] = CachedModel) -> Kind:  # type: ignore[assignment]
    checks.check_model(model, name)
    model = model.eval().requires_grad_(False)
    limit = checks.window_limit(model.config)
    if limit is not None and limit < PROBE_LEN:
        return kind(model, name)
    expected = plain_rows(model)  # before packing, which lets go of the plain weights
    cached = kind(model, name, lean=lean)
    if cached.is_lean:
        try:
            probe(cached, model, name, expected)
            trim_memory()
            return cached
        except UsageError:
            # what transformers does with this model is then the only way that is known to be right
            cached.use_transformers()
    probe(cached, model, name, expected)
    return cached


def _target_core(model: PreTrainedModel, name: str, draft: LanguageModel, lean: bool) -> CachedModel:
    """The target behind the protocol; a draft that reads it is attached to it."""
    if not isinstance(draft, HeadModel | CrossModel):
        return _cached(model, name, lean)
    watched = _cached(model, name, lean, kind=WatchedModel)
    if isinstance(draft, CrossModel):
        watched.watch(draft.tap_layers)
    draft.attach(watched)
    return watched


def _draft_core(draft: Draft, lean: bool) -> LanguageModel:
    if draft.language_model is not None:
        model = draft.language_model
        if lean and isinstance(model, DrafterModel) and can_draft_lean(model.drafter):
            return LeanDrafter(model)
        if lean and isinstance(model, CrossModel) and can_draft_lean(model.head):
            return LeanCross(model)
        return model
    if draft.model is None:
        raise UsageError(f"the draft '{draft.name}' has neither a model nor a language model")
    return _cached(draft.model, draft.name, lean)


def _longest(*models: LanguageModel) -> float:
    return min([model.max_len for model in models if model.max_len is not None], default=float("inf"))


def _common_vocabulary(tokenizer: Any, target_model: PreTrainedModel) -> Vocabulary:
    """Ids of the tokenizer, cut where the target's output layer ends: those beyond can never be produced."""
    vocabulary = vocabulary_of(tokenizer)
    width = min(vocabulary.width, output_width(target_model))
    return Vocabulary(width, tuple(i for i in vocabulary.missing if i < width))


def output_width(model: PreTrainedModel) -> int:
    """Number of logits of a model, padding included."""
    return int(model.get_output_embeddings().weight.shape[0])


def common_width(tokenizer: Any, target_model: PreTrainedModel) -> int:
    """Width of the rows that both models of a pair give."""
    return _common_vocabulary(tokenizer, target_model).width


def _passes(model: LanguageModel) -> str:
    """What runs the passes of a model."""
    core = model.inner if isinstance(model, PaddedModel) else model
    return "packed weights" if getattr(core, "is_lean", False) else "plain weights"


def _describe_model(model: PreTrainedModel | None, source: Source | None, name: str) -> dict[str, Any]:
    files = {}
    if source is not None:
        paths = [source.path] if source.is_gguf else weight_files(source.path)
        files = {path.name: cached_sha256(path) for path in paths}
    return {
        "id": source.id if source else name,
        "revision": source.revision if source else None,
        "files": files,
        "architecture": type(model).__name__ if model is not None else None,
        "n_parameters": sum(p.numel() for p in model.parameters()) if model is not None else None,
        "n_logits": output_width(model) if model is not None else None,
        "dtype": str(model.dtype).removeprefix("torch.") if model is not None else None,
    }


def tokenizer_sha256(tokenizer: Any) -> str:
    """SHA-256 over what decides token ids: vocabulary, special tokens, chat template, ids of a probe."""
    content = {
        "vocabulary": sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]),
        "special": [tokenizer.bos_token_id, tokenizer.eos_token_id],
        "template": getattr(tokenizer, "chat_template", None),
        "probe": tokenizer(_PROBE).input_ids,
    }
    return hashlib.sha256(json.dumps(content, ensure_ascii=True).encode()).hexdigest()
