"""Where the shipped prompts lie: `data/prompts` of the checkout, or the data folder of an installed wheel."""

from __future__ import annotations

import sys
from pathlib import Path

from acceptlab.errors import UsageError
from acceptlab.prompts.prompt import DOMAINS

SHIPPED_SET = "acceptlab"
"""Name of the shipped set on the command line and in `Prompt.source`."""

_INSTALLED = Path("share") / "acceptlab" / "prompts"


def shipped_folder() -> Path:
    """Folder with one JSONL file a domain.

    Raises:
        UsageError: none of the places holds all files.
    """
    places = [Path(__file__).resolve().parents[2] / "data" / "prompts", Path(sys.prefix) / _INSTALLED]
    for place in places:
        if all((place / f"{domain}.jsonl").is_file() for domain in DOMAINS):
            return place
    looked = " and ".join(f"'{place}'" for place in places)
    raise UsageError(
        f"the shipped prompts are in neither of {looked}: install from a checkout (pip install -e .) "
        "or name a prompt file"
    )


def shipped_files() -> list[tuple[Path, str]]:
    """The files of the shipped set with their names, in the order of `DOMAINS`."""
    folder = shipped_folder()
    return [(folder / f"{domain}.jsonl", f"{domain}.jsonl") for domain in DOMAINS]
