"""Which transformers models run on packed weights, and such a model as a whole: embedding, layers, norm, output.

Boundary: decides by architecture, device and number type; whether the numbers are right is for `probe` to find out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from acceptlab.pairs.devices import free_memory
from acceptlab.pairs.fused import FusedLlama
from acceptlab.pairs.layers import LlamaWeights, packed_layer
from acceptlab.pairs.packed import Packed, is_available, release, use_large_pages
from acceptlab.pairs.slots import LlamaSizes, Part, SlotCache

_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")
"""Same layers: RMS norms, rotary positions, grouped heads, a gated feed-forward block, no biases."""
_HEADROOM = 1.2


def can_run_lean(model: PreTrainedModel) -> bool:
    """Whether a model can run on packed weights here: a Llama in float32 on an x86 processor, with memory to spare."""
    if type(model).__name__ not in _ARCHITECTURES or not is_available():
        return False
    if getattr(model.config, "hidden_act", None) != "silu":
        return False
    # tables of positions are kept, so they must not change with the length of the text
    rope = str(getattr(model.base_model.rotary_emb, "rope_type", "default"))
    if "dynamic" in rope or "longrope" in rope:
        return False
    if any(p.device.type != "cpu" or p.dtype != torch.float32 for p in model.parameters()):
        return False
    linears = [module for layer in model.base_model.layers for module in _linears(layer)]
    if any(type(module) is not nn.Linear or module.bias is not None for module in [*linears, model.lm_head]):
        return False
    # a hook or a replaced forward would be passed over
    if any("forward" in m.__dict__ or m._forward_hooks or m._forward_pre_hooks for m in linears):
        return False
    free = free_memory(model.device)
    needed = sum(module.weight.nbytes for module in [*linears, model.lm_head])
    return free is None or free > _HEADROOM * needed


def _linears(layer: Any) -> tuple[Any, ...]:
    attention, mlp = layer.self_attn, layer.mlp
    return (
        attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj,
        mlp.gate_proj, mlp.up_proj, mlp.down_proj,
    )  # fmt: skip


class LeanModel:
    """A Llama-type transformers model on packed weights, for any number of sequences at once.

    The plain weights stay where they are, mapped from their file; what has been packed is not kept in memory.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config
        self._base = model.base_model
        self._output_weight: Tensor = model.lm_head.weight.detach()
        release(parameter.detach() for parameter in model.parameters())  # packing reads them layer by layer
        sizes = LlamaSizes(
            n_heads=config.num_attention_heads,
            n_kv_heads=config.num_key_value_heads,
            head_dim=self._base.layers[0].self_attn.head_dim,
            rms_eps=config.rms_norm_eps,
        )
        with torch.no_grad():
            # the largest weight first: it is there twice while the others are not there yet
            self._output = Packed(self._output_weight)
            release([self._output_weight])
            self._packed = [packed_layer(weights) for weights in _weights(self._base.layers, sizes.head_dim)]
            self._layers = FusedLlama(self._packed, self._base.norm.weight.detach(), sizes, self._rotary)
        use_large_pages([*(weight for layer in self._packed for weight in layer.pack()), self._output])
        self.release_plain()

    def release_plain(self) -> None:
        """Let the system take back the memory of the plain weights, until something reads them again."""
        plain = [weight for layer in self._packed for weight in layer.weights.matrices()]
        release([*plain, self._output_weight])

    def release_embeddings(self) -> None:
        """Let the system take back the rows of the embeddings that a text has read."""
        release([self._base.embed_tokens.weight.detach()])

    def _rotary(self, positions: Int[Tensor, " rows"]) -> tuple[Tensor, Tensor]:
        cos, sin = self._base.rotary_emb(self._base.embed_tokens.weight[:1], positions[None])
        return cos[0], sin[0]

    def new_cache(self) -> SlotCache:
        """An empty cache for one sequence."""
        return self._layers.new_cache()

    def watch(self, layers: Iterable[int]) -> None:
        """Keep the hidden states in front of these layers from every pass to the next (`seen`)."""
        self._layers.watched = frozenset(layers)

    @property
    def seen(self) -> dict[int, Tensor]:
        """Hidden states in front of the watched layers, of the last pass."""
        return self._layers.seen

    def run(
        self,
        token_ids: Int[Tensor, " rows"],
        positions: Int[Tensor, " rows"],
        parts: Sequence[Part],
        *,
        with_logits: bool = True,
        plain: bool = False,
    ) -> Float[Tensor, "rows vocab"] | None:
        """One pass over the rows of all parts; logits of every row, or None where they are not wanted."""
        x = self._layers.run(self._base.embed_tokens.weight[token_ids], positions, parts, plain=plain)
        norm = self._base.norm
        normed: Tensor = norm(x[None])[0] if norm._forward_hooks else self._layers.final(x)
        if not with_logits:
            return None
        return functional.linear(normed, self._output_weight) if plain else self._output.linear(normed)


def _weights(layers: Any, head_dim: int) -> Iterator[LlamaWeights]:
    """The weights of every layer; those of a layer are released when the next one is asked for."""
    for layer in layers:
        weights = LlamaWeights.of(layer, head_dim)
        yield weights
        release(weights.matrices())
