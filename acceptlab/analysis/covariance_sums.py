"""Windows behind the covariance diagnostics: which path of which trees, and its sums by prompt. No statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float

from acceptlab.analysis.base import Sample
from acceptlab.analysis.replay_plan import end_tokens
from acceptlab.analysis.roads import chain_window, scored_texts
from acceptlab.analysis.roads_sums import ScoredText, windows
from acceptlab.errors import UsageError
from acceptlab.queries.trees import end_tokens as ends_seen
from acceptlab.queries.windows import Measure, path_windows, tree_nodes
from acceptlab.rules import RuleKind, parse_rule
from acceptlab.store import Run
from acceptlab.store.scores import read_scores
from acceptlab.theory.chains import branch_terms, path_weights

SUMS = ("n_steps", "sum_overlap", "sum_branch", "sum_weight", "sum_ratio", "sum_pair", "sum_path", "sum_wtv")
"""Columns of `path_windows.sql` in the order of the arrays."""

MEASURES: dict[RuleKind, Measure] = {
    RuleKind.REJECTION: "sampled",
    RuleKind.REJECTION_IID: "sampled",
    RuleKind.BLOCK: "sampled",
    RuleKind.GREEDY: "argmax",
    RuleKind.ONEHOT: "onehot",
}
"""What the windows of a rule hold; records do not decide the relaxed rules below a rejection, so they are missing."""

WHAT: dict[Measure, str] = {
    "sampled": (
        "windows are drafted tokens, as the draft sampled them: a_k is the overlap of the context before token k, b_k "
        "is min(1, target/draft) of the token, S_k the survival under token-by-token rejection, and mean_overlap is "
        "over drafted contexts"
    ),
    "argmax": (
        "rule greedy: a_k = b_k is 1 where drafted token k is the target's argmax and else 0, since the draft's ranked "
        "tokens are no samples"
    ),
    "onehot": (
        "rule onehot: a_k = b_k is the target's probability of drafted token k, since the draft's ranked tokens are no "
        "samples"
    ),
}


@dataclass(frozen=True)
class Windows:
    """Sums by prompt: `sums` is [SUMS, rows of the clusters, K]; `notes` says what a window is."""

    sums: Float[np.ndarray, "sums rows positions"]
    notes: tuple[str, ...]

    @property
    def n_positions(self) -> int:
        """K, the length of every window; 0 where nothing was drafted."""
        return int(self.sums.shape[2])


def windows_of(sample: Sample, runs: Sequence[Run]) -> Windows:
    """Windows along the path of first children, which a chain is as a whole.

    Raises:
        UsageError: rules whose windows mean different things or nothing, or trees without fixed windows.
    """
    measure = measure_of(runs)
    shapes = tree_nodes(sample.connection)
    path = first_path(shapes)
    ends = end_tokens(runs, ends_seen(sample.connection))
    frame = path_windows(sample.connection, path, measure, ends.token_ids)
    n_positions = int(path["depth"].max()) if len(path) else 0
    frame["level"] = frame["depth"] - 1
    notes = [WHAT[measure], ends.note.replace("nothing is accepted", "everything is 0")]
    if len(shapes) > len(path):
        notes.append(
            "of the drafted trees only the path of first children counts: child_rank 0 at every depth"
        )
    return Windows(sample.clusters.dense_by(frame, "level", SUMS, n_positions), tuple(notes))


def scored_windows(sample: Sample, runs: Sequence[Run], path: Path) -> Windows:
    """Windows of the text that was written after every root, from its scores: what the target sampled.

    Raises:
        UsageError: several runs, scores of another run, or a run without roads (see `roads.chain_window`).
    """
    if len(runs) != 1:
        raise UsageError("scores belong to one run: name that run alone")
    scores, facts = read_scores(path)
    if facts.get("run_id") != runs[0].run_id:
        raise UsageError(f"'{path}' holds scores of run {facts.get('run_id')}, not of {runs[0].run_id}")
    window, last = chain_window(runs[0])
    rows = [
        {"run_id": run_id, "prompt_id": prompt_id, "level": level, **dict(zip(SUMS, sums, strict=True))}
        for (run_id, prompt_id), text in scored_texts(sample, runs[0], scores, window).items()
        for level, sums in enumerate(_text_sums(text, window, last).T)
    ]
    frame = pd.DataFrame(rows, columns=["run_id", "prompt_id", "level", *SUMS])
    note = (
        "windows are the text written after every root where a whole window fits, as the target sampled it: a_k is the "
        "overlap of the context before token k, b_k is min(1, draft/target) of the token; 0 below an EOS"
    )
    return Windows(sample.clusters.dense_by(frame, "level", SUMS, window), (note,))


def _text_sums(text: ScoredText, window: int, last: int) -> Float[np.ndarray, "sums positions"]:
    """Sums over the roots of one text, in the order of SUMS."""
    roots = text.starts[text.starts <= last]
    ratios, overlaps = (values[roots] for values in windows(text, window, last))
    one, none = np.ones((len(roots), 1)), np.zeros((len(roots), 1))
    before = np.hstack([none, ratios[:, :-1]])
    found = (
        np.ones_like(overlaps),
        overlaps,
        branch_terms(ratios, overlaps),
        np.hstack([one, path_weights(ratios)[:, :-1]]),
        before,
        before * overlaps,
        path_weights(ratios),
        np.cumprod(overlaps, axis=1),
    )
    return np.stack([values.sum(axis=0) for values in found])


def measure_of(runs: Sequence[Run]) -> Measure:
    """What the windows of these runs hold.

    Raises:
        UsageError: a rule without windows, or rules that disagree.
    """
    found: dict[Measure, str] = {}
    for run in runs:
        rule = parse_rule(str(run.config.get("rule") or RuleKind.GREEDY))
        if rule.kind not in MEASURES:
            raise UsageError(
                f"run '{run.path}' has rule {rule}, which its records do not decide below a rejection: covariances "
                f"need a run with one of the rules {', '.join(MEASURES)}"
            )
        found.setdefault(MEASURES[rule.kind], str(rule))
    if len(found) > 1:
        raise UsageError(
            f"the windows of rules {' and '.join(found.values())} differ: analyse the runs apart"
        )
    return next(iter(found))


def first_path(shapes: pd.DataFrame) -> pd.DataFrame:
    """Rows of the path of first children in a table of `tree_nodes.sql`, by run and depth.

    Raises:
        UsageError: trees that change from step to step, or runs whose paths differ in length.
    """
    paths = [_path_of(rows) for _, rows in shapes.groupby("run_id", sort=True)]
    lengths = sorted({len(path) for path in paths})
    if len(lengths) > 1:
        raise UsageError(
            f"the runs draft {' and '.join(map(str, lengths))} tokens deep: windows have one length, so analyse them "
            "apart"
        )
    return pd.concat(paths, ignore_index=True) if paths else shapes


def _path_of(rows: pd.DataFrame) -> pd.DataFrame:
    if rows["node"].duplicated().any() or rows["n_steps"].nunique() > 1:
        raise UsageError(
            f"the trees of run {rows['run_id'].iloc[0]} change from step to step: covariances need windows of one "
            "length, so collect with a static tree, such as --tree chain:5, and without --stop"
        )
    first = rows[rows["child_rank"] == 0]
    child_of = dict(zip(first["parent"], first["node"], strict=True))
    path, node = [], -1
    while node in child_of:
        node = child_of[node]
        path.append(node)
    return rows.set_index("node").loc[path].reset_index()
