"""Runs without models: random logits, real tree walks, every invariant of a collected run. For tests only.

The arithmetic follows the definitions of the record schema in float64, vectorised over many steps at once,
and is written independently of the collector. Certificate thresholds are the exact ones for greedy (the two
largest probabilities pooled or tilted to a tie) and ordered stand-ins for the other rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from acceptlab.records import TOP_N, StopReason
from acceptlab.rules import Rule, RuleKind, parse_rule
from acceptlab.store import RunWriter
from acceptlab.store.schema import FAST_LEVEL
from acceptlab.tree import Tree, parse_tree
from tests.synthetic_tables import skipped_prompts, tables_of

EOS = 0
CHUNK_LOGITS = 4_000_000
AGREEMENT = {"code": 0.90, "math": 0.86, "logic": 0.88, "chat": 0.94}
"""Correlation of draft and target logits by domain; another domain has 0.9."""


def make_run(
    folder: Path,
    *,
    domains: Sequence[str] = ("code", "math", "logic", "chat"),
    n_prompts: int = 12,
    n_steps: int = 8,
    tree: str = "kary:depth=3,branch=2",
    rule: str = "greedy",
    seed: int = 0,
    vocab_size: int = 500,
    max_new_tokens: int | None = None,
    n_skipped: int = 0,
    complete: bool = True,
    config: dict[str, Any] | None = None,
) -> Path:
    """Write a run of `n_prompts` prompts a domain, at most `n_steps` steps each, and return its folder.

    A text ends by EOS (as a drafted token or as the bonus) or by the length limit, whichever comes first.
    `n_skipped` further prompts of the first domain are skipped. Rules: greedy and its relaxations, onehot,
    rejection. Equal arguments give equal rows.
    """
    shape, parsed = parse_tree(tree), parse_rule(rule)
    assert shape.static is not None
    assert vocab_size > TOP_N
    limit = 2 * n_steps if max_new_tokens is None else max_new_tokens
    fields = _manifest_fields(
        domains, tree=shape.text, rule=str(parsed), seed=seed, limit=limit, n_prompts=n_prompts
    )
    fields["config"].update(config or {})
    writer = RunWriter.create(folder, fields)
    n_contexts = int((shape.static.n_children > 0).sum())
    per_chunk = max(1, CHUNK_LOGITS // (n_steps * n_contexts * vocab_size))
    for d_index, domain in enumerate(domains):
        for start in range(0, n_prompts, per_chunk):
            rng = np.random.default_rng([seed, d_index, start])
            count = min(per_chunk, n_prompts - start)
            walk = Walk(
                rng,
                tree=shape.static,
                rule=parsed,
                domain=domain,
                n_prompts=count,
                n_steps=n_steps,
                vocab_size=vocab_size,
                limit=limit,
            )
            writer.write(tables_of(walk, [f"{domain}/{start + i:04d}" for i in range(count)]))
    if n_skipped:
        writer.write({"prompts": skipped_prompts(domains[0], n_skipped)})
    if complete:
        writer.finish(compression=FAST_LEVEL)
    return folder


def _manifest_fields(
    domains: Sequence[str], *, tree: str, rule: str, seed: int, limit: int, n_prompts: int
) -> dict[str, Any]:
    config = dict.fromkeys(("draft_note", "top_k", "top_p", "stop"))
    config |= {"pair": "synthetic", "target": "synthetic-target", "draft": "synthetic-draft"}
    config |= {
        "prompts": "synthetic",
        "domains": list(domains),
        "limit": n_prompts,
        "tree": tree,
        "rule": rule,
    }
    config |= {"proposal": "sampled" if rule.startswith("rejection") else "ranked", "temperature": 1.0}
    config |= {"max_new_tokens": limit, "seed": seed, "batch_size": 1, "device": "cpu", "dtype": "float32"}
    return {
        "run_id": f"synthetic-{seed}-{rule}",
        "created": "2026-01-01T00:00:00+00:00",
        "config": config,
        "models": {"target": {"id": "synthetic-target"}, "draft": {"id": "synthetic-draft"}},
        "command": "acceptlab collect",
    }


class Walk:
    """Some prompts of one domain, all their steps side by side: arrays are (steps, contexts or nodes, ...).

    Only contexts with children exist here; `row` maps a node's parent to its context.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        *,
        tree: Tree,
        rule: Rule,
        domain: str,
        n_prompts: int,
        n_steps: int,
        vocab_size: int,
        limit: int,
    ) -> None:
        self.rng, self.tree, self.rule, self.domain, self.limit = rng, tree, rule, domain, limit
        self.shape = (n_prompts, n_steps)
        self.n = n_prompts * n_steps
        self.context_nodes = np.flatnonzero(tree.n_children) - 1
        context_of_row = np.cumsum(tree.n_children > 0) - 1
        self.row = context_of_row[tree.parent_rows]
        self.n_prompt_tokens = rng.integers(8, 120, n_prompts)
        self.target, self.draft = self._distributions(vocab_size)
        self.token = self._proposals()
        self.accept = self._accept_probs()
        self.accepted = self._accepted_nodes()
        self._end_texts()
        self._reach()

    def _distributions(self, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
        """Softmax of correlated logits; sharper contexts agree more, deeper ones a little less."""
        n_prompts, n_steps = self.shape
        size = (self.n, len(self.context_nodes))
        depths = np.where(self.context_nodes < 0, 0, self.tree.depths[np.maximum(self.context_nodes, 0)])
        prompt_effect = np.repeat(self.rng.normal(0, 0.15, n_prompts), n_steps)[:, None]
        sharpness = prompt_effect + self.rng.normal(0, 0.35, size)
        agreement = AGREEMENT.get(self.domain, 0.9) + 0.08 * sharpness - 0.01 * depths
        agreement = np.clip(agreement, 0.3, 0.995)[..., None]
        scale = (3.0 * np.exp(sharpness))[..., None]
        shared = self.rng.standard_normal((*size, vocab_size))
        own = self.rng.standard_normal((*size, vocab_size))
        target, draft = scale * shared, scale * (agreement * shared + np.sqrt(1 - agreement**2) * own)
        target[..., EOS] = draft[..., EOS] = -30.0  # drafted only where a text is made to end
        return _softmax(target), _softmax(draft)

    def _proposals(self) -> np.ndarray:
        """Token of every node: the draft's ranked tokens, or draws without replacement for rejection."""
        scores = self.draft
        if self.rule.kind is RuleKind.REJECTION:
            scores = np.log(self.draft) + self.rng.gumbel(size=self.draft.shape)
        width = int(self.tree.child_ranks.max()) + 1
        best = np.argpartition(-scores, width, axis=-1)[..., :width]
        order = np.argsort(-np.take_along_axis(scores, best, -1), axis=-1)
        return np.take_along_axis(best, order, -1)[:, self.row, self.tree.child_ranks]

    def at(self, probs: np.ndarray) -> np.ndarray:
        """The entry of every node's token in its parent's distribution, (steps, nodes)."""
        return probs[np.arange(self.n)[:, None], self.row, self.token]

    def _accept_probs(self) -> np.ndarray:
        """Probability that the rule accepts a node it tests; keeps what a correction is drawn from."""
        top = self.target.max(-1)[:, self.row]
        token_prob = self.at(self.target)
        entropy = -(self.target * np.log(self.target)).sum(-1)[:, self.row]
        self.correction = self.target
        kind, rule = self.rule.kind, self.rule
        if kind is RuleKind.GREEDY:
            return (token_prob == top).astype(float)
        if kind is RuleKind.ADDITIVE:
            return (token_prob >= top - float(rule.eps or 0)).astype(float)
        if kind is RuleKind.RATIO:
            return (token_prob >= float(rule.gamma or 0) * top).astype(float)
        if kind is RuleKind.TOP:
            return (self.ranks(self.target) < int(rule.m or 1)).astype(float)
        if kind is RuleKind.TYPICAL:
            bound = np.minimum(float(rule.eps or 0), float(rule.delta or 0) * np.exp(-entropy))
            return (token_prob >= bound).astype(float)
        assert kind in {RuleKind.ONEHOT, RuleKind.REJECTION}, f"no synthetic runs for rule {rule}"
        return self._sequential_accepts()

    def _sequential_accepts(self) -> np.ndarray:
        """Siblings one after the other against the residual of the target: onehot or rejection."""
        accept = np.zeros(self.token.shape)
        target, draft = self.target.copy(), self.draft.copy()
        steps = np.arange(self.n)[:, None]
        for rank in range(int(self.tree.child_ranks.max()) + 1):
            nodes = np.flatnonzero(self.tree.child_ranks == rank)
            rows, tokens = self.row[nodes], self.token[:, nodes]
            if self.rule.kind is RuleKind.ONEHOT:
                accept[:, nodes] = target[steps, rows, tokens]
                target[steps, rows, tokens] = 0.0
            else:
                accept[:, nodes] = np.minimum(1, target[steps, rows, tokens] / draft[steps, rows, tokens])
                target[:, rows] = np.maximum(target[:, rows] - draft[:, rows], 0)
                draft[steps, rows, tokens] = 0.0
                draft[:, rows] /= draft[:, rows].sum(-1, keepdims=True)
            target[:, rows] /= np.maximum(target[:, rows].sum(-1, keepdims=True), 1e-300)
        self.correction = target
        return accept

    def _accepted_nodes(self) -> np.ndarray:
        """One walk a step: the first sibling that passes is taken, then its children are tried."""
        uniforms = self.rng.random(self.token.shape)
        accepted = np.zeros(self.token.shape, dtype=bool)
        self.tested = np.zeros(self.token.shape, dtype=bool)
        for node, parent in enumerate(self.tree.parents):
            open_ = np.ones(self.n, dtype=bool) if parent < 0 else accepted[:, parent].copy()
            siblings = [s for s in self.tree.children[parent + 1] if s < node]
            open_ &= ~accepted[:, siblings].any(1)
            self.tested[:, node] = open_
            accepted[:, node] = open_ & (uniforms[:, node] < self.accept[:, node])
        return accepted

    def _end_texts(self) -> None:
        """Choose bonus tokens, cut at the limit, turn one token of every other text's last step into EOS."""
        n_prompts, n_steps = self.shape
        length = self.accepted.sum(1)
        emitted = length + 1
        total = emitted.reshape(self.shape).cumsum(1)
        last = np.where((total >= self.limit).any(1), (total >= self.limit).argmax(1), n_steps - 1)
        step = np.tile(np.arange(n_steps), (n_prompts, 1))
        self.kept = (step <= last[:, None]).reshape(-1)
        self.stop = np.full(self.n, None, dtype=object)
        self.bonus = self._bonus_tokens(length)
        for prompt in range(n_prompts):
            i = prompt * n_steps + int(last[prompt])
            over = int(total[prompt, last[prompt]]) - self.limit
            if over >= 0:
                emitted[i] -= over
                self.bonus[i] = self.bonus[i] if over == 0 else -1
                self.stop[i] = StopReason.LENGTH.value
                continue
            self.stop[i] = StopReason.EOS.value
            if length[i] and self.rng.random() < 0.5:
                path = np.flatnonzero(self.accepted[i])
                node = int(path[self.rng.integers(len(path))])
                self._swap(i, int(self.row[node]), int(self.token[i, node]))
                below = self.tree.visible[1:, node + 1].copy()
                below[node] = False
                self.accepted[i, below] = self.tested[i, below] = False
                emitted[i], self.bonus[i] = self.tree.depths[node], -1
            else:
                path = np.flatnonzero(self.accepted[i])
                context = np.flatnonzero(self.context_nodes == (path[-1] if len(path) else -1))
                if len(context):
                    self._swap(i, int(context[0]), int(self.bonus[i]))
                self.bonus[i] = EOS
        self.emitted = emitted

    def _bonus_tokens(self, length: np.ndarray) -> np.ndarray:
        """Argmax of the target for argmax rules, else a draw from what the siblings left; -1 is none."""
        bonus = self.rng.integers(
            1, self.target.shape[-1], self.n
        )  # at a leaf, whose context is not recorded
        for i in range(self.n):
            node = np.flatnonzero(self.accepted[i])[-1] if length[i] else -1
            context = np.flatnonzero(self.context_nodes == node)
            if len(context):
                probs = self.correction[i, context[0]]
                bonus[i] = probs.argmax() if self.rule.is_argmax else self.rng.choice(len(probs), p=probs)
        return bonus

    def _swap(self, step: int, context: int, token: int) -> None:
        """Exchange a token and EOS in one context: distributions and drafted children."""
        for probs in (self.target, self.draft):
            probs[step, context, [token, EOS]] = probs[step, context, [EOS, token]]
        children = np.flatnonzero(self.row == context)
        old = self.token[step, children]
        self.token[step, children] = np.where(old == token, EOS, np.where(old == EOS, token, old))

    def _reach(self) -> None:
        """test_prob of every node, given the tree; 0 below an EOS."""
        self.test = np.zeros(self.token.shape)
        reach = np.zeros(self.token.shape)
        for node, parent in enumerate(self.tree.parents):
            earlier = [s for s in self.tree.children[parent + 1] if s < node]
            start = 1.0 if parent < 0 else reach[:, parent] * (self.token[:, parent] != EOS)
            self.test[:, node] = start * np.prod(1 - self.accept[:, earlier], axis=1)
            reach[:, node] = self.test[:, node] * self.accept[:, node]
        self.reach = reach

    def ranks(self, probs: np.ndarray) -> np.ndarray:
        """How many tokens stand before every node's token; ties by lower id."""
        ranks = np.zeros(self.token.shape, dtype=np.int64)
        for node, row in enumerate(self.row):
            own = np.take_along_axis(probs[:, row], self.token[:, node, None], -1)
            lower = np.arange(probs.shape[-1]) < self.token[:, node, None]
            ranks[:, node] = ((probs[:, row] > own) | ((probs[:, row] == own) & lower)).sum(-1)
        return ranks


def _softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)
