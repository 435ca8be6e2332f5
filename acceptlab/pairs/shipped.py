"""Where the shipped drafters lie: `data/drafter` of the checkout, or the data folder of an installed wheel.

Only finds folders; `trained` loads what is in them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from acceptlab.errors import UsageError

SHIPPED_PREFIX = "drafter:"
"""Begins the name of a shipped drafter where a draft is named."""

_INSTALLED = Path("share") / "acceptlab" / "drafter"


def _places() -> list[Path]:
    return [Path(__file__).resolve().parents[2] / "data" / "drafter", Path(sys.prefix) / _INSTALLED]


def shipped_drafter(name: str) -> Path:
    """Folder of the shipped drafter of this name.

    Raises:
        UsageError: there is none.
    """
    folders = {
        folder.name: folder
        for place in reversed(_places())
        if place.is_dir()
        for folder in sorted(place.iterdir())
        if (folder / "config.json").is_file()
    }
    if name in folders:
        return folders[name]
    if folders:
        raise UsageError(f"there is no shipped drafter '{name}': the shipped ones are {', '.join(folders)}")
    looked = " and ".join(f"'{place}'" for place in _places())
    raise UsageError(
        f"the shipped drafter '{name}' is in neither of {looked}: install from a checkout (pip install -e .) "
        "or name another draft"
    )
