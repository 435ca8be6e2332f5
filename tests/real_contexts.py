"""Runs of contexts whose full distributions the test knows: exact thresholds, no models. For tests only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from acceptlab.records import CERTIFICATE_RULES, TOP_N
from acceptlab.rules import parse_rule
from acceptlab.store import RunWriter
from acceptlab.theory.certificates import thresholds
from acceptlab.theory.divergences import entropy, kl_draft_target, kl_target_draft, overlap, renyi_half

VOCAB = 40
"""More than the lists hold, so that a proposal can be missing in them."""

RULES = tuple(parse_rule(text) for text in CERTIFICATE_RULES)


@dataclass(frozen=True, eq=False)
class Known:
    """A run with its distributions, [contexts, vocab], and the prompt of each context."""

    folder: Path
    target: np.ndarray
    draft: np.ndarray
    prompt_ids: list[str]
    thresholds: dict[str, np.ndarray]
    divergences: dict[str, np.ndarray]


def draw(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Target and draft distributions that are near each other, far, or anything between; some are special.

    The first rows: equal distributions, two equally probable tokens, a draft without the target's second token, a
    target that is sure, and a flat target.
    """
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((n, VOCAB)) * rng.choice([0.5, 1.5, 4.0], size=(n, 1))
    # neighbours in probability, so that levels and ranks are close calls
    logits[:, 1] = logits[:, 0] - rng.choice([1e-6, 0.01, 0.2, 1.0], size=n)
    noise = rng.standard_normal((n, VOCAB)) * rng.choice([1e-4, 0.05, 0.3, 1.0, 3.0], size=(n, 1))
    target, draft = _softmax(logits), _softmax(logits + noise)
    draft[0] = target[0]
    target[1, :3] = (0.4, 0.4, 0.2)
    target[1, 3:] = 0.0
    order = np.argsort(-target[2])
    draft[2, order[1]] = 0.0
    draft[2] /= draft[2].sum()
    target[3] = np.eye(VOCAB)[7]
    target[4] = 1.0 / VOCAB
    return target, draft


def make_known(
    folder: Path,
    *,
    n_prompts: int = 12,
    n_contexts: int = 25,
    domains: Sequence[str] = ("code", "chat"),
    seed: int = 0,
    scale_stored: float = 1.0,
) -> Known:
    """Write a run of `n_prompts` prompts a domain, with `n_contexts` contexts each; prompts have steps without nodes.

    `scale_stored` falsifies the thresholds that the run stores.
    """
    ids = [f"{domain}/{i:03d}" for domain in domains for i in range(n_prompts)]
    target, draft = draw(len(ids) * n_contexts, seed)
    forward, reverse = thresholds(target, RULES)
    known = Known(
        folder,
        target,
        draft,
        [name for name in ids for _ in range(n_contexts)],
        {"forward": forward, "reverse": reverse},
        {"forward": kl_target_draft(target, draft), "reverse": kl_draft_target(target, draft)},
    )
    columns = _context_columns(known, scale_stored)
    config = {"draft_note": "", "domains": list(domains)}
    writer = RunWriter.create(folder, {"run_id": f"known-{seed}", "config": config})
    for i, name in enumerate(ids):
        keys = {"domain": name.split("/")[0], "prompt_id": name}
        rows = slice(i * n_contexts, (i + 1) * n_contexts)
        contexts = {column: values[rows] for column, values in columns.items()}
        writer.write(
            {
                "contexts": {**{key: [value] * n_contexts for key, value in keys.items()}, **contexts},
                "steps": _steps(keys, n_contexts),
                "prompts": _prompt(keys, n_contexts, f"source {i % 2}"),
            }
        )
    writer.finish()
    return known


def _context_columns(known: Known, scale: float) -> dict[str, np.ndarray]:
    n, step = len(known.target), np.array(known.prompt_ids)
    columns: dict[str, Any] = {
        "step": np.concatenate([np.arange(count) for count in np.unique(step, return_counts=True)[1]]),
        "node": np.full(n, -1),
        "depth": np.zeros(n, dtype=np.int64),
        "overlap": overlap(known.target, known.draft),
        "kl_target_draft": known.divergences["forward"],
        "kl_draft_target": known.divergences["reverse"],
        "renyi_half": renyi_half(known.target, known.draft),
        "thresholds_forward": known.thresholds["forward"] * scale,
        "thresholds_reverse": known.thresholds["reverse"] * scale,
    }
    columns["position"] = columns["step"]
    for name, probs in (("target", known.target), ("draft", known.draft)):
        order = np.argsort(-probs, axis=1, kind="stable")[:, :TOP_N]
        head = np.take_along_axis(probs, order, axis=1)
        columns |= {
            f"{name}_entropy": entropy(probs),
            f"{name}_margin": head[:, 0] - head[:, 1],
            f"{name}_top_prob": head[:, 0],
            f"{name}_argmax": order[:, 0],
            f"{name}_token_ids": order,
            f"{name}_probs": head,
        }
    return columns


def _steps(keys: dict[str, str], n: int) -> dict[str, Any]:
    zeros = np.zeros(n, dtype=np.int64)
    counts = dict.fromkeys(("n_nodes", "n_tested", "accepted_len"), zeros)
    times = {name: np.zeros(n) for name in ("draft_ms", "verify_ms", "record_ms", "other_ms")}
    return {
        **{key: [value] * n for key, value in keys.items()},
        **counts,
        **times,
        "step": np.arange(n),
        "context_len": 1 + np.arange(n),
        "expected_accepted_len": np.zeros(n),
        "emitted_len": zeros + 1,
        "bonus_token_id": [1] * n,
        "stop_reason": [*[None] * (n - 1), "length"],
    }


def _prompt(keys: dict[str, str], n: int, source: str) -> dict[str, Any]:
    row = {
        **keys,
        "source": source,
        "prompt_sha256": "0" * 64,
        "n_prompt_tokens": 1,
        "n_new_tokens": n,
        "output_token_ids": [1] * n,
        "output_text": "",
        "stop_reason": "length",
        "wall_ms": 0.0,
        "skip_reason": None,
    }
    return {name: [value] for name, value in row.items()}


def _softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))
