"""Groups of options: what typer sees of a command that takes them, and what the command is given."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from acceptlab.audit.request import AuditRequest
from acceptlab.cli.audit import AuditOptions
from acceptlab.cli.collect import CollectOptions
from acceptlab.cli.options import DecodingOptions, comma_list, spread_options
from acceptlab.run import Request


@dataclass(frozen=True)
class Base:
    size: Annotated[int, typer.Option("--size", min=1, help="How large.")] = 2
    name: Annotated[str | None, typer.Option("--name")] = None


@dataclass(frozen=True)
class Narrowed(Base):
    name: Annotated[str, typer.Option("--called", help="Its name.")] = "x"


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer(add_completion=False)

    @app.command()
    @spread_options
    def show(group: Narrowed, word: Annotated[str, typer.Argument()], loud: bool = False) -> None:
        """Show all."""
        print(group, word, loud)

    return app


def test_a_group_comes_with_its_defaults(app: typer.Typer) -> None:
    assert CliRunner().invoke(app, ["w"]).stdout == "Narrowed(size=2, name='x') w False\n"


def test_options_of_a_group_and_of_the_command_mix(app: typer.Typer) -> None:
    done = CliRunner().invoke(app, ["--loud", "--called", "y", "w", "--size", "3"])
    assert done.stdout == "Narrowed(size=3, name='y') w True\n"


def test_bounds_and_help_of_a_group_hold(app: typer.Typer) -> None:
    assert CliRunner().invoke(app, ["w", "--size", "0"]).exit_code == 2
    command = typer.main.get_command(app)
    assert command.help == "Show all."
    assert [parameter.name for parameter in command.params] == ["size", "name", "word", "loud"]
    assert {"--called", "--size"} <= {name for parameter in command.params for name in parameter.opts}


def test_the_defaults_of_collect_and_of_the_audit_are_those_of_their_requests() -> None:
    assert CollectOptions().request() == Request()
    assert AuditRequest(folder=Path(), **asdict(AuditOptions())) == AuditRequest(folder=Path())


def test_decoding_options_make_a_request() -> None:
    made = DecodingOptions(target="t", draft="d", domain="code, math,").request(limit=2, seed=3)
    assert made == Request(target="t", draft="d", domains=("code", "math"), limit=2, seed=3)


def test_a_comma_list_has_no_empty_parts() -> None:
    assert comma_list(" a,, b ,") == ("a", "b")
