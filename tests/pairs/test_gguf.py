"""Targets and drafts out of GGUF files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from acceptlab.errors import RunError
from acceptlab.pairs import load_pair
from acceptlab.pairs.convert import write_dense_copy
from acceptlab.pairs.devices import n_weights
from tests.pairs.gguf_files import TOKENS


def test_a_gguf_target_has_the_weights_and_the_tokenizer_of_the_file(gguf: Path, gguf_model: Any) -> None:
    pair = load_pair(target=str(gguf), draft="self:skip=0")
    ids = pair.encode("abba")
    assert [TOKENS[i] for i in ids] == ["ab", "b", "a", "!"]
    pair.target.prefill(torch.tensor(ids[:-1]))
    row = pair.target.forward(
        torch.tensor(ids[-1:]), torch.tensor([3]), torch.ones((1, 4), dtype=torch.bool)
    )[0]
    with torch.inference_mode():
        # float32 sums in another order
        assert torch.allclose(row, gguf_model(torch.tensor([ids])).logits[0, -1], atol=1e-5)
    # the header's, whatever the release of transformers makes of it
    assert pair.eos_ids == {5}
    assert pair.tokenizer.bos_token_id == 0
    described = pair.describe()["models"]["target"]
    assert list(described["files"]) == ["tiny.gguf"]
    assert n_weights(gguf) == gguf_model.num_parameters()


def test_a_dense_copy_loads_as_an_ordinary_folder(gguf: Path, gguf_model: Any, tmp_path: Path) -> None:
    write_dense_copy(gguf, tmp_path)
    pair = load_pair(target=str(tmp_path), draft=str(gguf))
    assert pair.draft_model is not None
    for name, value in gguf_model.state_dict().items():
        assert torch.equal(pair.target_model.state_dict()[name], value), name
        assert torch.equal(pair.draft_model.state_dict()[name], value), name
    assert pair.encode("ab") == [TOKENS.index("ab"), TOKENS.index("!")]


@pytest.mark.parametrize("cut", [200, 20_000])
def test_a_broken_gguf_file_is_named(gguf: Path, tmp_path: Path, cut: int) -> None:
    (tmp_path / "cut.gguf").write_bytes(gguf.read_bytes()[:cut])
    target, draft = (
        (str(tmp_path / "cut.gguf"), "ngram:n=2") if cut < 500 else (str(gguf), str(tmp_path / "cut.gguf"))
    )
    with pytest.raises(RunError, match=r"cut\.gguf") as caught:
        load_pair(target=target, draft=draft)
    assert "\n" not in str(caught.value)
