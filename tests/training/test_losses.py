"""Losses of one position and position weights: reference values, finite differences, limit cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from acceptlab.errors import UsageError
from acceptlab.training import local_losses as local
from acceptlab.training.losses import LOCAL, OBJECTIVES, LossOptions, Scores, objective, reads_target
from acceptlab.training.position_weights import position_weights

# Values and gradients in the logits, worked out by hand or with 50-digit arithmetic.
REFERENCE = [
    {
        "target": [0.5, 0.3, 0.2],
        "draft": [0.2, 0.5, 0.3],
        "token": 0,
        "overlap": 0.7,
        "la": 0.3566749439387324,
        "kl": 0.22380465718564746,
        "renyi": 0.10579953675046579,
        "tv": 0.3,
        "ce": 1.6094379124341003,
        "mix": 0.1224564282529819,
        "static-lk": 0.43094379124341003,
        "adaptive-lk": 0.2906693904694429,
        "bounds": (0.6831482487609029, 0.9484750749158974),
        "gradients": {
            "kl": [-0.3, 0.2, 0.1],
            "tv": [-0.16, 0.1, 0.06],
            "la": [-0.22857142857142862, 0.14285714285714288, 0.08571428571428572],
            "renyi": [-0.13340651154684086, 0.091662084894446, 0.04174442665239486],
            "ce": [-0.8, 0.5, 0.3],
        },
    },
    {
        "target": [1.0, 0.0, 0.0],
        "draft": [0.3, 0.3, 0.4],
        "token": 0,
        "overlap": 0.3,
        "la": 1.203972804325936,
        "kl": 1.203972804325936,
        "renyi": 1.203972804325936,
        "tv": 0.7,
        "ce": 1.203972804325936,
        "mix": 0.4065696597405991,
        "static-lk": 0.7503972804325936,
        "adaptive-lk": 0.9049000515733113,
        "bounds": (0.16333997346592447, 0.5477225575051662),
        "gradients": {
            "kl": [-0.7, 0.3, 0.4],
            "tv": [-0.21, 0.09, 0.12],
            "la": [-0.7, 0.3, 0.4],
            "renyi": [-0.7, 0.3, 0.4],
            "ce": [-0.7, 0.3, 0.4],
        },
    },
    {
        "target": [0.3, 0.7],
        "draft": [0.7, 0.3],
        "token": 1,
        "overlap": 0.6,
        "la": 0.5108256237659907,
        "kl": 0.33891914415488145,
        "renyi": 0.17435338714477774,
        "tv": 0.4,
        "ce": 1.203972804325936,
        "mix": 0.16529888822158653,
        "static-lk": 0.4803972804325936,
        "adaptive-lk": 0.3899034024371789,
        "bounds": (0.6, 0.916515138991168),
        "gradients": {
            "kl": [0.4, -0.4],
            "tv": [0.21, -0.21],
            "la": [0.35, -0.35],
            "renyi": [0.2, -0.2],
            "ce": [0.7, -0.7],
        },
    },
    {
        "target": [0.05, 0.8, 0.15],
        "draft": [0.08, 0.9195, 0.0005],
        "token": 1,
        "overlap": 0.8505,
        "la": 0.1619308671462206,
        "kl": 0.7206925366349846,
        "renyi": 0.14605111310516652,
        "tv": 0.1495,
        "ce": 0.08392523493776127,
        "mix": 0.0779646313001212,
        "static-lk": 0.14294252349377612,
        "adaptive-lk": 0.19403281552012755,
        "bounds": (0.6313721857074368, 0.9295770729368746),
        "gradients": {
            "kl": [0.03, 0.1195, -0.1495],
            "tv": [4e-05, 0.00045975, -0.00049975],
            "la": [4.7031158142269256e-05, 0.0005405643738977072, -0.0005875955320399765],
            "renyi": [0.011963088328381749, -0.0031467505119987527, -0.00881633781638296],
            "ce": [0.08, -0.0805, 0.0005],
        },
    },
]
# 1e-12 relative to numbers of order 1, in float64.
CLOSE = {"rtol": 1e-12, "atol": 1e-13}


def tensors(case: dict) -> tuple[Tensor, Tensor, Tensor]:
    logits = torch.tensor(case["draft"], dtype=torch.float64).log().requires_grad_()
    return logits, torch.tensor(case["target"], dtype=torch.float64), torch.tensor(case["token"])


def by_name(name: str, logits: Tensor, target: Tensor, token: Tensor) -> Tensor:
    functions: dict[str, Callable[[], Tensor]] = {
        "ce": lambda: local.cross_entropy(logits, token),
        "kl": lambda: local.kl_forward(logits, target),
        "tv": lambda: local.total_variation(logits, target),
        "la": lambda: local.log_acceptance(logits, target),
        "renyi": lambda: local.renyi_half(logits, target),
        "static-lk": lambda: local.static_lk(logits, target, token),
        "adaptive-lk": lambda: local.adaptive_lk(logits, target),
        "kl-reverse": lambda: local.kl_reverse(logits, target),
    }
    return functions[name]()


@pytest.mark.parametrize("case", REFERENCE, ids=range(len(REFERENCE)))
@pytest.mark.parametrize("name", ["ce", "kl", "tv", "la", "renyi", "static-lk", "adaptive-lk"])
def test_reference_values(case: dict, name: str) -> None:
    value = by_name(name, *tensors(case))
    torch.testing.assert_close(value.detach(), torch.tensor(case[name], dtype=torch.float64), **CLOSE)


@pytest.mark.parametrize("case", REFERENCE, ids=range(len(REFERENCE)))
def test_reference_gradients_mixture_and_bounds(case: dict) -> None:
    for name, expected in case["gradients"].items():
        logits, target, token = tensors(case)
        (gradient,) = torch.autograd.grad(by_name(name, logits, target, token), logits)
        torch.testing.assert_close(gradient, torch.tensor(expected, dtype=torch.float64), **CLOSE)
    logits, target, _ = tensors(case)
    value = local.overlap(logits, target).detach()
    assert float(value) == pytest.approx(case["overlap"], rel=1e-12)
    assert float(local.adaptive_mix(value)) == pytest.approx(case["mix"], rel=1e-12)
    low, high = local.overlap_bounds(local.renyi_half(logits, target).detach())
    assert (float(low), float(high)) == pytest.approx(case["bounds"], rel=1e-11)


def random_rows(seed: int, rows: int = 6, vocab: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocab, generator=rng, dtype=torch.float64).requires_grad_()
    target = torch.randn(rows, vocab, generator=rng, dtype=torch.float64).softmax(-1)
    return logits, target, torch.randint(vocab, (rows,), generator=rng)


@pytest.mark.parametrize("name", ["ce", "kl", "kl-reverse", "tv", "la", "renyi", "static-lk"])
def test_local_gradients_by_finite_differences(name: str) -> None:
    logits, target, token = random_rows(3)
    (gradient,) = torch.autograd.grad(by_name(name, logits, target, token).sum(), logits)
    step = 1e-6
    with torch.no_grad():
        for index in range(logits.numel()):
            change = torch.zeros_like(logits).flatten()
            change[index] = step
            change = change.view_as(logits)
            up, down = (by_name(name, logits + s * change, target, token).sum() for s in (1, -1))
            # Central differences: error of order step^2 plus rounding 1e-16 / step.
            assert float((up - down) / (2 * step)) == pytest.approx(
                float(gradient.flatten()[index]), abs=1e-6
            )


def test_soft_cross_entropy_is_kl_plus_entropy_with_its_gradient() -> None:
    logits, target, _ = random_rows(4)
    entropy = -(target * target.log()).sum(-1)
    weights = torch.arange(1.0, 7.0, dtype=torch.float64)
    fast = local.soft_cross_entropy(logits, target)
    slow = local.kl_forward(logits, target)
    torch.testing.assert_close(fast.detach(), (slow + entropy).detach(), **CLOSE)
    (fast_gradient,) = torch.autograd.grad((fast * weights).sum(), logits)
    (slow_gradient,) = torch.autograd.grad((slow * weights).sum(), logits)
    torch.testing.assert_close(fast_gradient, slow_gradient, **CLOSE)


@pytest.mark.parametrize("name", ["kl", "kl-reverse", "tv", "la", "renyi", "adaptive-lk"])
def test_equal_distributions_are_a_stationary_zero(name: str) -> None:
    logits, _, token = random_rows(5)
    target = logits.detach().softmax(-1)
    value = by_name(name, logits, target, token)
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    value = value.detach()
    # Sums of six numbers that cancel to rounding.
    assert float(value.abs().max()) < 1e-14
    assert float(gradient.abs().max()) < 1e-14


def test_disjoint_supports_stay_finite() -> None:
    logits = torch.tensor([[0.0, -800.0]], dtype=torch.float64, requires_grad=True)
    target = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    for name in ("la", "renyi", "kl", "tv"):
        value = by_name(name, logits, target, torch.tensor([1]))
        (gradient,) = torch.autograd.grad(value.sum(), logits)
        assert bool(torch.isfinite(value).all())
        assert bool(torch.isfinite(gradient).all())


def test_overlap_bounds_at_infinity_and_zero() -> None:
    low, high = local.overlap_bounds(torch.tensor([torch.inf, 0.0], dtype=torch.float64))
    assert low.tolist() == [0.0, 1.0]
    assert high.tolist() == [0.0, 1.0]


WEIGHTS = [
    ([0.9, 0.5, 0.7, 0.2], 0.5, None, [2.6315, 1.6815, 0.969, 0.363375]),
    ([0.9, 0.5, 0.7, 0.2], 0.0, None, [1.728, 0.828, 0.378, 0.063]),
    ([0.0, 1.0, 0.5], 0.0, None, [0.0, 0.0, 0.0]),
    ([0.9, 0.5, 0.7, 0.2], 0.3, [True, False, True, True], [1.987968, 0.0, 1.057968, 0.323268]),
]


@pytest.mark.parametrize(("alphas", "rho", "mask", "expected"), WEIGHTS)
def test_position_weights(alphas: list, rho: float, mask: list | None, expected: list) -> None:
    weights = position_weights(
        torch.tensor(alphas, dtype=torch.float64, requires_grad=True),
        rho,
        None if mask is None else torch.tensor(mask),
    )
    assert weights.tolist() == pytest.approx(expected, rel=1e-12)
    assert not weights.requires_grad


def test_position_weights_refuse_a_wrong_rho() -> None:
    with pytest.raises(UsageError, match="rho"):
        position_weights(torch.tensor([0.5]), 1.5)


def make_scores(seed: int, gamma: int = 3) -> Scores:
    logits, target, token = random_rows(seed)
    windows = torch.tensor([[0, 1, 2], [3, 4, -1], [5, -1, -1]])[:, :gamma]
    return Scores(logits, target, token, windows)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_has_the_gradient_of_finite_differences(name: str) -> None:
    scores = make_scores(6)
    options = LossOptions(variance_weight=0.3)
    loss = objective(name, scores, options)
    (gradient,) = torch.autograd.grad(loss, scores.draft_logits)
    assert bool(torch.isfinite(gradient).all())
    if name in ("dpace", "dpal", "vsd", "adaptive-lk"):
        # Their weights are detached: the gradient is that of the weighted loss, not of the value.
        return
    step = 1e-6
    for index in (0, 7, 13, 29):
        change = torch.zeros(30, dtype=torch.float64)
        change[index] = step
        values = [
            objective(
                name,
                Scores(
                    scores.draft_logits.detach() + sign * change.view(6, 5),
                    scores.target_probs,
                    scores.labels,
                    scores.windows,
                ),
                options,
            )
            for sign in (1, -1)
        ]
        assert float((values[0] - values[1]) / (2 * step)) == pytest.approx(
            float(gradient.flatten()[index]), abs=1e-6
        )


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("base", [None, "ce", "tv"])
def test_only_losses_that_read_the_target_need_its_distributions(name: str, base: str | None) -> None:
    options, scores, others = LossOptions(base=base), make_scores(6), make_scores(5)
    value = objective(name, scores, options).detach()
    if reads_target(name, options):
        changed = replace(scores, target_probs=others.target_probs)
        assert float(objective(name, changed, options).detach()) != pytest.approx(float(value))
    else:
        blind = replace(scores, target_probs=torch.empty(6, 0, dtype=torch.float64))
        assert float(objective(name, blind, options).detach()) == float(value)


def test_denominators_are_fixed() -> None:
    scores = make_scores(7)
    rows = LOCAL["ce"](scores, LossOptions())
    # Six valid positions, but three windows of three: the sum is divided by nine.
    assert float(objective("ce", scores).detach()) == pytest.approx(float(rows.sum().detach()) / 9, rel=1e-12)


def test_dpal_without_smoothing_has_the_gradient_of_trajectory_wtv() -> None:
    scores = make_scores(8)
    weighted = objective("dpal", scores, LossOptions(rho=0.0, base="la"))
    (weighted_gradient,) = torch.autograd.grad(weighted, scores.draft_logits, retain_graph=True)
    (gradient,) = torch.autograd.grad(objective("wtv", scores), scores.draft_logits)
    torch.testing.assert_close(weighted_gradient, gradient, **CLOSE)


def test_temperature_one_half_equals_doubled_logits() -> None:
    scores = make_scores(9)
    sharp = objective("tv", scores, LossOptions(temperature=0.5))
    target = (2 * scores.target_probs.log()).softmax(-1)
    plain = objective("tv", Scores(2 * scores.draft_logits, target, scores.labels, scores.windows))
    torch.testing.assert_close(sharp.detach(), plain.detach(), **CLOSE)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("kld", {}, "unknown loss"),
        ("dpal", {"base": "x"}, "unknown base"),
        ("ce", {"temperature": 0.0}, "temperature"),
        ("real", {"truncate": 0}, "truncation"),
        ("real", {"aux": "mse"}, "auxiliary"),
    ],
)
def test_unknown_objectives_are_refused(name: str, options: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        objective(name, make_scores(1), LossOptions(**options))
