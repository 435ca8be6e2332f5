"""Products with weights of 16 bits: those of float32, for weights that 16 bits hold, and nothing where they fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch

from acceptlab.pairs import halves

needs_halves = pytest.mark.skipif(
    not halves.is_available(), reason="this PyTorch has no products with weights of 16 bits"
)


@pytest.fixture
def fresh() -> Iterator[None]:
    halves.is_available.cache_clear()
    yield
    halves.is_available.cache_clear()


def test_a_weight_is_held_where_every_number_has_eleven_bits_and_fits() -> None:
    assert halves.holds(torch.tensor([[0.0, -1.5, 2047.0, 65504.0, 2.0**-24]]))
    for number in (2049.0, 65536.0, 2.0**-25, 1 / 3, float("nan")):
        assert not halves.holds(torch.tensor([[1.0, number]]))
    assert halves.holds(halves.rounded(torch.tensor([1 / 3, 2049.0])))


@needs_halves
@pytest.mark.parametrize("n_rows", [1, 2, 5, 6, 13, 40])
def test_products_are_those_of_float32(n_rows: int) -> None:
    generator = torch.Generator().manual_seed(n_rows)
    weight = halves.rounded(torch.randn((70, 96), generator=generator))
    bias, x = torch.randn(70, generator=generator), torch.randn((n_rows, 96), generator=generator)
    exact = x.double() @ weight.double().T
    # float32 sums of 96 products of size 1; a product in 16 bits would be off by 1e-2
    torch.testing.assert_close(halves.Half(weight).linear(x).double(), exact, rtol=0, atol=3e-5)
    torch.testing.assert_close(halves.Half(weight, bias).linear(x).double(), exact + bias, rtol=0, atol=3e-5)


@needs_halves
def test_a_row_does_not_depend_on_its_neighbours() -> None:
    generator = torch.Generator().manual_seed(0)
    made = halves.Half(halves.rounded(torch.randn((576, 576), generator=generator)))
    x = torch.randn((17, 576), generator=generator)
    assert torch.equal(torch.cat([made.linear(row[None]) for row in x]), made.linear(x))


@pytest.mark.parametrize(
    "broken",
    [
        lambda x, weight: (_ for _ in ()).throw(RuntimeError("no engine")),
        lambda x, weight: (x.half() @ weight[0].half().T).float() + weight[1],
        lambda x, weight: x @ weight[0].T,
    ],
    ids=["fails", "low precision", "no bias"],
)
def test_operators_that_fail_or_round_are_not_used(
    broken: Callable[..., torch.Tensor], fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = SimpleNamespace(
        quantized=SimpleNamespace(
            linear_prepack_fp16=lambda weight, bias: (weight, bias), linear_dynamic_fp16=broken
        )
    )
    monkeypatch.setattr(halves.torch, "ops", ops)
    assert not halves.is_available()


def test_without_the_operators_there_are_no_such_products(
    fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(halves.torch, "ops", SimpleNamespace())
    assert not halves.is_available()
