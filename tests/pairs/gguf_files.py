"""A tiny GGUF file with the weights of a transformers model and a byte-level tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter
from tokenizers.pre_tokenizers import ByteLevel

LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.q_proj.bias": "attn_q.bias",
    "self_attn.k_proj.bias": "attn_k.bias",
    "self_attn.v_proj.bias": "attn_v.bias",
    "self_attn.o_proj.weight": "attn_output.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
TOKENS = ["<|endoftext|>", *sorted(ByteLevel.alphabet()), "ab", "cd"]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}!"


def write_gguf(path: Path, model: Any) -> Path:
    """Write a Qwen2 model with `len(TOKENS)` ids in float32."""
    config = model.config
    writer = GGUFWriter(path, "qwen2")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, *([1] * (len(TOKENS) - 1))])
    writer.add_token_merges(["a b", "c d"])  # older readers take a single one for a text
    writer.add_eos_token_id(5)
    writer.add_bos_token_id(0)
    writer.add_chat_template(TEMPLATE)
    for name, value in model.state_dict().items():
        parts = name.split(".")
        there = WHOLE.get(name) or f"blk.{parts[2]}.{LAYER['.'.join(parts[3:])]}"
        writer.add_tensor(there, value.numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
