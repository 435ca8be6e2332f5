"""Table models: known answers, and errors where a cache or a mask is wrong."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
import torch

import acceptlab.toy
from acceptlab.errors import UsageError
from acceptlab.models import LanguageModel
from acceptlab.toy import TableModel, blended, listed_table, overlap, random_table


def mask(rows: list[list[int]], width: int) -> torch.Tensor:
    visible = torch.zeros((len(rows), width), dtype=torch.bool)
    for row, slots in enumerate(rows):
        visible[row, slots] = True
    return visible


@pytest.fixture
def model() -> TableModel:
    return TableModel(random_table(4, seed=0, order=3), vocab_size=4)


def test_the_example_in_the_docstring_runs() -> None:
    assert doctest.testmod(acceptlab.toy).failed == 0


def test_the_longest_listed_ending_decides() -> None:
    table = listed_table({(1,): [0.5, 0.5], (0, 1): [0.25, 0.75]}, otherwise=[1.0, 0.0])
    assert table((1, 1)).tolist() == [0.5, 0.5]
    assert table((1, 0, 1)).tolist() == [0.25, 0.75]
    assert table((0,)).tolist() == [1.0, 0.0]
    with pytest.raises(UsageError, match="no row"):
        listed_table({(1,): [1.0]})((0,))
    with pytest.raises(UsageError, match="no distribution"):
        listed_table({(): [0.5, 0.6]})


def test_random_tables_are_distributions_of_their_ending() -> None:
    table = random_table(5, seed=2, order=2)
    assert np.array_equal(table((1, 2, 3)), table((0, 2, 3)))
    assert not np.array_equal(table((2, 3)), table((3, 2)))
    assert not np.array_equal(table((2, 3)), random_table(5, seed=3)((2, 3)))
    assert table(()).sum() == pytest.approx(1.0)
    assert np.array_equal(random_table(5, seed=2, order=0)((1,)), random_table(5, seed=2, order=0)((4,)))


def test_a_blend_has_the_overlap_that_it_promises() -> None:
    left = listed_table({}, otherwise=[0.5, 0.5, 0.0, 0.0])
    right = listed_table({}, otherwise=[0.0, 0.0, 0.5, 0.5])
    assert overlap(left(()), blended(left, right, 0.3)(())) == pytest.approx(0.7)
    one, two = random_table(6, 0), random_table(6, 1)
    distance = 1 - overlap(one((1,)), two((1,)))
    assert overlap(one((1,)), blended(one, two, 0.3)((1,))) == pytest.approx(1 - 0.3 * distance)
    with pytest.raises(UsageError, match="from 0 to 1"):
        blended(one, two, 1.5)


def test_a_tree_pass_gives_every_branch_its_own_text(model: TableModel) -> None:
    checked: LanguageModel = model  # the protocol, for the type checker
    checked.prefill(torch.tensor([1, 2]))
    # root 3, children 0 and 1, and a child of the second
    visible = mask([[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 2, 4, 5]], 6)
    logits = checked.forward(torch.tensor([3, 0, 1, 2]), torch.tensor([2, 3, 3, 4]), visible)
    assert logits.dtype == torch.float32
    for row, text in enumerate([(1, 2, 3), (1, 2, 3, 0), (1, 2, 3, 1), (1, 2, 3, 1, 2)]):
        assert torch.equal(logits[row], model.logits(text))
    # keep the second branch only, then go on as if it had always been so
    checked.keep(torch.tensor([0, 1, 2, 4, 5]))
    follow = checked.forward(torch.tensor([0]), torch.tensor([5]), mask([[0, 1, 2, 3, 4, 5]], 6))
    assert torch.equal(follow[0], model.logits((1, 2, 3, 1, 2, 0)))
    checked.prefill(torch.tensor([3, 3]))
    assert checked.n_slots == 8
    checked.reset()
    assert checked.n_slots == 0


def test_rows_may_come_in_any_order(model: TableModel) -> None:
    visible = mask([[0, 1], [1]], 2)
    logits = model.forward(torch.tensor([2, 1]), torch.tensor([1, 0]), visible)
    assert torch.equal(logits[0], model.logits((1, 2)))
    assert torch.equal(logits[1], model.logits((1,)))


@pytest.mark.parametrize(
    ("tokens", "positions", "rows", "message"),
    [
        ([0], [2], [[0, 1]], "does not see itself"),
        ([0], [3], [[0, 1, 2]], "sees positions"),
        ([0], [2], [[0, 2]], "sees positions"),
        ([0, 1], [2, 2], [[0, 1, 2], [0, 1, 2, 3]], "sees positions"),
        ([0, 1], [2, 3], [[0, 1, 2, 3], [0, 1, 2, 3]], "sees positions"),
        ([4], [2], [[0, 1, 2]], "outside the vocabulary"),
        ([0], [-1], [[0, 1, 2]], "outside the model"),
    ],
)
def test_wrong_masks_positions_and_tokens_are_errors(
    model: TableModel, tokens: list[int], positions: list[int], rows: list[list[int]], message: str
) -> None:
    model.prefill(torch.tensor([1, 2]))
    with pytest.raises(UsageError, match=message):
        model.forward(torch.tensor(tokens), torch.tensor(positions), mask(rows, 2 + len(tokens)))
    assert model.n_slots == 2  # a refused pass leaves the cache as it was


def test_a_cache_that_kept_the_wrong_branch_is_an_error(model: TableModel) -> None:
    model.prefill(torch.tensor([1]))
    model.forward(torch.tensor([0, 2, 3]), torch.tensor([1, 1, 2]), mask([[0, 1], [0, 2], [0, 2, 3]], 4))
    model.keep(torch.tensor([0, 1, 3]))  # the child of token 2 under token 0
    with pytest.raises(UsageError, match="is seen as part of"):
        model.forward(torch.tensor([1]), torch.tensor([3]), mask([[0, 1, 2, 3]], 4))
    with pytest.raises(UsageError, match="not dense"):
        TableModel.prefill(model, torch.tensor([1]))


def test_other_breaches_of_the_protocol_are_errors(model: TableModel) -> None:
    model.prefill(torch.tensor([1, 2]))
    with pytest.raises(UsageError, match="mask has shape"):
        model.forward(torch.tensor([0]), torch.tensor([2]), mask([[0]], 1))
    for slots in ([0, 0], [2], [-1]):
        with pytest.raises(UsageError, match="cannot keep"):
            model.keep(torch.tensor(slots))
    short = TableModel(random_table(4, 0), 4, max_len=2)
    with pytest.raises(UsageError, match="2 positions"):
        short.prefill(torch.tensor([1, 1, 1]))
    with pytest.raises(UsageError, match="not 5 probabilities"):
        TableModel(random_table(4, 0), 5).logits(())


def test_zero_probabilities_become_masked_logits() -> None:
    model = TableModel(listed_table({}, otherwise=[0.0, 1.0]), 2)
    assert model.logits(()).tolist() == [-torch.inf, 0.0]
    assert model.next_probs(()).tolist() == [0.0, 1.0]
