"""Measurements of trained drafters -> tables about estimates and costs: gradient variance, rollouts, overhead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from acceptlab.analysis.base import N_DOCS, AnalysisTable, to_frame
from acceptlab.study.variance import AGGREGATE

_NORMAL_95 = 1.96


def _records(frame: pd.DataFrame) -> list[dict[Any, Any]]:
    return frame.to_dict("records")


def variance_table(variance: pd.DataFrame) -> AnalysisTable:
    """One row per checkpoint and position, the whole window last."""
    kept = ("path", "branch", "ratio", "ratio_lo", "ratio_hi", "n_windows", "n_prompts", "method")
    rows = [
        {
            "checkpoint": row["run"],
            "position": "whole window" if row["position"] == AGGREGATE else str(row["position"]),
            **{name: row[name] for name in kept},
        }
        for row in _records(variance)
    ]
    return AnalysisTable(
        name="losses-variance",
        title="Gradient variance of the branch against the path estimate",
        caption=(
            "Variance over windows of the gradient in the final norm's gain, summed over its entries. Expected "
            "variances of the branch term are at most those of the path term at every position; for the whole "
            "window there is no such guarantee."
        ),
        frame=to_frame(rows, whole=()),
        columns={
            "checkpoint": "training run whose last state was measured",
            "position": "term of the estimate, by position in the window",
            "path": "gradient variance of the path term",
            "branch": "gradient variance of the branch term",
            "ratio": "branch / path",
            "n_windows": "complete windows",
            **{name: N_DOCS[name] for name in ("n_prompts", "method")},
        },
    )


def rollout_table(rollouts: pd.DataFrame) -> AnalysisTable:
    """One row a run: the accepted length along the target's tokens and along the draft's own."""
    rows = []
    for row in _records(rollouts):
        difference = row["rollout"] - row["teacher_forced"]
        half = _NORMAL_95 * row["difference_se"]
        rows.append(
            {
                "checkpoint": row["run"],
                "teacher_forced": row["teacher_forced"],
                "rollout": row["rollout"],
                "difference": difference,
                "difference_lo": difference - half,
                "difference_hi": difference + half,
                "n_contexts": row["n_contexts"],
            }
        )
    return AnalysisTable(
        name="losses-rollouts",
        title="Teacher-forced and rolled-out acceptance",
        caption=(
            "Both estimate the same expected length at the same contexts: along the target's own tokens, and along "
            "windows that the draft wrote. Intervals are normal, over contexts, one a prompt."
        ),
        frame=to_frame(rows),
        columns={
            "checkpoint": "training run whose last state was measured",
            "teacher_forced": "branch estimate along the target's tokens (tokens per window)",
            "rollout": "expected accepted length of the draft's own windows (tokens per window)",
            "difference": "rollout less teacher_forced (tokens per window)",
            "n_contexts": "contexts, two rollouts each",
        },
    )


def overhead_table(overhead: pd.DataFrame, baseline: str) -> AnalysisTable:
    """One row an arm: seconds of a step as a ratio to the baseline's in the same round."""
    seconds = overhead.pivot(index="round", columns="arm", values="seconds")
    ratios = seconds.div(seconds[baseline], axis=0)
    rows = [
        {
            "arm": str(arm),
            "overhead": float(np.median(ratios[arm])),
            "lowest": float(ratios[arm].min()),
            "highest": float(ratios[arm].max()),
            "step_s": float(np.median(seconds[arm])),
            "n_rounds": len(seconds),
        }
        for arm in dict.fromkeys(overhead["arm"])
    ]
    return AnalysisTable(
        name="losses-overhead",
        title=f"Cost of a training step, as a ratio to {baseline}",
        caption=(
            "Forward and backward pass on the same batches, turn by turn, in seconds of processor time. A loss that "
            "reads only tokens does without the target's distributions."
        ),
        frame=to_frame(sorted(rows, key=lambda row: row["overhead"])),
        columns={
            "arm": "loss",
            "overhead": f"seconds of a step / seconds of a step of {baseline}, median over rounds",
            "lowest": "lowest ratio of a round",
            "highest": "highest ratio of a round",
            "step_s": "seconds of a step, median over rounds (s)",
            "n_rounds": "rounds, each on a batch of its own",
        },
    )
