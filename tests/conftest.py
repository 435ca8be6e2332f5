"""Settings of the whole suite: one thread a process, since two busy torch processes slow each other tenfold."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# a loaded machine is no failure: examples may take as long as they need, the timeout of a test stays
settings.register_profile("acceptlab", deadline=None)
settings.load_profile("acceptlab")


@pytest.fixture(scope="session")
def gguf_model() -> Any:
    """The model whose weights `gguf` holds."""
    from tests.pairs.gguf_files import TOKENS
    from tests.tiny import tiny_model

    return tiny_model("qwen2", vocab_size=len(TOKENS))


@pytest.fixture(scope="session")
def gguf(gguf_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny GGUF file in float32."""
    from tests.pairs.gguf_files import write_gguf

    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", gguf_model)
