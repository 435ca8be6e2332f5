"""Devices, number types and free memory. No models here."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import torch

from acceptlab.errors import RunError, UsageError
from acceptlab.pairs.files import weight_files

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_GIB = 2**30
_HEADROOM = 1.1
"""Weights times this must fit: the cache, the logits and the allocator take the rest."""


def resolve_device(name: str) -> torch.device:
    """The device of a `--device` value; `auto` is the first of cuda, mps, cpu that is there.

    Raises:
        UsageError: no such device, or it is not available here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if _mps() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"unknown device '{name}': use auto, cpu, cuda, cuda:1 or mps") from None
    if device.type == "cuda":
        n_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= n_devices:
            raise UsageError(
                f"device '{name}' is not here ({n_devices} CUDA devices seen): use --device auto"
            )
    elif device.type == "mps":
        if not _mps():
            raise UsageError("device 'mps' is not available on this machine: use --device auto")
    elif device.type != "cpu":
        raise UsageError(f"device '{name}' is not supported: use auto, cpu, cuda or mps")
    return device


def _mps() -> bool:
    return bool(torch.backends.mps.is_available())


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """The number type of a `--dtype` value.

    `auto` is float32 on the CPU (without AMX or AVX-512 units the 16-bit types are many times slower there)
    and on MPS (bfloat16 is missing before macOS 14, float16 overflows in models trained in bfloat16, and only
    float32 keeps greedy text identical between one-token and tree passes); on CUDA it is bfloat16 where the
    hardware has it, else float16.

    Raises:
        UsageError: unknown name.
    """
    if name == "auto":
        if device.type != "cuda":
            return torch.float32
        has_bfloat16 = torch.cuda.get_device_capability(device) >= (8, 0)
        return torch.bfloat16 if has_bfloat16 else torch.float16
    if name not in _DTYPES:
        raise UsageError(f"unknown dtype '{name}': use auto, {', '.join(_DTYPES)}")
    return _DTYPES[name]


def n_weights(path: Path) -> int | None:
    """Number of weights in a model folder or a GGUF file, from headers; None where the format hides it."""
    if path.suffix == ".gguf":
        from gguf import GGUFReader

        return sum(int(tensor.n_elements) for tensor in GGUFReader(path).tensors)
    files = weight_files(path)
    if not files or any(file.suffix != ".safetensors" for file in files):
        return None
    return sum(_n_weights_in(file) for file in files)


def _n_weights_in(file: Path) -> int:
    """Sum of the sizes in a safetensors header (8 bytes of length, then JSON)."""
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(min(length, 2**28)))
    except (struct.error, ValueError) as error:
        raise RunError(f"'{file}' is not a whole safetensors file ({error}): download it again") from None
    total = 0
    for name, tensor in header.items():
        if name != "__metadata__":
            size = 1
            for extent in tensor["shape"]:
                size *= extent
            total += size
    return total


def free_memory(device: torch.device) -> int | None:
    """Free memory in bytes, or None where it cannot be told."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory()) - int(torch.mps.driver_allocated_memory())
    return _free_host_memory()


def _free_host_memory() -> int | None:
    free: list[int] = []
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                free.append(int(line.split()[1]) * 1024)
    except OSError:
        try:  # macOS and other Unixes: all of it, since what is free is not told
            free.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        except (AttributeError, ValueError, OSError):
            return None
    group = Path("/sys/fs/cgroup")
    try:  # a container's own limit; file pages that it holds can be dropped, so they count as free
        limit = (group / "memory.max").read_text(encoding="ascii").strip()
        used = int((group / "memory.current").read_text(encoding="ascii"))
        stat = (group / "memory.stat").read_text(encoding="ascii").splitlines()
        droppable = sum(int(line.split()[1]) for line in stat if line.split()[0] == "file")
        if limit != "max":
            free.append(int(limit) - used + droppable)
    except (OSError, ValueError, IndexError):
        pass
    return min(free) if free else None


def check_memory(name: str, path: Path, dtype: torch.dtype, device: torch.device) -> None:
    """Refuse a model whose weights do not fit, before anything is loaded.

    Raises:
        RunError: they need more than what is free.
    """
    count = n_weights(path)
    free = free_memory(device)
    if count is None or free is None:
        return
    needed = count * dtype.itemsize * _HEADROOM
    if needed > free:
        remedy = "--dtype bfloat16 or a smaller model" if dtype == torch.float32 else "a smaller model"
        raise RunError(
            f"'{name}' needs {needed / _GIB:.1f} GiB in {str(dtype).removeprefix('torch.')}, "
            f"but {device} has {free / _GIB:.1f} GiB free: use {remedy}"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this is some allocator's way of saying that memory has run out."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)
