"""llama.cpp as a target, through the package llama-cpp-python (the extra `llama-cpp`): chains only.

Boundary: one sequence, all rows of a pass scored in one batch, per-token logits, a cache that can be cut back to a
prefix. Trees are refused: their mask is not part of llama.cpp's interface.
"""

from __future__ import annotations

import ctypes
import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from acceptlab.errors import RunError, UsageError

if TYPE_CHECKING:
    from acceptlab.pairs import Pair

_CONTEXT = 2048
"""Slots of the cache at most; llama.cpp takes memory for all of them at once."""
_BATCH = 512


def is_installed() -> bool:
    """Whether llama-cpp-python is there."""
    return find_spec("llama_cpp") is not None


def gguf_of(pair: Pair) -> Path:
    """The GGUF file that the pair's target was loaded or converted from.

    Raises:
        UsageError: there is none.
    """
    from acceptlab.pairs.default import DEFAULT_PAIR, installed_gguf

    source = pair.target_source
    if source is not None and source.is_gguf:
        return source.path
    if source is not None and source.id == DEFAULT_PAIR:
        found = installed_gguf()
        if found is not None:
            return found
    raise UsageError("llama.cpp needs a GGUF file: name one with --target FILE.gguf, or leave llama.cpp out")


def load_llama_cpp(pair: Pair) -> LlamaCppModel:
    """The pair's target in llama.cpp.

    Raises:
        UsageError: the package or the file is missing.
    """
    if not is_installed():
        raise UsageError(
            "llama.cpp needs the package llama-cpp-python: pip install -c constraints.txt -e '.[llama-cpp]', "
            "or leave it out"
        )
    width = pair.target_model.get_output_embeddings().weight.shape[0]
    return LlamaCppModel(gguf_of(pair), width, max_len=pair.target.max_len)


def _n_threads() -> int:
    """What OMP_NUM_THREADS says, of a list the first number; else all processors."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else os.cpu_count() or 1


class LlamaCppModel:
    """A GGUF model in llama.cpp, one sequence at a time (implements `acceptlab.models.LanguageModel` for chains)."""

    name = "llama.cpp"
    device = torch.device("cpu")

    def __init__(
        self, path: Path, vocab_size: int, *, max_len: int | None = None, n_threads: int | None = None
    ) -> None:
        threads = n_threads or _n_threads()
        self.max_len: int | None = min(_CONTEXT, max_len or _CONTEXT)
        try:
            import llama_cpp

            self._api: Any = llama_cpp
            self._llama = llama_cpp.Llama(
                model_path=str(path),
                n_ctx=self.max_len,
                n_batch=_BATCH,
                n_threads=threads,
                n_threads_batch=threads,
                logits_all=True,
                verbose=False,
            )
        except (ImportError, OSError, RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UsageError(f"llama.cpp cannot load '{path}' ({reason}): leave llama.cpp out") from None
        if self._llama.n_vocab() != vocab_size:
            raise UsageError(
                f"'{path}' has {self._llama.n_vocab()} logits in llama.cpp and {vocab_size} in transformers: "
                "leave llama.cpp out"
            )
        self.vocab_size = vocab_size
        self._n_slots = 0

    @property
    def n_slots(self) -> int:
        """Slots in the cache."""
        return self._n_slots

    def reset(self) -> None:
        """Empty the cache."""
        self._cut(0)

    def prefill(self, token_ids: Int[Tensor, " tokens"]) -> None:
        """Append a plain run of tokens; logits are not read."""
        for start in range(0, len(token_ids), _BATCH):
            self._decode(token_ids[start : start + _BATCH], with_logits=False)

    def forward(
        self,
        token_ids: Int[Tensor, " rows"],
        positions: Int[Tensor, " rows"],
        visible: Bool[Tensor, "rows slots"],
    ) -> Float[Tensor, "rows vocab"]:
        """Append a chain and give the logits of every row.

        Raises:
            UsageError: the rows are no chain.
        """
        places = torch.arange(self._n_slots, self._n_slots + len(token_ids))
        causal = torch.arange(self._n_slots + len(token_ids))[None, :] <= places[:, None]
        if not torch.equal(positions.cpu(), places) or not torch.equal(visible.cpu(), causal):
            raise UsageError("llama.cpp verifies chains only: use a tree such as chain:5")
        return self._decode(token_ids, with_logits=True)

    def keep(self, slots: Int[Tensor, " kept"]) -> None:
        """Cut back to a prefix.

        Raises:
            UsageError: the slots are no prefix.
        """
        if not torch.equal(slots.cpu(), torch.arange(len(slots))):
            raise UsageError("llama.cpp can only be cut back to a prefix: use a tree such as chain:5")
        self._cut(len(slots))

    def _cut(self, length: int) -> None:
        memory = self._api.llama_get_memory(self._llama.ctx)
        self._api.llama_memory_seq_rm(memory, 0, length, -1)
        self._n_slots = length

    def _decode(self, token_ids: Tensor, with_logits: bool) -> Float[Tensor, "rows vocab"]:
        n_rows = len(token_ids)
        if self.max_len is not None and self._n_slots + n_rows > self.max_len:
            raise RunError(
                f"llama.cpp has {self.max_len} positions here, not {self._n_slots + n_rows}: use shorter prompts"
            )
        batch = self._api.llama_batch_init(n_rows, 0, 1)
        try:
            batch.n_tokens = n_rows
            for row, token in enumerate(token_ids.tolist()):
                batch.token[row] = token
                batch.pos[row] = self._n_slots + row
                batch.n_seq_id[row] = 1
                batch.seq_id[row][0] = 0
                batch.logits[row] = with_logits or row == n_rows - 1
            code = self._api.llama_decode(self._llama.ctx, batch)
        finally:
            self._api.llama_batch_free(batch)
        if code:
            raise RunError(f"llama.cpp could not run {n_rows} tokens (code {code}): use shorter prompts")
        self._n_slots += n_rows
        if not with_logits:
            return torch.empty((0, self.vocab_size))
        pointer = self._api.llama_get_logits(self._llama.ctx)
        rows = np.ctypeslib.as_array(
            ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), (n_rows, self.vocab_size)
        )
        return torch.from_numpy(rows.copy())
