"""Acceptance and residuals of one context: reference values, exact laws, and the known ways to bias them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from acceptlab.audit.controls import RIGHT, ContextVerifier
from acceptlab.audit.exact import context_masses
from acceptlab.verify.lossless import (
    block_accepts,
    block_excess,
    block_weights,
    deterministic_siblings,
    sampled_siblings,
)
from tests import oracles
from tests.verify.helpers import FIXED, WIDE, cases, row

VERIFIERS = {verifier.name: verifier for verifier in RIGHT}
BY_SCHEME = {"iid": "rejection-iid", "wor": "rejection", "point": "onehot"}


def masses(name: str, pair: tuple[Sequence[float], Sequence[float]], k: int) -> Any:
    target, draft = (torch.tensor(probs, dtype=torch.float64) for probs in pair)
    return context_masses(VERIFIERS[name], target, draft, k)


@pytest.mark.parametrize("case", cases("verification_law"), ids=lambda case: case["id"])
def test_law_and_acceptance_by_rank_of_the_reference_cases(case: dict[str, Any]) -> None:
    given, expect = case["input"], case["expect"]
    got = masses(BY_SCHEME[given["scheme"]], (given["p"], given["q"]), given["k"])
    assert got.law == pytest.approx(expect["law"], rel=0, abs=1e-12)
    assert got.accepted.sum(axis=1) == pytest.approx(expect["accepted_at_rank"], rel=0, abs=1e-12)
    assert got.accepted.sum() == pytest.approx(expect["total_acceptance"], rel=0, abs=1e-12)


@pytest.mark.parametrize("case", cases("verify_given_candidates"), ids=lambda case: case["id"])
def test_acceptance_given_the_candidates(case: dict[str, Any]) -> None:
    given, expect = case["input"], case["expect"]
    tokens = torch.tensor([given["candidates"]])
    target, draft = row(given["p"]), row(given["q"])
    if given["scheme"] == "point":
        accepts, residual = deterministic_siblings(target, tokens)
    else:
        accepts, residual = sampled_siblings(target, draft, tokens, replace=given["scheme"] == "iid")
    assert accepts[0].tolist() == pytest.approx(expect["conditional"], rel=0, abs=1e-12)
    rest = np.cumprod([1.0, *(1.0 - accepts[0].numpy())])
    assert (rest[:-1] * accepts[0].numpy()).tolist() == pytest.approx(
        expect["accepted_at_rank"], rel=0, abs=1e-12
    )
    if expect["residual"] is not None:
        assert (residual / residual.sum())[0].tolist() == pytest.approx(expect["residual"], rel=0, abs=1e-12)


@pytest.mark.parametrize("case", cases("iid_conditional_rates"), ids=lambda case: case["id"])
def test_conditional_rates_with_replacement_do_not_rise(case: dict[str, Any]) -> None:
    given = case["input"]
    by_rank = masses("rejection-iid", (given["p"], given["q"]), given["k"]).accepted.sum(axis=1)
    rates = by_rank / (1.0 - np.concatenate([[0.0], by_rank.cumsum()[:-1]]))
    assert rates == pytest.approx(case["expect"]["rates"], rel=0, abs=1e-12)
    assert (np.diff(rates) <= 1e-12).all()  # equal rates may differ by rounding


@pytest.mark.parametrize(
    ("name", "totals"),
    [("rejection-iid", [0.70, 0.76, 0.808]), ("rejection", [0.70, 0.8085714285714286, 1.0])],
)
def test_some_sibling_is_accepted_as_often_as_it_must(name: str, totals: list[float]) -> None:
    for k, total in enumerate(totals, start=1):
        got = masses(name, FIXED, k)
        assert got.accepted.sum() == pytest.approx(total, rel=0, abs=1e-12)
        assert got.law == pytest.approx(FIXED[0], rel=0, abs=1e-12)


def test_an_argmax_candidate_is_accepted_with_the_target_probability() -> None:
    # not with target/draft = 0.6: the draft's argmax is no sample
    assert masses("onehot", FIXED, 1).accepted.sum() == pytest.approx(0.3, rel=0, abs=1e-12)
    both = masses("onehot", FIXED, 2)
    assert both.accepted.sum(axis=1) == pytest.approx([0.3, 0.2], rel=0, abs=1e-12)
    assert both.law == pytest.approx(FIXED[0], rel=0, abs=1e-12)


@pytest.mark.parametrize("name", ["rejection", "rejection-iid", "onehot"])
@pytest.mark.parametrize("seed", range(6))
def test_laws_equal_the_oracle(name: str, seed: int) -> None:
    vocab = 3 + seed % 3
    target, draft = (list(oracles.rational_table(vocab, seed, zeros=0.2)((side,))) for side in (0, 1))
    for k in range(1, vocab + 1):
        law, by_rank = oracles.node_law(name, target, draft, k)
        assert [float(x) for x in law] == [float(x) for x in target]  # fractions: exactly lossless
        got = masses(name, ([float(x) for x in target], [float(x) for x in draft]), k)
        # sums of up to 3,125 products of float64
        assert got.law == pytest.approx([float(x) for x in target], rel=0, abs=1e-12)
        assert got.accepted.sum(axis=1) == pytest.approx([float(x) for x in by_rank], rel=0, abs=1e-12)


def test_equal_models_accept_all_and_disjoint_ones_nothing() -> None:
    same = row(WIDE[0])
    for replace in (True, False):
        accepts, _ = sampled_siblings(same, same.clone(), torch.tensor([[2, 0, 1]]), replace=replace)
        assert accepts[0, 0] == 1.0  # exactly: no rounding may reject here
        left, right = row([0.5, 0.5, 0, 0]), row([0, 0, 0.5, 0.5])
        accepts, residual = sampled_siblings(left, right, torch.tensor([[2, 3]]), replace=replace)
        assert accepts[0].tolist() == [0.0, 0.0]
        assert torch.equal(residual, left)


def test_a_duplicate_of_a_rejected_token_fails_and_still_updates_the_residual() -> None:
    target, draft = row(WIDE[0]), row(WIDE[1])
    accepts, twice = sampled_siblings(target, draft, torch.tensor([[1, 1]]), replace=True)
    _, once = sampled_siblings(target, draft, torch.tensor([[1]]), replace=True)
    assert accepts[0, 1] == 0.0
    assert float((twice - once).abs().max()) > 0.05


def test_a_residual_of_zero_leaves_no_rejection() -> None:
    target = row([0.25, 0.25, 0.5])
    draft = target * (1.0 + 1e-15)  # above the target everywhere by rounding only
    for token in range(3):
        accepts, residual = sampled_siblings(target, draft, torch.tensor([[token]]), replace=False)
        assert accepts[0, 0] == 1.0
        assert torch.equal(residual, target)  # never a distribution of zeros


def test_a_token_that_the_draft_cannot_have_drawn_is_marked() -> None:
    accepts, _ = sampled_siblings(
        row([0.5, 0.5, 0]), row([0.5, 0, 0.5]), torch.tensor([[1, 0]]), replace=False
    )
    assert accepts[0].isnan().tolist() == [True, False]
    accepts, _ = sampled_siblings(row([0.5, 0.5]), row([0.5, 0.5]), torch.tensor([[0, 0]]), replace=False)
    assert bool(accepts[0, 1].isnan())  # drawn twice without replacement


def test_candidates_that_cover_the_support_leave_nothing_to_reject() -> None:
    # 1 - 0.1 - 0.2 - 0.3 is 0.4000000000000001 in float64: a mass by subtraction would reject here
    accepts, _ = deterministic_siblings(row([0.1, 0.2, 0.3, 0.4]), torch.tensor([[0, 1, 2, 3]]))
    assert accepts[0, 3] == 1.0
    accepts, _ = deterministic_siblings(row([0.7, 0.3, 0, 0]), torch.tensor([[0, 1, 3, 2]]))
    assert accepts[0].tolist() == [0.7, 1.0, 0.0, 0.0]


def biased(
    k: int, draw: str, change: Callable[[tuple[int, ...]], tuple[int, ...]], rule: str = "wor"
) -> float:
    """Total variation from the target when the candidates are not what the ratio assumes."""
    target, draft = row(WIDE[0]), row(WIDE[1])
    law = torch.zeros(4, dtype=torch.float64)
    lists = oracles.candidates("rejection-iid" if draw == "iid" else "rejection", WIDE[1], k)
    for weight, tokens in lists:
        changed = torch.tensor([change(tokens)])
        accepts, residual = sampled_siblings(target, draft, changed, replace=rule == "iid")
        rest = float(weight)
        for token, accept in zip(changed[0].tolist(), accepts[0].tolist(), strict=True):
            law[token] += rest * accept
            rest *= 1.0 - accept
        law += rest * residual[0]
    return float((law - target[0]).abs().sum() / 2)


def by_draft(tokens: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(tokens, key=lambda token: -WIDE[1][token]))


def test_the_right_pairings_are_unbiased() -> None:
    for k in (1, 2, 3):
        assert biased(k, "wor", lambda tokens: tokens) < 1e-12
        assert biased(k, "iid", lambda tokens: tokens, "iid") < 1e-12
        # independent draws, duplicates dropped in the order drawn, are draws without replacement
        assert biased(k, "iid", lambda tokens: tuple(dict.fromkeys(tokens))) < 1e-12


@pytest.mark.parametrize(
    ("k", "draw", "change", "rule", "distance"),
    [
        (2, "iid", by_draft, "iid", 0.0553),
        (2, "wor", by_draft, "wor", 0.1026),
        (2, "wor", lambda tokens: tokens, "iid", 0.0293),
        (2, "iid", lambda tokens: tuple(dict.fromkeys(tokens)), "iid", 0.0167),
        (2, "wor", lambda tokens: by_draft(tokens)[:1], "wor", 0.1150),
        (2, "wor", lambda tokens: tokens[:-1] if WIDE[1][tokens[-1]] < 0.12 else tokens, "wor", 0.0260),
    ],
    ids=["sorted iid", "sorted wor", "mass kept", "dedup, iid rule", "pruned to larger", "dropped by value"],
)
def test_the_known_faults_bias_the_output(
    k: int, draw: str, change: Callable[..., tuple[int, ...]], rule: str, distance: float
) -> None:
    assert biased(k, draw, change, rule) == pytest.approx(distance, abs=5e-5)  # four digits are known


def test_the_ratio_of_another_temperature_biases_the_output() -> None:
    sampled = np.array(WIDE[1]) ** 2  # the draft at temperature 1/2
    sampled /= sampled.sum()
    law = np.zeros(4)
    for token, weight in enumerate(sampled):
        accepts, residual = sampled_siblings(
            row(WIDE[0]), row(WIDE[1]), torch.tensor([[token]]), replace=False
        )
        law[token] += weight * float(accepts)
        law += weight * (1 - float(accepts)) * residual[0].numpy()
    assert np.abs(law - WIDE[0]).sum() / 2 == pytest.approx(0.0538, abs=5e-5)  # four digits are known


def test_ratios_for_argmax_candidates_and_corrections_from_the_target_are_biased() -> None:
    target, draft = row(WIDE[0]), row(WIDE[1])
    accepts, residual = sampled_siblings(target, draft, torch.tensor([[1]]), replace=False)
    law = (1 - accepts[0, 0]) * residual[0]
    law[1] += accepts[0, 0]
    assert float((law - target[0]).abs().sum() / 2) == pytest.approx(
        0.2407, abs=5e-5
    )  # four digits are known

    def from_target(*step: Any) -> Any:
        return sampled_siblings(*step, replace=False)[0], step[0]

    control = ContextVerifier("control", VERIFIERS["rejection"].proposal, from_target)
    law_of = context_masses(control, target[0], draft[0], 1).law
    assert np.abs(law_of - WIDE[0]).sum() / 2 == pytest.approx(0.135, abs=5e-5)


def test_block_arithmetic_on_the_known_chain() -> None:
    target, draft = row([1 / 3, 2 / 3]), row([2 / 3, 1 / 3])
    expected = 0.0
    for first, second in itertools.product(range(2), repeat=2):
        ratios = torch.tensor(
            [float(target[0, x] / draft[0, x]) for x in (first, second)], dtype=torch.float64
        )
        weights = block_weights(ratios)
        excess = block_excess(target, draft, weights[:1]).sum(dim=1)
        accepts = block_accepts(weights, excess)
        share = float(draft[0, first] * draft[0, second])
        expected += share * float(accepts[0] + accepts[0] * accepts[1])
    assert expected == pytest.approx(11 / 9, rel=1e-14)


def test_block_acceptance_keeps_small_probabilities() -> None:
    # h = 1e-18 at both places: 1 - prod(1 - h) would round to 0; approx has an absolute tolerance unless told
    accepts = block_accepts(
        torch.tensor([1e-18, 1e-18], dtype=torch.float64), torch.tensor([1e-18], dtype=torch.float64)
    )
    assert float(accepts[0]) == pytest.approx(2e-18, rel=1e-12, abs=0)
    assert float(accepts[1]) == pytest.approx(0.5, rel=1e-12)


def test_the_last_test_is_the_same_where_no_correction_is_wanted() -> None:
    """The shortcut of `final=False` against whole rows: heavy tokens, repeated ones, and nothing left."""
    rng = np.random.default_rng(5)
    target = torch.from_numpy(rng.dirichlet(np.full(6, 0.3), size=40))
    draft = torch.from_numpy(rng.dirichlet(np.full(6, 0.3), size=40))
    draft[0] = torch.tensor([1 - 1e-13, 1e-13, 0, 0, 0, 0]).double()
    draft[1] = torch.tensor([1.0, 0, 0, 0, 0, 0]).double()
    tokens = torch.from_numpy(np.stack([rng.permutation(6)[:3] for _ in range(40)]))
    tokens[0], tokens[1], tokens[2] = (
        torch.tensor([0, 1, 2]),
        torch.tensor([0, 1, 2]),
        torch.tensor([3, 3, 1]),
    )
    for n_siblings in (1, 2, 3):
        some = tokens[:, :n_siblings]
        for sides in ((target, draft), (target[:1].expand(40, -1), draft[:1].expand(40, -1))):
            short, _ = sampled_siblings(*sides, some, replace=False, final=False)
            whole, _ = sampled_siblings(*sides, some, replace=False)
            torch.testing.assert_close(
                short[:, -1] if n_siblings > 1 else short[:0, 0],
                whole[:, -1] if n_siblings > 1 else whole[:0, 0],
                rtol=1e-12, atol=0, equal_nan=True,
            )  # fmt: skip
            assert short.shape == whole.shape == (40, n_siblings)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("n_siblings", [1, 2, 3, 4])
def test_one_context_is_as_many(replace: bool, n_siblings: int) -> None:
    """A single context takes another road: random ones, tokens drawn twice, no support, and nothing left to emit."""
    rng = np.random.default_rng(n_siblings)
    target, draft = rng.dirichlet(np.full(5, 0.4), size=(2, 60))
    draft[:6] = [1.0, 0, 0, 0, 0]
    draft[6:12] = target[6:12]
    draft[12:18, 2:] = 0
    draft /= draft.sum(axis=1, keepdims=True)
    tokens = torch.from_numpy(rng.integers(0, 5, size=(60, n_siblings)))
    rows = torch.from_numpy(target), torch.from_numpy(draft)
    many, _ = sampled_siblings(*rows, tokens, replace=replace, final=False)
    for i in range(60):
        one = slice(i, i + 1)
        accepts, _ = sampled_siblings(*(row[one] for row in rows), tokens[one], replace=replace, final=False)
        torch.testing.assert_close(accepts, many[one], rtol=1e-12, atol=1e-300, equal_nan=True)
    assert bool(many.isnan().any())
    assert bool((many == 1).any())
