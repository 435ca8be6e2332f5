"""The fast choice of the largest entries against sorting."""

from __future__ import annotations

import pytest
import torch

from acceptlab.top import top


@pytest.mark.parametrize("vocab", [5, 1000, 32 * 40, 32 * 40 + 7, 9001])
@pytest.mark.parametrize("k", [1, 3, 9])
def test_values_are_those_of_sorting_and_stand_where_it_says(vocab: int, k: int) -> None:
    generator = torch.Generator().manual_seed(vocab + k)
    k = min(k, vocab)
    # whole numbers tie often, also across the columns of the fold
    for scores in (
        torch.randn((6, vocab), generator=generator),
        torch.randint(0, 30, (6, vocab), generator=generator).float(),
        torch.full((6, vocab), -torch.inf),
    ):
        values, ids = top(scores, k)
        assert torch.equal(values, scores.sort(dim=1, descending=True).values[:, :k])
        assert torch.equal(scores.gather(1, ids), values)
        assert all(len(set(row)) == k for row in ids.tolist())


def test_the_last_entries_of_an_uneven_row_count() -> None:
    scores = torch.zeros((2, 32 * 40 + 5))
    scores[0, -1], scores[1, -5] = 2.0, 1.0
    assert top(scores, 1)[1].tolist() == [[1284], [1280]]


def test_a_view_of_longer_rows_works() -> None:
    wide = torch.randn((3, 4000), generator=torch.Generator().manual_seed(0))
    view = wide[:, 100:3800]
    assert torch.equal(top(view, 5)[0], view.contiguous().topk(5).values)


@pytest.mark.parametrize("place", [7, -1])
def test_nan_comes_first_as_it_does_in_topk(place: int) -> None:
    scores = torch.randn((2, 32 * 40 + 3), generator=torch.Generator().manual_seed(0))
    scores[1, place] = torch.nan
    values, ids = top(scores, 4)
    assert values[1, 0].isnan()
    assert scores[1, ids[1, 0]].isnan()
    assert not values[0].isnan().any()
