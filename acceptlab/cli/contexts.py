"""`acceptlab contexts`: both models along texts that are there already, as a run of contexts."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acceptlab.cli.options import DtypeOption, ModelOptions, ResumeOption, spread_options

if TYPE_CHECKING:
    from acceptlab.along import GivenText, Progress
    from acceptlab.pairs import Pair


@spread_options
def command(
    texts: Annotated[
        list[Path],
        typer.Argument(metavar="TEXTS...", help="Folders of acceptlab trajectories, or files of token ids."),
    ],
    run: Annotated[Path, typer.Option(help="Folder of the run.")],
    models: ModelOptions,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N texts of each source.")] = None,
    answers: Annotated[
        int, typer.Option(min=1, help="Answers to a prompt; those to one prompt are not independent.")
    ] = 1,
    dtype: DtypeOption = "auto",
    resume: ResumeOption = False,
) -> None:
    """Measure both models after every prefix of given texts: many real contexts, nothing drafted.

    Example:  acceptlab contexts data/drafter/tokens.parquet --limit 2 --run data/contexts/try

    The texts must be token ids of the target. acceptlab analyze certificates reads the run.
    """
    from acceptlab.along import collect_along, read_texts
    from acceptlab.pairs.default import pair_members
    from acceptlab.store import RunWriter, open_run

    found = [text for path in texts for text in read_texts(path, answers=answers, limit=limit)]
    names = pair_members(models.pair, models.target, models.draft)
    loaded = models.load(dtype)
    for note in filter(None, [loaded.draft_note, *loaded.notes]):
        print(f"note: {note}", file=sys.stderr)
    fields = _manifest_fields(loaded, names, found, texts, limit)
    writer = RunWriter.resume(run, fields) if resume else RunWriter.create(run, fields)
    collect_along(loaded, found, writer, _Show())
    opened = open_run(run)
    print(f"{opened.n_rows('contexts'):,} contexts along {opened.n_rows('prompts'):,} texts", file=sys.stderr)
    print(run)


def _manifest_fields(
    pair: Pair, names: tuple[str, str, str], found: list[GivenText], paths: list[Path], limit: int | None
) -> dict[str, Any]:
    from acceptlab.along import texts_sha256

    described = pair.describe()
    config = dict.fromkeys(("tree", "rule", "proposal", "max_new_tokens", "seed", "stop"))
    config |= dict(zip(("pair", "target", "draft"), names, strict=True))
    config |= {
        "draft_note": pair.draft_note,
        "prompts": ", ".join(map(str, paths)),
        "texts_sha256": texts_sha256(found),
        "domains": list(dict.fromkeys(text.domain for text in found)),
        "limit": limit,
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "batch_size": 1,
        "device": described["device"],
        "dtype": described["dtype"],
    }
    return {
        "config": config,
        "models": described["models"],
        "notes": pair.notes,
        "tokenizer_sha256": described["tokenizer_sha256"],
        "eos_ids": sorted(pair.eos_ids),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


class _Show:
    """A line on stderr every few seconds."""

    def __init__(self) -> None:
        self._shown = 0.0

    def __call__(self, progress: Progress) -> None:
        if progress.seconds - self._shown < 10.0:
            return
        self._shown = progress.seconds
        rate = progress.n_contexts / progress.seconds
        print(
            f"{progress.n_texts:,} of {progress.n_all:,} texts, {progress.n_contexts:,} contexts, {rate:,.0f}/s",
            file=sys.stderr,
        )
