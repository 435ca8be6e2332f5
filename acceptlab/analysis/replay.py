"""Other rules and smaller trees, evaluated on stored records: a counterfactual at the same roots, without models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from acceptlab.analysis.base import ALL, N_DOCS, AnalysisTable, Sample, counted, open_sample, put, to_frame
from acceptlab.analysis.best_shape import parse_any
from acceptlab.analysis.replay_batches import BATCH_NODES, SUMS, Replay, batches
from acceptlab.analysis.replay_plan import Candidate, EndTokens, Recorded, candidate, end_tokens, recorded
from acceptlab.queries import By, trees
from acceptlab.resampling import DEFAULT, Resampling, Totals
from acceptlab.rules import parse_rule
from acceptlab.stats import bootstrap, ratio
from acceptlab.store import Run
from acceptlab.tree import TreeShape

_NOTHING = "nothing drafted"
_PLACE = {name: place for place, name in enumerate(SUMS)}

COLUMNS = {
    "rule": "the rule replayed",
    "tree": "the tree replayed",
    "stored_len": "mean accepted_len of drafted steps under the run's own rule and tree, no bonus (tokens)",
    "replay_len": "the same under the replayed rule and tree at the same roots; decisions in doubt fail (tokens)",
    "len_difference": "replay_len - stored_len, resampled jointly (tokens)",
    "stored_expected": "mean expectation of accepted_len under the run's own rule, given the trees (tokens)",
    "replay_expected": "the same under the replayed rule and tree (tokens)",
    "expected_difference": "replay_expected - stored_expected, resampled jointly (tokens)",
    "stored_acceptance": "accepted / tested nodes under the run's own rule and tree",
    "replay_acceptance": "accepted / tested nodes under the replayed rule and tree",
    "replay_len_least": "least replay_len that the stored numbers allow, not the end of an interval (tokens)",
    "replay_len_most": "largest replay_len that the stored numbers allow, not the end of an interval (tokens)",
    "undecided": "share of the tree's nodes whose passing the stored numbers leave open",
    **{**N_DOCS, "n_nodes": "nodes of the replayed tree", "n_tested": "nodes that the replayed rule tests"},
}
_ESTIMATES = tuple(COLUMNS)[2:12]


def replay(
    runs: Sequence[Run],
    *,
    by: By = "domain",
    resampling: Resampling = DEFAULT,
    rules: Sequence[str] = (),
    tree_texts: Sequence[str] = (),
    batch_nodes: int = BATCH_NODES,
) -> AnalysisTable:
    """One row per rule, tree and group: lengths and rates of the stored and the replayed, with paired differences.

    The run's own rule is replayed from its outcomes. Argmax rules are decided from the target's model
    distribution; where what is stored of it leaves a decision open, `replay_len_least` and `replay_len_most` are
    what the accepted length may be. onehot is replayed on ranked tokens by target_prob; rejection by accept_ratio
    on chains. The realised length of a lossless rule other than the run's own needs fresh draws (seeded by prompt);
    its expectation needs none.

    Args:
        runs: Opened runs of one configuration.
        by: What a group is.
        resampling: How intervals are made.
        rules: Rules to replay; none stands for the run's own.
        tree_texts: Static trees contained in the stored one; none stands for the stored one.
        batch_nodes: About how many nodes are held at a time.

    Raises:
        UsageError: a rule that is not valid for the stored proposals, a tree that is not contained.
    """
    made = recorded(runs)
    shapes: list[TreeShape | None] = [parse_any(text) for text in tree_texts]
    wanted = [
        candidate(made, rule, shape)
        for rule in [parse_rule(text) for text in rules] or [made.rule]
        for shape in shapes or [None]
    ]
    with open_sample(runs, by) as sample:
        ends = end_tokens(runs, trees.end_tokens(sample.connection))
        replays = [Replay(one, made) for one in wanted]
        for batch in batches(sample, made, wanted, ends.token_ids, batch_nodes):
            for one in replays:
                one.add(batch)
        rows = [row for one in replays for row in _rows(sample, one, by, resampling)]
        notes = [*sample.notes, *_notes(made, wanted, ends, rows)]
    counts = counted({"prompts": rows[-1]["n_prompts"], "drafted steps": rows[-1]["n_steps"]})
    return AnalysisTable(
        name="replay",
        title=f"Replay at the same roots of rule {made.rule} on tree {made.tree}, by {by}",
        caption=f"Counterfactual accepted length at the roots of the stored run, {counts} ({resampling}).",
        frame=to_frame(rows),
        notes=notes,
        columns={by: "group of the prompts; all pools them", **COLUMNS},
    )


def _rows(sample: Sample, one: Replay, by: By, resampling: Resampling) -> list[dict[str, Any]]:
    sums = sample.clusters.dense(one.frame(), SUMS)
    what = {"rule": str(one.candidate.rule), "tree": one.candidate.text}
    return [
        _row({by: group, **what}, sample.clusters.select(sums, group), resampling)
        for group in (*sample.clusters.groups, ALL)
    ]


def _row(
    key: dict[str, Any], sums: Float[np.ndarray, "prompts sums"], resampling: Resampling
) -> dict[str, Any]:
    steps, tested, stored_tested = (sums[:, _PLACE[name]] for name in ("n_steps", "tested", "stored_tested"))
    counts = np.stack([*[steps] * 6, stored_tested, tested, steps, steps], axis=1)
    found = bootstrap(sums, _statistic, counts, resampling, undefined=_NOTHING)
    total = dict(zip(SUMS, sums.sum(axis=0), strict=True))
    row = put(
        key,
        dict(zip(_ESTIMATES, found, strict=True)),
        n_nodes=int(total["n_nodes"]),
        n_tested=int(total["tested"]),
        n_steps=int(total["n_steps"]),
        n_prompts=int((steps > 0).sum()),
    )
    share = total["n_undecided"] / total["n_nodes"] if total["n_nodes"] else None
    names = list(row)
    place = names.index("n_nodes")
    return {**{n: row[n] for n in names[:place]}, "undecided": share, **{n: row[n] for n in names[place:]}}


def _statistic(totals: Totals) -> Totals:
    def of(name: str) -> Float[np.ndarray, " rows"]:
        return totals[:, _PLACE[name]]

    stored, ours = ratio(of("stored_len"), of("n_steps")), ratio(of("len"), of("n_steps"))
    stored_expected, expected = (ratio(of(name), of("n_steps")) for name in ("stored_expected", "expected"))
    columns = [stored, ours, ours - stored, stored_expected, expected, expected - stored_expected]
    columns += [ratio(of("stored_len"), of("stored_tested")), ratio(of("len"), of("tested"))]
    columns += [ratio(of("least"), of("n_steps")), ratio(of("most"), of("n_steps"))]
    return np.stack(columns, axis=1)


def _notes(
    made: Recorded, wanted: Sequence[Candidate], ends: EndTokens, rows: Sequence[dict[str, Any]]
) -> list[str]:
    notes = [
        "a counterfactual at the same roots: another rule or tree would have committed other tokens and so "
        "stopped at other roots; run it to know its own mean"
    ]
    notes.append(ends.note)
    if not made.unwarped and any(row["undecided"] for row in rows):
        notes.append(
            "the sampling distribution is warped, so model probabilities come from the stored lists of the 32 most "
            "probable tokens; what they leave open is in replay_len_least and replay_len_most"
        )
    if any(not one.is_own_rule and one.rule.is_lossless for one in wanted):
        notes.append(
            "replay_len of a lossless rule rests on fresh draws; replay_expected is exact given the trees"
        )
    return notes
