"""Bytes a row on disk, on records with the noise of real ones: softmax of random logits over 49,152 tokens.

Token frequencies follow Zipf's law over the ids, as byte-pair vocabularies do; spread and prior are chosen so that
entropies, the 32nd probability and the ids compress like those of SmolLM2-135M on chat prompts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from acceptlab.records import CERTIFICATE_RULES, CONTEXTS, MEASURES, NODES, TOP_N, Table
from acceptlab.rules import parse_rule
from acceptlab.store.convert import to_arrow
from acceptlab.store.parts import write_part
from acceptlab.store.schema import FINAL_LEVEL, write_options
from acceptlab.theory.certificates import thresholds_from_head
from acceptlab.tree import Tree, parse_tree
from tests.synthetic_tables import margins_and_tops

VOCAB = 49_152
N_CONTEXTS = 2_100  # a multiple of 5 and of 7: whole chains, whole trees
BLOCK = 100
GOALS = {"nodes": 60, "contexts": 250}

Columns = dict[str, Any]


@pytest.fixture(scope="module")
def contexts() -> Columns:
    """Measures and lists of `N_CONTEXTS` contexts, and the token that a draw from the draft gives in each."""
    rng = np.random.default_rng(0)
    # stretches of one long noise stand for fresh draws, which would take most of the time
    noise = rng.standard_normal(20 * VOCAB, dtype=np.float32)
    prior = (-1.5 * np.log(np.arange(VOCAB) + 20.0)).astype(np.float32)
    blocks = [_block(rng, noise, prior) for _ in range(N_CONTEXTS // BLOCK)]
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def _block(rng: np.random.Generator, noise: np.ndarray, prior: np.ndarray) -> Columns:
    spread = 4 * np.exp(rng.normal(0, 0.3, (BLOCK, 1))).astype(np.float32)
    starts = rng.integers(0, len(noise) - VOCAB, (2, BLOCK))
    shared, own = (np.stack([noise[start : start + VOCAB] for start in row]) for row in starts)
    target_log, target = _softmax(prior + spread * shared)
    draft_log, draft = _softmax(prior + spread * (0.95 * shared + 0.3 * own))
    ratio = target_log - draft_log
    root_mean = np.sqrt(target * draft).sum(1, dtype=np.float64)
    columns: Columns = {
        "draft_entropy": -(draft * draft_log).sum(1),
        "target_entropy": -(target * target_log).sum(1),
        "overlap": np.minimum(target, draft).sum(1),
        "kl_target_draft": (target * ratio).sum(1),
        "kl_draft_target": -(draft * ratio).sum(1),
        "renyi_half": np.maximum(0, -2 * np.log(root_mean)),
    }
    for name, probs in (("target", target), ("draft", draft)):
        columns |= margins_and_tops(probs, name)
        best = np.argpartition(-probs, TOP_N, axis=1)[:, :TOP_N]
        best = np.take_along_axis(best, np.argsort(-np.take_along_axis(probs, best, 1), axis=1), 1)
        columns |= {f"{name}_token_ids": best, f"{name}_probs": np.take_along_axis(probs, best, 1)}
        columns[f"{name}_argmax"] = best[:, 0]
    rules = tuple(map(parse_rule, CERTIFICATE_RULES))
    head = columns["target_probs"].astype(np.float64)
    forward, reverse = thresholds_from_head(
        head, columns["target_entropy"], VOCAB, lambda rows: target[rows], rules
    )
    rank = np.argsort(-np.log(columns["draft_probs"]) - rng.gumbel(size=(BLOCK, TOP_N)), axis=1)[:, :2]
    drawn = np.take_along_axis(columns["draft_token_ids"], rank, 1)
    drawn_target = np.take_along_axis(target, drawn, 1)
    columns |= {
        "thresholds_forward": forward,
        "thresholds_reverse": reverse,
        "drawn_rank": rank,
        "drawn": drawn,
    }
    columns |= {"drawn_draft": np.take_along_axis(draft, drawn, 1), "drawn_target": drawn_target}
    columns["drawn_target_rank"] = (target[:, None] > drawn_target[..., None]).sum(-1)
    return columns


def _softmax(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms and probabilities, float32 as a model gives them."""
    shifted = logits - logits.max(1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True, dtype=np.float64)).astype(np.float32)
    return logs, np.exp(logs)


def _keys(width: int, n_steps: int) -> Columns:
    steps = np.repeat(np.arange(n_steps), width)
    return {
        "domain": ["code"] * len(steps),
        "prompt_id": [f"code/{step // 12:03d}" for step in steps],
        "step": steps % 12,
    }


def _context_rows(contexts: Columns) -> Columns:
    nodes = np.arange(-1, 6)  # root and inner nodes of the default tree
    n_steps = N_CONTEXTS // len(nodes)
    depth = np.tile([0, 1, 1, 2, 2, 2, 2], n_steps)
    names = {column.name for column in CONTEXTS.columns}
    return {
        **_keys(len(nodes), n_steps),
        "node": np.tile(nodes, n_steps),
        "depth": depth,
        "position": 100 + depth + 2 * np.repeat(np.arange(n_steps) % 12, len(nodes)),
        **{name: values for name, values in contexts.items() if name in names},
    }


def _node_rows(contexts: Columns, tree: Tree) -> Columns:
    """Nodes of trees whose contexts are consecutive: sampled siblings, full-precision test probabilities."""
    rows = np.flatnonzero(tree.n_children)
    n_steps = N_CONTEXTS // len(rows)
    local = np.searchsorted(rows, tree.parent_rows)
    context = (np.arange(n_steps)[:, None] * len(rows) + local).reshape(-1)
    rank = np.tile(tree.child_ranks, n_steps)
    draft, target = (
        contexts[f"drawn_{name}"][context, rank].astype(np.float64) for name in ("draft", "target")
    )
    ratio = np.minimum(1, target / draft)
    shape = (n_steps, tree.n_nodes)
    accept, path = ratio.reshape(shape), draft.reshape(shape).copy()
    test = np.ones(shape)
    for node, parent in enumerate(tree.parents):
        if parent >= 0:
            path[:, node] *= path[:, parent]
            test[:, node] = test[:, parent] * accept[:, parent]
        for elder in tree.children[parent + 1][: int(tree.child_ranks[node])]:
            test[:, node] *= 1 - accept[:, elder]
    random = np.random.default_rng(1).random(len(context))
    target_rank = contexts["drawn_target_rank"][context, rank]
    return {
        **_keys(tree.n_nodes, n_steps),
        "node": np.tile(np.arange(tree.n_nodes), n_steps),
        "parent": np.tile(tree.parents, n_steps),
        "depth": np.tile(tree.depths, n_steps),
        "child_rank": rank,
        "position": 100 + np.tile(tree.depths, n_steps),
        "token_id": contexts["drawn"][context, rank],
        "draft_prob": draft,
        "target_prob": target,
        "accept_ratio": ratio,
        "draft_rank": contexts["drawn_rank"][context, rank],
        "target_rank": target_rank,
        "is_target_argmax": target_rank == 0,
        "path_draft_prob": path.reshape(-1),
        "test_prob": test.reshape(-1),
        "accept_prob": np.where(test.reshape(-1) > 0, ratio, np.nan),
        "outcome": np.select([random < 0.3, random < 0.6], ["accepted", "rejected"], "untested"),
        **{name: contexts[name][context] for name in MEASURES},
    }


def bytes_a_row(folder: Path, table: Table, columns: Columns) -> float:
    def rows() -> Iterator[pa.Table]:
        yield to_arrow(table, columns, "20260101T000000Z-abcdef")

    entry = write_part(folder, table, 1, rows(), compression=FINAL_LEVEL)
    size: float = entry["bytes"] / entry["rows"]
    return size


@pytest.mark.parametrize(("tree", "measured"), [("kary:depth=3,branch=2", 39), ("chain:5", 55)])
def test_nodes_stay_small(tmp_path: Path, contexts: Columns, tree: str, measured: float) -> None:
    shape = parse_tree(tree).static
    assert shape is not None
    size = bytes_a_row(tmp_path, NODES, _node_rows(contexts, shape))
    assert size < GOALS["nodes"]
    assert abs(size - measured) < 2  # room for another zstd; a lost encoding costs more


def test_contexts_stay_small(tmp_path: Path, contexts: Columns) -> None:
    size = bytes_a_row(tmp_path, CONTEXTS, _context_rows(contexts))
    assert size < GOALS["contexts"]
    assert abs(size - 247) < 3


def test_the_encodings_matter(tmp_path: Path, contexts: Columns, monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(table: Table, level: int, **options: Any) -> dict[str, Any]:
        return {**write_options(table, level, **options), "column_encoding": {}}

    monkeypatch.setattr("acceptlab.store.parts.write_options", plain)
    assert bytes_a_row(tmp_path, CONTEXTS, _context_rows(contexts)) > GOALS["contexts"]
