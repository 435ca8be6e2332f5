"""The warp and the draws: against plain loops, at the edges, and at every extreme uniform."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acceptlab.errors import RunError, UsageError
from acceptlab.pairing import ProposalKind
from acceptlab.rng import uniforms
from acceptlab.sampling import (
    Warp,
    draw,
    inverse_cdf,
    propose,
    ranked,
    warp,
    with_replacement,
    without_replacement,
)

ALMOST_ONE = 1.0 - 2.0**-53
LOGITS = st.lists(
    st.one_of(st.floats(-20, 20, width=32), st.just(float("-inf")), st.sampled_from([0.0, 1.0])),
    min_size=1,
    max_size=9,
)


def by_hand(logits: list[float], temperature: float, top_k: int | None, top_p: float) -> list[float]:
    """The definition, token by token."""
    n = len(logits)
    order = sorted(range(n), key=lambda token: (-logits[token], token))
    if all(logit == -np.inf for logit in logits):
        return [0.0] * n
    if temperature <= 1e-6:
        return [float(token == order[0]) for token in range(n)]
    kept = set(range(n))
    if top_k and top_k < n:
        kept = {token for token in kept if logits[token] >= logits[order[top_k - 1]]}
    highest = logits[order[0]]
    weight = [float(np.exp((x - highest) / temperature)) if t in kept else 0.0 for t, x in enumerate(logits)]
    probs = [w / sum(weight) for w in weight]
    if top_p < 1:
        mass, nucleus = 0.0, set()
        for token in order:
            if mass < top_p:
                nucleus.add(token)
            mass += probs[token]
        probs = [p if token in nucleus else 0.0 for token, p in enumerate(probs)]
    return [p / sum(probs) for p in probs]


@given(LOGITS, st.sampled_from([0.0, 1e-8, 0.3, 0.7, 1.0, 1.5]), st.sampled_from([None, 0, 1, 2, 3, 50]))
@settings(derandomize=True, deadline=None, max_examples=150)
def test_temperature_and_top_k_equal_the_definition(
    logits: list[float], temperature: float, top_k: int | None
) -> None:
    got = warp(torch.tensor([logits]), Warp(temperature, top_k))[0]
    assert got.dtype == torch.float64
    assert got.tolist() == pytest.approx(by_hand(logits, temperature, top_k, 1.0), rel=1e-12, abs=1e-300)


@pytest.mark.parametrize("top_p", [0.05, 0.3, 0.77, 0.999])
@pytest.mark.parametrize("top_k", [None, 3])
def test_top_p_keeps_the_smallest_nucleus(top_p: float, top_k: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(20, 9, generator=generator) * 2
    logits[3, 2:5] = -torch.inf
    logits[4] = -torch.inf
    got = warp(logits, Warp(0.7, top_k, top_p))
    for row, expected in zip(got.tolist(), logits.double().tolist(), strict=True):
        assert row == pytest.approx(by_hand(expected, 0.7, top_k, top_p), rel=1e-12)


def test_top_p_ties_go_to_the_lower_id_and_large_nuclei_are_found() -> None:
    tied = warp(torch.zeros(1, 4), Warp(top_p=0.5))[0]
    assert tied.tolist() == [0.5, 0.5, 0.0, 0.0]
    flat = warp(torch.zeros(2, 6000), Warp(top_p=0.90005))  # between 5,400 and 5,401 tokens
    assert (flat > 0).sum(dim=1).tolist() == [5401, 5401]


def test_temperature_reaches_the_argmax_without_nan() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0]])
    for temperature in (0.0, 1e-8):
        assert warp(logits, Warp(temperature))[0].tolist() == [0.0, 1.0, 0.0, 0.0]
    assert warp(logits * 1e4, Warp(1e-3))[0].tolist() == [0.0, 0.5, 0.5, 0.0]


def test_masked_tokens_get_exactly_nothing() -> None:
    probs = warp(torch.tensor([[0.0, 0.0, -torch.inf]]), Warp())[0]
    assert probs.tolist() == [0.5, 0.5, 0.0]


def test_a_row_without_proposal_stays_empty_under_every_warp() -> None:
    logits = torch.tensor([[-torch.inf] * 3, [0.0, 1.0, 2.0]])
    for options in (Warp(), Warp(0.0), Warp(0.5, 2), Warp(top_p=0.5), Warp(1.0, 1, 0.5)):
        probs = warp(logits, options)
        assert probs[0].tolist() == [0.0, 0.0, 0.0]
        assert float(probs[1].sum()) == pytest.approx(1.0, rel=1e-15)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_refused(bad: float, temperature: float) -> None:
    with pytest.raises(RunError, match="float32"):
        warp(torch.tensor([[0.0, bad]]), Warp(temperature))


def test_the_warp_leaves_its_input_alone() -> None:
    logits = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    for options in (Warp(), Warp(0.0), Warp(0.5, 2), Warp(top_p=0.5)):
        warp(logits, options)
    assert torch.equal(logits, before)


@pytest.mark.parametrize(
    "options",
    [{"temperature": -1.0}, {"temperature": float("nan")}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}],
)
def test_a_warp_that_means_nothing_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="use"):
        Warp(**options)  # type: ignore[arg-type]


def test_the_support_after_top_k_and_temperature() -> None:
    logits = torch.randn(40, 16, generator=torch.Generator().manual_seed(1))
    probs = warp(logits, Warp(0.7, 2))
    assert ((probs > 0).sum(dim=1) == 2).all()
    assert probs.sum(dim=1).tolist() == pytest.approx([1.0] * 40, rel=1e-14)
    model = torch.softmax(logits.double() / 0.7, dim=1)
    kept = torch.where(probs > 0, model, 0.0)
    assert torch.allclose(probs, kept / kept.sum(dim=1, keepdim=True), rtol=1e-12)


def test_ranked_breaks_ties_by_lower_id_and_leaves_out_the_impossible() -> None:
    probs = torch.tensor([[0.2, 0.4, 0.4, 0.0], [0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0]]).double()
    ids = ranked(probs, torch.tensor([3, 2, 4]))
    assert ids.tolist() == [[1, 2, 0, -1], [0, 1, -1, -1], [0, -1, -1, -1]]
    assert ranked(probs, torch.tensor([6, 0, 0]))[0].tolist() == [1, 2, 0, -1, -1, -1]
    logits = torch.tensor([[0.0, -1.0, -torch.inf, 0.0]])
    assert ranked(logits, torch.tensor([4]), floor=-torch.inf)[0].tolist() == [0, 3, 1, -1]
    assert ranked(logits, torch.tensor([0])).shape == (1, 0)


def test_ranked_ties_inside_a_large_vocabulary() -> None:
    rng = np.random.default_rng(0)
    scores = torch.from_numpy(rng.integers(0, 50, (30, 5000)).astype(np.float64))
    ids = ranked(scores, torch.full((30,), 7))
    for row, values in zip(ids.tolist(), scores.tolist(), strict=True):
        assert row == sorted(range(5000), key=lambda token: (-values[token], token))[:7]


def first_beyond(weights: list[float], uniform: float) -> int:
    """Inverse CDF by hand."""
    point, mass = uniform * sum(weights), 0.0
    for token, weight in enumerate(weights):
        mass += weight
        if weight > 0 and mass > point:
            return token
    return max((token for token, weight in enumerate(weights) if weight > 0), default=-1)


@given(
    st.lists(st.sampled_from([0.0, 1e-300, 1e-17, 0.1, 0.25, 1.0]), min_size=1, max_size=8),
    st.sampled_from([0.0, 1e-17, 0.1, 0.25, 0.5, 0.75, ALMOST_ONE, 1.0]),
)
@settings(derandomize=True, deadline=None, max_examples=200)
def test_a_token_without_probability_is_never_drawn(weights: list[float], uniform: float) -> None:
    tensor = torch.tensor([weights], dtype=torch.float64)
    token = int(inverse_cdf(tensor, torch.tensor([uniform], dtype=torch.float64)))
    assert token == first_beyond(weights, uniform)
    if any(weights):
        assert weights[token] > 0
        assert draw(tensor[0], uniform) == token


def test_a_draw_from_nothing_is_an_error_not_a_token() -> None:
    with pytest.raises(RunError, match="no finite logit"):
        draw(torch.zeros(3, dtype=torch.float64), 0.5)


def test_draws_are_piecewise_constant_with_the_right_widths() -> None:
    probs = torch.tensor([0.125, 0.0, 0.5, 0.375, 0.0], dtype=torch.float64)
    grid = (np.arange(1600) + 0.5) / 1600
    tokens = [draw(probs, float(uniform)) for uniform in grid]
    assert [tokens.count(token) / 1600 for token in range(5)] == probs.tolist()
    assert all(a <= b for a, b in pairwise(tokens))


def test_siblings_without_replacement_follow_the_sequential_law() -> None:
    probs = torch.tensor([0.5, 0.25, 0.25, 0.0], dtype=torch.float64)
    grid = (np.arange(12) + 0.5) / 12
    pairs = torch.tensor([(a, b) for a in grid for b in grid], dtype=torch.float64)
    ids = without_replacement(probs.expand(144, -1), pairs, torch.full((144,), 2))
    counts = dict.fromkeys([(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)], 0)
    for first, second in ids.tolist():
        counts[first, second] += 1
    # the grid resolves all boundaries: halves, quarters, thirds
    assert {pair: n / 144 for pair, n in counts.items()} == pytest.approx(
        {(0, 1): 1 / 4, (0, 2): 1 / 4, (1, 0): 1 / 6, (1, 2): 1 / 12, (2, 0): 1 / 6, (2, 1): 1 / 12}
    )


def test_siblings_with_replacement_are_independent() -> None:
    probs = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    draws = torch.tensor([[0.1, 0.2, 0.6, 0.9]], dtype=torch.float64)
    assert with_replacement(probs[None], draws, torch.tensor([4])).tolist() == [[0, 0, 1, 2]]


def test_exhausted_supports_and_short_families_are_blank() -> None:
    probs = torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 0.0], [0.2, 0.3, 0.5]]).double()
    wanted = torch.tensor([3, 3, 2, 1])
    for uniform in (0.0, 0.5, ALMOST_ONE):
        draws = torch.full((4, 3), uniform, dtype=torch.float64)
        ids = without_replacement(probs, draws, wanted)
        assert ids[0].tolist() == [1, -1, -1]
        assert sorted(ids[1, :2].tolist()) == [0, 1]
        assert ids[1, 2] == -1
        assert ids[2].tolist() == [-1, -1, -1]
        assert (ids[3, 1:] == -1).all()
        assert with_replacement(probs, draws, wanted)[2].tolist() == [-1, -1, -1]
    with pytest.raises(UsageError, match="uniforms"):
        without_replacement(probs, torch.zeros(4, 1).double(), wanted)


def test_ranked_proposals_ignore_the_temperature_and_sampled_ones_do_not() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0]])
    probs = warp(logits, Warp(0.0))
    wanted, draws = torch.tensor([2]), torch.full((1, 2), 0.5, dtype=torch.float64)
    assert propose(ProposalKind.RANKED, logits, probs, draws, wanted).tolist() == [[1, 2]]
    assert propose(ProposalKind.ARGMAX, logits, probs, draws, torch.tensor([1])).tolist() == [[1]]
    assert propose(ProposalKind.WITHOUT_REPLACEMENT, logits, probs, draws, wanted).tolist() == [[1, -1]]
    assert propose(ProposalKind.WITH_REPLACEMENT, logits, probs, draws, wanted).tolist() == [[1, 1]]


def test_streams_depend_on_their_key_alone() -> None:
    base = uniforms(0, "a", 3, "verify", 5)
    assert np.array_equal(base, uniforms(0, "a", 3, "verify", 5))
    assert np.array_equal(base[:2], uniforms(0, "a", 3, "verify", 2))
    others = [(1, "a", 3, "verify"), (0, "b", 3, "verify"), (0, "a", 4, "verify"), (0, "a", 3, "draft")]
    for key in others:
        assert not np.intersect1d(base, uniforms(*key, 5)).size
    # fields must not run into each other
    assert not np.array_equal(uniforms(1, "1", 1, "x", 3), uniforms(11, "", 1, "x", 3))
    assert uniforms(0, "\ud800 half a pair, ключ", 0, "draft", 1).shape == (1,)


def test_streams_are_uniform_and_unrelated() -> None:
    many = np.concatenate([uniforms(7, f"prompt-{i}", 0, "draft", 50) for i in range(200)])
    assert many.min() >= 0.0
    assert many.max() < 1.0
    counts = np.histogram(many, 20, (0, 1))[0]
    chi_square = ((counts - 500) ** 2 / 500).sum()
    assert 8.0 < chi_square < 33.0  # 19 degrees of freedom: 1.4% and 97.6% points, seed fixed
    between = np.corrcoef(many.reshape(200, 50)[:-1].ravel(), many.reshape(200, 50)[1:].ravel())[0, 1]
    assert abs(between) < 0.03  # three standard errors of 9,950 pairs
