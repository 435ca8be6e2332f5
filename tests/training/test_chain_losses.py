"""Accepted-length objectives against full enumeration of small two- and three-step models."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

from acceptlab.errors import UsageError
from acceptlab.training import chain_losses as chain

# First-step laws, second-step laws by first token; expected values worked out by enumeration beforehand.
CHAINS = [
    (
        [[0.4, 0.6], [[0.9, 0.1], [0.9, 0.1]]],
        [[0.8, 0.2], [[0.6, 0.4], [0.4, 0.6]]],
        {"J": 0.98, "wtv": 0.948, "path_var": 0.35145185185185185, "branch_var": 0.06826666666666667},
    ),
    (
        [[0.4, 0.6], [[0.9, 0.1], [0.9, 0.1]]],
        [[0.8, 0.2], [[0.3, 0.7], [0.7, 0.3]]],
        {"J": 0.92, "wtv": 0.984, "path_var": 0.1698962962962963, "branch_var": 0.004266666666666667},
    ),
    (
        [[0.4, 0.6], [[1.0, 0.0], [1.0, 0.0]]],
        [[0.8, 0.2], [[0.5, 0.5], [0.5, 0.5]]],
        {"J": 0.9, "wtv": 0.9, "path_var": 0.24, "branch_var": 0.02666666666666667},
    ),
    (
        [[0.4, 0.6], [[1.0, 0.0], [1.0, 0.0]]],
        [[0.9, 0.1], [[0.9, 0.1], [0.1, 0.9]]],
        {"J": 0.87, "wtv": 0.71, "path_var": 0.7072666666666667, "branch_var": 0.18726666666666666},
    ),
    (
        [[0.2, 0.3, 0.5], [[0.1, 0.2, 0.7], [0.3, 0.3, 0.4], [0.0, 0.5, 0.5]]],
        [[0.2, 0.3, 0.5], [[0.1, 0.2, 0.7], [0.3, 0.3, 0.4], [0.0, 0.5, 0.5]]],
        {"J": 2.0, "wtv": 2.0, "path_var": 0.0, "branch_var": 0.0},
    ),
    (
        [[1.0, 0.0], [[1.0, 0.0], [0.5, 0.5]]],
        [[0.0, 1.0], [[1.0, 0.0], [0.5, 0.5]]],
        {"J": 0.0, "wtv": 0.0, "path_var": 0.0, "branch_var": 0.0},
    ),
]
TIGHT = 1e-12  # float64 sums of fewer than thirty terms of order 1


def all_paths(tables: list[Tensor]) -> list[tuple[int, ...]]:
    return list(product(range(tables[0].shape[-1]), repeat=len(tables)))


def law(tables: list[Tensor], path: tuple[int, ...], step: int) -> Tensor:
    """Distribution at `step` after the tokens before it."""
    return tables[step][path[:step]]


def along(draft: list[Tensor], target: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Probability, b and a of every path: (paths), (paths, steps), (paths, steps). The slow oracle."""
    weights, accepts, overlaps = [], [], []
    for path in all_paths(target):
        weight, b, a = torch.ones((), dtype=torch.float64), [], []
        for step, token in enumerate(path):
            p, q = law(target, path, step), law(draft, path, step)
            weight = weight * p[token]
            b.append(chain.accept_probs(q[token].log(), p[token].log()))
            a.append(torch.where(q < p, q, p).sum())
        if weight > 0:
            weights.append(weight)
            accepts.append(torch.stack(b))
            overlaps.append(torch.stack(a))
    return torch.stack(weights), torch.stack(accepts), torch.stack(overlaps)


def exact_length(draft: list[Tensor], target: list[Tensor]) -> Tensor:
    """Sum over k and all prefixes of the product of min(target, draft):

    The expected accepted length itself.
    """
    total = torch.zeros((), dtype=torch.float64)
    for depth in range(1, len(target) + 1):
        for path in product(range(target[0].shape[-1]), repeat=depth):
            mass = torch.ones((), dtype=torch.float64)
            for step, token in enumerate(path):
                p, q = law(target, path, step)[token], law(draft, path, step)[token]
                mass = mass * torch.where(q < p, q, p)
            total = total + mass
    return total


def as_tables(laws: list) -> list[Tensor]:
    return [torch.tensor(step, dtype=torch.float64) for step in laws]


def full(values: Tensor) -> Tensor:
    return torch.ones_like(values, dtype=torch.bool)


@pytest.mark.parametrize(("target", "draft", "expected"), CHAINS)
def test_reference_chains(target: list, draft: list, expected: dict) -> None:
    weights, b, a = along(as_tables(draft), as_tables(target))
    path, branch = chain.path_value(b, full(b)), chain.branch_value(b, a, full(a))
    for values, variance in ((path, "path_var"), (branch, "branch_var")):
        mean = (weights * values).sum()
        assert float(mean) == pytest.approx(expected["J"], abs=TIGHT)
        assert float((weights * (values - mean) ** 2).sum()) == pytest.approx(expected[variance], abs=TIGHT)
    wtv = (weights * chain.wtv_value(a, full(a))).sum()
    assert float(wtv) == pytest.approx(expected["wtv"], abs=TIGHT)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "estimate",
    [lambda b, a: chain.path_value(b, full(b)), lambda b, a: chain.branch_value(b, a, full(a))],
    ids=["path", "branch"],
)
def test_path_and_branch_are_unbiased_in_value_and_gradient(
    seed: int, estimate: Callable[[Tensor, Tensor], Tensor]
) -> None:
    rng = torch.Generator().manual_seed(seed)
    shapes = [(3,), (3, 3), (3, 3, 3)]
    target = [torch.randn(s, generator=rng, dtype=torch.float64).softmax(-1) for s in shapes]
    logits = [torch.randn(s, generator=rng, dtype=torch.float64).requires_grad_() for s in shapes]
    draft = [table.softmax(-1) for table in logits]
    truth = exact_length(draft, target)
    weights, b, a = along(draft, target)
    mean = (weights * estimate(b, a)).sum()
    assert float(mean.detach()) == pytest.approx(float(truth.detach()), abs=TIGHT)
    gradients = torch.autograd.grad(mean, logits, retain_graph=True)
    for mine, exact in zip(gradients, torch.autograd.grad(truth, logits), strict=True):
        torch.testing.assert_close(mine, exact, rtol=0, atol=TIGHT)


def test_detached_prefix_keeps_the_value_and_loses_the_prefix_gradient() -> None:
    b = torch.tensor([[0.5, 0.8]], dtype=torch.float64, requires_grad=True)
    a = torch.tensor([[0.6, 0.7]], dtype=torch.float64, requires_grad=True)
    plain = chain.branch_value(b, a, full(a))
    detached = chain.branch_value(b, a, full(a), detach_prefix=True)
    assert plain.tolist() == detached.tolist() == [0.6 + 0.5 * 0.7]
    assert torch.autograd.grad(plain.sum(), b)[0].tolist() == [[0.7, 0.0]]
    assert torch.autograd.grad(detached.sum(), b, allow_unused=True)[0] is None


def test_draft_above_the_target_has_no_gradient() -> None:
    logs = torch.tensor([-0.5, -2.0], dtype=torch.float64, requires_grad=True)
    b = chain.accept_probs(logs, torch.tensor([-1.0, -1.0], dtype=torch.float64))
    assert b.tolist() == pytest.approx([1.0, 0.36787944117144233], rel=TIGHT)
    assert torch.autograd.grad(b.sum(), logs)[0].tolist() == pytest.approx([0.0, 0.36787944117144233])


def test_eal_of_greedy_tokens() -> None:
    ones = torch.ones(1, 3, dtype=torch.float64)
    assert chain.eal_value(ones, full(ones)).tolist() == [3.0]
    zero_first = torch.tensor([[0.0, 0.5, 0.5]], dtype=torch.float64)
    assert chain.eal_value(zero_first, full(ones)).tolist() == [0.0]


def test_eos_counts_and_what_follows_does_not() -> None:
    is_eos = torch.tensor([[False, True, False, False], [False, False, False, False]])
    mask = chain.mask_after_eos(is_eos)
    assert mask.tolist() == [[True, True, False, False], [True] * 4]
    b = torch.full((2, 4), 0.5, dtype=torch.float64)
    assert chain.path_value(b, mask).tolist() == [0.75, 0.9375]
    # The denominator stays gamma = 4 for the short window too.
    loss = chain.length_loss(chain.path_value(b, mask), 4)
    assert float(loss) == pytest.approx(1 - (0.75 + 0.9375) / 8, rel=TIGHT)


def test_masks_with_holes_are_refused() -> None:
    with pytest.raises(UsageError, match="contiguous"):
        chain.check_mask(torch.tensor([[True, False, True]]))


def test_truncation_and_variance_penalty() -> None:
    b = torch.tensor([[0.5, 0.5, 0.5], [1.0, 1.0, 1.0]], dtype=torch.float64)
    short = chain.path_value(b, chain.truncate_mask(full(b), 2))
    assert short.tolist() == [0.75, 2.0]
    plain, penal = chain.length_loss(short, 3), chain.length_loss(short, 3, variance_weight=2.0)
    # Population variance of (0.25, 2/3).
    assert float(penal - plain) == pytest.approx(2 * ((2 / 3 - 0.25) / 2) ** 2, rel=1e-9)


def test_vsd_weighs_windows_by_their_chance_to_pass_whole() -> None:
    b = torch.tensor([[0.5, 0.5], [1.0, 0.75]], dtype=torch.float64)
    ce = torch.tensor([[1.0, 1.0], [2.0, 2.0]], dtype=torch.float64)
    # Weights 0.25 and 0.75 of 1, losses 2 and 4, gamma 2.
    assert float(chain.vsd_loss(b, ce, full(b))) == pytest.approx((0.25 * 2 + 0.75 * 4) / 2, rel=TIGHT)
    nothing = torch.zeros_like(b)
    assert float(chain.vsd_loss(nothing, ce, full(b))) == 0.0


def test_dblast_equals_path_until_the_threshold_cuts() -> None:
    draft = torch.tensor([[-1.0, -3.0, -2.0]], dtype=torch.float64)
    target = torch.tensor([[-1.5, -1.0, -1.0]], dtype=torch.float64)
    b = chain.accept_probs(draft, target)
    free = chain.dblast_value(draft, target, full(b), threshold=-100.0)
    assert free.tolist() == pytest.approx(chain.path_value(b, full(b)).tolist(), rel=TIGHT)
    cut = chain.dblast_value(draft, target, full(b), threshold=-2.5)
    assert cut.tolist() == pytest.approx([1 + float(torch.tensor(-2.0).double().exp())], rel=TIGHT)
