"""Options that several commands share, declared once, and groups of them.

A command takes a group as one parameter whose type is a frozen dataclass of options, and is decorated with
`spread_options`; its help and its command line show the options of the group as if each were a parameter.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from acceptlab.errors import UsageError

if TYPE_CHECKING:
    from acceptlab.pairs import Pair
    from acceptlab.run import Request

PairOption = Annotated[
    str | None, typer.Option("--pair", help="Name of a known pair (acceptlab pairs list).")
]
TargetOption = Annotated[str | None, typer.Option("--target", help="Target: hub id, folder or .gguf file.")]
DraftOption = Annotated[
    str | None, typer.Option("--draft", help="Draft: hub id, folder, .gguf, self:skip=12,14 or ngram:n=3.")
]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:N or mps.")]
DtypeOption = Annotated[str, typer.Option("--dtype", help="auto, float32, bfloat16 or float16.")]
DomainOption = Annotated[str, typer.Option("--domain", help="code, math, logic, chat, a comma list, or all.")]
PromptColumnOption = Annotated[
    str | None, typer.Option("--prompt-column", help="Column or key that holds the prompt.")
]
IdColumnOption = Annotated[str | None, typer.Option("--id-column", help="Column or key that holds the id.")]
DomainColumnOption = Annotated[
    str | None, typer.Option("--domain-column", help="Column or key that holds the domain.")
]
TextOption = Annotated[
    str,
    typer.Option(
        "--text", help="Plain text: lines (one prompt a line) or blocks (blank lines between them)."
    ),
]
TemperatureOption = Annotated[
    float, typer.Option("--temperature", min=0.0, help="Of the sampling distribution, both models.")
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of all random streams.")]
ResamplesOption = Annotated[
    int, typer.Option("--resamples", min=100, help="Bootstrap resamples of the prompts behind the intervals.")
]
ResamplingSeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of the resampling.")]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")]


@dataclass(frozen=True)
class ModelOptions:
    """A pair and where it runs."""

    pair: PairOption = None
    target: TargetOption = None
    draft: DraftOption = None
    device: DeviceOption = "auto"

    def load(self, dtype: str) -> Pair:
        """Load the pair."""
        from acceptlab.pairs.load import load_pair

        return load_pair(self.pair, target=self.target, draft=self.draft, device=self.device, dtype=dtype)


@dataclass(frozen=True)
class DecodingOptions(ModelOptions):
    """A pair and the domains of the prompts that it decodes."""

    domain: DomainOption = "all"

    def request(self, **settings: Any) -> Request:
        """A collection of these, with further fields of `Request`."""
        from acceptlab.run import Request

        chosen = {name: value for name, value in asdict(self).items() if name != "domain"}
        return Request(domains=comma_list(self.domain), **chosen, **settings)


def comma_list(text: str) -> tuple[str, ...]:
    """The parts of a comma list, without white space and empty parts."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def check_plot(plot: Path) -> None:
    """Refuse a file that cannot be drawn to, before anything is computed.

    Raises:
        UsageError: the suffix is of no format that figures can be saved in.
    """
    if plot.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise UsageError(f"cannot draw to '{plot}': use a file that ends in .png, .svg or .pdf")


def spread_options(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take groups: each parameter that is a dataclass is put together from the options of its fields.

    Args:
        command: a function as typer takes it, some of its parameters groups.

    Returns:
        The function for typer: every field of a group is a parameter of its own, in the place of the group.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters = []
    for name, parameter in inspect.signature(command).parameters.items():
        group = groups.get(name)
        options = {name: parameter.default} if group is None else {f.name: f.default for f in fields(group)}
        types = hints if group is None else get_type_hints(group, include_extras=True)
        parameters += [
            inspect.Parameter(
                option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=types[option]
            )
            for option, default in options.items()
        ]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        made = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**given, **made)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
