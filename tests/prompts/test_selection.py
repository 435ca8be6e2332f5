"""Domains, limits and the hub: what `load_prompts` picks, and how it refuses."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from acceptlab.errors import RunError, UsageError
from acceptlab.prompts import load_prompts
from acceptlab.prompts.hub import HubName, parse_name


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    path = tmp_path / "mixed.jsonl"
    domains = ["tea", "milk", "tea", "tea", "milk"]
    path.write_text(
        "".join(
            json.dumps({"id": str(i), "domain": domain, "prompt": f"Ask {i}"}) + "\n"
            for i, domain in enumerate(domains)
        )
    )
    return path


def ids(path: Path, **arguments: Any) -> list[str]:
    return [prompt.id for prompt in load_prompts(path, **arguments)]


def test_the_limit_counts_within_each_domain_in_file_order(mixed: Path) -> None:
    assert ids(mixed, limit=2) == ["0", "1", "2", "4"]
    assert ids(mixed, limit=1, domains=["tea"]) == ["0"]
    assert ids(mixed, limit=99) == ["0", "1", "2", "3", "4"]
    with pytest.raises(UsageError, match="the limit is 0"):
        ids(mixed, limit=0)


def test_domains_as_sequence_comma_list_or_all(mixed: Path) -> None:
    assert ids(mixed, domains=("milk",)) == ["1", "4"]
    # the order of the file stands, whatever the order of the names
    assert ids(mixed, domains="tea, milk") == ["0", "1", "2", "3", "4"]
    assert ids(mixed, domains="all") == ids(mixed, domains=None) == ["0", "1", "2", "3", "4"]


def test_an_unknown_domain_is_named_beside_those_found(mixed: Path) -> None:
    with pytest.raises(UsageError, match=r"no domain 'cocoa': choose from tea, milk or all"):
        ids(mixed, domains=["tea", "cocoa"])
    with pytest.raises(UsageError, match="no domain is named: choose from tea, milk or all"):
        ids(mixed, domains=[])
    with pytest.raises(UsageError, match="the shipped set has no domain 'tea': choose from code, math"):
        load_prompts(domains="tea")


def test_a_missing_source_is_named_with_the_choices() -> None:
    with pytest.raises(UsageError, match=r"'humaneval': give acceptlab, a file, a folder or hf:owner/name"):
        load_prompts("humaneval")


def test_the_shipped_set_by_name_and_by_default_is_the_same() -> None:
    assert load_prompts("acceptlab") == load_prompts()
    assert {prompt.source for prompt in load_prompts()} == {"acceptlab"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hf:openai/gsm8k", HubName("openai/gsm8k", None, None)),
        ("hf:openai/gsm8k:main", HubName("openai/gsm8k", "main", None)),
        ("hf:openai/gsm8k:test", HubName("openai/gsm8k", None, "test")),
        ("hf:openai/gsm8k:main:train", HubName("openai/gsm8k", "main", "train")),
        ("hf:openai/gsm8k::dev", HubName("openai/gsm8k", None, "dev")),
    ],
)
def test_hub_names(name: str, expected: HubName) -> None:
    assert parse_name(name) == expected


@pytest.mark.parametrize("name", ["hf:", "hf:/", "hf:a/b:c:d:e"])
def test_bad_hub_names(name: str) -> None:
    with pytest.raises(UsageError, match="is no hub name"):
        parse_name(name)


GSM8K = {"train": [], "test": [{"question": "How many?", "answer": "#### 1"}]}


def fake_datasets(monkeypatch: pytest.MonkeyPatch, splits: dict[str, Any]) -> list[tuple[str, str | None]]:
    calls: list[tuple[str, str | None]] = []

    def load_dataset(repo: str, config: str | None) -> dict[str, Any]:
        calls.append((repo, config))
        return splits

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return calls


def test_hub_rows_go_through_the_same_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake_datasets(monkeypatch, GSM8K)
    (prompt,) = load_prompts("hf:openai/gsm8k:main")
    assert calls == [("openai/gsm8k", "main")]
    assert (prompt.prompt, prompt.domain, prompt.source) == ("How many?", "math", "hf:openai/gsm8k:main:test")


def test_hub_splits_that_are_empty_or_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_datasets(monkeypatch, GSM8K)
    with pytest.raises(UsageError, match="hf:openai/gsm8k:train: the split is empty"):
        load_prompts("hf:openai/gsm8k:train")
    with pytest.raises(UsageError, match="choose one of the splits train, test"):
        load_prompts("hf:openai/gsm8k::dev")


def test_without_the_library_one_sentence_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError):
        importlib.import_module("datasets")
    with pytest.raises(UsageError, match=r"needs the library datasets.*pip install datasets, or download"):
        load_prompts("hf:openai/gsm8k")


def test_an_unreachable_hub_is_a_failed_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(repo: str, config: str | None) -> None:
        raise ConnectionError("no route\nsecond line")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(RunError, match=r"\(ConnectionError: no route\): check the name") as caught:
        load_prompts("hf:openai/gsm8k")
    assert "\n" not in str(caught.value)
