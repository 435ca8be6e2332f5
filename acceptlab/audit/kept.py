"""Small files that are there whole or not at all, so that an interrupted audit goes on where it stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from acceptlab.errors import RunError
from acceptlab.files import replacing


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a small file durably under its final name only.

    Raises:
        RunError: the disk is full or the folder cannot be written.
    """
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())


def read_json(path: Path) -> dict[str, Any] | None:
    """What a file holds, or None where there is none.

    Raises:
        RunError: the file is damaged.
    """
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        raise RunError(f"'{path}' cannot be read: delete it and repeat the command") from None
    return content


class KeptResult:
    """One result in one file, valid only for the settings it was computed with."""

    def __init__(self, folder: Path, name: str) -> None:
        """Name the file after what was computed."""
        self._path = folder / ("".join(c if c.isalnum() or c in "-." else "_" for c in name) + ".json")

    def get(self, how: Mapping[str, Any]) -> dict[str, Any] | None:
        """The result, or None where it is not there or was computed in another way."""
        content = read_json(self._path)
        if content is None or content.get("how") != json.loads(json.dumps(dict(how))):
            return None
        result: dict[str, Any] = content["result"]
        return result

    def put(self, how: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """Keep the result."""
        write_json(self._path, {"how": dict(how), "result": dict(result)})
