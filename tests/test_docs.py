"""The documentation against the product: every command is shown, and every example parses."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from acceptlab.cli import build_app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def commands(group: object, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Every command of the product with its words."""
    for name, command in getattr(group, "commands", {}).items():
        if hasattr(command, "commands"):
            yield from commands(command, (*words, name))
        else:
            yield (*words, name), command


COMMANDS = dict(commands(typer.main.get_command(build_app())))


def shown() -> list[list[str]]:
    """Command lines of the README, without comments."""
    found = re.findall(r"`(acceptlab [^`]+)`|^ {4}(?:\$ )?(acceptlab .*)$", README, flags=re.MULTILINE)
    return [shlex.split(inline or block, comments=True) for inline, block in found]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(words: tuple[str, ...]) -> None:
    text = getattr(COMMANDS[words], "help", "") or ""
    assert "acceptlab " + " ".join(words) in " ".join(text.split()), "its help needs a runnable example"


@pytest.mark.parametrize("line", shown(), ids=" ".join)
def test_the_readme_shows_commands_that_exist_with_options_that_exist(line: list[str]) -> None:
    words = tuple(line[1:])
    size = next((n for n in (2, 1) if words[:n] in COMMANDS), 0)
    if words and words[0].startswith("--"):
        return
    groups = {command[0] for command in COMMANDS}
    assert size or words[0] in groups, f"no such command: {' '.join(line)}"
    if size:
        options = {name for parameter in COMMANDS[words[:size]].params for name in parameter.opts}  # type: ignore[attr-defined]
        assert {word for word in words if word.startswith("--")} <= options


@pytest.mark.parametrize("group", ["analyze"])
def test_the_readme_names_every_analysis(group: str) -> None:
    for words in COMMANDS:
        if words[0] == group:
            assert f"acceptlab {' '.join(words)}" in README, words
