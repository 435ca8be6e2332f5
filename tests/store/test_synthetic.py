"""The synthetic runs themselves: equal arguments give equal rows, walks follow the rule in plain Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from acceptlab.records import TABLES
from acceptlab.rules import Rule, RuleKind, parse_rule
from acceptlab.store import open_run
from tests.store.helpers import frames
from tests.synthetic import EOS, make_run


def test_equal_arguments_give_equal_rows_and_seeds_differ(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / str(i), n_prompts=2, n_steps=3, seed=seed) for i, seed in enumerate((5, 5, 6))
    ]
    first, same, other = map(frames, runs)
    for table in TABLES:
        assert first[table.name].equals(same[table.name])
    assert not first["nodes"]["target_prob"].equals(other["nodes"]["target_prob"])


def accepts(rule: Rule, node: pd.Series) -> bool:
    """The argmax rules, as they are stated."""
    if rule.kind is RuleKind.TOP:
        return bool(node.target_rank < rule.m)
    level = {
        RuleKind.GREEDY: lambda: node.target_top_prob,
        RuleKind.ADDITIVE: lambda: node.target_top_prob - rule.eps,
        RuleKind.RATIO: lambda: node.target_top_prob * rule.gamma,
        RuleKind.TYPICAL: lambda: min(rule.eps, rule.delta * np.exp(-node.target_entropy)),
    }[rule.kind]()
    return bool(node.target_prob >= level - 1e-6)  # stored in float32


def walk(rule: Rule, nodes: pd.DataFrame) -> list[str]:
    """Outcomes of one step by the definition: try siblings in order, go on below the one accepted."""
    outcomes = ["untested"] * len(nodes)
    parent, ended = -1, False
    while not ended:
        children = nodes[nodes.parent == parent].sort_values("child_rank")
        parent, ended = -2, True
        for index, child in children.iterrows():
            passes = accepts(rule, child)
            outcomes[int(index)] = "accepted" if passes else "rejected"
            if passes:
                parent, ended = int(child.node), child.token_id == EOS
                break
    return outcomes


@pytest.mark.parametrize(
    "rule", ["greedy", "additive:0.05", "ratio:0.5", "top:2", "typical:eps=0.09,delta=0.3"]
)
def test_outcomes_are_those_of_a_plain_walk(tmp_path: Path, rule: str) -> None:
    run = make_run(tmp_path / "run", n_prompts=3, n_steps=4, rule=rule, tree="branches:2,2", vocab_size=80)
    nodes = frames(run)["nodes"]
    for _, rows in nodes.groupby(["prompt_id", "step"]):
        step = rows.reset_index(drop=True)
        assert walk(parse_rule(rule), step) == list(step["outcome"])


def test_both_kinds_of_end_and_skipped_prompts_occur(tmp_path: Path) -> None:
    tables = frames(make_run(tmp_path / "run", n_prompts=10, n_steps=6, n_skipped=3))
    assert set(tables["prompts"]["stop_reason"]) == {"eos", "length", "skipped"}
    assert (tables["nodes"]["token_id"] == EOS).any()  # drafted and accepted
    assert (tables["steps"]["bonus_token_id"] == EOS).any()
    assert tables["prompts"]["skip_reason"].notna().sum() == 3
    cut = tables["steps"][tables["steps"]["bonus_token_id"].isna()]
    assert set(cut["stop_reason"]) == {"eos", "length"}


def test_sharper_contexts_are_accepted_more_often_and_domains_differ(tmp_path: Path) -> None:
    nodes = frames(make_run(tmp_path / "run", n_prompts=40, vocab_size=80))["nodes"]
    tested = nodes[nodes["outcome"] != "untested"]
    accepted = (tested["outcome"] == "accepted").astype(float)
    assert tested["draft_entropy"].corr(accepted, method="spearman") < -0.1
    rates = accepted.groupby(tested["domain"]).mean()
    assert rates["chat"] == rates.max()
    assert rates["math"] == rates.min()


def test_rejection_accepts_with_its_own_probability(tmp_path: Path) -> None:
    run = open_run(
        make_run(tmp_path / "run", n_prompts=40, rule="rejection", tree="branches:3,1", vocab_size=60)
    )
    nodes = run.read("nodes").to_pandas()
    # variance of a sum of independent decisions given the tested nodes; 4 standard deviations, fixed seed
    tested = nodes[nodes["outcome"] != "untested"]
    prob = tested["accept_prob"].to_numpy(dtype=float)
    excess = (tested["outcome"] == "accepted").sum() - prob.sum()
    assert abs(excess) < 4 * np.sqrt((prob * (1 - prob)).sum())
