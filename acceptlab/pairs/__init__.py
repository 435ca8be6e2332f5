"""Targets and drafts: loading, tokenizer checks, the default pair. Only this package imports transformers.

Importing this package is cheap; torch and transformers come in with the first name that needs them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from acceptlab.pairs.load import load_pair
    from acceptlab.pairs.pair import Pair, pair_from_models

_HOMES = {"load_pair": "load", "Pair": "pair", "pair_from_models": "pair"}

__all__ = ["Pair", "load_pair", "pair_from_models"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
