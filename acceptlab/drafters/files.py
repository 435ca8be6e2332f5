"""Drafter folders: safetensors files of the trained tensors in 16 or 8 bits, and a config.json."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from jaxtyping import Float, Float16, Int8
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from acceptlab.drafters.base import Drafter
from acceptlab.drafters.causal import CausalDrafter
from acceptlab.drafters.cross_head import CrossHead
from acceptlab.drafters.heads import BlockHead, FeatureHead
from acceptlab.drafters.llama import LlamaShape
from acceptlab.drafters.output_layer import CutOutput
from acceptlab.errors import RunError, UsageError
from acceptlab.files import replacing

DRAFTER_KEY = "acceptlab_drafter"
WEIGHTS_FILE = "model.safetensors"
_INDEX_FILE = f"{WEIGHTS_FILE}.index.json"
_SCALES = ".scales"
"""Ends the name of the scales of a matrix that is stored in 8 bits."""
_GROUP = 32
AnyDrafter = CausalDrafter | FeatureHead | BlockHead | CrossHead
KINDS: dict[str, type[CausalDrafter] | type[FeatureHead] | type[BlockHead] | type[CrossHead]] = {
    cls.kind: cls for cls in (CausalDrafter, FeatureHead, BlockHead, CrossHead)
}


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


def config_of(drafter: Drafter, target: str, notes: dict[str, Any]) -> DrafterConfig:
    """The configuration of a drafter."""
    return DrafterConfig(
        kind=drafter.kind,
        shape=drafter.shape,
        n_kept=drafter.output.n_kept,
        target=target,
        probe=probe_of(drafter.embeddings),
        notes=notes,
    )


def probe_of(embeddings: Float[Tensor, "vocab size"]) -> list[float]:
    """A corner of an embedding matrix, to tell targets apart."""
    return [round(float(value), 5) for value in embeddings[-1, :8].float()]


def save_drafter(
    folder: Path, drafter: Drafter, config: DrafterConfig, *, bits: int = 16, file_bytes: int | None = None
) -> None:
    """Write a drafter folder, each file to a temporary name and renamed.

    The target's embeddings are not stored. At 8 bits every matrix is stored as whole numbers with scales
    (`to_whole_numbers`); what is no matrix stays in 16. More than `file_bytes` of tensors go to several files, named
    and indexed as those of a Hugging Face checkpoint.
    """
    tensors: dict[str, Tensor] = {}
    for name, tensor in drafter.state_dict().items():
        if bits == 8 and tensor.ndim == 2 and tensor.is_floating_point():
            tensors[name], tensors[name + _SCALES] = to_whole_numbers(tensor)
        else:
            tensors[name] = (tensor.half() if tensor.is_floating_point() else tensor).contiguous()
    _write_tensors(folder, tensors, file_bytes)
    with replacing(folder / "config.json") as temporary:
        temporary.write_text(json.dumps(config.as_dict(), indent=1) + "\n", encoding="utf-8")


def _write_tensors(folder: Path, tensors: dict[str, Tensor], file_bytes: int | None) -> None:
    total = sum(tensor.nbytes for tensor in tensors.values())
    plan = split_torch_state_dict_into_shards(tensors, max_shard_size=file_bytes or max(1, total))
    for name, members in plan.filename_to_tensors.items():
        with replacing(folder / name) as temporary:
            save_file({member: tensors[member] for member in members}, temporary, metadata={"format": "pt"})
    index = folder / _INDEX_FILE
    if plan.is_sharded:
        table = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
        with replacing(index) as temporary:
            temporary.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    else:
        index.unlink(missing_ok=True)


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder, of one file or of those that its index names."""
    index = folder / _INDEX_FILE
    names = {WEIGHTS_FILE}
    if index.exists():
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    tensors: dict[str, Tensor] = {}
    for name in sorted(names):
        tensors |= load_file(folder / name)
    return tensors


def to_whole_numbers(
    matrix: Float[Tensor, "rows columns"],
) -> tuple[Int8[Tensor, "rows columns"], Float16[Tensor, "rows groups"]]:
    """A matrix as whole numbers from -127 to 127 with one scale for 32 neighbours in a row (absmax rounding).

    One scale a row would be coarser where a row has an outlier, which most rows do.
    """
    rows, columns = matrix.shape
    groups = matrix.reshape(rows, -1, math.gcd(columns, _GROUP))
    least = torch.finfo(torch.float16).smallest_normal
    scales = (groups.abs().amax(dim=-1) / 127).clamp_min(least).half()
    # the scale is rounded first, so the largest number may have to be cut to 127
    whole = (groups / scales[..., None].float()).round().clamp(-127, 127)
    return whole.to(torch.int8).reshape(rows, columns).contiguous(), scales.contiguous()


def _from_whole_numbers(whole: Tensor, scales: Tensor) -> Tensor:
    groups = whole.float().reshape(*scales.shape, -1)
    return (groups * scales[..., None].float()).half().float().reshape(whole.shape)


def _to_float(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Stored tensors in float32, whole numbers with their scales multiplied out; ids as they are."""
    values: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if not name.endswith(_SCALES):
            scales = tensors.get(name + _SCALES)
            whole = tensor if scales is None else _from_whole_numbers(tensor, scales)
            values[name] = whole.float() if whole.is_floating_point() else whole
    return values


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


def load_drafter(folder: Path, embeddings: Float[Tensor, "vocab size"]) -> AnyDrafter:
    """Load a drafter onto its target's embeddings, in float32.

    Args:
        folder: as `save_drafter` wrote it.
        embeddings: the target's embedding matrix.

    Raises:
        UsageError: an unknown kind, or another target.
        RunError: the weights are missing or do not fit the configuration.
    """
    config = load_config(folder)
    if config.kind not in KINDS:
        raise UsageError(
            f"'{folder}' holds a drafter of unknown kind '{config.kind}': use one of {', '.join(KINDS)}"
        )
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
        tensors = _to_float(_read_tensors(folder))
        output = CutOutput(tensors["output.token_ids"].long(), torch.ones(wanted[0]), wanted[1])
        drafter = KINDS[config.kind](config.shape, output, embeddings)
        drafter.load_state_dict(tensors)
    except (OSError, KeyError, ValueError, RuntimeError, SafetensorError) as error:
        raise RunError(f"cannot load the drafter '{folder}' ({error}): restore its files") from None
    drafter.share_embeddings(embeddings)
    return drafter.eval()
