"""What a replay may ask: which rules are valid for the stored proposals, which trees the stored ones contain.

Configurations and shapes only; no records are read here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from acceptlab.analysis.forest import NONE, Forest
from acceptlab.errors import AcceptlabError, UsageError
from acceptlab.pairing import ADAPTIVE_TREES
from acceptlab.rules import RANKED_KINDS, Rule, RuleKind, parse_rule
from acceptlab.store import Run
from acceptlab.tree import Tree, TreeShape, parse_tree

_SAME = ("rule", "tree", "proposal", "temperature", "top_k", "top_p")
_RANKED = frozenset({"ranked", "argmax"})
_FROM_RATIOS = frozenset({RuleKind.REJECTION, RuleKind.REJECTION_IID})


@dataclass(frozen=True)
class Recorded:
    """How the runs were made, as far as a replay needs it."""

    rule: Rule
    tree: str
    is_ranked: bool
    """The candidates are the draft's ranked tokens, not draws."""
    unwarped: bool
    """Sampling and model distributions are the same: temperature 1, nothing cut off."""
    seed: int
    static: Tree | None
    """The stored shape where its text still says it; None for adaptive trees and where a file is gone."""

    @property
    def is_adaptive(self) -> bool:
        """Whether the shape differs from step to step."""
        return self.tree.partition(":")[0] in ADAPTIVE_TREES


@dataclass(frozen=True)
class Candidate:
    """A rule and a tree to replay; `tree` None stands for the stored one."""

    rule: Rule
    text: str
    tree: Tree | None
    is_own_rule: bool

    def __str__(self) -> str:
        """For messages."""
        return f"rule {self.rule} on tree {self.text}"


@dataclass(frozen=True)
class EndTokens:
    """Tokens that end a text, and where that is known from, for the reader of a table."""

    token_ids: frozenset[int]
    note: str


def end_tokens(runs: Sequence[Run], seen: frozenset[int]) -> EndTokens:
    """The tokens that end a text, from the manifests of the runs.

    Args:
        runs: opened runs.
        seen: tokens that ended a text of these runs; they stand in where a manifest does not name them, as in runs
            written before manifests did.
    """
    named = [run.manifest.get("eos_ids") for run in runs]
    silent = [str(run.path) for run, ids in zip(runs, named, strict=True) if ids is None]
    known = frozenset(int(token_id) for ids in named if ids is not None for token_id in ids)
    token_ids = known | seen if silent else known
    listed = ", ".join(map(str, sorted(token_ids))) or "none"
    if not silent:
        return EndTokens(token_ids, f"nothing is accepted below a token that ends a text (ids: {listed})")
    return EndTokens(
        token_ids,
        f"nothing is accepted below a token that ended a text of the runs (ids: {listed}); "
        f"{', '.join(silent)} does not say which tokens end a text, so others may be missing",
    )


def recorded(runs: Sequence[Run]) -> Recorded:
    """The configuration that the runs share.

    Raises:
        UsageError: the runs differ in their rule, tree or sampling distribution, or do not say.
    """
    for key in _SAME:
        values = {str(run.config.get(key)) for run in runs}
        if len(values) > 1:
            raise UsageError(
                f"a replay takes runs of one configuration, and these differ in {key} "
                f"({', '.join(sorted(values))}): replay them one by one"
            )
    config = runs[0].config
    if not config.get("rule") or not config.get("tree"):
        raise UsageError(f"run '{runs[0].path}' does not say its rule and tree, so it cannot be replayed")
    rule = parse_rule(str(config["rule"]))
    proposal = str(config.get("proposal") or "")
    top_p = config.get("top_p")
    return Recorded(
        rule=rule,
        tree=str(config["tree"]),
        is_ranked=proposal in _RANKED if proposal else rule.kind in RANKED_KINDS,
        unwarped=config.get("temperature") == 1 and not config.get("top_k") and top_p in (None, 1, 1.0),
        seed=int(config.get("seed") or 0),
        static=_static(str(config["tree"])),
    )


def _static(text: str) -> Tree | None:
    try:
        return parse_tree(text).static
    except AcceptlabError:  # a tree from a file that is gone, or made from another run
        return None


def candidate(made: Recorded, rule: Rule, shape: TreeShape | None) -> Candidate:
    """Check one rule and tree against the stored ones.

    Raises:
        UsageError: the rule is not valid for the stored proposals, or the tree is not contained.
    """
    tree = _contained(made, shape)
    is_own = rule == made.rule
    found = Candidate(rule, made.tree if shape is None else shape.text, tree, is_own)
    if rule.kind is RuleKind.TREE:
        raise UsageError(f"rule '{rule}' is for certificates only: replay a tree with greedy or top:M")
    if rule.kind is RuleKind.BLOCK and not (is_own and tree is None):
        raise UsageError(
            f"{found} cannot be replayed: block verification needs both full distributions, which records "
            "do not hold; only a block run replays it, on its own chain"
        )
    if is_own:
        return found
    if made.is_ranked and rule.kind not in RANKED_KINDS:
        raise UsageError(
            f"rule '{rule}' needs tokens sampled from the draft, and the run holds its ranked ones: replay "
            "onehot, or collect with the rule"
        )
    if not made.is_ranked and not (rule.kind in _FROM_RATIOS and _is_chain(made, tree)):
        raise UsageError(
            f"rule '{rule}' is not valid for tokens that were sampled for rule '{made.rule}': replay that rule, "
            "or rejection and rejection-iid on a chain"
        )
    return found


def _contained(made: Recorded, shape: TreeShape | None) -> Tree | None:
    if shape is None or shape.text == made.tree:
        return None
    if shape.static is None:
        raise UsageError(
            f"tree '{shape.text}' follows the draft's confidence, so records do not say how it would have grown: "
            "replay a static tree"
        )
    if made.static is not None:
        held = set(rank_paths(made.static))
        missing = [path for path in rank_paths(shape.static) if path not in held]
        if missing:
            raise not_contained(shape.text, missing[0], f"tree '{made.tree}'")
        if shape.static == made.static:
            return None
    return shape.static


def _is_chain(made: Recorded, tree: Tree | None) -> bool:
    chosen = tree or made.static
    return chosen is not None and all(len(nodes) <= 1 for nodes in chosen.children)


def rank_paths(tree: Tree) -> list[tuple[int, ...]]:
    """The path of child ranks of every node, which names its place whatever the order of the nodes."""
    paths: list[tuple[int, ...]] = []
    for node, parent in enumerate(tree.parents):
        above = () if parent < 0 else paths[parent]
        paths.append((*above, int(tree.child_ranks[node])))
    return paths


def not_contained(text: str, path: tuple[int, ...], where: str) -> UsageError:
    """The error for a wanted node that the stored trees lack."""
    ranks = ",".join(map(str, path))
    return UsageError(
        f"tree '{text}' has a node at depth {len(path)} (child ranks {ranks}) that {where} lacks: replay a tree "
        "that is contained in it, or collect with a larger one"
    )


def places(tree: Tree, forest: Forest) -> Int[np.ndarray, " nodes"]:
    """For every stored node the node of the wanted tree with the same path of child ranks, -1 where it has none."""
    width = max(1, int(tree.n_children.max()))
    child = np.full((tree.n_nodes + 1, width), NONE)  # row 0 the root, row i + 1 node i
    child[tree.parent_rows, tree.child_ranks] = np.arange(tree.n_nodes)
    found = np.full(forest.n_nodes, NONE)
    for rows in forest.by_level():
        parents, ranks = forest.parent[rows], forest.child_rank[rows]
        above = np.where(parents < 0, 0, found[parents] + 1)
        lost = ((parents >= 0) & (above == 0)) | (ranks >= width)
        found[rows] = np.where(lost, NONE, child[above, np.minimum(ranks, width - 1)])
    return found
