"""Prompts from the Hugging Face hub by name, through the `datasets` library where it is installed."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from acceptlab.errors import RunError, UsageError
from acceptlab.prompts.prompt import Problem, Row
from acceptlab.prompts.rows import FileRows

PREFIX = "hf:"
_SPLITS = ("test", "validation", "train")
"""Names taken for a split where one part follows the name, and the order of preference where none does."""


@dataclass(frozen=True)
class HubName:
    """`hf:owner/name[:config][:split]`; a single part that is the name of a usual split is one."""

    repo: str
    config: str | None
    split: str | None


def parse_name(source: str) -> HubName:
    """Read a hub name such as `hf:openai/gsm8k:main:test` or, with the config left out, `hf:owner/name::dev`.

    Raises:
        UsageError: the name is empty or has too many parts.
    """
    repo, *parts = source.removeprefix(PREFIX).split(":")
    if not repo.strip("/ ") or len(parts) > 2:
        raise UsageError(
            f"'{source}' is no hub name: write hf:owner/name, with :config or :config:split behind if needed"
        )
    config, split = [*parts, "", ""][:2]
    if len(parts) == 1 and config in _SPLITS:
        config, split = "", config
    return HubName(repo, config or None, split or None)


def read_hub(source: str) -> FileRows:
    """Rows of a hub dataset; without a split the test split, else validation, else train.

    Raises:
        UsageError: `datasets` is not installed, or the dataset has no such split.
        RunError: the hub or the dataset cannot be reached.
    """
    name = parse_name(source)
    try:
        datasets = importlib.import_module("datasets")
    except ImportError:
        raise UsageError(
            f"'{source}' needs the library datasets, which is not installed: pip install datasets, "
            "or download the file and give its path"
        ) from None
    try:
        loaded = datasets.load_dataset(name.repo, name.config)
    except Exception as error:  # the library raises its own, the network's and the parsers' errors alike
        reason = (str(error).strip().splitlines() or [""])[0]
        raise RunError(
            f"cannot load '{source}' from the hub ({type(error).__name__}: {reason}): check the name and the "
            "connection, or download the file and give its path"
        ) from None
    split = _choose_split(list(loaded), name.split, source)
    rows = [Row(number, None, dict(values)) for number, values in enumerate(loaded[split], 1)]
    label = ":".join([PREFIX + name.repo, *([name.config] if name.config else []), split])
    problems = [] if rows else [Problem(label, None, None, "the split is empty: it holds no prompt")]
    return FileRows(label, rows, problems, tuple(dict.fromkeys(key for row in rows for key in row.values)))


def _choose_split(splits: list[Any], wanted: str | None, source: str) -> str:
    names = [str(split) for split in splits]
    if wanted is None:
        wanted = next((split for split in _SPLITS if split in names), names[0] if len(names) == 1 else None)
    if wanted not in names:
        raise UsageError(
            f"'{source}': choose one of the splits {', '.join(names)} by adding it to the name, "
            "as in hf:owner/name:config:split or hf:owner/name::split"
        )
    return wanted
