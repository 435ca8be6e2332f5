"""Verifiers drawn again: the same tokens as one draw at a time, right laws for chains, controls caught."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from acceptlab.audit.cases import draws_of
from acceptlab.audit.contexts import DEPTH, Contexts
from acceptlab.audit.controls import CONTROLS, RIGHT, ContextVerifier, emit
from acceptlab.audit.redraw import draw_many, draw_rows, emit_chains, emit_many
from acceptlab.audit.repeat import (
    Case,
    all_cases,
    draws_by_context,
    false_alarm,
    fewest_catches,
    most_rejections,
    repeat,
)
from acceptlab.audit.request import AuditRequest
from acceptlab.audit.rows import repeat_row
from acceptlab.errors import UsageError
from acceptlab.sampling import Warp, inverse_cdf
from tests.audit.helpers import toy_contexts

CASES = all_cases()


def some_rows(vocab: int = 9, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    target, draft = rng.dirichlet(np.ones(vocab)), rng.dirichlet(np.ones(vocab))
    target[2] = draft[5] = 0.0
    return torch.from_numpy(target / target.sum()), torch.from_numpy(draft / draft.sum())


def test_many_draws_equal_single_draws() -> None:
    weights = torch.tensor([0.0, 2.0, 0.0, 1.0, 0.0]).double()
    uniforms = np.array([0.0, 0.6, 0.67, 1 - 1e-16])
    singles = inverse_cdf(weights.expand(4, -1), torch.from_numpy(uniforms))
    assert draw_many(weights, uniforms).tolist() == singles.tolist() == [1, 1, 3, 3]


def test_draws_of_several_rows_equal_draws_of_each() -> None:
    rng = np.random.default_rng(4)
    weights = torch.from_numpy(rng.dirichlet(np.full(30, 0.2), size=7) * rng.random((7, 1)))
    weights[rng.random((7, 30)) < 0.3] = 0.0
    weights[2, 20:] = weights[3, :10] = 0.0
    row_of = rng.integers(0, 7, 4000)
    uniforms = rng.random(4000)
    uniforms[:14], row_of[:14] = np.repeat([0.0, 1 - 1e-16], 7), np.tile(np.arange(7), 2)
    found = draw_rows(weights, row_of, uniforms)
    for row in range(7):
        mine = row_of == row
        assert found[mine].tolist() == draw_many(weights[row], uniforms[mine]).tolist()
    assert (weights.numpy()[row_of, found] > 0).all()


@pytest.mark.parametrize("size", [1, 20, 100_000])
def test_packs_of_lists_change_no_token(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = some_rows(vocab=40)
    uniforms = np.random.default_rng(1).random((800, 5))
    whole = emit_many(RIGHT[0], target, draft, uniforms)
    monkeypatch.setattr("acceptlab.audit.redraw._CELLS_AT_ONCE", size)
    assert emit_many(RIGHT[0], target, draft, uniforms).tolist() == whole.tolist()


@pytest.mark.parametrize("verifier", [*RIGHT, *CONTROLS], ids=lambda verifier: verifier.name)
@pytest.mark.parametrize("n_siblings", [1, 2, 3])
def test_shared_lists_change_no_token(verifier: ContextVerifier, n_siblings: int) -> None:
    wanted = ContextVerifier(verifier.name, verifier.proposal, verifier.siblings, n_siblings)
    target, draft = some_rows()
    uniforms = np.random.default_rng(1).random((500, 2 * n_siblings + 1))
    singles = emit(wanted, target.expand(500, -1), draft.expand(500, -1), torch.from_numpy(uniforms))
    assert emit_many(wanted, target, draft, uniforms).tolist() == singles.tolist()


def test_a_draft_with_too_few_tokens_is_refused() -> None:
    one = torch.tensor([1.0, 0.0]).double()
    with pytest.raises(UsageError, match="needs 2 tokens"):
        emit_many(RIGHT[0], one, one, np.full((1, 5), 0.5))


def test_siblings_behind_one_that_every_draw_accepts_are_not_asked_for() -> None:
    target, draft = some_rows()
    uniforms = np.full((20, 5), 0.5)
    uniforms[:, 2:4] = 0.0  # every test passes
    for verifier in RIGHT[:2]:
        emitted = emit_many(replace(verifier, n_siblings=2), target, draft, uniforms)
        assert (emitted == draw_many(draft, uniforms[:1, 0])).all()


def test_block_chains_follow_the_target() -> None:
    rng = np.random.default_rng(2)
    target, draft = (torch.from_numpy(rng.dirichlet(np.ones(3), size=3)) for _ in range(2))
    n_draws = 1500
    emitted = emit_chains(target, draft, rng.random((n_draws, 3 * 2 + 1)))
    found = Counter(map(tuple, emitted.tolist()))
    laws = {
        text: float(np.prod([target[depth, token] for depth, token in enumerate(text)]))
        for text in product(range(3), repeat=3)
    }
    statistic = sum((found[text] - n_draws * law) ** 2 / (n_draws * law) for text, law in laws.items())
    assert 0.001 < stats.chi2.sf(statistic, 26) < 0.999


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_right_verifiers_pass_and_controls_are_caught(case: Case) -> None:
    tested = repeat(case, toy_contexts(12), seeds=range(10), n_draws=160, n_chain_draws=5)
    assert tested.n_tokens == pytest.approx(12 * 4 * (5 if case.verifier is None else 160), rel=0.02)
    row = repeat_row(case, tested)
    assert row.is_good, row
    assert row.statistic <= 2 if case.is_right else row.statistic == 10


def test_a_verdict_can_be_bad() -> None:
    right, broken = CASES[0], CASES[-1]
    as_broken = Case(right.name, right.temperature, broken.verifier, True)
    tested = repeat(as_broken, toy_contexts(12), seeds=range(4), n_draws=80, n_chain_draws=1)
    assert repeat_row(as_broken, tested).verdict == "FAIL"
    as_control = Case(broken.name, broken.temperature, right.verifier, False)
    tested = repeat(as_control, toy_contexts(12), seeds=range(4), n_draws=80, n_chain_draws=1)
    assert repeat_row(as_control, tested).verdict == "MISSED"


def test_draws_go_where_siblings_matter_and_depend_on_contexts_only() -> None:
    contexts = toy_contexts(8)
    alike = Contexts(contexts.target, contexts.draft.clone())
    alike.draft[0] = contexts.target[0]
    numbers = draws_by_context(alike, Warp(), 100)
    assert len(numbers) == alike.n_contexts
    assert sum(numbers) == pytest.approx(100 * alike.n_contexts, abs=alike.n_contexts)
    # where both models agree a tenth remains
    assert numbers[: DEPTH + 1] == [10] * (DEPTH + 1)
    assert min(numbers[DEPTH + 1 :]) >= 10
    equal = Contexts(contexts.target, contexts.target)
    assert draws_by_context(equal, Warp(), 7) == [7] * equal.n_contexts


def test_truncation_leaves_the_right_verifiers_right() -> None:
    tested = repeat(CASES[0], toy_contexts(12), seeds=range(10), n_draws=80, n_chain_draws=1, top_k=4)
    assert repeat_row(CASES[0], tested).verdict == "pass"


def test_cases_and_limits() -> None:
    labels = [case.label for case in CASES]
    assert len(labels) == len(set(labels)) == 2 * 4 + len(CONTROLS)
    assert (most_rejections(20), fewest_catches(20)) == (3, 19)
    assert (most_rejections(5), fewest_catches(5)) == (2, 5)
    # the chance of 4 or more of 20 at 5% is 0.0159
    assert false_alarm(20, 1) == pytest.approx(0.0159, abs=5e-5)


def test_candidates_that_are_not_drawn_get_four_times_the_draws() -> None:
    request = AuditRequest(folder=Path("unused"), n_draws=80)
    draws = {case.label: draws_of(case, request) for case in CASES}
    assert draws["onehot, T=1"] == draws["ratio-for-argmax-candidates, T=1"] == 320
    assert draws["rejection, T=0.7"] == draws["block, T=1"] == draws["draft-mass-not-removed, T=1"] == 80
