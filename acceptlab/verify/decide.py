"""One rule, one decision: `verify` turns a drafted tree and both models' distributions into a verdict.

Pure: uniforms come in, nothing is mutated, no model, file or random state. A rule is two functions of the
same step: the probability with which it accepts each node once it tests it (`accept_probs`), and the law of
the token that follows the accepted path (`emission`). The walk over the tree is the same for all rules
(`walk`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from acceptlab.errors import RunError, UsageError
from acceptlab.relaxed import passes
from acceptlab.rules import Rule, RuleKind
from acceptlab.sampling import draw
from acceptlab.verify.drafted import Drafted, Target, Verdict, rows_of
from acceptlab.verify.lossless import (
    block_accepts,
    block_excess,
    block_weights,
    deterministic_siblings,
    sampled_siblings,
)
from acceptlab.walk import accepted_path, expected_len, reach_probs, walk

Nodes = Float64[np.ndarray, " nodes"]
Blocked = Bool[np.ndarray, " nodes"]


def verify(
    rule: Rule,
    drafted: Drafted,
    target: Target,
    uniforms: Float64[np.ndarray, " nodes_and_one"],
    eos_ids: frozenset[int] = frozenset(),
) -> Verdict:
    """Decide a step.

    Args:
        rule: the verification rule.
        drafted: the draft's side: tree, tokens, sampling distributions.
        target: the parts of the target's side that the rule reads (see `Target`, `read_target`).
        uniforms: in [0, 1). Entry i tests node i, the last one draws the token after the accepted path.
        eos_ids: tokens that end the text. Nothing below one is tested, and nothing follows one.

    Raises:
        UsageError: the rule cannot decode, or lacks an input.
        RunError: a token that the draft cannot have drawn.
    """
    tree = drafted.tree
    if uniforms.shape != (tree.n_nodes + 1,):
        raise UsageError(f"{tree.n_nodes} nodes need {tree.n_nodes + 1} uniforms, not {uniforms.shape}")
    blocked = drafted.blocked(eos_ids)
    accept = accept_probs(rule, drafted, target, blocked)
    while True:
        outcome = walk(tree, accept, uniforms[:-1], blocked)
        path = accepted_path(outcome)
        if path and int(drafted.token_ids[path[-1]]) in eos_ids:
            next_token = None
            break
        row = path[-1] + 1 if path else 0
        law, certain = emission(rule, drafted, target, blocked, row)
        if certain is None:
            next_token = law if isinstance(law, int) else draw(law, float(uniforms[-1]))
            break
        # rejected by rounding where rejection has probability 0: accept it and go on from there
        accept = accept.copy()
        accept[certain] = 1.0
    test, reach = reach_probs(tree, accept, blocked)
    return Verdict(
        outcome=outcome,
        accepted=path,
        next_token=next_token,
        accept_prob=np.where(test > 0, accept, np.nan),
        test_prob=test,
        expected_accepted_len=float(expected_len(reach)),
    )


def accept_probs(
    rule: Rule,
    drafted: Drafted,
    target: Target,
    blocked: Blocked,
) -> Nodes:
    """Probability with which the rule accepts each node once it tests it; 0 where it never tests it."""
    if drafted.tree.n_nodes == 0:
        return np.zeros(0)
    if rule.is_argmax:
        accept = _argmax_accepts(rule, drafted, target)
    elif rule.kind is RuleKind.BLOCK:
        accept = _block_accepts(drafted, _sampling(rule, target), blocked)
    else:
        accept = _sibling_accepts(rule, drafted, _sampling(rule, target), blocked)
    accept[blocked] = 0.0
    _refuse_undrawn(drafted, np.isnan(accept))
    return accept


def emission(
    rule: Rule,
    drafted: Drafted,
    target: Target,
    blocked: Blocked,
    row: int,
) -> tuple[Float64[Tensor, " vocab"] | int, int | None]:
    """What follows an accepted path that ends in context `row`, all of whose children were rejected.

    Returns:
        The law of the next token (unnormalised), or the token itself for the argmax rules; and a child that
        must not have been rejected, since nothing is left to emit, else None.
    """
    if rule.is_argmax:
        token = int(_argmax(rule, target)[row])
        if token < 0 and target.late_argmax is not None:
            token = target.late_argmax(row)
        return token, None
    children = [node for node in drafted.tree.children[row] if not blocked[node]]
    here = _sampling(rule, target).probs_of(np.array([row]))
    if not children:
        return here[0], None
    if rule.kind is RuleKind.ONEHOT:
        return deterministic_siblings(here, _tokens(drafted, [children], here))[1][0], None
    draft_row = int(drafted.draft_rows[row])
    offered = _draft_probs(drafted)[draft_row : draft_row + 1]
    if rule.kind is RuleKind.BLOCK:
        weights = _chain_weights(drafted, target, blocked)
        weight = weights[row - 1 : row] if row else torch.ones_like(weights[:1])
        law = block_excess(here, offered, weight)[0]
        return (law, None) if bool(law.sum() > 0) else (here[0], _if_possible(children[0], drafted, here))
    replace = rule.kind is RuleKind.REJECTION_IID
    accept, law = sampled_siblings(here, offered, _tokens(drafted, [children], here), replace=replace)
    sure = np.flatnonzero(accept[0].cpu().numpy() == 1)
    return law[0], children[int(sure[0])] if len(sure) else None


def _if_possible(node: int, drafted: Drafted, here: Float64[Tensor, "1 vocab"]) -> int | None:
    return node if bool(here[0, int(drafted.token_ids[node])] > 0) else None


def _argmax_accepts(rule: Rule, drafted: Drafted, target: Target) -> Nodes:
    parent_rows = drafted.tree.parent_rows
    return passes(
        rule,
        is_argmax=drafted.token_ids == _argmax(rule, target)[parent_rows],
        rank=target.node_rank,
        prob=target.node_prob,
        top_prob=None if target.top_prob is None else target.top_prob[parent_rows],
        entropy=None if target.entropy is None else target.entropy[parent_rows],
    ).astype(np.float64)


def _sibling_accepts(
    rule: Rule,
    drafted: Drafted,
    target: Target,
    blocked: Blocked,
) -> Nodes:
    """Contexts with the same number of children are computed together, on the CPU one by one."""
    accept = np.zeros(drafted.tree.n_nodes)
    for group in _families(drafted, blocked, one_by_one=target.is_on_cpu):
        rows = [row for row, _ in group]
        nodes_of = [nodes for _, nodes in group]
        here = target.probs_of(np.array(rows))
        tokens = _tokens(drafted, nodes_of, here)
        if rule.kind is RuleKind.ONEHOT:
            values, _ = deterministic_siblings(here, tokens, final=False)
        else:
            offered = rows_of(_draft_probs(drafted), drafted.draft_rows[rows])
            replace = rule.kind is RuleKind.REJECTION_IID
            values, _ = sampled_siblings(here, offered, tokens, replace=replace, final=False)
        accept[np.array(nodes_of)] = values.cpu().numpy()
    return accept


def _families(
    drafted: Drafted, blocked: Blocked, *, one_by_one: bool
) -> Iterator[list[tuple[int, list[int]]]]:
    """Groups of contexts with equally many children to test, each with these children.

    A row of the vocabulary stays in a processor's cache, several do not; an accelerator wants them all at once.
    """
    families: dict[tuple[int, int], list[tuple[int, list[int]]]] = {}
    for row, nodes in enumerate(drafted.tree.children):
        tested = [node for node in nodes if not blocked[node]]
        if tested:
            families.setdefault((len(tested), row if one_by_one else 0), []).append((row, tested))
    yield from families.values()


def _block_accepts(
    drafted: Drafted,
    target: Target,
    blocked: Blocked,
) -> Nodes:
    """On a chain, node i is token i + 1 of the block; the block ends where nodes are blocked."""
    accept = np.zeros(drafted.tree.n_nodes)
    weights = _chain_weights(drafted, target, blocked)
    length = len(weights)
    if length:
        inner = np.arange(1, length)
        offered = rows_of(_draft_probs(drafted), drafted.draft_rows[inner])
        excess = block_excess(target.probs_of(inner), offered, weights[:-1]).sum(dim=-1)
        accept[:length] = block_accepts(weights, excess).cpu().numpy()
    return accept


def _chain_weights(
    drafted: Drafted,
    target: Target,
    blocked: Blocked,
) -> Float64[Tensor, " length"]:
    tree = drafted.tree
    if any(parent != node - 1 for node, parent in enumerate(tree.parents)):
        raise UsageError("rule 'block' is for chains: use --tree chain:K, or rule rejection")
    length = int((~blocked).sum())
    here = target.probs_of(np.arange(length))
    if length == 0:
        return here.new_zeros(0)
    tokens = torch.from_numpy(drafted.token_ids[:length, None]).to(here.device)
    offered_rows = torch.from_numpy(drafted.draft_rows[:length, None]).to(here.device)
    wanted = here.gather(1, tokens)[:, 0]
    offered = _draft_probs(drafted)[offered_rows, tokens][:, 0]
    _refuse_undrawn(drafted, (offered == 0).cpu().numpy())
    return block_weights(wanted / offered)


def _refuse_undrawn(drafted: Drafted, is_undrawn: Bool[np.ndarray, " some_nodes"]) -> None:
    if is_undrawn.any():
        node = int(np.flatnonzero(is_undrawn)[0])
        raise RunError(
            f"node {node} holds token {drafted.token_ids[node]}, which the draft cannot have drawn there: "
            "use candidates sampled from the draft's own distribution, or rule onehot"
        )


def _argmax(rule: Rule, target: Target) -> Int[np.ndarray, " contexts"]:
    if target.argmax is None:
        raise UsageError(f"rule '{rule}' needs the target's argmax in every context")
    return target.argmax


def _sampling(rule: Rule, target: Target) -> Target:
    """The target, if it has what a rule that samples reads."""
    if rule.kind is RuleKind.TREE:
        raise UsageError(f"rule '{rule}' is for certificates only: decode with greedy or top:M")
    if target.probs is None or target.probs.dtype != torch.float64:
        raise UsageError(f"rule '{rule}' needs the target's sampling distribution in float64")
    return target


def _draft_probs(drafted: Drafted) -> Float64[Tensor, "rows vocab"]:
    if drafted.draft_probs is None or drafted.draft_probs.dtype != torch.float64:
        raise UsageError("rules that sample need the draft's sampling distribution in float64")
    return drafted.draft_probs


def _tokens(
    drafted: Drafted, nodes_of: list[list[int]], like: Float64[Tensor, "contexts vocab"]
) -> Int[Tensor, "contexts siblings"]:
    return torch.from_numpy(drafted.token_ids[np.array(nodes_of)]).to(like.device)
