"""Backends side by side, in the form of a results table: acceptance, chain length, tokens a second, speed-up, verdict.

Boundary: a pair and names of backends in, arms out; sums of timed decodes in, a table out. On every backend the target
alone is one arm and every chain another; the draft has the same weights throughout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from acceptlab.bench.arms import Arm, PlainArm, SpeculativeArm
from acceptlab.bench.backends import BACKENDS, draft_for, make_backend
from acceptlab.bench.speedup import Sums, relative_speeds
from acceptlab.drafters.cross_model import CrossModel
from acceptlab.drafters.head_model import HeadModel
from acceptlab.engine import Settings
from acceptlab.errors import UsageError
from acceptlab.pairs.vocab import PaddedModel
from acceptlab.resampling import DEFAULT, Resampling
from acceptlab.stats import Estimate, ratio_of_sums
from acceptlab.tree import parse_tree

if TYPE_CHECKING:
    from acceptlab.pairs import Pair

_SEPARATOR = " / "
_CLEAR = 0.05
"""Share by which a speed-up without an interval has to differ from 1 for a verdict."""

COLUMNS = {
    "backend": "how the target runs; the draft has the same weights for all",
    "K": "chain length; 0 is the target alone",
    "acceptance": "accepted nodes / tested nodes",
    "tokens_per_s": "new tokens a second of decoding, prefill left out",
    "speed_up": "tokens_per_s / that of the target alone on the same backend",
    "over_first": "tokens_per_s / that of the target alone on the first backend",
    "same_text": "share of prompts with the text of the target alone on the same backend",
    "same_as_first": "share of prompts with the text of the first backend: fewer bits are another model",
    "verdict": "whether speculation pays on this backend",
}


def backend_arms(
    pair: Pair, settings: Settings, names: Sequence[str], lengths: Sequence[int]
) -> tuple[list[Arm], list[str]]:
    """The target alone and every chain, on every backend that is to be had; notes name the others.

    Raises:
        UsageError: an unknown backend, none at all, or a draft that needs the pair's own target.
    """
    draft = pair.draft.inner if isinstance(pair.draft, PaddedModel) else pair.draft
    if isinstance(draft, HeadModel | CrossModel):
        raise UsageError(
            f"the draft '{draft.name}' reads its target's states: name one that reads tokens only"
        )
    unknown = [name for name in names if name not in BACKENDS]
    if unknown:
        raise UsageError(f"unknown backend '{unknown[0]}': use one of {', '.join(BACKENDS)}")
    quiet = replace(settings, record=False)
    arms: list[Arm] = []
    notes = []
    for name in names:
        try:
            target = make_backend(name, pair)
        except UsageError as error:
            notes.append(f"left out {name}: {error}")
            continue
        on_backend = replace(pair, target=target, draft=draft_for(name, pair))
        arms.append(PlainArm(target, quiet, f"{name}{_SEPARATOR}0"))
        for length in lengths:
            tree = parse_tree(f"chain:{length}")
            arms.append(SpeculativeArm(on_backend, replace(quiet, tree=tree), f"{name}{_SEPARATOR}{length}"))
    if not arms:
        reasons = "; ".join(note.removeprefix("left out ") for note in notes)
        raise UsageError(f"none of these backends can be had here: {reasons}")
    return arms, notes


def backend_table(sums: dict[str, Sums], resampling: Resampling = DEFAULT) -> pd.DataFrame:
    """One row a backend and chain length.

    Args:
        sums: by arm, as `backend_arms` names them; see `speedup.sums_of`.
        resampling: how intervals are made.
    """
    names = [tuple(name.split(_SEPARATOR)) for name in sums]
    first = next(iter(sums))
    over_first = relative_speeds(sums, first, resampling)
    rows = []
    for backend in dict.fromkeys(name for name, _ in names):
        own = {key: one for key, one in sums.items() if key.startswith(backend + _SEPARATOR)}
        plain = f"{backend}{_SEPARATOR}0"
        speeds = relative_speeds(own, plain, resampling)
        for key, one in own.items():
            length = int(key.split(_SEPARATOR)[1])
            accepted = _acceptance(one, resampling)
            row: dict[str, Any] = {"backend": backend, "K": length}
            for name, found in (
                ("acceptance", accepted),
                ("speed_up", speeds[key]),
                ("over_first", over_first[key]),
            ):
                row |= {name: found.value, f"{name}_lo": found.lo, f"{name}_hi": found.hi}
            row["tokens_per_s"] = 1000.0 / one.ms_per_token
            row["same_text"] = _same(one, own[plain])
            row["same_as_first"] = _same(one, sums[first])
            row["verdict"] = verdict(speeds[key], one, own[plain]) if length else None
            row |= {"n_tokens": int(one.n_tokens.sum()), "n_prompts": len(one.prompt_ids)}
            row |= {"method": speeds[key].method, "reason": speeds[key].reason or None}
            rows.append(row)
    return pd.DataFrame(rows)[[*_ORDER]]


_ORDER = (
    "backend", "acceptance", "acceptance_lo", "acceptance_hi", "K", "tokens_per_s",
    "speed_up", "speed_up_lo", "speed_up_hi", "over_first", "over_first_lo", "over_first_hi",
    "same_text", "same_as_first", "verdict", "n_tokens", "n_prompts", "method", "reason",
)  # fmt: skip


def verdict(speed_up: Estimate, one: Sums, plain: Sums) -> str:
    """Whether speculation pays: the interval of the speed-up, where there is one, decides.

    Where it does not pay, the price of a step in tokens of plain decoding stands beside what the step emits.
    """
    if speed_up.value is None:
        return "not measured"
    low = speed_up.value * (1 - _CLEAR) if speed_up.lo is None else speed_up.lo
    high = speed_up.value * (1 + _CLEAR) if speed_up.hi is None else speed_up.hi
    if low > 1.0:
        return "faster"
    n_steps = one.columns["n_steps"].sum()
    price = one.decode_ms.sum() / n_steps / plain.ms_per_token
    reason = f"a step costs {price:.2f} plain tokens and emits {one.n_tokens.sum() / n_steps:.2f}"
    return f"{'slower' if high < 1.0 else 'no clear gain'}: {reason}"


def _acceptance(one: Sums, resampling: Resampling) -> Estimate:
    tested = np.nan_to_num(one.columns["n_tested"])
    return ratio_of_sums(
        one.columns["n_accepted"][:, None], tested[:, None], resampling, undefined="nothing drafted"
    )[0]


def _same(one: Sums, other: Sums) -> float:
    return float(np.mean([a == b for a, b in zip(one.texts, other.texts, strict=True)]))
