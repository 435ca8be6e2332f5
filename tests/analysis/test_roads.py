"""The table of the three roads: agreement where there is one, differences where there are, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from acceptlab.analysis.base import open_sample
from acceptlab.analysis.covariance import covariance
from acceptlab.analysis.roads import JOINT, QUANTITIES, roads, statistic
from acceptlab.analysis.roads_sums import SUMS, last_start
from acceptlab.errors import RunError, UsageError
from acceptlab.resampling import Resampling, replicates
from acceptlab.store import Run, open_run
from acceptlab.store.scores import read_scores, scores_path, write_scores
from acceptlab.theory.chains import chain_gap, path_weights
from tests.analysis.test_roads_sums import ALL, LIMIT, Outcome, scored
from tests.handmade import Step, chain, write_run

FAST = Resampling(n_resamples=1000)
CONFIG = {"rule": "rejection", "tree": "chain:2", "temperature": 1.0, "max_new_tokens": LIMIT}
N_TEXTS = 120


def drawn(seed: int) -> list[Outcome]:
    probs = np.array([outcome.prob for outcome in ALL])
    chosen = np.random.default_rng(seed).choice(len(ALL), N_TEXTS, p=probs / probs.sum())
    return [ALL[i] for i in chosen]


def steps_of(outcome: Outcome) -> list[Step]:
    """The steps of an outcome; those behind the last root that counts draft one token less."""
    starts = [start for start, _, _ in outcome.steps] + [len(outcome.tokens)]
    steps = []
    for (start, accepted, expected), end in zip(outcome.steps, starts[1:], strict=True):
        late = accepted > 2
        nodes = chain("r") if late else chain(*"aa"[: int(accepted)], *"ru"[: 2 - int(accepted)])
        steps.append(Step(nodes, emitted=end - start, expected=expected))
    return steps


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, pd.DataFrame]:
    """Texts drawn from everything that can happen on the toy tables, in two domains, with their scores."""
    prompts, rows = {}, []
    for number, domain in enumerate(("code", "chat")):
        for i, outcome in enumerate(drawn(number)):
            name = f"{domain}/{i:03d}"
            prompts[name] = steps_of(outcome)
            text = scored(outcome)
            for position, (overlap, ratio) in enumerate(zip(text.overlaps, text.ratios, strict=True)):
                rows.append((domain, name, position, overlap, ratio))
    folder = write_run(tmp_path_factory.mktemp("roads") / "run", prompts, config=CONFIG, per_part=60)
    return open_run(folder), pd.DataFrame(
        rows, columns=["domain", "prompt_id", "position", "overlap", "ratio"]
    )


def test_the_roads_agree_on_drawn_texts(sampled: tuple[Run, pd.DataFrame]) -> None:
    found = roads(*sampled, resampling=FAST, widest=0.2)
    frame = found.table.frame
    assert frame["domain"].unique().tolist() == ["code", "chat", "all"]
    assert frame["quantity"].tolist() == [*QUANTITIES] * 3
    assert found.failures == ()
    checked = frame[frame["quantity"].isin(JOINT)]
    assert (checked["verdict"] == "agree").all()
    assert frame[~frame["quantity"].isin(JOINT)]["verdict"].isna().all()
    apart = frame[(frame["quantity"] == "branch - positions") & (frame["domain"] == "all")].iloc[0]
    assert apart["mean_lo"] > 0 or apart["mean_hi"] < 0
    width = (frame["mean_hi"] - frame["mean_lo"]) / 2
    assert frame["half_width"].to_numpy() == pytest.approx(width.to_numpy())


def test_means_are_ratios_of_sums(sampled: tuple[Run, pd.DataFrame]) -> None:
    frame = roads(*sampled, resampling=FAST).table.frame
    rows = frame[frame["domain"] == "code"].set_index("quantity")
    steps = [step for outcome in drawn(0) for step in outcome.steps if step[1] <= 2]
    assert rows.loc["accepted", "mean"] == pytest.approx(np.mean([step[1] for step in steps]))
    assert rows.loc["expected", "mean"] == pytest.approx(np.mean([step[2] for step in steps]))
    assert (rows["n_roots"] == len(steps)).all()
    difference = np.mean([step[1] - step[2] for step in steps])
    assert rows.loc["accepted - expected", "mean"] == pytest.approx(difference)


def test_wrong_scores_are_caught_and_narrow_intervals_demanded(sampled: tuple[Run, pd.DataFrame]) -> None:
    run, scores = sampled
    wrong = roads(run, scores.assign(ratio=1.0), resampling=FAST, widest=None)
    assert any("code: expected - branch" in failure and "differ" in failure for failure in wrong.failures)
    assert not any("accepted - expected" in failure for failure in wrong.failures)
    wide = roads(run, scores, resampling=FAST, widest=0.01)
    assert len(wide.failures) == 4  # two domains, two differences
    assert all("too wide" in failure for failure in wide.failures)


def test_intervals_hold_for_all_domains_at_once(sampled: tuple[Run, pd.DataFrame]) -> None:
    frame = roads(*sampled, resampling=FAST).table.frame
    rows = frame[frame["quantity"] == "accepted - expected"].set_index("domain")
    assert rows.loc["code", "method"].startswith("cluster bootstrap over prompts, simultaneous max-t")
    assert "over 2 domains" in rows.loc["code", "method"]
    assert "percentile" in rows.loc["all", "method"]
    i = list(QUANTITIES).index("accepted - expected")
    sums = np.zeros((N_TEXTS, len(SUMS)))
    for row, outcome in zip(sums, drawn(0), strict=True):
        steps = [step for step in outcome.steps if step[1] <= 2]
        row[0], row[1], row[2] = len(steps), sum(s[1] for s in steps), sum(s[2] for s in steps)
        row[4] = row[6] = 1.0
    error = replicates(sums, statistic, FAST)[:, i].std()
    # max-t over two domains takes 2.24 standard errors instead of 1.96; 1000 resamples leave some noise
    assert rows.loc["code", "half_width"] / error == pytest.approx(2.24, abs=0.12)


def test_covariances_of_what_the_target_wrote(sampled: tuple[Run, pd.DataFrame], tmp_path: Path) -> None:
    run, scores = sampled
    path = tmp_path / "scores.parquet"
    write_scores(path, scores, {"run_id": run.run_id})
    frame = covariance([run], scores=str(path), resampling=FAST).frame
    rows = frame[frame["domain"] == "code"]
    ratios, overlaps = [], []
    for outcome in drawn(0):
        text = scored(outcome)
        for start in text.starts[text.starts <= last_start(LIMIT, 2)]:
            ratios.append([*text.ratios[start : start + 2], 0.0][:2])
            overlaps.append([*text.overlaps[start : start + 2], 0.0][:2])
    gap = chain_gap(np.array(ratios), np.array(overlaps))
    for name, values in (
        ("S_k", gap.survival),
        ("mean_overlap", gap.mean_overlaps),
        ("C_k", gap.covariances),
        ("path_covariance", gap.path_covariances),
        ("S_path", path_weights(np.array(ratios)).mean(axis=0)),
        ("wtv", np.cumprod(overlaps, axis=1).mean(axis=0)),
    ):
        assert rows[name].to_numpy() == pytest.approx(values, abs=1e-12)
    assert rows["adjacent_covariance"].iloc[1] == pytest.approx(gap.adjacent_covariances[0], abs=1e-12)
    assert rows["J_k"].iloc[1] == pytest.approx(
        roads(*sampled, resampling=FAST).table.frame.set_index(["domain", "quantity"])["mean"][
            "code", "branch"
        ]
    )
    with pytest.raises(UsageError, match="name that run alone"):
        covariance([run, run], scores=str(path))
    write_scores(path, scores, {"run_id": "other"})
    with pytest.raises(UsageError, match="scores of run other"):
        covariance([run], scores=str(path))


def test_what_has_no_roads_is_refused(sampled: tuple[Run, pd.DataFrame], tmp_path: Path) -> None:
    run, scores = sampled

    def other(**changes: Any) -> Run:
        name = "-".join(map(str, changes.values())).replace(":", "")
        steps = {"code/a": [Step(chain("a", "r"))]}
        return open_run(write_run(tmp_path / name, steps, config={**CONFIG, **changes}))

    for changes, words in (
        ({"rule": "greedy"}, "need --rule rejection"),
        ({"tree": "kary:depth=2,branch=2"}, "need --rule rejection"),
        ({"stop": "entropy:2"}, "without --stop"),
        ({"max_new_tokens": 1}, "more --max-new-tokens"),
    ):
        with pytest.raises(UsageError, match=words):
            roads(other(**changes), scores)
    with pytest.raises(UsageError, match="scores lack tokens of"):
        roads(run, scores.iloc[:-1])


def test_scores_come_back_from_disk(sampled: tuple[Run, pd.DataFrame], tmp_path: Path) -> None:
    path = scores_path(tmp_path / "run")
    assert path.name == "run.scores.parquet"
    facts = {"run_id": "x", "models": None}
    write_scores(path, sampled[1], facts)
    frame, found = read_scores(path)
    pd.testing.assert_frame_equal(frame, sampled[1], check_dtype=False)
    assert found == facts
    with pytest.raises(UsageError, match="no scores at"):
        read_scores(tmp_path / "none")
    path.write_bytes(b"PAR1")
    with pytest.raises(RunError, match="holds no scored texts"):
        read_scores(path)


def test_few_prompts_have_no_intervals_and_no_verdict(tmp_path: Path) -> None:
    run = open_run(
        write_run(tmp_path / "run", {"code/a": [Step(chain("a", "r"), expected=0.5)]}, config=CONFIG)
    )
    scores = pd.DataFrame(
        {"domain": "code", "prompt_id": "code/a", "position": [0, 1], "overlap": 0.5, "ratio": 0.5}
    )
    found = roads(run, scores, resampling=FAST)
    frame = found.table.frame
    assert frame["half_width"].isna().all()
    assert frame["verdict"].isna().all()
    assert frame[frame["quantity"] == "branch"]["mean"].tolist() == [0.75, 0.75]
    assert found.failures == ()
    with open_sample([run]) as sample:
        assert sample.clusters.groups == ("code",)
