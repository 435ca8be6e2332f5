"""The command line: parse, call one function, print.

Every module here imports nothing heavy at its top, so that `acceptlab --help` answers at once. This one assembles the
commands, and turns errors into one sentence on stderr and an exit code: 0 good, 1 a run or check failed, 2 bad usage.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from importlib.util import find_spec
from typing import Annotated

import typer

from acceptlab import __version__
from acceptlab.errors import AcceptlabError

_COMMANDS = (
    "collect",
    "contexts",
    "analyze",
    "report",
    "study",
    "certify",
    "runs",
    "pairs",
    "prompts",
    "bench",
    "audit",
    "trajectories",
    "train",
)
"""Modules of this package in the order of `--help`: a group is `app`, a single command is the function `command`."""


# newer releases of typer carry their own copy of click, so its base error is found through a public class
_ClickError: type[Exception] = next(
    cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException"
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"acceptlab {__version__}")
        raise typer.Exit


def _callback(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Measure when a target model accepts what a draft model proposes in speculative decoding.

    Start with:  acceptlab collect --domain code --limit 3   and then:  acceptlab analyze depth-profile
    """


def build_app() -> typer.Typer:
    """Assemble the commands of all modules."""
    app = typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        add_completion=False,
    )
    app.callback()(_callback)
    for name in _COMMANDS:
        if find_spec(f"acceptlab.cli.{name}") is None:
            continue
        module = importlib.import_module(f"acceptlab.cli.{name}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(module.command)
    return app


def run(arguments: list[str]) -> int:
    """Run one command line and give its exit code; errors go to stderr as one sentence."""
    debug = "--debug" in arguments or bool(os.environ.get("ACCEPTLAB_DEBUG"))
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        result = build_app()(arguments, prog_name="acceptlab", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except typer.Exit as stop:
        return int(stop.exit_code)
    except _ClickError as error:
        error.show()  # type: ignore[attr-defined]
        return 2
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # the reader of a pipe (head, less) went away: point stdout at nothing so that the interpreter's exit is quiet
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if debug:
            traceback.print_exc()
        if isinstance(error, AcceptlabError):
            print(f"error: {error}", file=sys.stderr)
            return error.exit_code
        print(f"error: unexpected {type(error).__name__}: {error} (--debug shows where)", file=sys.stderr)
        return 1


def main() -> None:
    """Entry point of the `acceptlab` command."""
    sys.exit(run(sys.argv[1:]))
