"""The four tables of a synthetic walk: derived from its distributions, tokens and outcomes, nothing drawn.

Split from `synthetic`, which draws; the columns are those of the record schema without run_id.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from acceptlab.records import CERTIFICATE_RULES, MEASURES, TOP_N, Outcome, StopReason

if TYPE_CHECKING:
    from tests.synthetic import Walk

Columns = dict[str, Any]


def tables_of(walk: Walk, prompt_ids: list[str]) -> dict[str, Columns]:
    """Columns by table of whole prompts, in key order."""
    n_prompts, n_steps = walk.shape
    tables = {"steps": _steps(walk), "nodes": _nodes(walk), "contexts": _contexts(walk)}
    kept = np.flatnonzero(walk.kept)
    ids = np.repeat(np.array(prompt_ids, dtype=object), n_steps)[kept]
    steps = np.tile(np.arange(n_steps), n_prompts)[kept]
    for name, columns in tables.items():
        width = {"steps": 1, "nodes": walk.token.shape[1], "contexts": len(walk.context_nodes)}[name]
        keys = {"domain": [walk.domain] * (len(kept) * width), "prompt_id": np.repeat(ids, width)}
        tables[name] = {**keys, "step": np.repeat(steps, width), **columns}
    return {**tables, "prompts": _prompts(walk, prompt_ids)}


def skipped_prompts(domain: str, count: int) -> Columns:
    """Rows of table prompts for prompts that were not run: no output, a reason."""
    ids = [f"{domain}/skipped-{i:04d}" for i in range(count)]
    return {
        "domain": [domain] * count,
        "prompt_id": ids,
        "source": ["synthetic"] * count,
        "prompt_sha256": [_sha256(i) for i in ids],
        "n_prompt_tokens": np.full(count, 5000),
        "n_new_tokens": np.zeros(count, dtype=int),
        "output_token_ids": [[] for _ in range(count)],
        "output_text": [""] * count,
        "stop_reason": [StopReason.SKIPPED.value] * count,
        "wall_ms": np.zeros(count),
        "skip_reason": ["the prompt is longer than the model's context"] * count,
    }


def _context_len(walk: Walk) -> np.ndarray:
    """Committed tokens before every step, prompt and root included."""
    before = walk.emitted.reshape(walk.shape).cumsum(1) - walk.emitted.reshape(walk.shape)
    return (walk.n_prompt_tokens[:, None] + before).reshape(-1)


def margins_and_tops(probs: np.ndarray, name: str) -> dict[str, np.ndarray]:
    """Largest probability and its margin over the second, of the model called `name`, along the last axis."""
    second, first = np.moveaxis(np.sort(np.partition(probs, -2, -1)[..., -2:], -1), -1, 0)
    return {f"{name}_margin": first - second, f"{name}_top_prob": first}


def _measures(walk: Walk) -> dict[str, np.ndarray]:
    """Measures of every context, (steps, contexts); temperature 1, so both families agree."""
    target, draft = walk.target, walk.draft
    ratio = np.log(target) - np.log(draft)
    return {
        "draft_entropy": -(draft * np.log(draft)).sum(-1),
        "target_entropy": -(target * np.log(target)).sum(-1),
        "overlap": np.minimum(target, draft).sum(-1),
        "kl_target_draft": (target * ratio).sum(-1),
        "kl_draft_target": -(draft * ratio).sum(-1),
        "renyi_half": -2 * np.log(np.sqrt(target * draft).sum(-1)),
        **margins_and_tops(target, "target"),
        **margins_and_tops(draft, "draft"),
    }


def _nodes(walk: Walk) -> Columns:
    tree, kept = walk.tree, walk.kept
    n_steps = int(kept.sum())
    target_prob, draft_prob = walk.at(walk.target), walk.at(walk.draft)
    path = np.ones_like(draft_prob)
    for node, parent in enumerate(tree.parents):
        path[:, node] = draft_prob[:, node] * (1.0 if parent < 0 else path[:, parent])
    target_rank = walk.ranks(walk.target)
    outcome = np.full(walk.token.shape, Outcome.UNTESTED.value, dtype=object)
    outcome[walk.tested] = Outcome.REJECTED.value
    outcome[walk.accepted] = Outcome.ACCEPTED.value
    wide = {
        "position": _context_len(walk)[:, None] - 1 + tree.depths,
        "token_id": walk.token,
        "draft_prob": draft_prob,
        "target_prob": target_prob,
        "accept_ratio": np.minimum(1, target_prob / draft_prob),
        "draft_rank": walk.ranks(walk.draft),
        "target_rank": target_rank,
        "is_target_argmax": target_rank == 0,
        "path_draft_prob": path,
        "test_prob": walk.test,
        "accept_prob": np.where(walk.test > 0, walk.accept, np.nan),
        "outcome": outcome,
    }
    measures = _measures(walk)
    wide |= {name: measures[name][:, walk.row] for name in MEASURES}
    fixed = {"node": np.arange(tree.n_nodes), "parent": np.array(tree.parents)}
    fixed |= {"depth": tree.depths, "child_rank": tree.child_ranks}
    return {
        **{name: np.tile(values, n_steps) for name, values in fixed.items()},
        **{name: values[kept].reshape(-1) for name, values in wide.items()},
    }


def _contexts(walk: Walk) -> Columns:
    nodes, kept = walk.context_nodes, walk.kept
    depths = np.where(nodes < 0, 0, walk.tree.depths[np.maximum(nodes, 0)])
    columns: Columns = {"node": np.tile(nodes, int(kept.sum())), "depth": np.tile(depths, int(kept.sum()))}
    columns["position"] = (_context_len(walk)[:, None] - 1 + depths)[kept].reshape(-1)
    columns |= {name: values[kept].reshape(-1) for name, values in _measures(walk).items()}
    for name, probs in (("target", walk.target), ("draft", walk.draft)):
        flat = probs[kept].reshape(-1, probs.shape[-1])
        columns[f"{name}_argmax"] = flat.argmax(1)
        best = np.argpartition(-flat, TOP_N, axis=1)[:, :TOP_N]
        best = np.take_along_axis(best, np.argsort(-np.take_along_axis(flat, best, 1), axis=1), 1)
        columns[f"{name}_token_ids"] = best
        columns[f"{name}_probs"] = np.take_along_axis(flat, best, 1)
    first, second = np.sort(np.partition(walk.target[kept], -2, -1)[..., -2:], -1).reshape(-1, 2).T[::-1]
    mean = (first + second) / 2
    forward = first * np.log(first / mean) + second * np.log(second / mean)
    reverse = -np.log(1 - (np.sqrt(first) - np.sqrt(second)) ** 2)  # tilting two tokens to a tie
    looser = np.linspace(1.0, 3.0, len(CERTIFICATE_RULES))
    columns["thresholds_forward"] = forward[:, None] * looser
    columns["thresholds_reverse"] = reverse[:, None] * looser
    return columns


def _steps(walk: Walk) -> Columns:
    kept = walk.kept
    rng = np.random.default_rng(int(walk.token.sum()))  # timings only
    columns: Columns = {
        "context_len": _context_len(walk)[kept],
        "n_nodes": np.full(int(kept.sum()), walk.tree.n_nodes),
        "n_tested": walk.tested.sum(1)[kept],
        "accepted_len": walk.accepted.sum(1)[kept],
        "expected_accepted_len": (walk.test * walk.accept).sum(1)[kept],
        "emitted_len": walk.emitted[kept],
        "bonus_token_id": [None if token < 0 else int(token) for token in walk.bonus[kept]],
        "stop_reason": list(walk.stop[kept]),
    }
    typical_ms = {"draft_ms": 30.0, "verify_ms": 100.0, "record_ms": 8.0, "other_ms": 2.0}
    columns |= {name: ms * rng.uniform(0.8, 1.2, int(kept.sum())) for name, ms in typical_ms.items()}
    return columns


def _prompts(walk: Walk, prompt_ids: list[str]) -> Columns:
    outputs = [_output(walk, prompt) for prompt in range(len(prompt_ids))]
    count = len(prompt_ids)
    ends = [[reason for reason in stops if reason] for stops in walk.stop.reshape(walk.shape)]
    return {
        "domain": [walk.domain] * count,
        "prompt_id": prompt_ids,
        "source": ["synthetic"] * count,
        "prompt_sha256": [_sha256(prompt_id) for prompt_id in prompt_ids],
        "n_prompt_tokens": walk.n_prompt_tokens,
        "n_new_tokens": [len(tokens) for tokens in outputs],
        "output_token_ids": outputs,
        "output_text": [" ".join(map(str, tokens)) for tokens in outputs],
        "stop_reason": [reasons[0] for reasons in ends],
        "wall_ms": 150.0 * walk.kept.reshape(walk.shape).sum(1),
        "skip_reason": [None] * count,
    }


def _output(walk: Walk, prompt: int) -> list[int]:
    """The emitted tokens of a prompt: accepted path and bonus of every step, cut."""
    tokens: list[int] = []
    for i in range(prompt * walk.shape[1], (prompt + 1) * walk.shape[1]):
        if walk.kept[i]:
            path = walk.token[i, walk.accepted[i]].tolist()
            bonus = [] if walk.bonus[i] < 0 else [int(walk.bonus[i])]
            tokens += [*path, *bonus][: int(walk.emitted[i])]
    return tokens


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
