"""From timed decodes to speed-ups: ratios of summed times and tokens, with intervals over prompts.

Boundary: the rows of `interleave.measure` in, a table out; runs no model. A prompt's time is the median of its repeats;
prompts are pooled as sums, and resampled as wholes. The speed-up of an arm is its tokens a second over those of the
baseline on the same prompts, prefill left out of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from acceptlab.errors import RunError
from acceptlab.resampling import DEFAULT, Resampling, Totals
from acceptlab.stats import Estimate, bootstrap, ratio

_TIMES = ("prefill_ms", "decode_ms", "draft_ms", "verify_ms", "record_ms")
_COUNTS = ("n_new_tokens", "n_steps", "n_drafted", "n_levels", "n_nodes", "n_tested", "n_accepted")
_NOTHING = "nothing drafted"

COLUMNS = {
    "arm": "way of decoding: plain is the target alone, one token a pass; generate and assisted are transformers' own",
    "acceptance": "accepted nodes / tested nodes",
    "accepted_len": "accepted tokens a drafted step, without the bonus token",
    "emitted_len": "new tokens a target pass",
    "tokens_per_s": "new tokens a second of decoding, prefill left out",
    "speed_up": "tokens_per_s / that of the baseline on the same prompts",
    "predicted": "speed-up that the cost model predicts",
    "draft_share": "share of the decoding time inside drafting",
    "verify_share": "the same inside the target's pass and the verdict",
    "other_share": "the rest, recording included",
    "break_even_len": "tokens that a step has to emit to be as fast as the baseline",
    "same_text": "share of prompts with the baseline's very tokens (greedy decoding: 1 is right)",
    "prefill_ms": "time of a prompt before its first token, mean, not part of any rate here",
}


@dataclass(frozen=True, eq=False)
class Sums:
    """One arm, one row a prompt: medians of times over the repeats, and counts."""

    shape: str
    prompt_ids: tuple[str, ...]
    columns: dict[str, Float[np.ndarray, " prompts"]]
    survivors: Float[np.ndarray, "prompts depths"]
    texts: tuple[tuple[int, ...], ...]

    @property
    def decode_ms(self) -> Float[np.ndarray, " prompts"]:
        """Decoding time by prompt."""
        return self.columns["decode_ms"]

    @property
    def n_tokens(self) -> Float[np.ndarray, " prompts"]:
        """New tokens by prompt."""
        return self.columns["n_new_tokens"]

    @property
    def ms_per_token(self) -> float:
        """Pooled decoding time of a token."""
        return float(self.decode_ms.sum() / self.n_tokens.sum())


def sums_of(frame: pd.DataFrame) -> dict[str, Sums]:
    """Sums of every arm over the prompts that all arms have decoded, in the arms' first order.

    Raises:
        RunError: there is no such prompt.
    """
    arms = list(dict.fromkeys(frame["arm"])) if len(frame) else []
    whole = [set(frame.loc[frame["arm"] == arm, "prompt_id"]) for arm in arms]
    common = set.intersection(*whole) if whole else set()
    if not common:
        raise RunError("no prompt was decoded by every arm before the interrupt: there is nothing to compare")
    prompt_ids = tuple(prompt for prompt in dict.fromkeys(frame["prompt_id"]) if prompt in common)
    return {arm: _sums(frame[frame["arm"] == arm], prompt_ids) for arm in arms}


def _sums(of_arm: pd.DataFrame, prompt_ids: tuple[str, ...]) -> Sums:
    groups = dict(list(of_arm.groupby("prompt_id")))
    rows = [groups[prompt] for prompt in prompt_ids]
    columns = {
        name: np.asarray([float(pd.to_numeric(row[name]).median()) for row in rows])
        for name in (*_TIMES, *_COUNTS)
    }
    depth = max((len(row["survivors"].iloc[0]) for row in rows), default=0)
    survivors = np.zeros((len(rows), depth))
    for i, row in enumerate(rows):
        counted = row["survivors"].iloc[0]
        survivors[i, : len(counted)] = counted
    texts = tuple(tuple(int(token) for token in row["token_ids"].iloc[0]) for row in rows)
    return Sums(str(of_arm["shape"].iloc[0]), prompt_ids, columns, survivors, texts)


def relative_speeds(
    sums: dict[str, Sums], baseline: str, resampling: Resampling = DEFAULT
) -> dict[str, Estimate]:
    """Tokens a second of every arm over those of the baseline, resampled jointly by prompt."""
    names = list(sums)
    columns = np.stack([value for one in sums.values() for value in (one.n_tokens, one.decode_ms)], axis=1)
    base = names.index(baseline)

    def statistic(totals: Totals) -> Totals:
        rates = ratio(totals[:, 0::2], totals[:, 1::2])
        return np.asarray(rates / rates[:, base : base + 1])

    counts = np.stack([one.n_tokens for one in sums.values()], axis=1)
    return dict(zip(names, bootstrap(columns, statistic, counts, resampling), strict=True))


def table(
    sums: dict[str, Sums],
    *,
    baseline: str = "plain",
    predicted: dict[str, float] | None = None,
    against: Sequence[str] = (),
    resampling: Resampling = DEFAULT,
) -> pd.DataFrame:
    """One row an arm.

    Args:
        sums: by arm; see `sums_of`.
        baseline: the arm whose speed is 1.
        predicted: speed-ups that a cost model predicts, by arm.
        against: further arms to compare all with; each gives a column `over_NAME` with its interval.
        resampling: how intervals are made.
    """
    speeds = relative_speeds(sums, baseline, resampling)
    others = {name: relative_speeds(sums, name, resampling) for name in against if name in sums}
    rows = []
    for name, one in sums.items():
        row: dict[str, Any] = {"arm": name, **_rates(one, resampling)}
        row.update(_with_ends("speed_up", speeds[name]))
        row["predicted"] = (predicted or {}).get(name)
        for other, found in others.items():
            row.update(_with_ends(f"over_{other.replace(':', '_')}", found[name]))
        row.update(_shares(one))
        drafted = one.columns["n_drafted"].sum() > 0
        step_ms = one.decode_ms.sum() / one.columns["n_steps"].sum()
        row["break_even_len"] = step_ms / sums[baseline].ms_per_token if drafted else None
        row["same_text"] = float(
            np.mean([a == b for a, b in zip(one.texts, sums[baseline].texts, strict=True)])
        )
        row["prefill_ms"] = float(one.columns["prefill_ms"].mean())
        row |= {"n_tokens": int(one.n_tokens.sum()), "n_prompts": len(one.prompt_ids)}
        row |= {"method": speeds[name].method, "reason": speeds[name].reason or None}
        rows.append(row)
    return pd.DataFrame(rows)


def _rates(one: Sums, resampling: Resampling) -> dict[str, Any]:
    """Acceptance, lengths and speed of one arm, with intervals."""
    parts = one.columns
    wanted = {
        "acceptance": (parts["n_accepted"], parts["n_tested"]),
        "accepted_len": (parts["n_accepted"], parts["n_drafted"]),
        "emitted_len": (parts["n_new_tokens"], parts["n_steps"]),
        "tokens_per_s": (parts["n_new_tokens"], parts["decode_ms"] / 1000.0),
    }
    numerators = np.stack([top for top, _ in wanted.values()], axis=1)
    denominators = np.stack([bottom for _, bottom in wanted.values()], axis=1)
    k = len(wanted)

    def statistic(totals: Totals) -> Totals:
        return ratio(totals[:, :k], totals[:, k:])

    found = bootstrap(
        np.hstack([numerators, denominators]), statistic, denominators > 0, resampling, undefined=_NOTHING
    )
    row: dict[str, Any] = {}
    for name, estimate in zip(wanted, found, strict=True):
        row.update(_with_ends(name, estimate))
    return row


def _with_ends(name: str, found: Estimate) -> dict[str, float | None]:
    return {name: found.value, f"{name}_lo": found.lo, f"{name}_hi": found.hi}


def _shares(one: Sums) -> dict[str, float | None]:
    """Where the decoding time goes."""
    total = one.decode_ms.sum()
    draft, verify = (float(one.columns[f"{part}_ms"].sum() / total) for part in ("draft", "verify"))
    return {"draft_share": draft, "verify_share": verify, "other_share": 1.0 - draft - verify}
