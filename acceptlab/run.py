"""From what was asked to a run on disk: names, configuration, provenance. The command line and studies share it.

Boundary: resolves names into a pair, prompts and settings and hands them to `collect`. No arithmetic, no Parquet.
"""

from __future__ import annotations

import gc
import hashlib
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast, get_args

from acceptlab.errors import UsageError
from acceptlab.pairing import ProposalKind, check_pairing, proposal_for
from acceptlab.prompts import Columns, Problem, Prompt, load_prompts
from acceptlab.prompts.rows import TextMode
from acceptlab.rules import Rule, parse_rule
from acceptlab.store import RunWriter, open_run
from acceptlab.store.manifest import has_manifest
from acceptlab.tree import TreeShape, parse_tree
from acceptlab.warping import Warp

if TYPE_CHECKING:
    from acceptlab.collect import Progress
    from acceptlab.engine import Settings
    from acceptlab.pairs import Pair


@dataclass(frozen=True)
class Request:
    """A collection in the words of the command line. The defaults are those of `acceptlab collect`."""

    domains: tuple[str, ...] = ("all",)
    pair: str | None = None
    target: str | None = None
    draft: str | None = None
    prompts: str | None = None
    prompt_column: str | None = None
    id_column: str | None = None
    domain_column: str | None = None
    text: str = "lines"
    skip_bad: bool = False
    limit: int | None = None
    tree: str = "kary:depth=3,branch=2"
    rule: str = "greedy"
    proposal: str = "auto"
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    max_new_tokens: int = 128
    seed: int = 0
    stop: str | None = None
    batch_size: int = 1
    device: str = "auto"
    dtype: str = "auto"


@dataclass(frozen=True)
class Finished:
    """Where a collection lies and one sentence about it."""

    folder: Path
    summary: str


class Show(Protocol):
    """Where progress goes: a bar, a log or nowhere."""

    def say(self, message: str) -> None:
        """Tell one line."""
        ...

    def start(self, n_prompts: int, n_done: int) -> None:
        """The first step is about to run."""
        ...

    def update(self, progress: Progress) -> None:
        """A step has ended."""
        ...

    def stop(self) -> None:
        """No more steps, for whatever reason."""
        ...


@dataclass(frozen=True)
class Plan:
    """A request with its names resolved, before any model is loaded."""

    request: Request
    tree: TreeShape
    rule: Rule
    proposal: ProposalKind
    stop_entropy: float | None
    prompts: Sequence[Prompt]
    problems: Sequence[Problem]
    config: dict[str, Any]

    @property
    def folder_name(self) -> str:
        """A readable name, the same for the same configuration, so that a repeated command finds its run."""
        # the batch size changes no row; at its value of old a name of old is found again
        config = {**self.config, "batch_size": 1}
        digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:8]
        words = (
            self.config["pair"],
            "+".join(self.config["domains"]),
            self.config["rule"],
            self.config["tree"],
            digest,
        )
        return "_".join("".join(c if c.isalnum() or c in "-+.," else "-" for c in word) for word in words)


def plan(request: Request) -> Plan:
    """Resolve and check a request without loading a model.

    Raises:
        UsageError: an unknown name, an unreadable file, or a pairing that would bias the output.
    """
    from acceptlab.pairs.default import pair_members

    pair, target, draft = pair_members(request.pair, request.target, request.draft)
    tree, rule = _tree(request.tree), parse_rule(request.rule)
    proposal = _proposal(request.proposal, rule)
    check_pairing(rule, tree, proposal)
    stop_entropy = _stop(request.stop, tree)
    Warp(request.temperature, request.top_k, request.top_p)
    prompts, problems = _prompts(request)
    config = {
        "pair": pair,
        "target": target,
        "draft": draft,
        "prompts": request.prompts or "acceptlab",
        "prompts_sha256": _digest(prompts),
        "domains": list(dict.fromkeys(prompt.domain for prompt in prompts)),
        "limit": request.limit,
        "tree": tree.text,
        "rule": str(rule),
        "proposal": str(proposal),
        "temperature": request.temperature,
        "top_k": request.top_k,
        "top_p": request.top_p,
        "max_new_tokens": request.max_new_tokens,
        "seed": request.seed,
        "stop": None if stop_entropy is None else f"entropy:{stop_entropy:g}",
        "batch_size": request.batch_size,
        "device": request.device,
        "dtype": request.dtype,
    }
    return Plan(request, tree, rule, proposal, stop_entropy, prompts, problems, config)


def _tree(text: str) -> TreeShape:
    if not text.strip().startswith("dp:"):
        return parse_tree(text)
    from acceptlab.analysis.best_shape import parse_dp

    return parse_dp(text)


def _proposal(text: str, rule: Rule) -> ProposalKind:
    if text == "auto":
        return proposal_for(rule)
    try:
        return ProposalKind(text)
    except ValueError:
        raise UsageError(f"unknown proposal '{text}': use auto or one of {', '.join(ProposalKind)}") from None


def _prompts(request: Request) -> tuple[list[Prompt], list[Problem]]:
    if request.text not in get_args(TextMode):
        raise UsageError(f"unknown --text '{request.text}': use {' or '.join(get_args(TextMode))}")
    mode = cast(TextMode, request.text)
    columns = Columns(request.prompt_column, request.id_column, request.domain_column)
    wanted = (request.prompts, request.domains, request.limit)
    if request.skip_bad:
        return load_prompts(*wanted, columns=columns, text=mode, strict=False)
    return load_prompts(*wanted, columns=columns, text=mode), []


def _stop(text: str | None, tree: TreeShape) -> float | None:
    if text is None:
        return None
    name, _, value = text.partition(":")
    try:
        nats = float(value)
    except ValueError:
        nats = -1.0
    if name != "entropy" or not 0 <= nats < float("inf"):
        raise UsageError(f"unknown --stop '{text}': write entropy:NATS, for example entropy:2.5")
    if tree.static is None:
        raise UsageError(
            f"--stop goes with static trees: tree '{tree.text}' follows the draft's confidence already"
        )
    return nats


def run_collection(
    request: Request, *, folder: Path | None, runs_folder: Path, resume: bool, show: Show
) -> Finished:
    """Collect what a request asks for, or find that it is there already.

    Args:
        request: what to collect.
        folder: the run's folder; None for one under `runs_folder` named after the configuration.
        runs_folder: where unnamed runs go.
        resume: go on with an interrupted run.
        show: where progress goes.

    Raises:
        UsageError: see `plan`; or the folder holds another run, or an interrupted one and `resume` is off.
        RunError: a file is damaged, the disk is full, or the models do not fit.
    """
    planned = plan(request)
    folder = folder or runs_folder / planned.folder_name
    if _already_there(folder, planned.config, resume):
        return Finished(folder, f"already collected: {folder} is complete and was left as it is")
    from acceptlab.collect import collect  # torch and transformers: only now is it sure that they are needed
    from acceptlab.passes import fork

    show.say(f"loading {planned.config['pair']} ...")
    pair, settings = prepare(planned, only_this=True)
    if request.batch_size > 1:
        fork(pair.target)  # one that cannot says so before a folder is begun
    left_out = (f"left out: {problem}" for problem in planned.problems)
    for note in filter(None, [pair.draft_note, *pair.notes, *left_out]):
        show.say(f"note: {note}")
    fields = manifest_fields(planned, pair)
    if resume and has_manifest(folder):  # a run goes on at any batch size; its manifest keeps the first
        fields["config"]["batch_size"] = open_run(folder, strict=False).config.get("batch_size", 1)
    writer = RunWriter.resume(folder, fields) if resume else RunWriter.create(folder, fields)
    show.start(len(planned.prompts), len(writer.done_prompt_ids))
    try:
        collect(pair, planned.prompts, settings, writer, show.update, request.batch_size)
    except KeyboardInterrupt:
        show.stop()
        n_done = len(writer.done_prompt_ids)
        remedy = "" if resume else ": repeat the command with --resume"
        show.say(f"stopped after {n_done} of {len(planned.prompts)} prompts{remedy}")
        raise
    finally:
        show.stop()
    return Finished(folder, summary(folder))


def prepare(planned: Plan, *, only_this: bool = False) -> tuple[Pair, Settings]:
    """Load the pair of a plan and put its settings together.

    Args:
        planned: what to do.
        only_this: whether the process decodes nothing else. Where its passes then have the same few numbers of rows,
            the math library is told to keep code for few, which saves memory; and what is loaded is never looked
            through for garbage.

    Raises:
        UsageError: a model that does not exist or cannot be run exactly, or tokenizers that disagree.
        RunError: too little memory, or a broken file.
    """
    from acceptlab.engine import Settings
    from acceptlab.pairs.heap import keep_few_products
    from acceptlab.pairs.load import load_pair

    asked = planned.request
    is_steady = planned.tree.static is not None and planned.stop_entropy is None and asked.batch_size == 1
    if only_this and is_steady:
        keep_few_products()
    pair = load_pair(
        asked.pair, target=asked.target, draft=asked.draft, device=asked.device, dtype=asked.dtype
    )
    settings = Settings(
        tree=planned.tree,
        rule=planned.rule,
        proposal=planned.proposal,
        warp=Warp(asked.temperature, asked.top_k, asked.top_p),
        max_new_tokens=asked.max_new_tokens,
        seed=asked.seed,
        eos_ids=pair.eos_ids,
        stop_entropy=planned.stop_entropy,
    )
    if only_this:
        # what is loaded stays: looking through it for garbage takes a tenth of a second, again and again
        gc.freeze()
    return pair, settings


def _already_there(folder: Path, config: dict[str, Any], resume: bool) -> bool:
    """Whether the folder holds this very run, complete. Refuses what cannot go on, before any model is loaded."""
    if not has_manifest(folder):
        return False
    run = open_run(folder, strict=False)
    differing = [name for name in _asked(config) if run.config.get(name) != config[name]]
    if differing:
        name = differing[0]
        raise UsageError(
            f"'{folder}' already holds a run with {name} {run.config.get(name)!r}, not {config[name]!r}: "
            "choose another --run"
        )
    if not run.is_complete and not resume:
        raise UsageError(
            f"'{folder}' already holds an interrupted run: add --resume to go on, or choose another --run"
        )
    return run.is_complete


def _asked(config: dict[str, Any]) -> list[str]:
    """Settings that are known before the models are loaded and that decide the rows; names are resolved by then."""
    return [name for name in config if name not in {"device", "dtype", "batch_size"}]


def manifest_fields(planned: Plan, pair: Pair) -> dict[str, Any]:
    """What the manifest says beside the store's own entries."""
    described = pair.describe()
    config = {
        **planned.config,
        "draft_note": pair.draft_note,
        "device": described["device"],
        "dtype": described["dtype"],
    }
    return {
        "config": config,
        "request": asdict(planned.request),
        "models": described["models"],
        "passes": described["passes"],
        "notes": pair.notes,
        "tokenizer_sha256": described["tokenizer_sha256"],
        "eos_ids": sorted(pair.eos_ids),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


def summary(folder: Path) -> str:
    """One sentence about a complete run."""
    run = open_run(folder)
    counts = {name: run.n_rows(name) for name in ("prompts", "steps", "nodes")}
    return (
        f"collected {counts['nodes']:,} nodes in {counts['steps']:,} steps of {counts['prompts']:,} prompts"
    )


def _digest(prompts: Sequence[Prompt]) -> str:
    """Hash of ids and texts: a changed prompt file is another run."""
    lines = (f"{prompt.id}\x1f{prompt.domain}\x1f{prompt.sha256}" for prompt in prompts)
    return hashlib.sha256("\x1e".join(lines).encode()).hexdigest()
