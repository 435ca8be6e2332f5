"""Exact laws of what the rules emit, by enumeration of everything that can be drafted and decided.

Three levels, cheap first: one context (all lists of siblings), one step (all drafted trees, through
`verify.accept_probs` and `verify.emission`), whole texts (all sequences of steps on table models). A rule is
lossless exactly if the law equals the target's; float64 leaves differences near 1e-16.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from acceptlab.audit.controls import ContextVerifier
from acceptlab.pairing import ProposalKind, proposal_for
from acceptlab.rules import Rule
from acceptlab.sampling import Warp, ranked, warp
from acceptlab.toy import TableModel, Text
from acceptlab.tree import Tree
from acceptlab.verify import Drafted, Target, accept_probs, emission
from acceptlab.walk import reach_probs

Law = dict[Text, float]
Row = Float64[Tensor, " vocab"]


@dataclass(frozen=True)
class ContextMasses:
    """What comes out of one context with k siblings: probability by rank and token, and of the correction."""

    accepted: Float64[np.ndarray, "siblings vocab"]
    correction: Float64[np.ndarray, " vocab"]

    @property
    def law(self) -> Float64[np.ndarray, " vocab"]:
        """The law of the token that comes out."""
        return np.asarray(self.accepted.sum(axis=0) + self.correction)


def sibling_lists(
    proposal: ProposalKind, draft: Row, k: int
) -> tuple[Float64[Tensor, " lists"], Int64[Tensor, "lists siblings"]]:
    """Every list of k siblings that the proposal can give, with its probability.

    A draft with fewer than k tokens gives shorter lists where it cannot draw a token twice.
    """
    support = int((draft > 0).sum())
    if proposal in {ProposalKind.RANKED, ProposalKind.ARGMAX}:
        return torch.ones(1, dtype=torch.float64), ranked(draft[None], torch.tensor([min(k, support)]))
    replace = proposal is ProposalKind.WITH_REPLACEMENT
    k = k if replace or support >= k else support
    choices = torch.tensor(list(itertools.product(range(len(draft)), repeat=k)), dtype=torch.int64)
    left = draft.expand(len(choices), -1)
    weights = torch.ones(len(choices), dtype=torch.float64)
    for rank in range(k):
        token = choices[:, rank : rank + 1]
        weights = weights * left.gather(1, token)[:, 0]
        if not replace:
            left = left.scatter(1, token, 0.0)
            left = left / left.sum(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    return weights[weights > 0], choices[weights > 0]


def context_masses(verifier: ContextVerifier, target: Row, draft: Row, k: int) -> ContextMasses:
    """The exact law of one context, through the verifier's own arithmetic."""
    weights, tokens = sibling_lists(verifier.proposal, draft, k)
    n_lists, vocab = len(tokens), len(target)
    accepts, residual = verifier.siblings(target.expand(n_lists, -1), draft.expand(n_lists, -1), tokens)
    accepted = torch.zeros((k, vocab), dtype=torch.float64)
    rest = weights
    for rank in range(tokens.shape[1]):
        accepted[rank].index_add_(0, tokens[:, rank], rest * accepts[:, rank])
        rest = rest * (1.0 - accepts[:, rank])
    total = residual.sum(dim=1, keepdim=True)
    law = residual / total.masked_fill(total == 0, 1.0)
    return ContextMasses(accepted.numpy(), (rest[:, None] * law).sum(dim=0).numpy())


def step_law(
    rule: Rule, drafted: Drafted, target_probs: Float64[Tensor, "contexts vocab"], eos_ids: frozenset[int]
) -> Law:
    """The law of what one step emits, given the drafted tree: accepted tokens and the one after them."""
    target = Target(probs=target_probs)
    blocked = drafted.blocked(eos_ids)
    accept = accept_probs(rule, drafted, target, blocked)
    _, reach = reach_probs(drafted.tree, accept, blocked)
    law: Law = defaultdict(float)
    for row, children in enumerate(drafted.tree.children):
        stop = 1.0 if row == 0 else float(reach[row - 1])
        for node in children:
            stop *= 1.0 - float(accept[node])
        text = tuple(int(drafted.token_ids[node]) for node in drafted.tree.path(row - 1))
        if stop > 0 and text and text[-1] in eos_ids:
            law[text] += stop
        elif stop > 0:
            follows, _ = emission(rule, drafted, target, blocked, row)
            if not isinstance(follows, Tensor):
                raise TypeError("argmax rules emit one token, not a law")
            for token, mass in enumerate((follows / follows.sum()).tolist()):
                if mass > 0:
                    law[*text, token] += stop * mass
    return law


@dataclass(frozen=True, eq=False)
class TablePair:
    """A pair of table models with one warp, and their sampling distributions by text."""

    target: TableModel
    draft: TableModel
    settings: Warp = field(default_factory=Warp)
    _rows: dict[tuple[str, Text], Row] = field(default_factory=dict, repr=False)

    def target_row(self, text: Text) -> Row:
        """The target's sampling distribution after a text."""
        return self._row("target", self.target, text)

    def draft_row(self, text: Text) -> Row:
        """The draft's sampling distribution after a text."""
        return self._row("draft", self.draft, text)

    def _row(self, side: str, model: TableModel, text: Text) -> Row:
        if (side, text) not in self._rows:
            self._rows[side, text] = warp(model.logits(text)[None], self.settings)[0]
        return self._rows[side, text]


TreeLaws = Callable[[Text, tuple[int, ...]], Float64[np.ndarray, "*tokens"]]


def tree_laws(verifier: ContextVerifier, pair: TablePair) -> TreeLaws:
    """Laws of the next len(branches) + 1 tokens: one step, and the target alone where the step ends early.

    The tree has branches[d] children at depth d. Given the accepted token, what was drafted below it is
    independent of everything else, so the law is composed of the exact laws of single contexts.

    Returns:
        A function of a text and the branches; its arrays have one axis of the vocabulary a token.
    """

    @cache
    def masses_of(text: Text, k: int) -> ContextMasses:
        return context_masses(verifier, pair.target_row(text), pair.draft_row(text), k)

    @cache
    def plain(text: Text, n_tokens: int) -> Float64[np.ndarray, "*tokens"]:
        return target_chain(pair, text, n_tokens)

    @cache
    def law_of(text: Text, branches: tuple[int, ...]) -> Float64[np.ndarray, "*tokens"]:
        if not branches:
            return plain(text, 1)
        masses = masses_of(text, branches[0])
        accepted = masses.accepted.sum(axis=0)
        return np.stack(
            [
                accepted[token] * law_of((*text, token), branches[1:])
                + masses.correction[token] * plain((*text, token), len(branches))
                for token in range(len(accepted))
            ]
        )

    return law_of


def target_chain(pair: TablePair, text: Text, n_tokens: int) -> Float64[np.ndarray, "*tokens"]:
    """The target's law of the next n_tokens, one axis of the vocabulary a token."""
    row = pair.target_row(text).numpy()
    if n_tokens == 1:
        return row
    tails = [target_chain(pair, (*text, token), n_tokens - 1) for token in range(len(row))]
    return np.stack([mass * tail for mass, tail in zip(row, tails, strict=True)])


def drafted_trees(
    rule: Rule, tree: Tree, pair: TablePair, text: Text
) -> Iterator[tuple[float, Drafted, Float64[Tensor, "contexts vocab"]]]:
    """Every tree that can be drafted after a text: probability, tree, and the target's rows.

    Candidates below an end of text are drafted like all others, as the engine does; places without a
    candidate stay empty (token -1), and so does everything below them.
    """
    inner = [row for row in range(tree.n_nodes + 1) if tree.children[row]]

    def fill(index: int, weight: float, tokens: dict[int, int]) -> Iterator[tuple[float, dict[int, int]]]:
        if index == len(inner):
            yield weight, tokens
            return
        row = inner[index]
        path = [tokens.get(node, -1) for node in tree.path(row - 1)]
        if -1 in path:
            yield from fill(index + 1, weight, tokens)
            return
        children = tree.children[row]
        lists = sibling_lists(proposal_for(rule), pair.draft_row((*text, *path)), len(children))
        for share, siblings in zip(lists[0].tolist(), lists[1].tolist(), strict=True):
            chosen = {node: token for node, token in zip(children, siblings, strict=False) if token >= 0}
            yield from fill(index + 1, weight * share, {**tokens, **chosen})

    for weight, tokens in fill(0, 1.0, {}):
        token_ids = np.array([tokens.get(node, -1) for node in range(tree.n_nodes)], dtype=np.int64)
        texts = [
            (*text, *(max(int(token_ids[node]), 0) for node in tree.path(row - 1)))
            for row in range(tree.n_nodes + 1)
        ]
        rows = torch.stack([pair.target_row(context) for context in texts])
        offered = torch.stack([pair.draft_row(context) for context in texts])
        yield weight, Drafted(tree, token_ids, np.arange(tree.n_nodes + 1), offered), rows


def decoding_law(
    rule: Rule,
    tree: Tree,
    pair: TablePair,
    text: Text,
    n_tokens: int,
    *,
    eos_ids: frozenset[int] = frozenset(),
) -> Law:
    """The law of the next n_tokens under speculative decoding, cut at the limit and at an end of text."""

    @cache
    def step(here: Text) -> Law:
        law: Law = defaultdict(float)
        for weight, drafted, target_probs in drafted_trees(rule, tree, pair, here):
            for emitted, mass in step_law(rule, drafted, target_probs, eos_ids).items():
                law[emitted] += weight * mass
        return law

    return _repeated(step, text, n_tokens, eos_ids)


def plain_law(pair: TablePair, text: Text, n_tokens: int, eos_ids: frozenset[int] = frozenset()) -> Law:
    """The law of the next n_tokens of a text when the target writes alone."""

    def step(here: Text) -> Law:
        return {(token,): mass for token, mass in enumerate(pair.target_row(here).tolist()) if mass > 0}

    return _repeated(step, text, n_tokens, eos_ids)


def largest_difference(left: Law, right: Law) -> float:
    """Largest absolute difference of two laws over all texts."""
    return max((abs(left.get(key, 0.0) - right.get(key, 0.0)) for key in {*left, *right}), default=0.0)


def _repeated(step: Callable[[Text], Law], text: Text, n_tokens: int, eos_ids: frozenset[int]) -> Law:
    """The law of n_tokens emitted by repeated steps, by recursion over what has been emitted."""

    @cache
    def rest_of(emitted: Text) -> tuple[tuple[Text, float], ...]:
        if len(emitted) >= n_tokens or (emitted and emitted[-1] in eos_ids):
            return (((), 1.0),)
        law: Law = defaultdict(float)
        for tokens, mass in step((*text, *emitted)).items():
            kept = tokens[: n_tokens - len(emitted)]
            for tail, share in rest_of((*emitted, *kept)):
                law[*kept, *tail] += mass * share
        return tuple(law.items())

    return dict(rest_of(()))
