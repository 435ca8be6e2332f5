"""The plain causal drafter, and drafter folders: a safetensors file of the trained tensors and a config.json.

The causal drafter reads tokens only, so the collector runs it like any other model. It shares the target's
frozen embeddings, which are not stored. Heads that read the target's hidden states are in `heads`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from acceptlab.drafters.llama import LlamaLayer, LlamaShape, LlamaStack, RMSNorm, rotary_tables
from acceptlab.drafters.output_layer import CutOutput
from acceptlab.errors import RunError, UsageError

DRAFTER_KEY = "acceptlab_drafter"
WEIGHTS_FILE = "model.safetensors"


@dataclass(frozen=True)
class DrafterConfig:
    """What config.json holds: the kind, the sizes, the target it was trained on, and notes for people.

    `probe` is a corner of the target's embedding matrix, by which another target is told apart.
    """

    kind: str
    shape: LlamaShape
    n_kept: int
    target: str
    probe: list[float]
    notes: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for config.json."""
        return {
            DRAFTER_KEY: self.kind,
            "shape": self.shape.as_dict(),
            "n_kept": self.n_kept,
            "target": self.target,
            "probe": self.probe,
            "notes": self.notes,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> DrafterConfig:
        """Read back `as_dict`."""
        return cls(
            kind=values[DRAFTER_KEY],
            shape=LlamaShape(**values["shape"]),
            n_kept=values["n_kept"],
            target=values["target"],
            probe=values["probe"],
            notes=values.get("notes", {}),
        )


class CausalDrafter(nn.Module):
    """A small Llama on the target's frozen embeddings, with a cut output vocabulary.

    The embedding matrix is kept outside the module's state: it belongs to the target.
    """

    kind = "causal"

    def __init__(self, shape: LlamaShape, output: CutOutput, embeddings: Float[Tensor, "vocab size"]) -> None:
        super().__init__()
        self.shape = shape
        self.layers = nn.ModuleList(LlamaLayer(shape) for _ in range(shape.n_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_eps)
        self.output = output
        self.share_embeddings(embeddings)

    def share_embeddings(self, embeddings: Float[Tensor, "vocab size"]) -> None:
        """Use this embedding matrix (not copied), and its rows of the kept ids as output weights (copied)."""
        self._embeddings = embeddings.detach()
        self._kept_weight = self._embeddings[self.output.token_ids.long()].float()

    @property
    def embeddings(self) -> Float[Tensor, "vocab size"]:
        """The target's embedding matrix."""
        return self._embeddings

    @property
    def kept_weight(self) -> Float[Tensor, "kept size"]:
        """The target's embedding rows of the kept ids."""
        return self._kept_weight

    @classmethod
    def from_target(cls, target: LlamaStack, layers: tuple[int, ...], output: CutOutput) -> CausalDrafter:
        """Start from copies of these layers of the target (negative: from the end) and of its final norm."""
        shape = LlamaShape(**{**target.shape.as_dict(), "n_layers": len(layers)})
        drafter = cls(shape, output, target.embed_tokens.weight)
        for mine, number in zip(drafter.layers, layers, strict=True):
            mine.load_state_dict({k: v.clone() for k, v in target.layers[number].state_dict().items()})
        drafter.norm.load_state_dict({k: v.clone() for k, v in target.norm.state_dict().items()})
        drafter.requires_grad_(True)
        return drafter

    def hidden(self, token_ids: Int[Tensor, "batch rows"]) -> Float[Tensor, "batch rows size"]:
        """Normed hidden states of plain sequences from position 0; row t predicts token t + 1."""
        positions = torch.arange(token_ids.shape[1])[None]
        rotary = rotary_tables(positions, self.shape.head_dim, self.shape.rope_theta)
        x = self._embeddings[token_ids]
        for layer in self.layers:
            x = layer(x, rotary)
        out: Tensor = self.norm(x)
        return out

    def row_logits(
        self,
        token_ids: Int[Tensor, "sequences length"],
        sequence: Int[Tensor, " rows"],
        position: Int[Tensor, " rows"],
    ) -> Float[Tensor, "rows classes"]:
        """Logits over the output classes behind these positions of plain sequences."""
        hidden = self.hidden(token_ids)
        logits: Tensor = self.output(hidden[sequence, position], self.output.stack_weight(self._kept_weight))
        return logits


def probe_of(embeddings: Float[Tensor, "vocab size"]) -> list[float]:
    """A corner of an embedding matrix, to tell targets apart."""
    return [round(float(value), 5) for value in embeddings[-1, :8].float()]


def save_drafter(folder: Path, drafter: CausalDrafter, config: DrafterConfig) -> None:
    """Write a drafter folder; floating tensors in 16 bits, each file to a temporary name and renamed."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: (t.half() if t.is_floating_point() else t).contiguous()
        for name, t in drafter.state_dict().items()
    }
    weights = folder / WEIGHTS_FILE
    temporary = weights.with_suffix(".safetensors.tmp")
    save_file(tensors, temporary, metadata={"format": "pt"})
    temporary.replace(weights)
    temporary = folder / "config.json.tmp"
    temporary.write_text(json.dumps(config.as_dict(), indent=1) + "\n", encoding="utf-8")
    temporary.replace(folder / "config.json")


def load_config(folder: Path) -> DrafterConfig:
    """Read a drafter's config.json.

    Raises:
        UsageError: the folder holds no drafter.
        RunError: its config.json cannot be read.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise UsageError(
            f"'{folder}' holds no drafter: it has no config.json; name a folder that train wrote"
        )
    try:
        return DrafterConfig.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"'{path}' is not a drafter's configuration ({error}): restore the file") from None


def load_drafter(folder: Path, embeddings: Float[Tensor, "vocab size"]) -> CausalDrafter:
    """Load a causal drafter onto its target's embeddings, in float32.

    Args:
        folder: as `save_drafter` wrote it.
        embeddings: the target's embedding matrix.

    Raises:
        UsageError: another kind of drafter, or a target of other sizes.
        RunError: the weights are missing or do not fit the configuration.
    """
    config = load_config(folder)
    if config.kind != CausalDrafter.kind:
        raise UsageError(f"'{folder}' holds a drafter of kind '{config.kind}', not a plain causal one")
    wanted = (config.shape.vocab_size, config.shape.hidden_size)
    if tuple(embeddings.shape) != wanted:
        raise UsageError(
            f"the drafter '{folder}' was trained on a target with embeddings {wanted}, this one has "
            f"{tuple(embeddings.shape)}: use it with {config.target}"
        )
    # 2%: half precision rounds an embedding by less than 1%
    if any(
        abs(a - b) > 0.02 * abs(b) + 1e-4 for a, b in zip(probe_of(embeddings), config.probe, strict=False)
    ):
        raise UsageError(
            f"the drafter '{folder}' was trained on other embeddings: use it with {config.target}"
        )
    try:
        tensors = load_file(folder / WEIGHTS_FILE)
        output = CutOutput(tensors["output.token_ids"].long(), torch.ones(wanted[0]), wanted[1])
        drafter = CausalDrafter(config.shape, output, embeddings)
        drafter.load_state_dict({k: t.float() if t.is_floating_point() else t for k, t in tensors.items()})
    except (OSError, KeyError, RuntimeError, SafetensorError) as error:
        raise RunError(f"cannot load the drafter '{folder}' ({error}): restore its files") from None
    drafter.share_embeddings(embeddings)
    return drafter.eval()
