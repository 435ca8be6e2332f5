"""Committed texts scored by plain forwards: the overlap before every token and min(1, draft/target) at it.

The engine's caches and trees play no part here: each text is run from its first token through both models as a whole.
Boundary: a run and its pair in, rows of `store.scores` out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64

from acceptlab.audit.plain import PlainPair, Reference
from acceptlab.audit.progress import Show, part
from acceptlab.errors import UsageError
from acceptlab.sampling import Warp, warp
from acceptlab.store import Run
from acceptlab.store.scores import SCHEMA, read_scores, write_scores

KEEP_EVERY = 10
"""Texts between two writes of the file."""

_BLOCK = 64


@dataclass(frozen=True)
class Text:
    """A prompt and what was written after it, as token ids."""

    domain: str
    prompt_id: str
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]


def score_text(reference: Reference, text: Text, settings: Warp) -> pd.DataFrame:
    """Rows of one text, one a written token, in the distributions that the settings make of the logits."""
    token_ids, first = [*text.prompt_ids, *text.output_ids], len(text.prompt_ids)
    target, draft = reference.target_logits(token_ids, first), reference.draft_logits(token_ids, first)
    tokens = torch.tensor(text.output_ids)
    overlaps, ratios = [], []
    for start in range(0, len(tokens), _BLOCK):  # the last row of the logits follows the whole text: left out
        block = torch.arange(start, min(start + _BLOCK, len(tokens)))
        target_probs, draft_probs = warp(target[block], settings), warp(draft[block], settings)
        overlaps.append(torch.minimum(target_probs, draft_probs).sum(dim=1))
        at = tokens[block][:, None]
        ratios.append((draft_probs.gather(1, at) / target_probs.gather(1, at)).clamp(max=1.0)[:, 0])
    return pd.DataFrame(
        {
            "domain": text.domain,
            "prompt_id": text.prompt_id,
            "position": np.arange(len(tokens)),
            "overlap": _joined(overlaps),
            "ratio": _joined(ratios),
        }
    )


def _joined(parts: Sequence[torch.Tensor]) -> Float64[np.ndarray, " tokens"]:
    return np.asarray(torch.cat(list(parts)).cpu().numpy())


def score_texts(
    reference: Reference,
    texts: Sequence[Text],
    settings: Warp,
    path: Path,
    facts: dict[str, Any],
    on_text: Callable[[int], None] = lambda done: None,
) -> pd.DataFrame:
    """Score the texts that the file does not hold yet; it is written again every few texts.

    Args:
        reference: plain forwards of both models.
        texts: all texts of the run.
        settings: temperature and truncation of the run.
        path: the file of scores.
        facts: what the scores depend on; a file with other facts is refused.
        on_text: told how many texts are done.

    Raises:
        UsageError: the file holds scores of another run or of other models.
    """
    frames = [_kept(path, facts)]
    done = set(frames[0]["prompt_id"])
    left = [text for text in texts if text.prompt_id not in done]
    on_text(len(texts) - len(left))
    for count, text in enumerate(left, start=1):
        frames.append(score_text(reference, text, settings))
        if count % KEEP_EVERY == 0 or count == len(left):
            frames = [pd.concat(frames, ignore_index=True)]
            write_scores(path, frames[0], facts)
        on_text(len(texts) - len(left) + count)
    return frames[0]


def _kept(path: Path, facts: dict[str, Any]) -> pd.DataFrame:
    if not path.is_file():
        empty: pd.DataFrame = SCHEMA.empty_table().to_pandas()
        return empty
    frame, found = read_scores(path)
    for name in sorted({*facts, *found}, reverse=True):  # the run's id first
        if found.get(name) != facts.get(name):
            raise UsageError(
                f"'{path}' holds scores with {name} {found.get(name)!r}, not {facts.get(name)!r}: name another --scores"
            )
    return frame


def score_run(run: Run, path: Path, show: Show) -> pd.DataFrame:
    """Score the texts of a collected run with the pair that wrote them, or what the file lacks of them.

    Raises:
        UsageError: the run does not say how to make it again, or its prompts or models have changed since.
    """
    from acceptlab.run import plan, prepare

    planned = plan(asked(run))
    if planned.config["prompts_sha256"] != run.config.get("prompts_sha256"):
        raise UsageError(f"the prompts of '{run.path}' have changed since it was collected: collect it again")
    weights = weights_of(run.manifest.get("models") or {})
    facts = {"run_id": run.run_id, "models": weights, "dtype": run.config.get("dtype")}
    wanted = set(run.read("prompts", columns=["prompt_id"]).column("prompt_id").to_pylist())
    if path.is_file() and wanted <= set(_kept(path, facts)["prompt_id"]) | _skipped(run):
        return _kept(path, facts)
    show.say(f"loading {planned.config['pair']} ...")
    pair, settings = prepare(planned)
    if weights_of(pair.describe()["models"]) != weights:
        raise UsageError(f"the models of '{run.path}' have changed since it was collected: collect it again")
    prompts = {prompt.id: prompt for prompt in planned.prompts}
    texts = list(texts_of(run, lambda prompt_id: pair.encode(prompts[prompt_id].prompt)))
    with part(show, "texts scored", len(texts)) as update:
        return score_texts(PlainPair(pair), texts, settings.warp, path, facts, update)


def asked(run: Run) -> Any:
    """The request that made a run.

    Raises:
        UsageError: the manifest does not hold it.
    """
    from acceptlab.run import Request

    words = run.manifest.get("request")
    if not isinstance(words, dict):
        raise UsageError(f"'{run.path}' does not say how it was collected: collect it with this version")
    known: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in words.items()}
    return Request(**known)


def weights_of(models: Mapping[str, Any]) -> dict[str, Any]:
    """What of a manifest's models decides their distributions: ids and file hashes, not how the passes are run."""
    return {role: {name: model.get(name) for name in ("id", "files")} for role, model in models.items()}


def _skipped(run: Run) -> set[str]:
    rows = run.read("prompts", columns=["prompt_id", "n_new_tokens"]).to_pylist()
    return {row["prompt_id"] for row in rows if not row["n_new_tokens"]}


def texts_of(run: Run, encode: Callable[[str], Sequence[int]]) -> Iterator[Text]:
    """Texts of the prompts that ran, with their prompts encoded again.

    Raises:
        UsageError: a prompt has another number of tokens than when it was collected.
    """
    columns = ["domain", "prompt_id", "n_prompt_tokens", "output_token_ids"]
    for row in run.read("prompts", columns=columns).to_pylist():
        if not row["output_token_ids"]:
            continue
        prompt_ids = tuple(encode(row["prompt_id"]))
        if len(prompt_ids) != row["n_prompt_tokens"]:
            raise UsageError(
                f"prompt {row['prompt_id']} of '{run.path}' had {row['n_prompt_tokens']} tokens and has "
                f"{len(prompt_ids)}: collect the run again"
            )
        yield Text(row["domain"], row["prompt_id"], prompt_ids, tuple(row["output_token_ids"]))
