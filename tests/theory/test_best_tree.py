"""The dynamic programme against all trees of a size."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acceptlab.errors import UsageError
from acceptlab.theory.best_tree import best_tree, best_trees, expected_tree_len
from acceptlab.tree import Tree, from_branches


def all_trees(n_nodes: int, depth: int, width: int) -> Iterator[Tree]:
    def grow(parents: tuple[int, ...]) -> Iterator[Tree]:
        if len(parents) == n_nodes:
            tree = Tree(parents)
            if tree.depth <= depth and tree.n_children.max() <= width:
                yield tree
            return
        # parents in rising order are enough: every shape has such a numbering (level order)
        for parent in range(parents[-1] if parents else -1, len(parents)):
            yield from grow((*parents, parent))

    yield from grow(())


def plain_len(tree: Tree, table: np.ndarray) -> float:
    total = 0.0
    for node in range(tree.n_nodes):
        product = 1.0
        for at in tree.path(node):
            product *= table[tree.depths[at] - 1, tree.child_ranks[at]]
        total += product
    return total


tables = st.integers(1, 3).flatmap(
    lambda depth: st.lists(
        st.lists(st.floats(0, 0.5), min_size=3, max_size=3), min_size=depth, max_size=depth
    )
)


@given(tables, st.integers(1, 6))
def test_no_tree_of_the_same_size_is_better(rows: list[list[float]], n_nodes: int) -> None:
    table = np.array(rows)
    values = [plain_len(tree, table) for tree in all_trees(n_nodes, *table.shape)]
    if not values:
        with pytest.raises(UsageError, match="measure with a larger tree"):
            best_tree(table, n_nodes)
        return
    found = best_tree(table, n_nodes)
    assert found.tree.n_nodes == n_nodes
    assert found.expected_len == pytest.approx(max(values))
    assert plain_len(found.tree, table) == pytest.approx(found.expected_len)


def test_sixteen_nodes_beat_the_usual_shapes() -> None:
    rates = np.array([0.6, 0.15, 0.06, 0.03])
    table = np.stack([rates * 0.95**depth for depth in range(8)])
    best = best_tree(table, 16)
    for branches in ([4, 3], [2, 2, 2], [4, 2, 1], [1] * 8, [3, 1, 1, 1, 1]):
        shape = from_branches(branches)
        if shape.n_nodes <= 16:
            assert best.expected_len >= expected_tree_len(shape, table)


def test_more_nodes_never_hurt_and_depth_limits_bind() -> None:
    table = np.full((5, 3), 0.3)
    values = [found.expected_len for found in best_trees(table, 20)]
    assert values == sorted(values)
    assert best_tree(table, 9, max_depth=2).tree.depth == 2


@pytest.mark.parametrize("table", [[[1.2]], [[-0.1]], [], [0.5]])
def test_a_table_that_is_none_is_refused(table: list[object]) -> None:
    with pytest.raises(UsageError, match="acceptance table"):
        best_tree(np.array(table), 2)


def test_a_tree_beyond_the_table_is_refused() -> None:
    with pytest.raises(UsageError, match="measure with a larger tree"):
        expected_tree_len(from_branches([1, 1]), np.array([[0.5]]))
