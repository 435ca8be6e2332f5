"""Records for a replay, a batch of prompts at a time, and what a candidate gives on a batch. No statistics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Float64, Int

from acceptlab import queries
from acceptlab.analysis.base import Sample
from acceptlab.analysis.decisions import Stored, around_float32, around_listed, decide
from acceptlab.analysis.forest import Forest, below_end, forest_of, length_bounds, reach
from acceptlab.analysis.replay_plan import Candidate, Recorded, not_contained, places, rank_paths
from acceptlab.errors import RunError
from acceptlab.queries import trees
from acceptlab.rng import generator
from acceptlab.rules import RuleKind

SUMS = (
    "n_steps",
    "stored_len",
    "stored_expected",
    "stored_tested",
    "len",
    "expected",
    "tested",
    "least",
    "most",
    "n_undecided",
    "n_nodes",
)
"""Per-prompt sums of a candidate."""

BATCH_NODES = 500_000
_LISTED = frozenset({RuleKind.ADDITIVE, RuleKind.RATIO, RuleKind.TYPICAL})


@dataclass(frozen=True, eq=False)
class Batch:
    """Whole prompts: their drafted steps and the nodes of those, row by row."""

    steps: pd.DataFrame
    forest: Forest
    nodes: trees.Columns
    blocked: Bool[np.ndarray, " nodes"]
    """Nodes below an end of text."""
    stored: Stored | None
    """For the rules that compare probabilities; None where no candidate needs it."""
    uniforms: Float64[np.ndarray, " nodes"]


def batches(
    sample: Sample,
    made: Recorded,
    candidates: list[Candidate],
    end_tokens: frozenset[int],
    n_nodes: int = BATCH_NODES,
) -> Iterator[Batch]:
    """Read the runs prompt by prompt, some `n_nodes` nodes at a time."""
    needs_probs = any(c.rule.kind in _LISTED and not c.is_own_rule for c in candidates)
    for first, last in _ranges(sample, n_nodes):
        steps = trees.replay_steps(sample.connection, first, last)
        nodes = trees.replay_nodes(sample.connection, first, last)
        sizes = steps["n_nodes"].to_numpy(dtype=np.int64)
        if int(sizes.sum()) != len(nodes["node"]):
            raise RunError(
                f"the steps count {int(sizes.sum())} nodes, and {len(nodes['node'])} are there: check the run "
                "with `acceptlab runs check`"
            )
        forest = forest_of(sizes, nodes["parent"], nodes["child_rank"])
        stored = _stored(sample, made, nodes, (first, last)) if needs_probs else None
        is_end = np.isin(nodes["token_id"], list(end_tokens))
        yield Batch(
            steps, forest, nodes, below_end(forest, is_end), stored, _uniforms(made.seed, steps, sizes)
        )


def _ranges(sample: Sample, n_nodes: int) -> Iterator[tuple[int, int]]:
    """Consecutive prompt numbers with some `n_nodes` nodes in each range."""
    sums = queries.step_sums(sample.connection).merge(
        queries.prompt_groups(sample.connection), on=["run_id", "prompt_id"]
    )
    by_prompt = sums.groupby("prompt")["n_nodes"].sum()
    pack = (by_prompt.cumsum() - by_prompt).to_numpy() // n_nodes
    for number in np.unique(pack):
        prompts = by_prompt.index.to_numpy()[pack == number]
        yield int(prompts[0]), int(prompts[-1])


def _stored(sample: Sample, made: Recorded, nodes: trees.Columns, prompts: tuple[int, int]) -> Stored:
    if made.unwarped:
        prob = around_float32(nodes["target_prob"])
    else:
        listed = trees.replay_lists(sample.connection, *prompts)
        if np.isnan(listed["n_listed"].astype(np.float64)).any():
            raise RunError("contexts of drafted nodes are missing: check the run with `acceptlab runs check`")
        prob = around_listed(
            np.nan_to_num(listed["listed_prob"]),
            nodes["target_rank"],
            listed["n_listed"].astype(np.int64),
            listed["last_prob"],
            listed["listed_mass"],
        )
    return Stored(
        rank=nodes["target_rank"],
        prob=prob,
        top_prob=around_float32(nodes["target_top_prob"]),
        entropy=around_float32(nodes["target_entropy"]),
    )


def _uniforms(
    seed: int, steps: pd.DataFrame, sizes: Int[np.ndarray, " steps"]
) -> Float64[np.ndarray, " nodes"]:
    """A stream a prompt, so that batches of any size draw the same; a replay never reuses the run's own draws."""
    keys = steps[["run_id", "prompt_id"]].assign(n=sizes)
    totals = keys.groupby(["run_id", "prompt_id"], sort=False, as_index=False)["n"].sum()
    drawn = [
        generator(seed, str(prompt_id), 0, "replay").random(int(n))
        for prompt_id, n in zip(totals["prompt_id"], totals["n"], strict=True)
    ]
    return np.concatenate(drawn) if drawn else np.zeros(0)


@dataclass(eq=False)
class Replay:
    """One candidate over all batches: `add` each of them, then `frame` gives the per-prompt sums."""

    candidate: Candidate
    made: Recorded

    def __post_init__(self) -> None:
        self._frames: list[pd.DataFrame] = []
        tree = self.candidate.tree
        self._seen = np.zeros(0 if tree is None else tree.n_nodes, dtype=bool)

    def add(self, batch: Batch) -> None:
        """Evaluate the candidate on a batch."""
        kept = self._kept(batch)
        if self.candidate.is_own_rule:
            values = _own(batch, kept)
        elif self.candidate.rule.is_argmax:
            values = _argmax(self.candidate, batch, kept)
        else:
            values = _lossless(self.candidate, batch, kept)
        values |= {
            "n_steps": np.ones(len(batch.steps)),
            "n_nodes": _per_step(batch.forest, kept),
            "stored_len": batch.steps["accepted_len"].to_numpy(),
            "stored_expected": batch.steps["expected_len"].to_numpy(),
            "stored_tested": batch.steps["n_tested"].to_numpy(),
        }
        frame = batch.steps[["run_id", "prompt_id"]].assign(**{name: values[name] for name in SUMS})
        self._frames.append(frame.groupby(["run_id", "prompt_id"], as_index=False).sum())

    def frame(self) -> pd.DataFrame:
        """Sums by prompt.

        Raises:
            UsageError: a node of the wanted tree was in no step.
        """
        if not self._seen.all() and self._frames and self.candidate.tree is not None:
            missing = int(np.flatnonzero(~self._seen)[0])
            raise not_contained(
                self.candidate.text,
                rank_paths(self.candidate.tree)[missing],
                f"the run's tree '{self.made.tree}'",
            )
        empty = pd.DataFrame(columns=["run_id", "prompt_id", *SUMS])
        return pd.concat(self._frames, ignore_index=True) if self._frames else empty

    def _kept(self, batch: Batch) -> Bool[np.ndarray, " nodes"]:
        tree = self.candidate.tree
        if tree is None:
            return np.ones(batch.forest.n_nodes, dtype=bool)
        found = places(tree, batch.forest)
        kept = found >= 0
        self._seen[found[kept]] = True
        if self.made.is_adaptive:
            short = np.flatnonzero(_per_step(batch.forest, kept) < tree.n_nodes)
            if len(short):
                here = set(found[kept & (batch.forest.step == short[0])].tolist())
                missing = next(node for node in range(tree.n_nodes) if node not in here)
                step = batch.steps.iloc[int(short[0])]
                raise not_contained(
                    self.candidate.text,
                    rank_paths(tree)[missing],
                    f"step {step['step']} of prompt '{step['prompt_id']}' under tree '{self.made.tree}'",
                )
        return kept


def _own(batch: Batch, kept: Bool[np.ndarray, " nodes"]) -> dict[str, Float[np.ndarray, " steps"]]:
    """The run's own rule: its outcomes are on record, and a smaller tree only ends the walk earlier."""
    nodes, forest = batch.nodes, batch.forest
    length = _per_step(forest, kept & nodes["is_accepted"])
    reached = nodes["test_prob"].astype(np.float64) * np.nan_to_num(nodes["accept_prob"].astype(np.float64))
    whole = _per_step(forest, kept) == batch.steps["n_nodes"].to_numpy()
    expected = np.where(whole, batch.steps["expected_len"], _per_step(forest, np.where(kept, reached, 0.0)))
    return {
        "len": length,
        "expected": expected,
        "tested": _per_step(forest, kept & nodes["is_tested"]),
        "least": length,
        "most": length,
        "n_undecided": np.zeros(len(batch.steps)),
    }


def _argmax(
    candidate: Candidate, batch: Batch, kept: Bool[np.ndarray, " nodes"]
) -> dict[str, Float[np.ndarray, " steps"]]:
    alive = kept & ~batch.blocked
    stored = batch.stored or _ranks_only(batch)
    surely, possibly = (passing[alive] for passing in decide(candidate.rule, stored))
    forest = batch.forest.subset(alive)
    test, reached = reach(forest, surely.astype(np.float64))
    least, most = length_bounds(forest, surely, possibly)
    length = _per_step(forest, reached)
    return {
        "len": length,
        "expected": length,
        "tested": _per_step(forest, test > 0),
        "least": least,
        "most": most,
        "n_undecided": _per_step(forest, possibly & ~surely),
    }


def _ranks_only(batch: Batch) -> Stored:
    nothing = np.zeros(batch.forest.n_nodes)
    return Stored(batch.nodes["target_rank"], (nothing, nothing), (nothing, nothing), (nothing, nothing))


def _lossless(
    candidate: Candidate, batch: Batch, kept: Bool[np.ndarray, " nodes"]
) -> dict[str, Float[np.ndarray, " steps"]]:
    """Lossless rules: onehot by target_prob, rejection on chains by accept_ratio. The expectation needs no draws."""
    alive = kept & ~batch.blocked
    forest = batch.forest.subset(alive)
    if candidate.rule.kind is RuleKind.ONEHOT:
        accept = onehot_accepts(forest, batch.nodes["target_prob"][alive].astype(np.float64))
    else:
        accept = np.nan_to_num(batch.nodes["accept_ratio"][alive].astype(np.float64))
    _, reached = reach(forest, accept)
    test, taken = reach(forest, (batch.uniforms[alive] < accept).astype(np.float64))
    length = _per_step(forest, taken)
    return {
        "len": length,
        "expected": _per_step(forest, reached),
        "tested": _per_step(forest, test > 0),
        "least": length,
        "most": length,
        "n_undecided": np.zeros(len(batch.steps)),
    }


def onehot_accepts(
    forest: Forest, target_prob: Float64[np.ndarray, " nodes"]
) -> Float64[np.ndarray, " nodes"]:
    """Acceptance of deterministic candidates: target_prob over what the earlier siblings left of the target."""
    left = np.ones(forest.n_nodes)
    for rows in forest.by_sibling():
        earlier = forest.before[rows]
        left[rows] = np.maximum(left[earlier] - target_prob[earlier], 0.0)
    accept = np.zeros(forest.n_nodes)
    np.divide(target_prob, left, out=accept, where=left > 0)
    return np.minimum(accept, 1.0)


def _per_step(forest: Forest, values: Float[np.ndarray, " nodes"]) -> Float64[np.ndarray, " steps"]:
    return np.bincount(forest.step, weights=values, minlength=forest.n_steps)
