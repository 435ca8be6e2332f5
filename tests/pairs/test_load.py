"""From names to loaded pairs: folders, GGUF files, kinds of drafts, and every way in which that fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from acceptlab.errors import AcceptlabError, RunError, UsageError
from acceptlab.pairs import Pair, devices, drafts, load_pair
from acceptlab.pairs.default import pair_members
from acceptlab.pairs.devices import check_memory, is_out_of_memory, n_weights, resolve_device, resolve_dtype
from acceptlab.pairs.ngram import NgramModel
from tests.pairs.helpers import TEMPLATE, model_folder, word_tokenizer
from tests.tiny import tiny_model


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    tokenizer = word_tokenizer(60, template=TEMPLATE)
    return str(
        model_folder(
            tmp_path_factory.mktemp("target"), tokenizer=tokenizer, vocab_size=60, num_hidden_layers=3
        )
    )


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(
        model_folder(tmp_path_factory.mktemp("draft"), "qwen2", tokenizer=word_tokenizer(60), vocab_size=60)
    )


def next_row(pair: Pair, ids: list[int]) -> torch.Tensor:
    pair.target.reset()
    pair.target.prefill(torch.tensor(ids[:-1]))
    visible = torch.ones((1, len(ids)), dtype=torch.bool)
    return pair.target.forward(torch.tensor(ids[-1:]), torch.tensor([len(ids) - 1]), visible)[0]


def test_two_folders_make_a_pair(target: str, draft: str) -> None:
    pair = load_pair(target=target, draft=draft)
    assert pair.name == f"{target}+{draft}"
    assert type(pair.target_model).__name__ == "LlamaForCausalLM"
    assert type(pair.draft_model).__name__ == "Qwen2ForCausalLM"
    assert pair.draft_note == ""
    assert pair.notes == []
    assert pair.target_model.dtype == torch.float32
    ids = pair.encode("w9 w10")
    assert ids == [1, 3, 9, 10, 2, 4]
    with torch.inference_mode():
        expected = tiny_model("llama", vocab_size=60, num_hidden_layers=3)(torch.tensor([ids])).logits[0, -1]
    # float32 sums in another order
    assert torch.allclose(next_row(pair, ids), expected, atol=1e-5)


def test_a_layer_skip_shares_the_target_and_says_that_it_is_slow(target: str) -> None:
    pair = load_pair(target=target, draft="self:skip=0,2")
    assert pair.draft_model is not None
    assert pair.draft_model.config.num_hidden_layers == 1
    assert pair.draft_model.lm_head.weight is pair.target_model.lm_head.weight
    assert "without 2 of its 3 layers: a slow stand-in" in pair.draft_note


def test_an_ngram_draft_has_the_targets_width_and_no_model(target: str) -> None:
    pair = load_pair(target=target, draft="ngram:n=2")
    assert isinstance(pair.draft, NgramModel)
    assert pair.draft.n == 2
    assert pair.draft.vocab_size == pair.target.vocab_size == 60
    assert pair.draft_model is None
    assert pair.draft_note == ""


def test_the_description_names_files_by_their_checksums(target: str, draft: str, cache: Path) -> None:
    described = load_pair(target=target, draft=draft).describe()
    (digest,) = described["models"]["target"]["files"].values()
    assert len(digest) == 64
    assert described["models"]["draft"]["id"] == draft
    assert described["dtype"] == "float32"
    assert described["device"] == "cpu"
    assert described == load_pair(target=target, draft=draft).describe()
    assert json.dumps(described)
    assert len(json.loads((cache / "hashes.json").read_text())) == 2
    skipped = load_pair(target=target, draft="self:skip=1").describe()
    assert skipped["models"]["draft"]["id"] == "self:skip=1"
    assert skipped["models"]["draft"]["n_parameters"] < skipped["models"]["target"]["n_parameters"]
    assert skipped["tokenizer_sha256"] == described["tokenizer_sha256"]


def test_the_tokenizers_checksum_sees_vocabulary_and_template() -> None:
    from acceptlab.pairs.pair import tokenizer_sha256

    tokenizers = [word_tokenizer(60), word_tokenizer(61), word_tokenizer(60, template=TEMPLATE)]
    assert len({tokenizer_sha256(t) for t in tokenizers}) == 3
    assert tokenizer_sha256(word_tokenizer(60)) == tokenizer_sha256(word_tokenizer(60))


def test_a_draft_without_a_tokenizer_is_taken_to_speak_the_targets(target: str, tmp_path: Path) -> None:
    pair = load_pair(target=target, draft=str(model_folder(tmp_path / "d", vocab_size=60)))
    assert pair.target.vocab_size == 60
    with pytest.raises(UsageError, match="has no tokenizer"):
        load_pair(target=str(tmp_path / "d"), draft="ngram:n=2")


@pytest.mark.parametrize(
    ("draft_name", "said"),
    [
        ("self:skip=9", "layer 9, but the target's layers are 0 to 2"),
        ("self:skip=", "write the layers to leave out"),
        ("self:layers=2", "write the layers to leave out"),
        ("ngram:3", "ngram:n=3"),
        ("ngram:n=0", "from 1 to 16"),
        ("./nowhere/model", "there is no model at './nowhere/model'"),
        ("nobody/nothing-here", "cannot get 'nobody/nothing-here' from the hub.*local folder"),
    ],
)
def test_a_draft_that_cannot_be_had_is_named(target: str, draft_name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        load_pair(target=target, draft=draft_name)
    assert "\n" not in str(caught.value)


def test_other_folders_and_files_are_named(target: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no config.json"):
        load_pair(target=str(tmp_path), draft="ngram:n=2")
    (tmp_path / "weights.bin").write_bytes(b"x")
    with pytest.raises(UsageError, match=r"is a file but no .gguf"):
        load_pair(target=str(tmp_path / "weights.bin"), draft="ngram:n=2")
    (tmp_path / "config.json").write_text('{"model_type": "no_such_kind"}')
    with pytest.raises(RunError, match="cannot load") as caught:
        load_pair(target=target, draft=str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_cut_weight_file_is_named(target: str, tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m", tokenizer=word_tokenizer(60), vocab_size=60)
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    with pytest.raises(RunError, match="cannot load"):
        load_pair(target=target, draft=str(folder))
    weights.write_bytes(content[:30])
    with pytest.raises(RunError, match=r"model.safetensors' is not a whole safetensors file"):
        load_pair(target=target, draft=str(folder))


def test_a_model_whose_files_lack_tensors_is_refused(target: str, tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m", tokenizer=word_tokenizer(60), vocab_size=60)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(RunError, match=r"lack 9 of its tensors \(first 'model.layers.2"):
        load_pair(target=target, draft=str(folder))


def test_a_gptq_folder_without_its_backend_is_one_line(target: str, tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "q", tokenizer=word_tokenizer(60), vocab_size=60)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match=r"GPTQ weights.*pip install .*gptqmodel$") as caught:
        load_pair(target=target, draft=str(folder))
    assert "\n" not in str(caught.value)


def test_a_trained_drafters_folder_goes_to_the_loader_of_its_kind(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"acceptlab_drafter": "newer"}))
    with pytest.raises(UsageError, match="trained drafter of kind 'newer'"):
        load_pair(target=target, draft=str(tmp_path))
    made = drafts.Draft("trained", NgramModel(2, 60), None, None, None, "")
    monkeypatch.setitem(drafts.DRAFTER_LOADERS, "newer", lambda folder, model: made)
    assert load_pair(target=target, draft=str(tmp_path)).draft.name == "ngram:n=2"


def test_combinations_of_names() -> None:
    assert pair_members(None, None, None) == ("smollm2-135m", "pair:smollm2-135m", "drafter:smollm2-135m")
    assert pair_members(None, None, "ngram:n=3")[0] == "smollm2-135m+ngram:n=3"
    assert pair_members(None, "a/b", "c/d") == ("a/b+c/d", "a/b", "c/d")
    with pytest.raises(UsageError, match="exclude each other"):
        pair_members("smollm2-135m", "a/b", None)
    with pytest.raises(UsageError, match="needs a draft"):
        pair_members(None, "a/b", None)
    with pytest.raises(UsageError, match="unknown pair 'x': the named pairs are smollm2-135m"):
        pair_members("x", None, None)


def test_devices_and_number_types() -> None:
    cpu = torch.device("cpu")
    assert resolve_device("cpu") == cpu
    assert resolve_dtype("auto", cpu) == torch.float32
    assert resolve_dtype("auto", torch.device("mps")) == torch.float32
    assert resolve_dtype("bfloat16", cpu) == torch.bfloat16
    for name in ("cuda:97", "tpu", "meta"):
        with pytest.raises(UsageError, match=name):
            resolve_device(name)
    with pytest.raises(UsageError, match="unknown dtype 'int3'"):
        resolve_dtype("int3", cpu)


def test_bfloat16_on_request(target: str) -> None:
    pair = load_pair(target=target, draft="self:skip=1", dtype="bfloat16")
    assert pair.target_model.dtype == torch.bfloat16
    assert pair.describe()["dtype"] == "bfloat16"
    assert next_row(pair, [1, 9, 10]).dtype == torch.float32


def test_too_little_memory_is_refused_before_loading(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, cpu = Path(target), torch.device("cpu")
    assert n_weights(folder) == tiny_model("llama", vocab_size=60, num_hidden_layers=3).num_parameters()
    needed = n_weights(folder) * 4
    monkeypatch.setattr(devices, "free_memory", lambda device: int(needed * 1.11))
    check_memory("m", folder, torch.float32, cpu)
    monkeypatch.setattr(devices, "free_memory", lambda device: int(needed * 1.09))
    check_memory("m", folder, torch.bfloat16, cpu)
    with pytest.raises(
        RunError, match=r"needs 0.0 GiB in float32, but cpu has .* free: use --dtype bfloat16"
    ):
        load_pair(target=target, draft="ngram:n=2")


def test_free_memory_is_a_plausible_number() -> None:
    free = devices.free_memory(torch.device("cpu"))
    assert free is None or 2**20 < free < 2**50


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("shape mismatch"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_memory_errors_are_recognised(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


def test_memory_that_runs_out_while_loading_is_one_sentence(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB\nmore lines")

    monkeypatch.setattr("acceptlab.pairs.source.AutoModelForCausalLM.from_pretrained", fail)
    with pytest.raises(AcceptlabError, match="memory ran out while loading") as caught:
        load_pair(target=target, draft="ngram:n=2")
    assert "\n" not in str(caught.value)
