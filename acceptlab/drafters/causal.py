"""The plain causal drafter: reads tokens only, so the collector runs it like any other model."""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from acceptlab.drafters.base import Drafter, Rows, copy_tensors, with_layers
from acceptlab.drafters.llama import LlamaLayer, LlamaShape, LlamaStack, attend
from acceptlab.drafters.output_layer import CutOutput


class CausalDrafter(Drafter):
    """A small Llama on the target's frozen embeddings, with a cut output vocabulary."""

    kind: ClassVar[str] = "causal"
    needs_features: ClassVar[bool] = False

    def __init__(self, shape: LlamaShape, output: CutOutput, embeddings: Float[Tensor, "vocab size"]) -> None:
        super().__init__(shape, output, embeddings)
        self.layers = nn.ModuleList(LlamaLayer(shape) for _ in range(shape.n_layers))

    @classmethod
    def from_target(cls, target: LlamaStack, layers: tuple[int, ...], output: CutOutput) -> CausalDrafter:
        """Start from copies of these layers of the target (negative: from the end) and of its final norm."""
        drafter = cls(with_layers(target.shape, len(layers)), output, target.embed_tokens.weight)
        for mine, number in zip(drafter.layers, layers, strict=True):
            copy_tensors(mine, target.layer(number))
        copy_tensors(drafter.norm, target.norm)
        return drafter.requires_grad_(True)

    @torch.no_grad()
    def grown(self, target: LlamaStack, layers: tuple[int, ...]) -> CausalDrafter:
        """The same drafter with copies of these layers of the target put in before its last layer.

        Their two output projections start at zero, so that the grown drafter computes what this one does
        (the identity start of Net2Net, arXiv 1511.05641) and learns from there.
        """
        shape = with_layers(self.shape, self.shape.n_layers + len(layers))
        drafter = CausalDrafter(shape, self.output, self.embeddings)
        *first, last = self.layers
        for mine, source in zip(
            drafter.layers, [*first, *(target.layer(n) for n in layers), last], strict=True
        ):
            copy_tensors(mine, source)
        for layer in list(drafter.layers)[len(first) : -1]:
            assert isinstance(layer, LlamaLayer)
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        copy_tensors(drafter.norm, self.norm)
        return drafter.requires_grad_(True)

    def hidden(self, token_ids: Int[Tensor, "batch rows"]) -> Float[Tensor, "batch rows size"]:
        """Normed hidden states of plain sequences from position 0; row t predicts token t + 1."""
        rotary = self.rotary(torch.arange(token_ids.shape[1])[None])
        x = self.embed(token_ids)
        for layer in self.layers:
            x = layer(x, rotary)
        out: Tensor = self.norm(x)
        return out

    def row_hidden(self, rows: Rows) -> Float[Tensor, "rows size"]:
        """Normed hidden states behind the rows' positions; depth plays no part.

        As `hidden`, but the last layer's feed-forward block runs for the wanted rows only.
        """
        rotary = self.rotary(torch.arange(rows.token_ids.shape[1])[None])
        x = self.embed(rows.token_ids)
        *first, last = self.layers
        for layer in first:
            x = layer(x, rotary)
        assert isinstance(last, LlamaLayer)
        query, key, value = last.project(x, rotary)
        attended = attend(query, key, value, None)[rows.sequence, :, rows.position]
        picked = last.finish(x[rows.sequence, rows.position][None], attended.transpose(0, 1)[None])
        out: Tensor = self.norm(picked[0])
        return out
