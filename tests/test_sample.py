"""The run that ships in data/sample: real, small, whole, and obeying every invariant that the analyses rely on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from acceptlab.analysis import depth_profile, domains
from acceptlab.records import TABLES
from acceptlab.store import open_run

SAMPLE = Path(__file__).parent.parent / "data" / "sample"


@pytest.fixture(scope="module")
def tables() -> dict[str, pd.DataFrame]:
    run = open_run(SAMPLE)
    return {table.name: run.read(table.name).to_pandas() for table in TABLES}


def test_it_is_complete_small_and_real() -> None:
    run = open_run(SAMPLE)
    assert run.is_complete
    assert run.config["pair"] == "smollm2-135m"
    assert set(run.config["domains"]) == {"code", "math", "logic", "chat"}
    assert sum(path.stat().st_size for path in SAMPLE.rglob("*") if path.is_file()) < 2_000_000


def test_rates_are_rates_and_tested_nodes_are_the_denominator(tables: dict[str, pd.DataFrame]) -> None:
    nodes = tables["nodes"]
    assert set(nodes.outcome) <= {"accepted", "rejected", "untested"}
    frame = domains([open_run(SAMPLE)]).frame
    for row in frame.itertuples():
        here = nodes if row.domain == "all" else nodes[nodes.domain == row.domain]
        tested = here[here.outcome != "untested"]
        assert row.n_tested == len(tested)
        assert row.acceptance == pytest.approx((tested.outcome == "accepted").mean())
        assert 0 <= row.acceptance_lo <= row.acceptance <= row.acceptance_hi <= 1
    for name in ("draft_prob", "target_prob", "accept_ratio", "overlap", "test_prob", "target_top_prob"):
        values = nodes[name].dropna()
        assert values.between(0, 1).all(), name


def test_emitted_is_accepted_plus_one_where_not_cut(tables: dict[str, pd.DataFrame]) -> None:
    steps, prompts = tables["steps"], tables["prompts"]
    whole = steps[steps.stop_reason.isna()]
    assert len(whole)
    assert (whole.emitted_len == whole.accepted_len + 1).all()
    by_prompt = steps.groupby("prompt_id", observed=True).emitted_len.sum()
    assert (by_prompt.reindex(prompts.prompt_id).to_numpy() == prompts.n_new_tokens.to_numpy()).all()
    assert (prompts.output_token_ids.map(len) == prompts.n_new_tokens).all()


def test_the_product_of_alphas_is_the_survival() -> None:
    frame = depth_profile([open_run(SAMPLE)]).frame
    for _, group in frame.groupby("domain"):
        rows = group.sort_values("depth")
        np.testing.assert_allclose(
            rows.alpha_d.cumprod(), rows.S_d, rtol=1e-12
        )  # quotients of the same counts
        assert rows.S_d.is_monotonic_decreasing


def test_siblings_are_tried_in_order_and_paths_are_unbroken(tables: dict[str, pd.DataFrame]) -> None:
    for _, tree in tables["nodes"].groupby(["prompt_id", "step"], observed=True):
        outcome = dict(zip(tree.node, tree.outcome, strict=True))
        for row in tree.itertuples():
            above = row.parent < 0 or outcome[row.parent] == "accepted"
            earlier = tree[(tree.parent == row.parent) & (tree.child_rank < row.child_rank)]
            reached = above and not (earlier.outcome == "accepted").any()
            assert (row.outcome != "untested") == reached or row.outcome == "untested"
            if row.outcome != "untested":
                assert reached


def test_greedy_accepts_exactly_the_targets_argmax(tables: dict[str, pd.DataFrame]) -> None:
    tested = tables["nodes"][tables["nodes"].outcome != "untested"]
    assert (tested.is_target_argmax == (tested.outcome == "accepted")).all()
    assert (tables["steps"].expected_accepted_len == tables["steps"].accepted_len).all()


def test_nothing_is_not_a_number(tables: dict[str, pd.DataFrame]) -> None:
    for table in TABLES:
        frame = tables[table.name]
        for column in table.columns:
            if not column.nullable:
                assert frame[column.name].notna().all(), column.name
