"""A run of any size by toy models: real decoding of a few texts, repeated under other names until it is large.

What is repeated is not quite the same: every copy has the entropies and divergences times a factor of its own near 1,
so that sorting and compressing them cost what they cost on real records. For timing only; its numbers mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from acceptlab.collect import Tables, collect_prompt
from acceptlab.engine import Settings
from acceptlab.errors import UsageError
from acceptlab.pairing import proposal_for
from acceptlab.prompts import Prompt
from acceptlab.rules import parse_rule
from acceptlab.sampling import Warp
from acceptlab.store import RunWriter
from acceptlab.store.schema import FAST_LEVEL
from acceptlab.toy import TableModel, blended, random_table
from acceptlab.tree import parse_tree

VOCAB = 64
_EOS = 63
DISTANCE = {"code": 0.30, "math": 0.40, "logic": 0.35, "chat": 0.45}
"""How much of another table the draft has, by domain."""

SHAKEN = ("draft_entropy", "target_entropy", "kl_target_draft", "kl_draft_target", "renyi_half")
_PROMPTS, _TOKENS = 8, 60
_ROWS_PER_PART = 250_000


@dataclass
class ToyPair:
    """Two tables in the shape that the collector takes."""

    target: TableModel
    draft: TableModel
    window_limit: int | None = None
    eos_ids: frozenset[int] = field(default_factory=lambda: frozenset({_EOS}))

    def encode(self, text: str) -> list[int]:
        """Two tokens that the text decides."""
        return [len(text) % VOCAB, sum(text.encode()) % VOCAB]

    def decode(self, token_ids: list[int]) -> str:
        """The ids, written out."""
        return " ".join(map(str, token_ids))


def make_toy_run(
    folder: Path,
    n_nodes: int,
    *,
    tree: str = "kary:depth=3,branch=2",
    rule: str = "greedy",
    contexts: bool = True,
    seed: int = 0,
    on_nodes: Callable[[int], None] = lambda done: None,
) -> None:
    """Write a run of at least so many nodes.

    Args:
        folder: the run's folder; it must not hold a run.
        n_nodes: fewest nodes.
        tree: a static shape, as for collect.
        rule: a rule that goes with it.
        contexts: write the table of contexts too, by far the largest.
        seed: seed of everything drawn.
        on_nodes: told how many nodes are written.

    Raises:
        UsageError: fewer than one node wanted, or a folder that holds a run.
    """
    if n_nodes < 1:
        raise UsageError(f"{n_nodes} nodes: ask for at least one")
    base = [_decoded(domain, tree, rule, seed) for domain in DISTANCE]
    if not contexts:
        base = [{name: columns for name, columns in part.items() if name != "contexts"} for part in base]
    writer = RunWriter.create(folder, _manifest(tree, rule, seed))
    done = 0
    for copies in _batches(base, n_nodes):
        for tables in base:
            writer.write(_repeated(tables, copies, seed))
        done += len(copies) * sum(len(tables["nodes"]["node"]) for tables in base)
        on_nodes(done)
    writer.finish(compression=FAST_LEVEL)


def _decoded(domain: str, tree: str, rule: str, seed: int) -> Tables:
    """A few texts of one domain, decoded by the engine, as columns of the four tables."""
    target = random_table(VOCAB, seed, concentration=0.15)
    draft = blended(target, random_table(VOCAB, seed + 1, concentration=0.15), DISTANCE[domain])
    parsed = parse_rule(rule)
    settings = Settings(
        tree=parse_tree(tree),
        rule=parsed,
        proposal=proposal_for(parsed),
        warp=Warp(),
        max_new_tokens=_TOKENS,
        seed=seed,
        eos_ids=frozenset({_EOS}),
    )
    pair: Any = ToyPair(TableModel(target, VOCAB), TableModel(draft, VOCAB))
    prompts = [
        Prompt(id=f"{domain}/{i}", domain=domain, prompt=f"{domain} {i}", source="toy")
        for i in range(_PROMPTS)
    ]
    parts = [collect_prompt(pair, prompt, settings) for prompt in prompts]
    return {name: _joined([part[name] for part in parts if name in part]) for name in parts[0]}


def _joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: np.concatenate([_array(part[name]) for part in parts]) for name in parts[0]}


def _array(values: Any) -> np.ndarray:
    """Lists of numbers as they are; texts, missing values and ragged lists as objects."""
    if isinstance(values, np.ndarray):
        return values
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _batches(base: list[Tables], n_nodes: int) -> Iterator[range]:
    """Numbers of the copies that go into one part."""
    in_one = sum(len(tables["nodes"]["node"]) for tables in base)
    largest = max(len(tables["nodes"]["node"]) for tables in base)
    n_copies, width = -(-n_nodes // in_one), max(1, _ROWS_PER_PART // largest)
    for first in range(0, n_copies, width):
        yield range(first, min(first + width, n_copies))


def _repeated(tables: Tables, copies: range, seed: int) -> Tables:
    """The rows of the copies: prompts with other names, measures times the factor of the copy."""
    out: Tables = {}
    factors = np.random.default_rng([seed, copies.start]).uniform(0.9, 1.0, len(copies))
    for name, columns in tables.items():
        n_rows = len(columns["prompt_id"])
        made: dict[str, Any] = {}
        for column, values in columns.items():
            if column == "prompt_id":
                made[column] = np.concatenate([values + f"-{copy:05d}" for copy in copies])
                continue
            tiled = np.concatenate([values] * len(copies))
            if column in SHAKEN:
                tiled = tiled * np.repeat(factors, n_rows)
            made[column] = tiled if tiled.dtype != object else list(tiled)
        out[name] = made
    return out


def _manifest(tree: str, rule: str, seed: int) -> dict[str, Any]:
    config = {
        "pair": "toy",
        "target": "table",
        "draft": "table, blended",
        "draft_note": "",
        "prompts": "toy",
        "domains": list(DISTANCE),
        "limit": None,
        "tree": tree,
        "rule": rule,
        "proposal": str(proposal_for(parse_rule(rule))),
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "max_new_tokens": _TOKENS,
        "seed": seed,
        "stop": None,
        "batch_size": 1,
        "device": "cpu",
        "dtype": "float32",
    }
    return {"config": config, "models": {}, "eos_ids": [_EOS], "command": "acceptlab bench analyze"}
