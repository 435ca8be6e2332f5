"""A Llama decoder in plain torch: the layers of the drafters, and batched decoding with a static cache.

Only the architecture. Parameter names are those of the Hugging Face checkpoints, so weights move over by
name. The static cache is what `generate` needs to sample a hundred sequences at once; the collector has its
own, with roll-back. Nothing here loads files or draws random numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from acceptlab.errors import UsageError


@dataclass(frozen=True)
class LlamaShape:
    """Sizes of a Llama decoder; `from_config` reads them off a Hugging Face configuration."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_layers: int
    rms_eps: float
    rope_theta: float

    @classmethod
    def from_config(cls, config: Any) -> LlamaShape:
        """Read the sizes of a `LlamaConfig`.

        Raises:
            UsageError: another architecture, scaled rotary embeddings or biases, which this decoder does not
            have.
        """
        rope = dict(getattr(config, "rope_parameters", None) or {})
        plain = rope.get("rope_type", "default") == "default" and not getattr(config, "attention_bias", False)
        if config.model_type != "llama" or not plain or getattr(config, "mlp_bias", False):
            raise UsageError(
                f"model type '{config.model_type}' cannot be trained on here: use a Llama-type target "
                "without biases or scaled rotary embeddings"
            )
        return cls(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            n_heads=config.num_attention_heads,
            n_kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            n_layers=config.num_hidden_layers,
            rms_eps=config.rms_norm_eps,
            rope_theta=float(rope.get("rope_theta", getattr(config, "rope_theta", 1e4))),
        )

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain values, for a configuration file."""
        return asdict(self)


class RMSNorm(nn.Module):
    """Root-mean-square normalisation with a learned scale."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Float[Tensor, "*rows size"]) -> Float[Tensor, "*rows size"]:
        """Normalise the last axis."""
        return functional.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class Attention(nn.Module):
    """The four projections of grouped-query attention; the caller attends."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        size, dim = shape.hidden_size, shape.head_dim
        self.q_proj = nn.Linear(size, shape.n_heads * dim, bias=False)
        self.k_proj = nn.Linear(size, shape.n_kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(size, shape.n_kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(shape.n_heads * dim, size, bias=False)


class MLP(nn.Module):
    """The gated feed-forward block."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Float[Tensor, "*rows size"]) -> Float[Tensor, "*rows size"]:
        """Apply the block to every row."""
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class LlamaLayer(nn.Module):
    """One decoder layer.

    `project` and `finish` stand apart so that the caller can put a cache between them.
    """

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.self_attn = Attention(shape)
        self.mlp = MLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_eps)

    def project(
        self, x: Float[Tensor, "batch rows size"], rotary: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (batch, heads, rows, dim), and keys and values (batch, kv_heads, rows, dim), rotated."""
        batch, rows, _ = x.shape
        h = self.input_layernorm(x)
        query, key, value = (
            linear(h).view(batch, rows, -1, self.head_dim).transpose(1, 2)
            for linear in (self.self_attn.q_proj, self.self_attn.k_proj, self.self_attn.v_proj)
        )
        return rotate(query, rotary), rotate(key, rotary), value

    def finish(self, x: Tensor, attended: Float[Tensor, "batch heads rows dim"]) -> Tensor:
        """Output projection and feed-forward block, both with their residual."""
        batch, heads, rows, dim = attended.shape
        x = x + self.self_attn.o_proj(attended.transpose(1, 2).reshape(batch, rows, heads * dim))
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None = None) -> Tensor:
        """One layer without a cache: causal, or with `mask` (batch, 1, rows, rows; true = visible)."""
        query, key, value = self.project(x, rotary)
        return self.finish(x, attend(query, key, value, mask))


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Grouped-query attention, causal where no mask is given."""
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=query.shape[1] != key.shape[1]
    )


def rotary_tables(
    positions: Int[Tensor, "batch rows"], head_dim: int, theta: float
) -> tuple[Float[Tensor, "batch 1 rows dim"], Float[Tensor, "batch 1 rows dim"]]:
    """Cosines and sines of the rotary embedding (RoFormer, arXiv 2104.09864) at these positions."""
    rates = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions.device) / head_dim)
    angles = positions[:, None, :, None].float() * torch.cat([rates, rates])
    return angles.cos(), angles.sin()


def rotate(x: Float[Tensor, "batch heads rows dim"], rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate queries or keys by their positions (halves convention of the checkpoints)."""
    cos, sin = rotary
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sin


def layer_number(number: int, n_layers: int) -> int:
    """The number from 0 of a layer that may be counted from the end.

    Raises:
        UsageError: there is no such layer.
    """
    if not -n_layers <= number < n_layers:
        raise UsageError(f"the target has no layer {number}: name layers from {-n_layers} to {n_layers - 1}")
    return number % n_layers


class LlamaStack(nn.Module):
    """Embeddings, layers and final norm; the output layer is the embedding matrix unless another is given."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(LlamaLayer(shape) for _ in range(shape.n_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_eps)
        self.lm_head: nn.Parameter | None = None

    @classmethod
    def from_state(cls, shape: LlamaShape, state: Mapping[str, Tensor]) -> LlamaStack:
        """Share (not copy) the tensors of a Hugging Face state dictionary."""
        with torch.device("meta"):
            stack = cls(shape)
        inner = {
            name.removeprefix("model."): tensor for name, tensor in state.items() if name.startswith("model.")
        }
        stack.load_state_dict(inner, strict=True, assign=True)
        head = state.get("lm_head.weight")
        if head is not None and head.data_ptr() != inner["embed_tokens.weight"].data_ptr():
            stack.lm_head = nn.Parameter(head, requires_grad=False)
        return stack.requires_grad_(False).eval()

    def layer(self, number: int) -> LlamaLayer:
        """A layer by its number (negative: from the end).

        Raises:
            UsageError: there is none.
        """
        found: LlamaLayer = self.layers[layer_number(number, self.shape.n_layers)]  # type: ignore[assignment]
        return found

    def embed(self, token_ids: Int[Tensor, "*rows"]) -> Float[Tensor, "*rows size"]:
        """Embeddings of these ids."""
        out: Tensor = self.embed_tokens(token_ids)
        return out

    @property
    def output_weight(self) -> Float[Tensor, "vocab size"]:
        """Weights of the output layer."""
        return self.embed_tokens.weight if self.lm_head is None else self.lm_head

    def rotary(self, positions: Int[Tensor, "batch rows"]) -> tuple[Tensor, Tensor]:
        """Rotary tables of this model at these positions."""
        return rotary_tables(positions, self.shape.head_dim, self.shape.rope_theta)
