"""Tiny random transformers models, one a family, for tests of exactness. Weights are large enough to matter."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

VOCAB = 61
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
_GROUPED = {**_SHAPE, "num_key_value_heads": 2}
_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", _GROUPED),
    "gpt2": ("GPT2", {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}),
    "qwen2": ("Qwen2", _GROUPED),
    "qwen3": ("Qwen3", {**_GROUPED, "head_dim": 8}),
    "mistral": ("Mistral", {**_GROUPED, "sliding_window": None}),
    "gemma": ("Gemma", {**_GROUPED, "head_dim": 8}),
    "opt": (
        "OPT",
        {
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "ffn_dim": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": 256,
            "word_embed_proj_dim": 32,
        },
    ),
}
FAMILIES = tuple(_FAMILIES)


def tiny_config(family: str, **overrides: Any) -> Any:
    """Configuration of a tiny model; no token is special unless asked for."""
    name, options = _FAMILIES[family]
    # tied random embeddings would repeat one token for ever
    special = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "tie_word_embeddings": False}
    config_class = getattr(transformers, f"{name}Config")
    return config_class(**{**special, **options, **overrides})


def tiny_model(family: str, seed: int = 0, attention: str = "sdpa", **overrides: Any) -> PreTrainedModel:
    """A random model in float32 whose next-token distributions are far from uniform."""
    config = tiny_config(family, **overrides)
    config._attn_implementation = attention
    generator_state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = getattr(
        transformers, _FAMILIES[family][0] + ("LMHeadModel" if family == "gpt2" else "ForCausalLM")
    )(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.25 if "embed" in name or "wpe" in name or "wte" in name else 0.18)
    torch.random.set_rng_state(generator_state)
    return model.eval()
