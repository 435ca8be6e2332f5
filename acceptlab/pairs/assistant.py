"""A draft as a transformers model, for the library's own assisted generation (`assistant_model=`).

A trained causal drafter is no transformers model, so its weights are put into a `LlamaForCausalLM` whose output layer
gives the drafter's full-vocabulary logits. Nothing here generates.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from acceptlab.drafters.causal import CausalDrafter
from acceptlab.drafters.model import DrafterModel
from acceptlab.errors import RunError, UsageError
from acceptlab.models import LanguageModel
from acceptlab.pairs.lean_drafter import plain_drafter
from acceptlab.pairs.pair import Pair
from acceptlab.pairs.vocab import PaddedModel

_PROBE_LEN = 12
_TOLERANCE = 1e-3
"""Largest difference between logits of both forms: float32 rounding of two implementations stays far below."""


class _DrafterOutput(nn.Module):
    """The cut output layer with its rest class, expanded to the vocabulary: as cheap as the drafter's own."""

    stacked: Tensor

    def __init__(self, drafter: CausalDrafter) -> None:
        super().__init__()
        self.output = drafter.output
        self.register_buffer("stacked", drafter.drafting_weight())

    @property
    def weight(self) -> Tensor:
        """Stands for the weight of a plain output layer, of which the library asks device and dtype."""
        return self.stacked

    def forward(self, hidden: Float[Tensor, "*rows size"]) -> Float[Tensor, "*rows vocab"]:
        """Logits over the whole vocabulary."""
        return self.output.expand(self.output(hidden.flatten(0, -2), self.weight)).view(
            *hidden.shape[:-1], -1
        )


def assistant_of(pair: Pair) -> PreTrainedModel:
    """The pair's draft as a transformers model that gives the same logits.

    Raises:
        UsageError: the draft has no such form (heads that read the target's states, n-grams).
        RunError: the form gives other logits.
    """
    if pair.draft_model is not None:
        return pair.draft_model
    draft = pair.draft.inner if isinstance(pair.draft, PaddedModel) else pair.draft
    if not isinstance(draft, DrafterModel):
        raise UsageError(
            f"the draft '{draft.name}' has no form that transformers can run as an assistant: "
            "leave assisted generation out, or name a causal draft"
        )
    limit = pair.target_model.config.get_text_config().max_position_embeddings
    assistant = llama_of(plain_drafter(draft), limit)
    _compare(assistant, draft)
    return assistant


def llama_of(drafter: CausalDrafter, max_len: int) -> LlamaForCausalLM:
    """A Llama of the library with a drafter's weights, shared and not copied."""
    shape = drafter.shape
    config = LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.n_layers,
        num_attention_heads=shape.n_heads,
        num_key_value_heads=shape.n_kv_heads,
        head_dim=shape.head_dim,
        rms_norm_eps=shape.rms_eps,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        max_position_embeddings=max_len,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    state = {name: tensor for name, tensor in drafter.state_dict().items() if not name.startswith("output.")}
    model.model.load_state_dict({**state, "embed_tokens.weight": drafter.embeddings.float()}, assign=True)
    model.lm_head = _DrafterOutput(drafter)
    return model.to(drafter.embeddings.device).eval().requires_grad_(False)


@torch.inference_mode()
def _compare(assistant: LlamaForCausalLM, draft: LanguageModel) -> None:
    """Refuse an assistant whose logits are not the draft's."""
    tokens = _probe_tokens(draft.vocab_size)
    places = torch.arange(len(tokens))
    draft.reset()
    ours = draft.forward(tokens, places, places[None, :] <= places[:, None])
    draft.reset()
    theirs = assistant(input_ids=tokens.to(assistant.device)[None], use_cache=False).logits[0]
    apart = float((ours - theirs.float()).abs().max())
    # written so that a difference that is not a number is refused too
    if not apart <= _TOLERANCE:
        raise RunError(
            f"the draft '{draft.name}' as a transformers model gives other logits (apart by {apart:.2g}): "
            "leave assisted generation out"
        )


def _probe_tokens(n_ids: int) -> Int[Tensor, " tokens"]:
    """Tokens spread over the vocabulary."""
    return torch.arange(_PROBE_LEN) * max(1, n_ids // 13) % n_ids
