"""`acceptlab pairs`: which pairs have a name, what is in one, and fetching it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from acceptlab.cli.options import DeviceOption, DtypeOption
from acceptlab.cli.output import FormatOption, OutputFormat, OutputOption, emit

app = typer.Typer(
    no_args_is_help=True,
    help="Named pairs of a target and a draft.\n\nExample:  acceptlab pairs list",
)
NameArgument = Annotated[str | None, typer.Argument(help="Name of the pair; the default pair without it.")]


@app.command("list")
def list_pairs(fmt: FormatOption = OutputFormat.TABLE, output: OutputOption = None) -> None:
    """List the named pairs.

    Example:  acceptlab pairs list --format csv
    """
    import pandas as pd

    from acceptlab.pairs.default import PAIRS, is_fetched

    rows = [
        {
            "name": spec.name,
            "target": spec.origin,
            "draft": spec.draft,
            "licence": spec.licence,
            "size_mb": spec.size_mb,
            "fetched": is_fetched(),
            "summary": spec.summary,
        }
        for spec in PAIRS.values()
    ]
    notes = [
        "any other pair: --target ID --draft ID, where ID is a hub id, a folder or a .gguf file; "
        "a draft may also be self:skip=3,17 (the target without these layers) or ngram:n=3 (prompt lookup)"
    ]
    emit(pd.DataFrame(rows), fmt=fmt, output=output, notes=notes)


@app.command("show")
def show(
    name: NameArgument = None,
    target: Annotated[
        str | None, typer.Option(help="Hub id, folder or .gguf file in place of a name.")
    ] = None,
    draft: Annotated[str | None, typer.Option(help="Its draft, or another one for the named pair.")] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    fmt: FormatOption = OutputFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Load a pair, check it, and print what a run's manifest will say about it.

    Example:  acceptlab pairs show smollm2-135m

    Example:  acceptlab pairs show --draft ngram:n=3 --format json
    """
    import pandas as pd

    from acceptlab.pairs import load_pair

    pair = load_pair(name, target=target, draft=draft, device=device, dtype=dtype)
    about = pair.describe()
    rows = [
        {"role": role, **{key: _text(value) for key, value in about["models"][role].items()}}
        for role in ("target", "draft")
    ]
    limits = [model.max_len for model in (pair.target, pair.draft) if model.max_len is not None]
    notes = [
        f"ids: {pair.target.vocab_size}, end of text: {', '.join(map(str, sorted(pair.eos_ids))) or 'none'}",
        f"positions: {min([*limits, *filter(None, [pair.window_limit])], default='no limit')}",
        f"tokenizer: {about['tokenizer_sha256']}, device: {about['device']}",
        *filter(None, [pair.draft_note]),
        *pair.notes,
    ]
    emit(pd.DataFrame(rows), fmt=fmt, output=output, title=pair.name, notes=notes)


@app.command("fetch")
def fetch(name: NameArgument = None) -> None:
    """Fetch and convert a named pair's target into the cache folder; does nothing where it is already there.

    The folder is $ACCEPTLAB_CACHE, else ~/.cache/acceptlab. It is printed on stdout.

    Example:  acceptlab pairs fetch smollm2-135m
    """
    print(_fetch(name))


def _fetch(name: str | None) -> Path:
    from acceptlab.pairs.default import DEFAULT_PAIR, default_target_folder, is_fetched, named_pair

    spec = named_pair(name or DEFAULT_PAIR)
    was_there = is_fetched()
    folder = default_target_folder()
    print(f"{spec.name} {'was there already' if was_there else 'is ready'}", file=sys.stderr)
    return folder


def _text(value: object) -> object:
    """A cell: dictionaries as `file sha256`, the rest as it stands."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {digest}" for key, digest in value.items())
    return value
