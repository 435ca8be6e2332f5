"""What all drafters share.

The target's frozen embeddings, the cut output layer, and the interface of the trainer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor, nn

from acceptlab.drafters.llama import LlamaShape, RMSNorm, rotary_tables
from acceptlab.drafters.output_layer import CutOutput


@dataclass(frozen=True)
class Rows:
    """Teacher-forced inputs: padded sequences, and the rows (tokens to predict) that logits are wanted for.

    `token_ids` (sequences, length) is right-padded. Row n lies in sequence `sequence[n]` behind
    `position[n]`, and is place `depth[n]` (from 0) of its window: the window's anchor, the last committed
    token, is at position - depth. All rows between an anchor and a row are rows too. `features` are the
    target's normed hidden states, that of position p at [:, p - features_start], padded like the tokens; `taps`
    are those in front of some of its layers, of all positions. None where no drafter wants them.
    """

    token_ids: Int[Tensor, "sequences length"]
    sequence: Int[Tensor, " rows"]
    position: Int[Tensor, " rows"]
    depth: Int[Tensor, " rows"]
    features: Float[Tensor, "sequences tail size"] | None = None
    features_start: int = 0
    taps: Float[Tensor, "taps sequences length size"] | None = None


class Drafter(nn.Module, ABC):
    """A small model on the target's frozen embeddings, with a cut output vocabulary.

    The embedding matrix is kept outside the module's state: it belongs to the target.
    """

    kind: ClassVar[str]
    needs_features: ClassVar[bool]

    def __init__(self, shape: LlamaShape, output: CutOutput, embeddings: Float[Tensor, "vocab size"]) -> None:
        super().__init__()
        self.shape = shape
        self.norm = RMSNorm(shape.hidden_size, shape.rms_eps)
        self.output = output
        self.share_embeddings(embeddings)

    def share_embeddings(self, embeddings: Float[Tensor, "vocab size"]) -> None:
        """Use this embedding matrix (not copied), and its rows of the kept ids as output weights."""
        self._embeddings = embeddings.detach()
        self._kept_weight: Tensor | None = None

    @property
    def embeddings(self) -> Float[Tensor, "vocab size"]:
        """The target's embedding matrix."""
        return self._embeddings

    @property
    def kept_weight(self) -> Float[Tensor, "kept size"]:
        """The target's embedding rows of the kept ids, copied when first asked for."""
        if self._kept_weight is None:
            self._kept_weight = self.embed(self.output.token_ids.long())
        return self._kept_weight

    def drafting_weight(self) -> Float[Tensor, "classes size"]:
        """The output matrix as drafting uses it: rounded to 16-bit numbers, which training does not do."""
        kept = self.embed(self.output.token_ids.long())
        return self.output.stack_weight(kept).half().float()

    def embed(self, token_ids: Int[Tensor, "*rows"]) -> Float[Tensor, "*rows size"]:
        """The target's embeddings of these ids, in float32."""
        return self._embeddings[token_ids].float()

    def rotary(self, positions: Int[Tensor, "batch rows"]) -> tuple[Tensor, Tensor]:
        """Rotary tables at these positions."""
        return rotary_tables(positions, self.shape.head_dim, self.shape.rope_theta)

    @property
    def tap_layers(self) -> tuple[int, ...]:
        """Layers of the target in front of which its hidden states are read."""
        return ()

    @abstractmethod
    def row_hidden(self, rows: Rows) -> Float[Tensor, "rows size"]:
        """Normed hidden states of the wanted rows, teacher-forced in the way the drafter will run."""

    def row_logits(self, rows: Rows) -> Float[Tensor, "rows classes"]:
        """Logits over the output classes at the wanted rows."""
        logits: Tensor = self.output(self.row_hidden(rows), self.output.stack_weight(self.kept_weight))
        return logits


def copy_tensors(module: nn.Module, source: nn.Module) -> None:
    """Give a module copies of another one's tensors."""
    module.load_state_dict({name: tensor.clone() for name, tensor in source.state_dict().items()})


def with_layers(shape: LlamaShape, n_layers: int) -> LlamaShape:
    """The same sizes with another number of layers."""
    return LlamaShape(**{**shape.as_dict(), "n_layers": n_layers})
