"""The training part of a study as sections of its page: train, measure, make tables, keep them beside the study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from acceptlab.analysis import AnalysisTable
from acceptlab.report import Section
from acceptlab.report.saved import write_text
from acceptlab.store import Run
from acceptlab.study.block import write_block
from acceptlab.study.decoding import decoding_table, served_arms
from acceptlab.study.training_costs import overhead_table, rollout_table, variance_table
from acceptlab.study.training_runs import Workshop, measure
from acceptlab.study.training_spec import Training
from acceptlab.study.training_tables import length_table, retention_table

SHOWN = {
    "losses": (
        "arm",
        "domain",
        "length",
        "difference",
        "seed_low",
        "seed_high",
        "verdict",
        "overlap",
        "product",
    ),
    "losses-retention": ("arm", "k", "S_k", "alpha_k"),
    "losses-overhead": ("arm", "overhead", "lowest", "highest", "step_s", "n_rounds"),
    "losses-rollouts": ("checkpoint", "teacher_forced", "rollout", "difference", "n_contexts"),
    "losses-variance": ("checkpoint", "position", "path", "branch", "ratio", "n_windows"),
    "losses-decoding": (
        "serving",
        "arm",
        "domain",
        "accepted_len",
        "expected_len",
        "difference",
        "n_prompts",
    ),
}
"""Columns of each table in the study's Markdown file; the CSV files have all of them."""


class Parts(Protocol):
    """Tells which part begins and how it ended."""

    def begin(self, what: str) -> None:
        """A part begins."""
        ...

    def end(self, *, skipped: str = "", said: str = "") -> None:
        """It ended: made now, or skipped for a reason."""
        ...

    def say(self, message: str) -> None:
        """Tell one line."""
        ...


def count_parts(training: Training) -> int:
    """Parts that `train_and_measure` will tell of."""
    return len(training.runs()) + 1


def train_and_measure(training: Training, parts: Parts) -> list[AnalysisTable]:
    """Train what is missing, measure what has changed, and give the tables of trained drafters."""
    workshop = Workshop(training)
    for run in workshop.runs:
        parts.begin(f"train {run.name}")
        if workshop.is_trained(run):
            parts.end(skipped=f"{run.folder} is trained")
        else:
            workshop.train(run, parts.say)
            parts.end(said=str(run.folder / "last"))
    parts.begin("measure the drafters")
    measured = measure(workshop, parts.say)
    tables = [
        length_table(measured.scores, training.baseline),
        retention_table(measured.scores),
        overhead_table(measured.overhead, training.baseline),
        rollout_table(measured.rollouts),
        variance_table(measured.variance),
    ]
    parts.end(said=f"{len(tables)} tables")
    return [table for table in tables if len(table.frame)]


def sections_of(
    training: Training, tables: Sequence[AnalysisTable], runs: Mapping[str, Run], study: Path
) -> list[Section]:
    """Sections of the page, decoding first; writes the tables beside the study and into its Markdown file."""
    served = served_arms(list(runs), training.arm_names)
    made = list(tables)
    if served:
        made.append(decoding_table(runs, served, training.baseline))
    for table in made:
        csv = str(table.frame.to_csv(index=False, lineterminator="\n"))
        write_text(training.results / f"{table.name}.csv", csv)
    write_block(study.with_suffix(".md"), [(table, SHOWN[table.name]) for table in made])
    return [Section(table, table.name) for table in made]
