"""The certificates table against loops over stored rows; quantiles and their intervals; violations end with exit 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from acceptlab import cli
from acceptlab.analysis import certificate_checks as checks
from acceptlab.analysis.base import open_sample
from acceptlab.analysis.certificate_sums import quantiles_of
from acceptlab.analysis.certificates import PAPER, certificates, check_certificates
from acceptlab.errors import RunError, UsageError
from acceptlab.queries.certificates import add_cluster_rows, certificate_contexts, certificate_thresholds
from acceptlab.records import CERTIFICATE_RULES
from acceptlab.resampling import Resampling
from acceptlab.store import Run, open_run
from tests.real_contexts import RULES, Known, make_known

FAST = Resampling(n_resamples=200)
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Known:
    return make_known(tmp_path_factory.mktemp("certificates") / "run", n_contexts=15)


@pytest.fixture(scope="module")
def run(known: Known) -> Run:
    return open_run(known.folder)


def scalars_of(row: dict[str, Any]) -> dict[str, np.ndarray]:
    """One stored context as the query gives it, by a plain search in its lists."""
    ids, listed = list(row["target_token_ids"]), list(row["target_probs"])
    place = ids.index(row["draft_argmax"]) + 1 if row["draft_argmax"] in ids else 0
    names = ("kl_target_draft", "kl_draft_target", "target_margin", "target_top_prob", "target_entropy")
    drafted = list(row["draft_token_ids"])
    one = {
        **{name: row[name] for name in names},
        "target_place": place,
        "draft_place": drafted.index(row["target_argmax"]) + 1 if row["target_argmax"] in drafted else 0,
        "listed_prob": listed[place - 1] if place else np.nan,
        "last_prob": listed[-1],
        "thresholds_forward": row["thresholds_forward"],
        "thresholds_reverse": row["thresholds_reverse"],
    }
    dtypes = {"target_place": np.int32, "draft_place": np.int32}
    return {name: np.array([value], dtype=dtypes.get(name, np.float32)) for name, value in one.items()}


def test_the_query_equals_a_loop(run: Run) -> None:
    with open_sample([run]) as sample:
        add_cluster_rows(sample.connection, sample.clusters.keys)
        batches = list(certificate_contexts(sample.connection, batch_rows=100))
        rows, values = certificate_thresholds(sample.connection, 3)
    found = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    stored = sorted(run.read("contexts").to_pylist(), key=lambda row: row["kl_draft_target"])
    order = np.argsort(found["kl_draft_target"], kind="stable")
    assert len(stored) == len(order) == 360
    for row, place in list(zip(stored, order, strict=True))[5::7]:
        for name, expected in scalars_of(row).items():
            np.testing.assert_array_equal(found[name][place], expected[0], err_msg=name)
    assert sorted(np.bincount(rows)) == [15] * 24
    assert sorted(values[:, 0]) == sorted(row["thresholds_forward"][3] for row in stored)
    assert sorted(values[:, 1]) == sorted(row["thresholds_reverse"][3] for row in stored)


def counted(rows: list[dict[str, Any]], index: int, direction: str) -> dict[str, int]:
    """Counts of one rule and direction over stored rows, one context at a time."""
    names = ("contexts", "certified", "finite", "margin", "accepted", "rejected", "undecided", "violations")
    counts = dict.fromkeys(names, 0)
    for row in rows:
        one = scalars_of(row)
        outcome = checks.proposal_outcomes(one, RULES[index])
        exact = checks.certified(one, index, direction)[0]
        margin = checks.margin_certified(one, checks.margin_thresholds(one, RULES[index]), direction)[0]
        accepted, rejected = outcome.accepted[0], outcome.rejected[0]
        finite = exact and np.isfinite(row[f"thresholds_{direction}"][index])
        violation = (exact or margin) and rejected
        for name, value in zip(
            names,
            (True, exact, finite, margin, accepted, rejected, not (accepted or rejected), violation),
            strict=True,
        ):
            counts[name] += int(value)
    return counts


@pytest.mark.parametrize("group", ["code", "all"])
def test_every_row_equals_a_loop(group: str, run: Run) -> None:
    frame = certificates([run], all_bins=True, resampling=FAST).frame
    rows = [row for row in run.read("contexts").to_pylist() if group in (row["domain"], "all")]
    of_group = frame[frame["domain"] == group]
    assert len(of_group) >= 16
    assert list(dict.fromkeys(of_group["rule"])) == list(CERTIFICATE_RULES)
    chosen = of_group[of_group["rule"].isin(["additive:0.1", "tree:4"])]
    for found in chosen[chosen["margin_bin"].isna() | chosen["margin_bin"].isin([0, 9])].to_dict("records"):
        number = found["margin_bin"]
        of_bin = rows
        if not pd.isna(number):
            of_bin = [row for row in rows if min(int(row["target_margin"] * 10), 9) == number]
        n = counted(of_bin, CERTIFICATE_RULES.index(found["rule"]), found["direction"])
        assert {name: found[f"n_{name}"] for name in n} == n
        decided = n["accepted"] + n["rejected"]
        assert found["coverage"] == pytest.approx(n["certified"] / n["contexts"])
        proved = counted(of_bin, 0, found["direction"])["certified"]
        assert found["gain"] == pytest.approx((n["certified"] - proved) / n["contexts"])
        assert found["margin_coverage"] == pytest.approx(n["margin"] / n["contexts"])
        assert found["acceptance"] == pytest.approx(n["accepted"] / decided)
        assert found["tightness"] == pytest.approx(n["certified"] / n["accepted"])
        assert found["n_violations"] == 0


def test_bins_of_all_groups_come_last_and_others_on_demand(run: Run) -> None:
    few, many = (certificates([run], all_bins=flag, resampling=FAST).frame for flag in (False, True))
    assert set(few.loc[few["margin_bin"].notna(), "domain"]) == {"all"}
    assert set(many.loc[many["margin_bin"].notna(), "domain"]) == {"code", "chat", "all"}
    assert few["margin_bin"].notna().cumsum().max() == len(few) - 3 * 16
    one = few[(few["domain"] == "all") & (few["rule"] == "tree:2") & (few["direction"] == "reverse")]
    whole = one[one["margin_bin"].isna()].iloc[0]
    for name in ("n_contexts", "n_certified", "n_margin", "n_accepted"):
        assert one.loc[one["margin_bin"].notna(), name].sum() == whole[name]


def test_nearest_rejection_is_a_minimum_over_rejected_proposals(run: Run) -> None:
    frame = certificates([run], resampling=FAST).frame
    rows = run.read("contexts").to_pylist()
    found = frame[(frame["domain"] == "all") & (frame["rule"] == "tree:2") & frame["margin_bin"].isna()]
    for direction, name in (("forward", "kl_target_draft"), ("reverse", "kl_draft_target")):
        index = CERTIFICATE_RULES.index("tree:2")
        near = [
            row[name] / row[f"thresholds_{direction}"][index]
            for row in rows
            if row["target_argmax"] not in row["draft_token_ids"][:2]
            and row[f"thresholds_{direction}"][index]
        ]
        value = found.loc[found["direction"] == direction, "nearest_rejection"].iloc[0]
        assert value == pytest.approx(min(near), rel=1e-6)  # float32 against float64 division
        assert value >= 1.0


def test_quantiles_are_order_statistics_of_the_stored_thresholds(run: Run) -> None:
    frame = certificates([run], resampling=FAST).frame
    rows = run.read("contexts").to_pylist()
    for rule, direction in (("greedy", "forward"), ("typical:eps=0.09,delta=0.3", "reverse")):
        values = sorted(r[f"thresholds_{direction}"][CERTIFICATE_RULES.index(rule)] for r in rows)
        pooled = (frame["domain"] == "all") & (frame["rule"] == rule) & frame["margin_bin"].isna()
        found = frame[pooled & (frame["direction"] == direction)].iloc[0]
        for name, place in (("p5", 17), ("p25", 89), ("median", 179), ("p75", 269), ("p95", 341)):
            assert found[f"threshold_{name}"] == values[place]
        assert found["threshold_median_lo"] <= found["threshold_median"] <= found["threshold_median_hi"]
    greedy = frame[(frame["rule"] == "greedy") & frame["margin_bin"].isna()]
    assert set(greedy.loc[greedy["direction"] == "forward", "paper_p5"]) == {PAPER["greedy"][0]}
    assert greedy.loc[greedy["direction"] == "reverse", "paper_p5"].isna().all()


def test_intervals_of_quantiles_are_those_of_resampled_prompts() -> None:
    rng = np.random.default_rng(0)
    n_prompts, n = 60, 40
    effects = rng.normal(0.0, 0.5, n_prompts)
    values = np.exp(effects[:, None] + rng.normal(0.0, 1.0, (n_prompts, n))).astype(np.float32)
    order = np.argsort(values.reshape(-1), kind="stable")
    prompts = np.repeat(np.arange(n_prompts), n)[order]
    found = quantiles_of(
        values.reshape(-1)[order], prompts, Resampling(n_resamples=2000, widen=False, seed=1)
    )
    draws = [np.quantile(values[rng.integers(0, n_prompts, n_prompts)], [0.05, 0.5]) for _ in range(2000)]
    expected = np.quantile(np.array(draws), [0.025, 0.975], axis=0)
    for level, (low, high) in zip((0.05, 0.5), expected.T, strict=True):
        # inverting the interval of the share agrees with resampled quantiles to some hundredths of the value
        assert found.ends[level] == pytest.approx((low, high), rel=0.08)


def test_quantiles_of_infinite_thresholds() -> None:
    values = np.float32([0.1, 0.2, np.inf, np.inf])
    found = quantiles_of(values, np.array([0, 1, 2, 3]), FAST)
    assert found.values[0.5] == pytest.approx(0.2)
    assert np.isinf(found.values[0.75])
    assert found.ends == {}, "four prompts give no interval"
    assert quantiles_of(np.float32([]), np.array([], dtype=int), FAST).values == {}


def test_no_violation_passes(run: Run, capsys: Capture) -> None:
    table = certificates([run], resampling=FAST)
    assert int(table.frame["n_violations"].sum()) == 0
    check_certificates(table)
    assert cli.run(["analyze", "certificates", str(run.path), "--resamples", "100"]) == 0
    assert "tree:8" in capsys.readouterr().out


def test_the_check_can_fail(run: Run, tmp_path: Path, capsys: Capture) -> None:
    arguments = ["analyze", "certificates", str(run.path), "--resamples", "100", "--format", "csv"]
    assert cli.run([*arguments, "--scale-thresholds", "3"]) == 1
    out, err = capsys.readouterr()
    assert out.count("\n") > 100, "the table is printed all the same"
    assert "with thresholds times 3: the check can fail" in err
    wrong = make_known(tmp_path / "wrong", scale_stored=3.0)
    assert cli.run(["analyze", "certificates", str(wrong.folder), "--resamples", "100"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: ")
    assert "certified proposals were rejected" in last
    assert "these thresholds prove nothing" in last


def test_thresholds_scaled_down_certify_less(run: Run) -> None:
    whole, half = (certificates([run], scale_thresholds=s, resampling=FAST).frame for s in (1.0, 0.5))
    assert half["n_certified"].sum() < whole["n_certified"].sum()
    assert half["n_margin"].sum() < whole["n_margin"].sum()
    assert half["n_rejected"].sum() == whole["n_rejected"].sum()
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="give a positive number"):
            certificates([run], scale_thresholds=bad, resampling=FAST)


def test_groups_follow_by(run: Run, tmp_path: Path) -> None:
    other = open_run(make_known(tmp_path / "other", seed=1, n_prompts=3).folder)
    by_run = certificates([run, other], by="run", resampling=FAST).frame
    assert list(dict.fromkeys(by_run["run"])) == ["other", "run", "all"]
    sources = certificates([run], by="source", resampling=FAST).frame
    assert set(sources["source"]) == {"source 0", "source 1", "all"}
    pooled = by_run[(by_run["run"] == "all") & by_run["margin_bin"].isna()]
    assert set(pooled["n_contexts"]) == {360 + 150}
    assert set(pooled["n_prompts"]) == {24}, "prompts of both runs are the same"


def test_a_run_without_contexts_has_rows_without_values(tmp_path: Path) -> None:
    from tests.handmade import Step, write_run

    folder = write_run(tmp_path / "bare", {"code/x": [Step(emitted=1, stop="length")]})
    table = certificates([open_run(folder)], resampling=FAST)
    assert table.frame["coverage"].isna().all()
    assert set(table.frame["n_contexts"]) == {0}
    with pytest.raises(RunError, match="so nothing was checked"):
        check_certificates(table)


def test_a_run_that_has_no_prompt_yet_is_refused(tmp_path: Path) -> None:
    from tests.handmade import write_run

    with pytest.raises(RunError, match="so nothing was checked"):
        certificates([open_run(write_run(tmp_path / "started", {}, complete=False))], resampling=FAST)
