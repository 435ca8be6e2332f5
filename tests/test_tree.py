"""Tree shapes: structure, parsing, and what a bad shape is told."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acceptlab.draft import inner_levels
from acceptlab.errors import UsageError
from acceptlab.tree import Tree, from_branches, parse_tree


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    n_nodes = draw(st.integers(0, 14))
    return Tree(tuple(draw(st.integers(-1, node - 1)) for node in range(n_nodes)))


def test_the_default_tree_has_14_nodes() -> None:
    tree = parse_tree("kary:depth=3,branch=2").static
    assert tree is not None
    assert tree.n_nodes == 14
    assert tree.depths.tolist() == [1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3]
    assert tree.child_ranks.tolist() == [0, 1] * 7
    assert tree.n_children.tolist() == [2] * 7 + [0] * 8


@given(trees())
def test_structure_equals_a_walk_from_every_node(tree: Tree) -> None:
    for node in range(tree.n_nodes):
        path = []
        at = node
        while at >= 0:
            path.insert(0, at)
            at = tree.parents[at]
        assert tree.path(node) == tuple(path)
        assert tree.depths[node] == len(path)
        seen = {0, *(i + 1 for i in path)}
        assert set(np.flatnonzero(tree.visible[node + 1]).tolist()) == seen
        siblings = [i for i in range(tree.n_nodes) if tree.parents[i] == tree.parents[node]]
        assert tree.child_ranks[node] == siblings.index(node)
        assert tree.children[tree.parents[node] + 1] == tuple(siblings)
    assert sorted(i for level in tree.levels for i in level) == list(range(tree.n_nodes))


@given(trees())
def test_inner_levels_hold_the_nodes_with_children_and_see_their_ancestors(tree: Tree) -> None:
    ran: list[int] = []
    for level in inner_levels(tree):
        ran.extend(level.nodes)
        for row, node in enumerate(level.nodes):
            seen = {ran[column] for column in np.flatnonzero(level.visible[row].numpy())}
            assert seen == set(tree.path(node))
    assert sorted(ran) == [node for node in range(tree.n_nodes) if tree.n_children[node + 1]]


def test_canonical_texts() -> None:
    for text in (
        "chain:5",
        "kary:depth=3,branch=2",
        "branches:4,2,1",
        "dynamic:nodes=16,depth=5,topk=4",
        "opt:nodes=16,threshold=0.1",
    ):
        assert parse_tree(text).text == text
    assert parse_tree(" kary:branch=2,depth=3 ").text == "kary:depth=3,branch=2"
    assert parse_tree("branches:1,1,1").static == parse_tree("chain:3").static == from_branches([1, 1, 1])


def test_a_tree_file(tmp_path: Path) -> None:
    path = tmp_path / "tree.json"
    path.write_text("\ufeff" + json.dumps({"parents": [-1, -1, 0, 1]}), encoding="utf-8")
    assert parse_tree(f"file:{path}").static == Tree((-1, -1, 0, 1))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("star:3", "unknown tree 'star:3'"),
        ("chain:0", "'0' is not a whole number from 1"),
        ("chain:", "'' is not a whole number"),
        ("chain:-2", "'-2' is not a whole number"),
        ("kary:depth=3", "needs depth and branch"),
        ("kary:depth=3,branch=x", "'x' is not a whole number"),
        ("branches:4,,1", "'' is not a whole number"),
        ("kary:depth=30,branch=2", "more than 4096 nodes"),
        ("dynamic:nodes=8", "needs nodes and depth and topk"),
        ("opt:nodes=8,threshold=x", "the threshold 'x' is not a number"),
        ("opt:nodes=8,threshold=9", "the threshold '9' is not a number from 0 to 8"),
        ("file:missing.json", "cannot read the tree file 'missing.json'"),
    ],
)
def test_a_bad_shape_is_told_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_tree(text)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is not JSON"),
        ("[]", "needs a key 'parents'"),
        ('{"parents": []}', "needs a key 'parents'"),
        ('{"parents": [-1, 5]}', "a parent must come before its children"),
        ('{"parents": [-1, true]}', "whole numbers"),
    ],
)
def test_a_bad_tree_file_is_told_what_is_wrong(content: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "tree.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=words):
        parse_tree(f"file:{path}")
