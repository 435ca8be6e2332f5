"""One speculative decoding loop: draft -> one target pass -> verify -> commit; yields a step.

Boundary: two language models, a prompt's tokens and settings in, steps out. No paths, no printing, no tokenizer.
`lanes` runs the same loop for several prompts at once.
Every step runs the target once, over the root (the last committed token) and the drafted nodes, with a mask in which
a node sees the text and its own ancestors. What is accepted is kept by gathering the cache, so the text is never
computed twice: after a step the target's cache holds all committed tokens but the new root.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float64, Int
from torch import Tensor

from acceptlab.adaptive import grow_adaptive
from acceptlab.draft import Proposal, empty_proposal, grow
from acceptlab.measures import Columns, Contexts, measure
from acceptlab.models import LanguageModel
from acceptlab.pairing import ProposalKind
from acceptlab.passes import Pass, Passes
from acceptlab.records import StopReason
from acceptlab.rng import uniforms
from acceptlab.rules import Rule
from acceptlab.sampling import Warp, warp
from acceptlab.tree import Tree, TreeShape
from acceptlab.verify import Drafted, Target, Verdict, read_target, verify
from acceptlab.verify.drafted import rows_of

_CHOSEN = frozenset({ProposalKind.RANKED, ProposalKind.ARGMAX})
"""Proposals that no random number enters."""


@dataclass(frozen=True)
class Settings:
    """How to decode: everything of a run's configuration that the loop needs."""

    tree: TreeShape
    rule: Rule
    proposal: ProposalKind
    warp: Warp
    max_new_tokens: int
    seed: int
    eos_ids: frozenset[int] = frozenset()
    stop_entropy: float | None = None
    """Nats of draft entropy above which a context gets no children; None never stops."""
    record: bool = True


@dataclass(frozen=True)
class Step:
    """One draft-and-verify round: what was drafted, decided, emitted and measured. No full-vocabulary tensor."""

    index: int
    context_len: int
    tree: Tree
    token_ids: Int[Tensor, " nodes"]
    verdict: Verdict
    emitted: tuple[int, ...]
    stop_reason: StopReason | None
    nodes: Columns
    contexts: Columns
    times_ms: dict[str, float]

    @property
    def bonus_token_id(self) -> int | None:
        """The bonus or correction token; None where the text was cut before it."""
        return self.emitted[-1] if len(self.emitted) > len(self.verdict.accepted) else None


@dataclass
class Clock:
    """Time by part of a step. Accelerators run asynchronously, so a lap waits for them first."""

    device: torch.device
    times_ms: dict[str, float] = field(default_factory=dict)
    _last: float = field(default_factory=time.perf_counter)

    def now(self) -> float:
        """Seconds, once the device has done what it was asked."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()
        return time.perf_counter()

    def start(self) -> None:
        """A step begins."""
        self.times_ms = {}
        self._last = self.now()

    def lap(self, part: str) -> None:
        """Count the time since the last lap to a part of the step."""
        now = self.now()
        self.times_ms[part] = self.times_ms.get(part, 0.0) + 1000.0 * (now - self._last)
        self._last = now

    def skip(self, seconds: float) -> None:
        """Leave out time that went to other texts."""
        self._last += seconds


@torch.inference_mode()
def decode(
    target: LanguageModel, draft: LanguageModel, prompt_ids: Sequence[int], prompt_id: str, settings: Settings
) -> Iterator[Step]:
    """Decode one prompt and yield its steps.

    Args:
        target: the model whose text is produced. Both caches are emptied first.
        draft: the model that proposes; its vocabulary has the target's size.
        prompt_ids: the prompt's tokens, at least one.
        prompt_id: keys the random streams, so that the order of prompts changes nothing.
        settings: tree, rule, temperature and limits.
    """
    text = write_text(target, draft, prompt_ids, prompt_id, settings, Clock(target.device))
    logits = None
    with contextlib.suppress(StopIteration):
        while True:
            item = text.send(logits)
            if isinstance(item, Pass):
                logits = item.run()
            else:
                logits = None
                yield item


def write_text(
    target: LanguageModel,
    draft: LanguageModel,
    prompt_ids: Sequence[int],
    prompt_id: str,
    settings: Settings,
    clock: Clock,
) -> Generator[Pass | Step, Tensor | None, None]:
    """The loop of `decode` with its passes left to the caller, who is to send the logits of each (see `passes`)."""
    committed = [int(token) for token in prompt_ids]
    if not committed or settings.max_new_tokens < 1:
        return
    for model in (target, draft):
        model.reset()
        model.prefill(torch.tensor(committed[:-1], dtype=torch.int64))
    end = len(committed) + settings.max_new_tokens
    index = 0
    stop = _no_room(target, draft, len(committed), settings.tree)
    while stop is None:
        clock.start()
        step = yield from _step(target, draft, committed, prompt_id, index, end, settings, clock)
        committed.extend(step.emitted)
        stop = step.stop_reason
        yield step
        index += 1


def _step(
    target: LanguageModel,
    draft: LanguageModel,
    committed: list[int],
    prompt_id: str,
    index: int,
    end: int,
    settings: Settings,
    clock: Clock,
) -> Passes[Step]:
    remaining = end - len(committed)
    proposal = yield from _propose(draft, committed, prompt_id, index, remaining, settings)
    verify_draws = _draws(settings, prompt_id, index, "verify", proposal.tree.n_nodes + 1)
    clock.lap("draft")
    logits = yield target_pass(target, committed, proposal)
    drafted = Drafted(proposal.tree, proposal.token_ids.numpy(), _draft_rows(proposal), proposal.draft_probs)
    side = read_target(settings.rule, drafted, logits, settings.warp)
    verdict = verify(settings.rule, drafted, side, verify_draws, settings.eos_ids)
    clock.lap("verify")
    commit(target, draft, len(committed), proposal, verdict)
    emitted, stop = _emit(proposal, verdict, remaining, settings.eos_ids)
    stop = stop or _no_room(target, draft, len(committed) + len(emitted), settings.tree)
    clock.lap("other")
    nodes, contexts = _record(proposal, logits, side, settings.warp) if settings.record else ({}, {})
    clock.lap("record")
    return Step(
        index,
        len(committed),
        proposal.tree,
        proposal.token_ids,
        verdict,
        emitted,
        stop,
        nodes,
        contexts,
        clock.times_ms,
    )


def _propose(
    draft: LanguageModel, committed: list[int], prompt_id: str, index: int, remaining: int, settings: Settings
) -> Passes[Proposal]:
    if remaining == 1:  # the last token comes from the target alone: there is nothing left to speculate about
        return empty_proposal(draft)
    shape = settings.tree
    if shape.adaptive is not None:
        grown = grow_adaptive(draft, committed, shape.adaptive)
    else:
        tree = shape.static or Tree(())
        draws = _draws(settings, prompt_id, index, "draft", tree.n_nodes)
        grown = grow(draft, committed, tree, settings.warp, settings.proposal, draws, settings.stop_entropy)
    proposal: Proposal = yield from grown
    return proposal


def _draws(settings: Settings, prompt_id: str, index: int, purpose: str, n: int) -> Float64[np.ndarray, " n"]:
    """A stream's uniforms; zeros where chance decides nothing: making a stream takes longer than such a verdict."""
    is_certain = settings.rule.is_argmax if purpose == "verify" else settings.proposal in _CHOSEN
    return np.zeros(n) if is_certain else uniforms(settings.seed, prompt_id, index, purpose, n)


def target_pass(target: LanguageModel, committed: Sequence[int], proposal: Proposal) -> Pass:
    """The one pass of a step, over the root and every node; the cache holds all of the text but the root."""
    past = len(committed) - 1
    tree = proposal.tree
    token_ids = torch.cat([torch.tensor(committed[-1:]), proposal.token_ids])
    positions = past + torch.cat([torch.zeros(1, dtype=torch.int64), torch.from_numpy(tree.depths)])
    visible = torch.cat(
        [torch.ones((len(token_ids), past), dtype=torch.bool), torch.from_numpy(tree.visible)], dim=1
    )
    return Pass(target, token_ids, positions, visible)


def commit(
    target: LanguageModel, draft: LanguageModel, n_committed: int, proposal: Proposal, verdict: Verdict
) -> None:
    """Keep the committed tokens and the accepted path in both caches, and nothing else.

    The target's slots are the text, the root, then the nodes in order; the draft's are the text with the root, then
    the nodes that it ran. An accepted leaf was not run by the draft: the next step's first pass runs it.
    """
    text = torch.arange(n_committed)
    accepted = torch.tensor(verdict.accepted, dtype=torch.int64)
    target.keep(torch.cat([text, n_committed + accepted]))
    if proposal.tree.n_nodes == 0 and draft.n_slots < n_committed:
        return
    slot_of = {node: n_committed + slot for slot, node in enumerate(proposal.cached_nodes)}
    path = [slot_of[node] for node in verdict.accepted if node in slot_of]
    draft.keep(torch.cat([text, torch.tensor(path, dtype=torch.int64)]))


def _draft_rows(proposal: Proposal) -> Int[np.ndarray, " contexts"]:
    """Row of the draft's distributions for every context row of the tree, -1 where it has none."""
    rows = np.full(proposal.tree.n_nodes + 1, -1, dtype=np.int64)
    rows[proposal.context_rows] = np.arange(len(proposal.context_rows))
    return rows


def _emit(
    proposal: Proposal, verdict: Verdict, remaining: int, eos_ids: frozenset[int]
) -> tuple[tuple[int, ...], StopReason | None]:
    """Tokens that the step adds to the text: the accepted path and the next token, cut at EOS and at the limit."""
    tokens = [int(proposal.token_ids[node]) for node in verdict.accepted]
    if verdict.next_token is not None:
        tokens.append(verdict.next_token)
    tokens = tokens[:remaining]
    for place, token in enumerate(tokens):
        if token in eos_ids:
            return tuple(tokens[: place + 1]), StopReason.EOS
    return tuple(tokens), StopReason.LENGTH if len(tokens) == remaining else None


def _no_room(
    target: LanguageModel, draft: LanguageModel, n_committed: int, tree: TreeShape
) -> StopReason | None:
    """Whether the next step would need positions that one of the models does not have."""
    limits = [model.max_len for model in (target, draft) if model.max_len is not None]
    return StopReason.CONTEXT if limits and n_committed + tree.depth > min(limits) else None


def _record(proposal: Proposal, logits: Tensor, side: Target, settings: Warp) -> tuple[Columns, Columns]:
    """Measures of the contexts in which both models spoke, and of all nodes."""
    rows = proposal.context_rows
    if len(rows) == 0:
        return {}, {}
    here = rows_of(logits, rows)
    unwarped = settings.temperature == 1 and not settings.top_k and settings.top_p == 1
    target_probs = None if side.probs is None else side.probs_of(rows)
    draft_probs = proposal.draft_probs
    if not unwarped:
        target_probs = warp(here, settings) if target_probs is None else target_probs
        draft_probs = warp(proposal.draft_logits, settings) if draft_probs is None else draft_probs
    contexts = Contexts(here, proposal.draft_logits, target_probs, draft_probs, unwarped)
    parent_index = _draft_rows(proposal)[proposal.tree.parent_rows]
    measured = measure(contexts, parent_index, proposal.token_ids, proposal.tree)
    depths = np.concatenate([[0], proposal.tree.depths])
    return measured.nodes, {"node": rows - 1, "depth": depths[rows], **measured.contexts}
