"""Verifiers drawn again in real contexts, case by case: each kept as soon as it is done, and timed.

Boundary: contexts and a request in, rows out. What is drawn and how it is judged is in `repeat`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial

from acceptlab.audit.contexts import Contexts
from acceptlab.audit.estimate import Times
from acceptlab.audit.kept import KeptResult
from acceptlab.audit.progress import Show, part
from acceptlab.audit.repeat import Case, Repeated, all_cases, repeat
from acceptlab.audit.request import AuditRequest
from acceptlab.audit.rows import Row, repeat_row
from acceptlab.pairing import ProposalKind

_DRAWS_OF_FIXED = 4
"""Candidates that are not drawn are the same in every draw, so that four times the draws take little longer; and the
control among them, ratio-for-argmax-candidates, errs only where the draft's best token is not surely the target's."""


def redraw_cases(contexts: Contexts, request: AuditRequest, show: Show, times: Times) -> list[Row]:
    """Verifiers drawn again, right ones and controls; what is done is kept by case."""
    cases = all_cases()
    seeds = [request.seed + offset for offset in range(request.n_seeds)]
    how = {
        "seeds": seeds,
        "n_chain_draws": request.n_chain_draws,
        "top_k": request.top_k,
        "n_contexts": contexts.n_contexts,
    }
    rows = []
    with part(show, "contexts drawn", len(cases) * contexts.n_contexts) as update:
        for done, case in enumerate(cases):
            kept = KeptResult(request.folder / "redrawn", case.label)
            how["n_draws"] = draws_of(case, request)
            found = kept.get(how)
            if found is None:
                with times.measured("redrawn"), times.measured(case.label):
                    further = partial(_further, update, done * contexts.n_contexts)
                    result = redraw_case(case, contexts, request, further)
                kept.put(how, asdict(result))
            else:
                result = Repeated(tuple(found["p_values"]), found["n_tokens"])
            rows.append(repeat_row(case, result))
            update((done + 1) * contexts.n_contexts)
    return rows


def draws_of(case: Case, request: AuditRequest) -> int:
    """Draws a context and seed: more where the candidates are not drawn."""
    is_fixed = case.verifier is not None and case.verifier.proposal is ProposalKind.RANKED
    return request.n_draws * (_DRAWS_OF_FIXED if is_fixed else 1)


def redraw_case(
    case: Case,
    contexts: Contexts,
    request: AuditRequest,
    on_context: Callable[[int], None] = lambda n: None,
) -> Repeated:
    """Draw one case again and again, with the evidence that the request asks for."""
    return repeat(
        case,
        contexts,
        seeds=[request.seed + offset for offset in range(request.n_seeds)],
        n_draws=draws_of(case, request),
        n_chain_draws=request.n_chain_draws,
        top_k=request.top_k,
        on_context=on_context,
    )


def _further(update: Callable[[int], None], before: int, done: int) -> None:
    update(before + done)
