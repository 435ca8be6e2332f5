"""`acceptlab audit losslessness`: the levels one after the other, each a few rows of one table.

(a) one context and (b) whole decoding by enumeration; (c) the real pair: texts, greedy identity, and verifiers drawn
again in real contexts; (d) broken verifiers that the same tests must catch. Boundary: a request in, rows out; what is
long is kept in a folder, so that a repeated command goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from acceptlab.audit.cases import redraw_case, redraw_cases
from acceptlab.audit.contexts import Contexts, collect_contexts, load_contexts, save_contexts
from acceptlab.audit.estimate import Estimate, Times, full_audit
from acceptlab.audit.identity import greedy_identity
from acceptlab.audit.plain import PlainPair
from acceptlab.audit.progress import Show, part
from acceptlab.audit.repeat import all_cases, false_alarm, most_rejections
from acceptlab.audit.request import AuditRequest
from acceptlab.audit.rows import Row, exact_rows, identity_rows, judged, to_frame
from acceptlab.audit.suite import check_contexts, check_controls, check_texts, check_trees
from acceptlab.audit.texts import (
    TARGET_ALONE,
    TEXTS_A_PROMPT,
    AuditText,
    Question,
    TextFolder,
    Writer,
    interleaved,
    write_texts,
)
from acceptlab.audit.transform import first_points
from acceptlab.audit.two_sample import Labelled, two_sample
from acceptlab.audit.uniformity import ALPHA, POWER, Outcome, chi_square_uniform, lag_one
from acceptlab.engine import Settings
from acceptlab.errors import UsageError
from acceptlab.pairing import proposal_for
from acceptlab.rng import generator
from acceptlab.rules import parse_rule
from acceptlab.run import Plan, Request, plan, prepare
from acceptlab.tree import parse_tree


@dataclass(frozen=True)
class AuditResult:
    """The table and what belongs under it."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    @property
    def frame(self) -> pd.DataFrame:
        """One row a check."""
        return to_frame(self.rows)

    @property
    def failures(self) -> list[Row]:
        """Checks that did not go as they should."""
        return [row for row in self.rows if not row.is_good]


def losslessness(request: AuditRequest, show: Show, full: AuditRequest | None = None) -> AuditResult:
    """Run all levels.

    Args:
        request: what to audit.
        show: where progress goes.
        full: an audit with more evidence whose time is to be estimated from this one.

    Raises:
        UsageError: a rule that claims nothing, a pairing that would bias the output, or a folder of another audit.
        RunError: a file is damaged, the disk is full, or the models do not fit.
    """
    plans = {rule: _plan(request, rule) for rule in dict.fromkeys(request.rules)}
    if not plans:
        raise UsageError("no rule is named: choose from rejection, rejection-iid, onehot, block")
    show.say("levels a and b: enumeration on small vocabularies")
    rows = exact_rows([*check_contexts(), *check_trees(), *check_texts(), *check_controls()])
    first = next(iter(plans.values()))
    show.say(f"level c: loading {first.config['pair']}")
    pair, settings = prepare(first)
    reference = PlainPair(pair)
    methods = {rule: _settings(settings, planned) for rule, planned in plans.items()}
    writer = Writer(
        pair.target, pair.draft, reference, methods, settings.warp, request.max_new_tokens, request.seed
    )
    folder = TextFolder(request.folder, _config(request, first, methods))
    questions = _questions(pair, first, methods)
    times = Times()
    with times.measured("texts"):
        texts = _write(writer, questions, request, folder, show)
    rows += text_rows(texts, request.n_tokens, request.seed)
    with times.measured("identity"):
        rows += _identity(pair, first, settings, request, show)
    contexts = _contexts(reference, texts[TARGET_ALONE], request, show, times)
    rows += redraw_cases(contexts, request, show, times)
    estimate = _estimate(times, request, full, contexts, folder.n_tokens_put) if full else None
    return AuditResult(tuple(rows), tuple(_notes(request, rows, pair, contexts, estimate)))


def text_rows(texts: dict[str, list[AuditText]], n_tokens: int, seed: int) -> list[Row]:
    """Level c on texts: transform tests of every method, and every method against the target alone."""
    named: list[tuple[str, Outcome, bool]] = []
    for method, written in texts.items():
        points = first_points((text.transforms for text in written), n_tokens)
        n_impossible = int(sum(np.isnan(some).sum() for some in points))
        if n_impossible:
            impossible = Outcome("impossible tokens", n_tokens, n_impossible, None, 0.0)
            named.append((f"{method}, transform", impossible, False))
            points = [some[~np.isnan(some)] for some in points]
        named.append((f"{method}, transform", chi_square_uniform(np.concatenate(points)), True))
        named.append((f"{method}, transform", lag_one(points), False))
    for method, written in texts.items():
        if method != TARGET_ALONE:
            pooled = [*_labelled(texts[TARGET_ALONE], False), *_labelled(written, True)]
            rng = generator(seed, method, 0, "audit permutations")
            named.append((f"{method} against {TARGET_ALONE}", two_sample(pooled, rng), False))
    return judged(named)


def _labelled(texts: Sequence[AuditText], is_second: bool) -> list[Labelled]:
    return [Labelled(text.prompt_id, is_second, text.token_ids) for text in texts]


def _plan(request: AuditRequest, rule: str) -> Plan:
    if not parse_rule(rule).is_lossless:
        raise UsageError(
            f"rule '{rule}' does not claim to be lossless at temperature {request.temperature:g}: "
            "choose from rejection, rejection-iid, onehot, block"
        )
    return plan(
        Request(
            pair=request.pair,
            target=request.target,
            draft=request.draft,
            tree=request.chain if rule == "block" else request.tree,
            rule=rule,
            temperature=request.temperature,
            max_new_tokens=request.max_new_tokens,
            seed=request.seed,
            device=request.device,
            dtype=request.dtype,
        )
    )


def _settings(settings: Settings, planned: Plan) -> Settings:
    return replace(settings, tree=planned.tree, rule=planned.rule, proposal=planned.proposal, record=False)


def _config(request: AuditRequest, planned: Plan, methods: dict[str, Settings]) -> dict[str, Any]:
    """What texts and contexts depend on; with more tokens or rules the kept ones are used again."""
    names = (
        "pair",
        "target",
        "draft",
        "prompts_sha256",
        "temperature",
        "max_new_tokens",
        "seed",
        "device",
        "dtype",
    )
    config = {name: planned.config[name] for name in names}
    own = {"tree": request.tree, "chain": request.chain, "n_contexts": request.n_contexts}
    return {**config, **own, "texts_a_prompt": TEXTS_A_PROMPT}


def _questions(pair: Any, planned: Plan, methods: dict[str, Settings]) -> list[Question]:
    """Prompts that fit with everything that is written after them, in turn from every domain."""
    limits = [pair.target.max_len, pair.draft.max_len, pair.window_limit]
    room = min((limit for limit in limits if limit is not None), default=None)
    new = planned.request.max_new_tokens + max(settings.tree.depth for settings in methods.values())
    encoded = [
        Question(prompt.id, tuple(pair.encode(prompt.prompt))) for prompt in interleaved(planned.prompts)
    ]
    return [question for question in encoded if room is None or len(question.token_ids) + new <= room]


def _write(
    writer: Writer, questions: list[Question], request: AuditRequest, folder: TextFolder, show: Show
) -> dict[str, list[AuditText]]:
    methods = [TARGET_ALONE, *writer.methods]
    with part(show, "tokens", request.n_tokens * len(methods)) as update:
        return write_texts(writer, questions, methods, request.n_tokens, folder, update)


def _identity(pair: Any, planned: Plan, settings: Settings, request: AuditRequest, show: Show) -> list[Row]:
    greedy = replace(
        settings,
        rule=parse_rule("greedy"),
        proposal=proposal_for(parse_rule("greedy")),
        tree=parse_tree("kary:depth=3,branch=2"),
    )
    prompts = list(interleaved(planned.prompts))[: request.n_identity]
    with part(show, "greedy texts", len(prompts)) as update:
        identity = greedy_identity(pair, prompts, greedy, update)
    return identity_rows(identity, pair.describe()["dtype"])


def _contexts(
    reference: PlainPair, texts: list[AuditText], request: AuditRequest, show: Show, times: Times
) -> Contexts:
    contexts = load_contexts(request.folder)
    if contexts is None or contexts.n_contexts < request.n_contexts:
        with times.measured("contexts"), part(show, "contexts", request.n_contexts) as update:
            contexts = collect_contexts(reference, texts, request.n_contexts, request.seed, update)
        save_contexts(request.folder, contexts)
    return contexts


def _estimate(
    times: Times, request: AuditRequest, full: AuditRequest, contexts: Contexts, n_new_tokens: int
) -> Estimate | None:
    """The time of the full audit; draws one case in a few contexts as that audit would, to see what it costs."""
    case = all_cases()[0]
    if not times.of(case.label):
        return None
    places = [0, len(contexts.target) // 2]
    few = Contexts(contexts.target[places], contexts.draft[places])
    probe = Times()
    with probe.measured(case.label):
        redraw_case(case, few, full)
    return full_audit(
        times,
        request,
        full,
        n_new_tokens=n_new_tokens,
        n_contexts=contexts.n_contexts,
        probed=case.label,
        probe_s=probe.of(case.label) / few.n_contexts,
    )


def _notes(
    request: AuditRequest, rows: Sequence[Row], pair: Any, contexts: Contexts, estimate: Estimate | None
) -> list[str]:
    n_right = sum(row.level == "c" and row.test.startswith("rejected") for row in rows)
    n_judged = sum(row.p_holm is not None for row in rows)
    chance = false_alarm(request.n_seeds, n_right)
    notes = [
        "a, b: largest difference from the target's law over all cases, right up to rounding",
        f"c: {n_judged} tests judged together at {ALPHA:g} (Holm); detects_tv is the smallest total-variation "
        f"fault that the test catches with {POWER:.0%} power, whatever its shape",
        f"c, d on real contexts: {contexts.n_contexts} contexts, {request.n_draws} draws each a seed on "
        "average (four times as many for onehot and its control), more where siblings matter; p is the median over "
        "the seeds",
        f"right verifiers may be rejected in {most_rejections(request.n_seeds)} of {request.n_seeds} seeds: by "
        f"chance one of the {n_right} exceeds that in {chance:.1%} of all audits",
    ]
    if request.top_k:
        notes.append(f"verifiers were drawn again among the {request.top_k} most probable tokens only")
    if estimate is not None:
        notes.append(str(estimate))
    return [*notes, *filter(None, [pair.draft_note])]
