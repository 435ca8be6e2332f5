"""Shipped drafters are found by name in the checkout and in an installed wheel, and nowhere else."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import pytest

from acceptlab.errors import UsageError
from acceptlab.pairs import shipped
from acceptlab.pairs.default import PAIRS
from acceptlab.pairs.shipped import SHIPPED_PREFIX, shipped_drafter
from acceptlab.pairs.source import find_source

ROOT = Path(__file__).resolve().parents[2]


def test_every_named_pair_has_its_draft_and_a_card_in_the_checkout() -> None:
    for spec in PAIRS.values():
        assert spec.draft.startswith(SHIPPED_PREFIX)
        source = find_source(spec.draft)
        assert source.id == spec.draft
        assert source.path == ROOT / "data" / "drafter" / spec.draft.removeprefix(SHIPPED_PREFIX)
        assert json.loads((source.path / "config.json").read_text())["target"] == spec.target
        assert (source.path / "README.md").is_file()
        assert all(file.stat().st_size < 16e6 for file in source.path.iterdir())


def test_a_wheel_holds_every_named_draft() -> None:
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]
    for spec in PAIRS.values():
        name = spec.draft.removeprefix(SHIPPED_PREFIX)
        assert tables[f"share/acceptlab/drafter/{name}"] == [f"data/drafter/{name}/*"]


def test_an_installed_drafter_is_found_where_the_wheel_puts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "__file__", str(tmp_path / "lib" / "acceptlab" / "pairs" / "shipped.py"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(UsageError, match="'small' is in neither of .*install from a checkout"):
        shipped_drafter("small")
    folder = tmp_path / "share" / "acceptlab" / "drafter" / "small"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert shipped_drafter("small") == folder
    with pytest.raises(UsageError, match="there is no shipped drafter 'x': the shipped ones are small"):
        shipped_drafter("x")
