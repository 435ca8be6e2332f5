"""Expected accepted length: of trees from conditional acceptance, of products of rates, and weights by
position.

Accepted length counts drafted tokens, without the bonus token. Arrays may have leading axes; the last one
runs over nodes or positions. Chain objectives on target-sampled trajectories are in `chains`. Boundary:
probabilities in, lengths out; no drawing, no records.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

from acceptlab.errors import UsageError
from acceptlab.tree import Tree

PerNode = Float[np.ndarray, "*batch nodes"]
PerPosition = Float[np.ndarray, "*batch positions"]


def tree_reach(tree: Tree, accept_probs: PerNode) -> tuple[PerNode, PerNode]:
    """Probability that each node is tested, and that it is accepted (reached), given the drafted tree.

    reach(child i) = reach(parent) * product over earlier siblings of (1 - accept) * accept(child i).

    Args:
        tree: the drafted tree, siblings in the order in which the rule tries them.
        accept_probs: acceptance of every node given that it is tested; entries of nodes that cannot be tested
            are ignored and may be nan.

    Returns:
        test probabilities and reach probabilities, both [..., nodes].

    Raises:
        UsageError: the last axis is not the number of nodes.
    """
    accept = np.asarray(accept_probs, dtype=np.float64)
    if accept.shape[-1:] != (tree.n_nodes,):
        raise UsageError(f"accept_probs has shape {accept.shape}: its last axis must be {tree.n_nodes} nodes")
    test, reach = np.zeros_like(accept), np.zeros_like(accept)
    for row, children in enumerate(tree.children):
        left = np.ones(accept.shape[:-1]) if row == 0 else reach[..., row - 1].copy()
        for node in children:
            test[..., node] = left
            accepted = np.where(left > 0.0, accept[..., node], 0.0)
            reach[..., node] = left * accepted
            left = left * (1.0 - accepted)
    return test, reach


def tree_survival(tree: Tree, reach: PerNode) -> Float[np.ndarray, "*batch depth"]:
    """P(accepted length >= d) for d = 1..depth: the total reach of each level."""
    levels = [np.asarray(reach)[..., list(level)].sum(axis=-1) for level in tree.levels]
    return np.stack(levels, axis=-1) if levels else np.zeros((*np.shape(reach)[:-1], 0))


def tree_expected_len(reach: PerNode) -> Float[np.ndarray, "*batch"]:
    """Expected accepted length given the drafted tree: the sum of the reach of all nodes.

    As an estimate over trees it is unbiased for the accepted length, with a variance that is never larger.
    """
    return np.asarray(np.asarray(reach, dtype=np.float64).sum(axis=-1))


def length_law(survival: Float[np.ndarray, "*batch depth"]) -> Float[np.ndarray, "*batch lengths"]:
    """P(accepted length = d) for d = 0..depth from the survival P(length >= d), d = 1..depth."""
    survival = np.asarray(survival, dtype=np.float64)
    edges = np.ones((*survival.shape[:-1], 1))
    padded = np.concatenate([edges, survival, np.zeros_like(edges)], axis=-1)
    return np.asarray(padded[..., :-1] - padded[..., 1:])


def product_expected_len(rates: PerPosition) -> Float[np.ndarray, "*batch"]:
    """Sum over d of the product of the first d rates.

    With the mean accept_ratio by depth this is the E[L] of arXiv 2604.14682, which takes depths as
    independent. With the draft's probabilities of the target's greedy tokens it is the greedy expected
    accepted length (EAL): the expected length if the draft sampled its tokens.
    """
    return np.asarray(np.cumprod(np.asarray(rates, dtype=np.float64), axis=-1).sum(axis=-1))


def position_weights(
    alphas: PerPosition, rho: float, mask: Bool[np.ndarray, "*batch positions"] | None = None
) -> PerPosition:
    """Weight of every position in a block: how much the expected length hangs on it, given the ones before.

    s = rho + (1 - rho) * alpha, R_t = product of s up to t, w_t = sum over j >= t of R_j. alpha is the
    draft's probability of the target's token (D-PACE) or the overlap (D-PAL). With rho = 0 the gradient of
    sum w_t * (-log alpha_t), w held fixed, is that of minus the sum of prefix products.

    Args:
        alphas: acceptance of every position, [..., positions].
        rho: smoothing from 0 to 1; 0 lets one impossible position silence all.
        mask: valid positions; others weigh 0 and are skipped, as if the valid ones stood next to each other.

    Raises:
        UsageError: rho outside of 0 to 1.
    """
    if not 0.0 <= rho <= 1.0:
        raise UsageError(f"rho is {rho}: give a number from 0 to 1")
    alphas = np.asarray(alphas, dtype=np.float64)
    valid = np.ones(alphas.shape, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
    reached = np.where(valid, np.cumprod(np.where(valid, rho + (1.0 - rho) * alphas, 1.0), axis=-1), 0.0)
    return np.where(valid, np.cumsum(reached[..., ::-1], axis=-1)[..., ::-1], 0.0)


def block_prefix_weights(ratios: PerPosition) -> PerPosition:
    """P_i = min(1, P_(i-1) * target/draft) along a drafted chain, P_0 = 1.

    Source: Sun et al., Block Verification Accelerates Speculative Decoding (2024), algorithm 2.

    Args:
        ratios: target probability over draft probability of every drafted token, not cut at 1.
    """
    ratios = np.asarray(ratios, dtype=np.float64)
    weights = np.empty_like(ratios)
    current = np.ones(ratios.shape[:-1])
    for position in range(ratios.shape[-1]):
        current = np.minimum(1.0, current * ratios[..., position])
        weights[..., position] = current
    return weights


def block_accept_probs(prefix_weights: PerPosition, residual_sums: PerPosition) -> PerPosition:
    """h_i, with which block verification accepts a prefix of i tokens on its own draw.

    h_i = R_i / (R_i + 1 - P_i), 0/0 = 0, for i below the length; h at the full length is P.

    Args:
        prefix_weights: P_i for i = 1..K.
        residual_sums: R_i = sum over the vocabulary of (P_i * target - draft)+ in the context after i drafted
            tokens, for i = 1..K - 1.

    Raises:
        UsageError: residual_sums does not have one position less.
    """
    weights = np.asarray(prefix_weights, dtype=np.float64)
    residual = np.asarray(residual_sums, dtype=np.float64)
    if residual.shape[-1] != weights.shape[-1] - 1:
        raise UsageError(
            f"residual_sums has {residual.shape[-1]} positions: give one less than {weights.shape[-1]}"
        )
    total = residual + (1.0 - weights[..., :-1])
    inner = np.where(total > 0.0, residual / np.where(total > 0.0, total, 1.0), 0.0)
    return np.concatenate([inner, weights[..., -1:]], axis=-1)


def block_survival(accept_probs: PerPosition) -> PerPosition:
    """P(at least i tokens accepted) for i = 1..K under block verification: 1 - product over j >= i of (1 -
    h_j).

    The longest prefix whose draw succeeds is accepted, so any later success keeps a prefix alive. The sum
    over i is the expected accepted length given the drafted chain.
    """
    failures = 1.0 - np.asarray(accept_probs, dtype=np.float64)
    return 1.0 - np.cumprod(failures[..., ::-1], axis=-1)[..., ::-1]
