"""`acceptlab prompts`: the shipped set, benchmark formats, single prompts, a check of one's own files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from acceptlab.cli.options import DomainColumnOption, IdColumnOption, PromptColumnOption, TextOption
from acceptlab.cli.output import FormatOption, OutputFormat, OutputOption, emit, warn
from acceptlab.errors import RunError, UsageError

if TYPE_CHECKING:
    import pandas as pd

    from acceptlab.prompts import Columns, Problem, Prompt
    from acceptlab.prompts.check import Frame
    from acceptlab.prompts.rows import TextMode

app = typer.Typer(no_args_is_help=True, help="List, show and check prompts.")

_SHOWN_CHARS = 60
_SHOWN_FRAMES = 10
_USUAL_FRAME = 3

SourceArgument = Annotated[
    str | None,
    typer.Argument(help="A file, a folder or hf:owner/name[:config][:split]; the shipped set if left out."),
]


@app.command("list")
def list_sets(
    formats: Annotated[
        bool, typer.Option("--formats", help="List the benchmark files that load as they ship.")
    ] = False,
    fmt: FormatOption = OutputFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """List the shipped prompts by domain, or the benchmark formats.

    Example:  acceptlab prompts list --formats
    """
    if formats:
        emit(_formats_frame(), fmt=fmt, output=output, title="Benchmark files that load as they ship")
        return
    from acceptlab.prompts import SHIPPED_SET, load_prompts

    frame = _lengths_frame(load_prompts())
    frame.insert(0, "set", SHIPPED_SET)
    notes = [
        "any JSONL, JSON, CSV, Parquet or text file loads too: acceptlab prompts check FILE",
        "benchmark files that load as they ship: acceptlab prompts list --formats",
        "the hub by name: hf:owner/name[:config][:split] (needs the library datasets)",
    ]
    emit(frame, fmt=fmt, output=output, title="Prompt sets", notes=notes)


@app.command()
def show(
    what: Annotated[str, typer.Argument(help="Id of a prompt, or a set, file or folder.", metavar="ID|FILE")],
    *,
    prompts: Annotated[
        str | None, typer.Option(help="Set or file in which to look for the id; the shipped set if left out.")
    ] = None,
    prompt_column: PromptColumnOption = None,
    id_column: IdColumnOption = None,
    domain_column: DomainColumnOption = None,
    text: TextOption = "lines",
    fmt: FormatOption = OutputFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Print one prompt as it stands, or a table of all prompts of a file.

    Example:  acceptlab prompts show code/02
    """
    from acceptlab.prompts import load_prompts

    columns, mode = _columns(prompt_column, id_column, domain_column), _text_mode(text)
    if prompts is None and _is_source(what):
        listed = load_prompts(what, columns=columns, text=mode)
        emit(_prompts_frame(listed, shorten=fmt is OutputFormat.TABLE), fmt=fmt, output=output, title=what)
        return
    prompt = _find(load_prompts(prompts, columns=columns, text=mode), what)
    if fmt is not OutputFormat.TABLE or output is not None:
        emit(_prompts_frame([prompt], shorten=False), fmt=fmt, output=output)
        return
    turns = prompt.turns or (prompt.prompt,)
    warn(f"{prompt.id}  domain {prompt.domain}  from {prompt.source}  sha256 {prompt.sha256}")
    for number, turn in enumerate(turns, 1):
        if len(turns) > 1:
            warn(f"turn {number} of {len(turns)}")
            sys.stderr.flush()
        sys.stdout.write(turn.rstrip("\n") + "\n")
        sys.stdout.flush()


@app.command()
def check(
    source: SourceArgument = None,
    *,
    prompt_column: PromptColumnOption = None,
    id_column: IdColumnOption = None,
    domain_column: DomainColumnOption = None,
    text: TextOption = "lines",
    max_frame: Annotated[
        int | None, typer.Option(min=1, help="Also fail where more prompts than this share a sentence frame.")
    ] = None,
    fmt: FormatOption = OutputFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Check a prompt file: every problem with its row, counts by domain, repeated sentence frames.

    Exit 1 if a row cannot be used. The table shows the counts, then the findings; other formats hold the
    findings.

    Example:  acceptlab prompts check data/prompts --max-frame 3
    """
    from acceptlab.prompts import SHIPPED_SET, read_prompts
    from acceptlab.prompts.check import repeated_frames

    name = source or SHIPPED_SET
    columns = _columns(prompt_column, id_column, domain_column)
    prompts, problems = read_prompts(source, columns=columns, text=_text_mode(text))
    frames = repeated_frames(prompts, max_frame or _USUAL_FRAME)
    counts = _lengths_frame(prompts)
    if fmt is OutputFormat.TABLE and output is None:
        emit(counts, title=f"{name}: {len(prompts)} usable prompts")
        n_hidden = max(0, len(frames) - _SHOWN_FRAMES)
        findings = _findings_frame(problems, frames[:_SHOWN_FRAMES])
        if len(findings):
            more = f"{n_hidden} less frequent frames are left out; --format csv lists them"
            emit(findings, title="Findings", notes=[more] if n_hidden else [])
    else:
        rows = (f"{row.domain}: {row.n_prompts} usable prompts" for row in counts.itertuples())
        findings = _findings_frame(problems, frames)
        emit(findings, fmt=fmt, output=output, title=name, notes=list(rows))
    bad = [f"{len(problems)} unusable rows"] if problems else []
    bad += [f"{len(frames)} frames in more than {max_frame} prompts"] if frames and max_frame else []
    if bad:
        raise RunError(f"'{name}' has {' and '.join(bad)}: see the findings")


def _columns(prompt: str | None, id_: str | None, domain: str | None) -> Columns:
    from acceptlab.prompts import Columns

    return Columns(prompt=prompt, id=id_, domain=domain)


def _text_mode(text: str) -> TextMode:
    if text == "lines":
        return "lines"
    if text == "blocks":
        return "blocks"
    raise UsageError(f"--text is '{text}': choose lines or blocks")


def _is_source(what: str) -> bool:
    from acceptlab.prompts import SHIPPED_SET
    from acceptlab.prompts.hub import PREFIX

    return what == SHIPPED_SET or what.startswith(PREFIX) or Path(what).exists()


def _find(prompts: list[Prompt], prompt_id: str) -> Prompt:
    from difflib import get_close_matches

    by_id = {prompt.id: prompt for prompt in prompts}
    if prompt_id in by_id:
        return by_id[prompt_id]
    close = get_close_matches(prompt_id, by_id, n=3, cutoff=0.5) or list(by_id)[:3]
    raise UsageError(f"there is no prompt or file '{prompt_id}': ids look like {', '.join(close)}")


def _lengths_frame(prompts: list[Prompt]) -> pd.DataFrame:
    from dataclasses import asdict, fields

    import pandas as pd

    from acceptlab.prompts.check import Lengths, lengths

    names = [field.name for field in fields(Lengths)]
    return pd.DataFrame([asdict(row) for row in lengths(prompts)], columns=names)


def _prompts_frame(prompts: list[Prompt], *, shorten: bool) -> pd.DataFrame:
    import pandas as pd

    def text(prompt: Prompt) -> str:
        line = " ".join(prompt.prompt.split())
        if not shorten:
            return prompt.prompt
        return line if len(line) <= _SHOWN_CHARS else line[: _SHOWN_CHARS - 3] + "..."

    rows = [
        (p.id, p.domain, len(p.prompt), len(p.turns or (p.prompt,)), p.source, p.sha256, text(p))
        for p in prompts
    ]
    frame = pd.DataFrame(rows, columns=["id", "domain", "n_chars", "n_turns", "source", "sha256", "prompt"])
    if shorten:
        return frame.drop(columns=["sha256"])
    return frame.assign(
        turns=pd.Series([list(p.turns) if p.turns else None for p in prompts], dtype="object")
    )


def _formats_frame() -> pd.DataFrame:
    import pandas as pd

    from acceptlab.prompts.formats import BENCHMARKS

    rows = [(b.name, b.file, b.columns, b.domain, b.wrapping) for b in BENCHMARKS]
    return pd.DataFrame(rows, columns=["benchmark", "file", "recognised_by", "domain", "added_words"])


def _findings_frame(problems: list[Problem], frames: list[Frame]) -> pd.DataFrame:
    import pandas as pd

    rows: list[tuple[object, ...]] = [
        ("problem", p.source, p.row, p.line, p.prompt_id, p.reason) for p in problems
    ]
    for frame_ in frames:
        detail = f"{frame_.kind} '{frame_.words}' in {len(frame_.prompt_ids)} prompts"
        rows.append(("frame", None, None, None, frame_.prompt_ids[0], detail))
    frame = pd.DataFrame(rows, columns=["finding", "file", "row", "line", "prompt_id", "detail"])
    return frame.astype({"row": "Int64", "line": "Int64"})
