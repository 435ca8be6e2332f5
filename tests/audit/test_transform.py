"""The transform of emitted tokens: against a plain loop, uniform for right draws, and where texts end."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from acceptlab.audit.transform import first_points, mass_before, transform, transform_logits
from acceptlab.audit.uniformity import chi_square_uniform, lag_one
from acceptlab.sampling import Warp, inverse_cdf


def random_contexts(n: int, vocab: int, seed: int, zeros: float = 0.2) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    sides = []
    for _ in range(2):
        weights = rng.dirichlet(np.ones(vocab), size=n)
        weights[rng.random((n, vocab)) < zeros] = 0.0
        weights[weights.sum(axis=1) == 0, 0] = 1.0
        sides.append(torch.from_numpy(weights / weights.sum(axis=1, keepdims=True)))
    return sides[0], sides[1]


def mass_before_by_loop(target: list[float], draft: list[float], token: int) -> float:
    def score(v: int) -> float:
        if target[v] == 0:
            return 0.0
        return target[v] / draft[v] if draft[v] > 0 else float("inf")

    return sum(
        target[v]
        for v in range(len(target))
        if score(v) > score(token) or (score(v) == score(token) and v < token)
    )


def test_the_order_equals_a_plain_loop_with_ties_and_zeros() -> None:
    target, draft = random_contexts(20, 7, seed=0)
    target[0], draft[0] = torch.full((7,), 1 / 7), torch.full((7,), 1 / 7)  # all ratios tie
    before = mass_before(target, draft)
    for row in range(20):
        for token in range(7):
            wanted = mass_before_by_loop(target[row].tolist(), draft[row].tolist(), token)
            assert float(before[row, token]) == pytest.approx(wanted, abs=1e-14)


def test_stretches_cover_the_unit_interval_whatever_is_drawn() -> None:
    target, draft = random_contexts(30, 9, seed=1)
    before = mass_before(target, draft)
    ends = (before + target).numpy()
    # each stretch begins where another one ends, or at 0: fixed by the context alone
    for row in range(30):
        begins = np.sort(before[row][target[row] > 0].numpy())
        finishes = np.sort(ends[row][target[row].numpy() > 0])
        np.testing.assert_allclose(begins[1:], finishes[:-1], atol=1e-14)
        assert begins[0] == 0
        assert finishes[-1] == pytest.approx(1, abs=1e-14)
    everything = torch.arange(9).repeat(30, 1)
    low = torch.stack(
        [torch.from_numpy(transform(target, draft, t, torch.zeros(30).double())) for t in everything.T]
    )
    is_possible = (target > 0).T
    # the same masses, added up in another order
    torch.testing.assert_close(low[is_possible], before.T[is_possible].clamp(max=1), rtol=0, atol=1e-14)


def test_draws_from_the_target_become_uniform_and_others_do_not() -> None:
    target, draft = random_contexts(4000, 11, seed=2)
    rng = np.random.default_rng(3)
    draws, spread = (torch.from_numpy(rng.random(4000)) for _ in range(2))
    right = transform(target, draft, inverse_cdf(target, draws), spread)
    p_value = chi_square_uniform(right).p_value
    assert 0.001 < p_value < 0.999  # neither a bad fit nor one too good to be chance
    # a decoder that leans a little towards the draft; tokens that the target lacks cannot be emitted
    leaning = 0.8 * target + 0.2 * torch.where(target > 0, draft, 0.0)
    wrong = transform(target, draft, inverse_cdf(leaning, draws), spread)
    assert chi_square_uniform(wrong).p_value < 1e-6


def test_a_token_that_the_target_lacks_is_marked() -> None:
    target, draft = torch.tensor([[0.0, 1.0]]).double(), torch.tensor([[0.5, 0.5]]).double()
    spread = torch.tensor([0.25]).double()
    assert np.isnan(transform(target, draft, torch.tensor([0]), spread)).all()
    assert transform(target, draft, torch.tensor([1]), spread).tolist() == [0.25]


def test_logits_are_warped_on_both_sides() -> None:
    generator = torch.Generator().manual_seed(0)
    target, draft = torch.randn((40, 6), generator=generator), torch.randn((40, 6), generator=generator)
    spread = torch.rand(40, generator=generator, dtype=torch.float64)
    tokens = torch.randint(0, 6, (40,), generator=generator)
    cool = [torch.softmax(side.double() / 0.5, dim=-1) for side in (target, draft)]
    found = transform_logits(target, draft, tokens, spread, Warp(temperature=0.5))
    np.testing.assert_allclose(found, transform(cool[0], cool[1], tokens, spread), rtol=1e-12)
    assert len(transform_logits(target[:0], draft[:0], tokens[:0], spread[:0], Warp())) == 0


def texts_with_an_end(n_texts: int, limit: int, rng: np.random.Generator) -> list[tuple[np.ndarray, bool]]:
    """Points of texts that stop at an end of text (the lowest tenth of the order) or at a limit."""
    texts = []
    for _ in range(n_texts):
        points = rng.random(limit)
        ends = np.flatnonzero(points < 0.1)
        texts.append((points[: ends[0] + 1] if len(ends) else points, len(ends) > 0))
    return texts


def test_stopping_at_an_end_or_a_limit_does_not_bias_the_first_points() -> None:
    rng = np.random.default_rng(4)
    rejected = []
    for _ in range(400):
        texts = texts_with_an_end(60, 8, rng)
        kept = first_points((points for points, _ in texts), 200)
        assert sum(map(len, kept)) == 200
        rejected.append((chi_square_uniform(np.concatenate(kept)).p_value, lag_one(kept).p_value))
    # standard error 0.011 at 5%
    assert 0.01 < np.mean(np.array(rejected)[:, 0] <= 0.05) < 0.1
    assert 0.01 < np.mean(np.array(rejected)[:, 1] <= 0.05) < 0.1


def test_leaving_out_texts_by_how_they_end_would_bias_them() -> None:
    rng = np.random.default_rng(5)
    unfinished = [points for points, has_end in texts_with_an_end(400, 8, rng) if not has_end]
    assert chi_square_uniform(np.concatenate(unfinished)).p_value < 1e-6


def test_first_points_cut_the_last_text() -> None:
    texts = [np.array([0.1, 0.2]), np.array([0.3, 0.4, 0.5]), np.array([0.6])]
    assert [text.tolist() for text in first_points(texts, 3)] == [[0.1, 0.2], [0.3]]
    assert [len(text) for text in first_points(texts, 99)] == [2, 3, 1]
