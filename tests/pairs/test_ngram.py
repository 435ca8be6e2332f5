"""The prompt-lookup draft against a plain-Python count, and inside trees."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acceptlab.errors import UsageError
from acceptlab.pairs.ngram import NgramModel, continuation_counts

VOCAB = 7


def slow_counts(tokens: list[int], n: int) -> Counter[int]:
    for size in range(n, 0, -1):
        if size >= len(tokens):
            continue
        end = tokens[len(tokens) - size :]
        found = Counter(tokens[i + size] for i in range(len(tokens) - size) if tokens[i : i + size] == end)
        if found:
            return found
    return Counter()


def run(model: NgramModel, tokens: list[int]) -> torch.Tensor:
    model.reset()
    model.prefill(torch.tensor(tokens[:-1], dtype=torch.int64))
    visible = torch.ones((1, len(tokens)), dtype=torch.bool)
    return model.forward(torch.tensor(tokens[-1:]), torch.tensor([len(tokens) - 1]), visible)[0]


@settings(deadline=None)
@given(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=30), st.integers(1, 5))
def test_the_distribution_is_the_share_of_what_followed(tokens: list[int], n: int) -> None:
    logits = run(NgramModel(n, VOCAB), tokens)
    expected = slow_counts(tokens, n)
    if not expected:
        assert torch.isneginf(logits).all()
        return
    total = sum(expected.values())
    for token_id in range(VOCAB):
        want = math.log(expected[token_id] / total) if expected[token_id] else -math.inf
        # float32 logits of a float64 logarithm
        assert float(logits[token_id]) == pytest.approx(want, abs=1e-6)
    assert float(logits.double().exp().sum()) == pytest.approx(1.0, abs=1e-6)


def test_the_longest_match_decides_and_shorter_ones_are_the_fallback() -> None:
    ids, counts = continuation_counts(np.array([1, 2, 3, 5, 2, 4, 1, 2]), 3)
    # "1 2" was followed by 3; "2" alone also by 4, which must not count
    assert (ids.tolist(), counts.tolist()) == ([3], [1])
    ids, counts = continuation_counts(np.array([1, 2, 3, 5, 2, 4, 6, 2]), 3)
    assert (ids.tolist(), counts.tolist()) == ([3, 4], [1, 1])


def test_nothing_matches_gives_a_row_without_a_proposal() -> None:
    assert torch.isneginf(run(NgramModel(3, VOCAB), [1, 2, 3, 4])).all()
    assert torch.isneginf(run(NgramModel(3, VOCAB), [1])).all()


def test_branches_of_a_tree_see_only_their_own_path() -> None:
    text = [1, 2, 3, 1, 4, 5, 1]
    model = NgramModel(3, VOCAB)
    model.prefill(torch.tensor(text[:-1]))
    # the root, its children 2 and 4, and a child of each, in an order that mixes the depths
    tokens, positions = torch.tensor([1, 2, 3, 4, 5]), torch.tensor([6, 7, 8, 7, 8])
    paths = [[0], [0, 1], [0, 1, 2], [0, 3], [0, 3, 4]]
    visible = torch.zeros((5, 11), dtype=torch.bool)
    visible[:, :6] = True
    for row, path in enumerate(paths):
        visible[row, [6 + i for i in path]] = True
    rows = model.forward(tokens, positions, visible)
    fresh = NgramModel(3, VOCAB)
    for row, path in enumerate(paths):
        alone = run(fresh, text[:-1] + [int(tokens[i]) for i in path])
        assert torch.equal(rows[row], alone), path
    # accept through the second sibling: the text is now 1 2 3 1 4 5 1 4 5
    model.keep(torch.tensor([0, 1, 2, 3, 4, 5, 6, 9, 10]))
    following = model.forward(torch.tensor([1]), torch.tensor([9]), torch.ones((1, 10), dtype=torch.bool))
    assert model.n_slots == 10
    assert torch.equal(following[0], run(fresh, [1, 2, 3, 1, 4, 5, 1, 4, 5, 1]))


def test_the_text_of_a_row_is_ordered_by_position_not_by_slot() -> None:
    model = NgramModel(2, VOCAB)
    model.prefill(torch.tensor([1, 2, 3, 1]))
    model.keep(torch.tensor([3, 0, 2, 1]))
    row = model.forward(torch.tensor([2]), torch.tensor([4]), torch.ones((1, 5), dtype=torch.bool))[0]
    assert torch.equal(row, run(NgramModel(2, VOCAB), [1, 2, 3, 1, 2]))
    assert int(row.argmax()) == 3


@pytest.mark.parametrize("n", [0, -1, 17])
def test_a_length_out_of_range_is_refused(n: int) -> None:
    with pytest.raises(UsageError, match=f"n={n}"):
        NgramModel(n, VOCAB)
