"""Targets in llama.cpp, where llama-cpp-python is installed (`make test-llama-cpp`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from acceptlab.bench.backends import make_backend
from acceptlab.bench.llama_cpp import LlamaCppModel, _n_threads, gguf_of, is_installed, load_llama_cpp
from acceptlab.bench.passes import ChainPasses
from acceptlab.errors import RunError, UsageError
from acceptlab.models import LanguageModel
from acceptlab.pairs import Pair, load_pair
from tests.pairs.gguf_files import TOKENS

needs_llama_cpp = pytest.mark.skipif(not is_installed(), reason="needs the extra llama-cpp")
TOLERANCE = 5e-3
"""llama.cpp keeps keys and values in 16 bits; the logits have a spread of about 0.9."""
TEXT = torch.tensor([5, 9, 3, 80, 41, 7, 66, 12, 9, 200, 31])


@pytest.fixture(scope="module")
def expected(gguf_model: Any) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = gguf_model(TEXT[None]).logits[0]
    return logits


def run(model: LanguageModel, first: int, end: int) -> torch.Tensor:
    places = torch.arange(first, end)
    return model.forward(TEXT[first:end], places, torch.arange(end)[None, :] <= places[:, None])


@needs_llama_cpp
@pytest.mark.parametrize("chunks", [[11], [1] * 11, [4, 1, 6], [2, 9]])
def test_logits_are_those_of_transformers(gguf: Path, expected: torch.Tensor, chunks: list[int]) -> None:
    made = LlamaCppModel(gguf, len(TOKENS), max_len=256, n_threads=1)
    rows, first = [], 0
    for size in chunks:
        rows.append(run(made, first, first + size))
        first += size
        assert made.n_slots == first
    assert (torch.cat(rows) - expected).abs().max() < TOLERANCE
    assert float(expected.std()) > 0.5


@needs_llama_cpp
def test_what_was_rejected_is_forgotten(gguf: Path, expected: torch.Tensor) -> None:
    made = LlamaCppModel(gguf, len(TOKENS), max_len=256, n_threads=1)
    made.prefill(TEXT[:3])
    assert made.n_slots == 3
    wrong = torch.tensor([1, 2, 3, 4])
    places = torch.arange(3, 7)
    made.forward(wrong, places, torch.arange(7)[None, :] <= places[:, None])
    made.keep(torch.arange(3))
    assert (run(made, 3, 11) - expected[3:]).abs().max() < TOLERANCE
    # logits are a copy: the next pass does not change them
    kept = run_again(made)
    assert torch.equal(kept[0], kept[1])
    made.reset()
    assert made.n_slots == 0
    assert (run(made, 0, 5) - expected[:5]).abs().max() < TOLERANCE


def run_again(made: LlamaCppModel) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of a pass, copied at once and after another pass."""
    made.keep(torch.arange(4))
    found = run(made, 4, 9)
    at_once = found.clone()
    run(made, 9, 11)
    return at_once, found


@needs_llama_cpp
def test_trees_and_gaps_are_refused(gguf: Path) -> None:
    made = LlamaCppModel(gguf, len(TOKENS), max_len=256, n_threads=1)
    made.prefill(TEXT[:3])
    siblings = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 0, 1]], dtype=torch.bool)
    with pytest.raises(UsageError, match="verifies chains only"):
        made.forward(TEXT[3:5], torch.tensor([3, 3]), siblings)
    with pytest.raises(UsageError, match="cut back to a prefix"):
        made.keep(torch.tensor([0, 2]))
    with pytest.raises(UsageError, match=f"{len(TOKENS)} logits in llama.cpp and 300 in transformers"):
        LlamaCppModel(gguf, 300, n_threads=1)


@needs_llama_cpp
def test_a_file_that_llama_cpp_cannot_read_is_named(gguf: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(gguf.read_bytes()[:20_000])
    with pytest.raises(UsageError, match=r"llama\.cpp cannot load '.*broken\.gguf' \(.*\): leave llama"):
        LlamaCppModel(broken, len(TOKENS), n_threads=1)


@needs_llama_cpp
def test_a_text_beyond_the_context_is_refused(gguf: Path) -> None:
    made = LlamaCppModel(gguf, len(TOKENS), max_len=256, n_threads=1)
    assert made.max_len == 256
    for _ in range(4):
        made.prefill(torch.arange(60))
    with pytest.raises(RunError, match="has 256 positions here, not 300: use shorter prompts"):
        made.prefill(torch.arange(60))
    # what was run before is still there
    assert made.n_slots == 240


@needs_llama_cpp
def test_a_pair_from_a_gguf_file_runs_in_llama_cpp(gguf: Path) -> None:
    pair = load_pair(target=str(gguf), draft="self:skip=0")
    assert gguf_of(pair) == gguf
    made = make_backend("llama.cpp", pair)
    assert made.name == "llama.cpp"
    prompt = TEXT[:6].tolist()
    found, plain = (ChainPasses(one, prompt, "x") for one in (made, pair.target))
    for n in (4, 1, 3):
        assert (found.run(n) - plain.run(n)).abs().max() < TOLERANCE
        found.rewind()
        plain.rewind()


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acceptlab.bench.llama_cpp.is_installed", lambda: False)
    pair = Pair.__new__(Pair)
    with pytest.raises(UsageError, match=r"pip install -c constraints.txt -e '\.\[llama-cpp\]'"):
        load_llama_cpp(pair)


@pytest.mark.parametrize(("text", "n"), [("3", 3), ("2,1", 2), ("", 7), ("0", 7), ("-1", 7), ("many", 7)])
def test_threads_are_those_that_openmp_is_told(monkeypatch: pytest.MonkeyPatch, text: str, n: int) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    monkeypatch.setattr("os.cpu_count", lambda: 7)
    assert _n_threads() == n
