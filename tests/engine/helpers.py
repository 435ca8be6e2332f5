"""Small pairs and settings that the tests of the engine share."""

from __future__ import annotations

from typing import Any

import torch

from acceptlab.engine import Settings
from acceptlab.pairing import proposal_for
from acceptlab.pairs.cached import CachedModel
from acceptlab.rules import parse_rule
from acceptlab.sampling import Warp
from acceptlab.tree import parse_tree
from tests.tiny import tiny_model

SHAPES = ("chain:1", "chain:5", "kary:depth=3,branch=2", "branches:4,2,1")


def settings(tree: str = "kary:depth=3,branch=2", rule: str = "greedy", **options: Any) -> Settings:
    parsed = parse_rule(rule)
    static = parse_tree(tree).static
    assert static is not None
    defaults: dict[str, Any] = {"max_new_tokens": 24, "seed": 0, "warp": Warp()}
    return Settings(tree=static, rule=parsed, proposal=proposal_for(parsed), **{**defaults, **options})


def related_pair(family: str, noise: float = 0.02, **overrides: Any) -> tuple[CachedModel, CachedModel]:
    """A target, and a draft that is the target with noise on its weights: it is right about half the time."""
    target = tiny_model(family, seed=0, **overrides)
    draft = tiny_model(family, seed=0, **overrides)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(noise * torch.randn(parameter.shape, generator=generator))
    return CachedModel(target, "target"), CachedModel(draft, "draft")
