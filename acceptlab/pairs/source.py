"""Where a model comes from: a local folder, a GGUF file or a hub id, to a loaded model and its tokenizer.

Every way in which this can fail ends in one sentence. Whether the model can be run exactly is decided in
`checks`.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig, PreTrainedModel

from acceptlab.errors import AcceptlabError, RunError, UsageError
from acceptlab.pairs import checks
from acceptlab.pairs.convert import load_dense_gguf, load_gguf_tokenizer, no_bars
from acceptlab.pairs.default import DEFAULT_PAIR, default_target_folder
from acceptlab.pairs.devices import check_memory, is_out_of_memory
from acceptlab.pairs.shipped import SHIPPED_PREFIX, shipped_drafter

_HUB_FILES = ["*.json", "*.txt", "*.model", "*.jinja", "*.safetensors"]
_HUB_SKIPPED = ["consolidated*", "original/*", "onnx/*", "openvino/*", "*/*.safetensors"]


@dataclass(frozen=True)
class Source:
    """A model on this machine: `id` is what the user wrote, `path` a folder or a GGUF file."""

    id: str
    path: Path
    revision: str | None

    @property
    def is_gguf(self) -> bool:
        """Whether the weights are in a GGUF file."""
        return self.path.suffix == ".gguf"


def find_source(name: str) -> Source:
    """Find a model; a hub id that is not on this machine yet is downloaded.

    Raises:
        UsageError: it is nowhere.
        RunError: the default target cannot be fetched or converted.
    """
    if name == f"pair:{DEFAULT_PAIR}":
        return Source(DEFAULT_PAIR, default_target_folder(), None)
    if name.startswith(SHIPPED_PREFIX):
        return Source(name, shipped_drafter(name.removeprefix(SHIPPED_PREFIX)), None)
    path = Path(name).expanduser()
    if name == DEFAULT_PAIR and not path.exists():
        return find_source(f"pair:{DEFAULT_PAIR}")
    if path.is_file():
        if path.suffix != ".gguf":
            raise UsageError(f"'{name}' is a file but no .gguf: name its folder, or a hub id")
        return Source(name, path, None)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UsageError(f"the folder '{name}' has no config.json: it holds no transformers model")
        return Source(name, path, None)
    if path.suffix == ".gguf" or path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise UsageError(f"there is no model at '{name}': name a folder, a .gguf file or a hub id")
    return _from_hub(name)


def _from_hub(name: str) -> Source:
    remedy = "check the id and the connection, or name a local folder that holds the model"
    try:
        folder = Path(snapshot_download(name, allow_patterns=_HUB_FILES, ignore_patterns=_HUB_SKIPPED))
        if not any(folder.glob("*.safetensors")):
            folder = Path(
                snapshot_download(name, allow_patterns=[*_HUB_FILES, "*.bin"], ignore_patterns=["*/*"])
            )
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split(". ")[0].split())[:160]
        raise UsageError(
            f"cannot get '{name}' from the hub ({type(error).__name__}: {reason}): {remedy}"
        ) from None
    if not (folder / "config.json").is_file():
        raise UsageError(f"the hub's '{name}' has no config.json here: {remedy}")
    return Source(name, folder, folder.name)


def load_config(source: Source) -> PreTrainedConfig:
    """The model's configuration; what cannot be run exactly is refused before its weights are read."""
    with _one_sentence(source):
        if source.is_gguf:
            config = AutoConfig.from_pretrained(str(source.path.parent), gguf_file=source.path.name)
        else:
            config = AutoConfig.from_pretrained(str(source.path))
    checks.check_config(config, source.id)
    return config


def load_model(source: Source, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """A model in evaluation mode on its device, without gradients, with an attention that takes a tree mask.

    Raises:
        UsageError: it cannot be run exactly, or a package is missing.
        RunError: it does not fit, or a file is broken.
    """
    config = load_config(source)
    quantized = getattr(config, "quantization_config", None) is not None and not source.is_gguf
    with _one_sentence(source):
        if not quantized:
            check_memory(source.id, source.path, dtype, device)
        if source.is_gguf:
            model = load_dense_gguf(source.path, dtype).to(device)
        else:
            # quantized weights keep their own number types
            options: dict[str, Any] = {"dtype": "auto" if quantized else dtype}
            if quantized or device.type != "cpu":  # straight to the device, without a copy in host memory
                options["device_map"] = {"": device}
            model, report = AutoModelForCausalLM.from_pretrained(
                str(source.path), output_loading_info=True, **options
            )
            _refuse_missing(report["missing_keys"], source)
    checks.check_model(model, source.id)
    return model.eval().requires_grad_(False)


def _refuse_missing(missing: Collection[str], source: Source) -> None:
    """Refuse a model with tensors that its files lack: they would hold random numbers."""
    if missing:
        raise RunError(
            f"the files of '{source.id}' lack {len(missing)} of its tensors (first '{min(missing)}'): "
            "get the whole model again"
        )


def load_tokenizer(source: Source) -> Any | None:
    """The tokenizer that comes with a model; None where there is none."""
    if source.is_gguf:
        with _one_sentence(source):
            return load_gguf_tokenizer(source.path)
    names = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tokenizer_config.json")
    if not any((source.path / name).is_file() for name in names):
        return None
    with _one_sentence(source):
        return AutoTokenizer.from_pretrained(str(source.path))


@contextlib.contextmanager
def _one_sentence(source: Source) -> Iterator[None]:
    """Turn what transformers raises while loading into one sentence that names the model."""
    try:
        with no_bars(), warnings.catch_warnings():
            # advice about the checkpoint's own files: nothing that the reader of a run can act on
            warnings.simplefilter("ignore")
            yield
    except AcceptlabError:
        raise
    except ImportError as error:
        raise UsageError(f"'{source.id}' needs a package that is missing: {_first_line(error)}") from error
    except Exception as error:
        # readers of foreign files raise anything: struct.error, KeyError, SafetensorError, ...
        if is_out_of_memory(error):
            raise RunError(
                f"memory ran out while loading '{source.id}': use a smaller model or dtype"
            ) from error
        if "trust_remote_code" in str(error):
            raise UsageError(
                f"'{source.id}' needs code of its own, which is not run: use an architecture of transformers"
            ) from error
        hint = ": is the file whole? Get it again" if source.is_gguf else ""
        raise RunError(
            f"cannot load '{source.id}': {type(error).__name__}: {_first_line(error)}{hint}"
        ) from error


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:240] if lines else type(error).__name__
