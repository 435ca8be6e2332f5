"""What to audit, and with how much evidence. Data only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class AuditRequest:
    """An audit in the words of the command line."""

    folder: Path
    rules: tuple[str, ...] = ("rejection", "onehot")
    pair: str | None = None
    target: str | None = None
    draft: str | None = None
    tree: str = "kary:depth=2,branch=2"
    chain: str = "chain:3"
    temperature: float = 1.0
    n_tokens: int = 9200
    n_contexts: int = 500
    n_seeds: int = 20
    n_draws: int = 80
    n_chain_draws: int = 20
    top_k: int = 0
    """Tokens of every context at which verifiers are drawn again; 0 for the full vocabulary."""
    n_identity: int = 8
    max_new_tokens: int = 64
    seed: int = 0
    device: str = "auto"
    dtype: str = "auto"


def quick(request: AuditRequest) -> AuditRequest:
    """The same audit with little evidence: enough to find a gross fault within a minute."""
    return replace(
        request,
        n_tokens=min(request.n_tokens, 100),
        n_contexts=min(request.n_contexts, 64),
        n_seeds=min(request.n_seeds, 5),
        n_draws=1000,
        n_chain_draws=40,
        top_k=64,
        n_identity=1,
        max_new_tokens=24,
    )
