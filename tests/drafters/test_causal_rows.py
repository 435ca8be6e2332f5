"""Rows of a causal drafter are computed for the wanted places only, and equal those of whole sequences."""

from __future__ import annotations

import torch

from acceptlab.drafters.base import Rows
from acceptlab.drafters.causal import CausalDrafter
from acceptlab.drafters.output_layer import CutOutput
from tests.training.helpers import VOCAB, tiny_target


def test_rows_and_their_gradients_equal_those_of_whole_sequences() -> None:
    drafter = CausalDrafter.from_target(
        tiny_target(), (0, -1), CutOutput(torch.arange(3, 50), torch.ones(VOCAB), 32)
    )
    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 61, (3, 11), generator=rng)
    sequence, position = torch.tensor([0, 0, 1, 2, 2, 2]), torch.tensor([4, 10, 3, 0, 9, 5])
    wanted = drafter.hidden(ids)[sequence, position]
    found = drafter.row_hidden(Rows(ids, sequence, position, torch.zeros(6, dtype=torch.long)))
    # float32, other shapes of the same products
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    weights = torch.randn(wanted.shape, generator=rng)
    parameters = [p for p in drafter.parameters() if p is not drafter.output.bias]
    parameters = [p for p in parameters if p is not drafter.output.rest_weight]
    expected = torch.autograd.grad((wanted * weights).sum(), parameters)
    actual = torch.autograd.grad((found * weights).sum(), parameters)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
