"""Random small steps that the tests of the rules share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acceptlab.tree import Tree
from acceptlab.verify import Drafted
from tests import oracles

CASES = json.loads((Path(__file__).parent / "cases.json").read_text())
FIXED = ([0.5, 0.3, 0.2], [0.2, 0.5, 0.3])
"""Target and draft of the faults that users have hit."""
WIDE = ([0.4, 0.1, 0.3, 0.2], [0.1, 0.45, 0.15, 0.3])
"""A pair whose first residuals have two tokens; most faults are invisible on residuals of one."""
LOSSLESS = ("rejection", "rejection-iid", "onehot", "block")


def cases(function: str) -> list[Any]:
    return [case for case in CASES if case["fn"] == function]


def row(probs: Sequence[float]) -> Tensor:
    return torch.tensor([list(probs)], dtype=torch.float64)


def random_tree(rng: np.random.Generator, n_nodes: int, chain: bool = False) -> Tree:
    if chain:
        return Tree(tuple(range(-1, n_nodes - 1)))
    return Tree(tuple(int(rng.integers(-1, node)) if node else -1 for node in range(n_nodes)))


def random_probs(rng: np.random.Generator, shape: tuple[int, int], zeros: float) -> np.ndarray:
    weights = rng.dirichlet(np.ones(shape[1]), size=shape[0])
    weights[rng.random(shape) < zeros] = 0.0
    empty = weights.sum(axis=1) == 0
    weights[empty, 0] = 1.0
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


@dataclass
class RandomStep:
    """A drafted tree with both models' rows, candidates drawn as the rule wants them."""

    drafted: Drafted
    target: np.ndarray
    draft: np.ndarray
    uniforms: np.ndarray


def random_step(rule: str, seed: int, vocab: int = 6, n_nodes: int = 8, zeros: float = 0.2) -> RandomStep:
    rng = np.random.default_rng([seed, n_nodes, len(rule)])
    tree = random_tree(rng, n_nodes, chain=rule == "block")
    target = random_probs(rng, (n_nodes + 1, vocab), zeros)
    draft = random_probs(rng, (n_nodes + 1, vocab), zeros)
    token_ids = np.full(n_nodes, -1, dtype=np.int64)
    for context, children in enumerate(tree.children):
        lists = list(oracles.candidates(rule, draft[context].tolist(), len(children)))
        weights = np.array([float(weight) for weight, _ in lists])
        chosen = lists[int(rng.choice(len(lists), p=weights / weights.sum()))][1]
        token_ids[list(children[: len(chosen)])] = chosen
    # rows in another order than the contexts, so that draft_rows matters
    order = rng.permutation(n_nodes + 1)
    draft_rows = np.argsort(order)
    drafted = Drafted(tree, token_ids, draft_rows, torch.from_numpy(draft[order].copy()))
    return RandomStep(drafted, target, draft, rng.random(n_nodes + 1))
