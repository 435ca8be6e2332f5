"""Studies that train: the file, the runs on a tiny target, the tables against plain loops, the Markdown block."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from acceptlab.errors import UsageError
from acceptlab.resampling import Resampling
from acceptlab.study.block import BEGIN, END, markdown, without_block, write_block
from acceptlab.study.spec import load_study
from acceptlab.study.training_costs import overhead_table, rollout_table, variance_table
from acceptlab.study.training_spec import Training, parse_training
from acceptlab.study.training_tables import length_table, retention_table

FEW = Resampling(n_resamples=200)
TABLE = {
    "folder": "drafters",
    "results": "results",
    "start": "start.toml",
    "arms": ["ce.toml", "real.toml", "grpo.toml"],
    "seeds": [3, 4],
    "score": "held-out",
    "one_seed": ["grpo"],
    "variance": ["start", "real-3"],
}


def test_runs_are_the_start_and_every_arm_seed_after_seed() -> None:
    training = parse_training(TABLE, "'s.toml'")
    assert [run.name for run in training.runs()] == ["start", "ce-3", "real-3", "grpo-3", "ce-4", "real-4"]
    assert training.baseline == "ce"
    (run,) = [run for run in training.runs() if run.name == "real-4"]
    assert (run.arm, run.seed, run.config, run.folder) == (
        "real",
        4,
        Path("real.toml"),
        Path("drafters/real-4"),
    )


def test_the_state_of_a_run_is_its_last_reported_step(tmp_path: Path) -> None:
    training = parse_training({**TABLE, "folder": str(tmp_path)}, "'s.toml'")
    start = training.runs()[0]
    assert start.state() == "missing"
    start.folder.mkdir()
    (start.folder / "log.jsonl").write_text('{"step": 50}\n{"step": 1250}\n')
    assert start.state() == "step 1,250"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arm": []}, "unknown key 'arm'"),
        ({"seeds": []}, "seeds is empty"),
        ({"seeds": ["0"]}, "write a list of int"),
        ({"seeds": [True]}, "write a list of int"),
        ({"score_prompts": 0}, "whole number from 1"),
        ({"folder": 3}, "write a path"),
        ({"one_seed": ["eal"]}, "one_seed names 'eal': use one of ce, grpo, real"),
        ({"variance": ["real"]}, "variance names 'real'"),
    ],
)
def test_mistakes_in_the_training_table_are_named(change: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_training({**TABLE, **change}, "'s.toml'")


def test_a_missing_key_is_named() -> None:
    with pytest.raises(UsageError, match="has no 'score'"):
        parse_training({key: value for key, value in TABLE.items() if key != "score"}, "'s.toml'")


def make_scores(n_prompts: int = 24, gamma: int = 3) -> pd.DataFrame:
    """Scores of a start and two arms with two seeds; the second arm's terms are higher by 0.1 everywhere."""
    rng = np.random.default_rng(1)
    rows = []
    level = {("start", -1): -0.2, ("ce", 0): 0.0, ("ce", 1): 0.01, ("real", 0): 0.1, ("real", 1): 0.12}
    for item in range(n_prompts):
        windows, base = int(rng.integers(2, 9)), rng.uniform(0.3, 0.6)
        for (arm, seed), shift in level.items():
            for k in range(gamma):
                overlap = base + shift
                rows.append(
                    {
                        "run": arm if seed < 0 else f"{arm}-{seed}",
                        "arm": arm,
                        "seed": seed,
                        "item": item,
                        "domain": ("code", "chat")[item % 2],
                        "position": k + 1,
                        "n_windows": windows - (k == gamma - 1),
                        "branch": windows * overlap ** (k + 1),
                        "path": windows * overlap ** (k + 1) * 1.01,
                        "overlap": windows * overlap,
                        "accept": windows * overlap,
                        "match": windows * 0.5,
                    }
                )
    return pd.DataFrame(rows)


def test_lengths_are_means_over_seeds_with_paired_differences() -> None:
    scores = make_scores()
    frame = length_table(scores, "ce", FEW).frame.set_index(["arm", "domain"])
    for domain in ("all", "code", "chat"):
        own = scores if domain == "all" else scores[scores["domain"] == domain]
        lengths = {
            run: rows["branch"].sum() / rows.loc[rows["position"] == 1, "n_windows"].sum()
            for run, rows in own.groupby("run")
        }
        real, ce = (
            np.mean([lengths["real-0"], lengths["real-1"]]),
            np.mean([lengths["ce-0"], lengths["ce-1"]]),
        )
        row = frame.loc[("real", domain)]
        assert row["length"] == pytest.approx(real)
        assert row["difference"] == pytest.approx(real - ce)
        assert row["seed_low"] == pytest.approx(lengths["real-0"] - lengths["ce-0"])
        assert row["seed_high"] == pytest.approx(lengths["real-1"] - lengths["ce-1"])
        assert row["seed_sd"] == pytest.approx(np.std([lengths["real-0"], lengths["real-1"]], ddof=1))
        assert row["verdict"] == "higher"
        # prompts differ far more than arms on one prompt do: pairing makes the difference sharper
        assert row["difference_hi"] - row["difference_lo"] < 0.7 * (row["length_hi"] - row["length_lo"])
        assert frame.loc[("start", domain), "verdict"] == "lower"
        assert frame.loc[("start", domain), "seed_high"] == pytest.approx(lengths["start"] - lengths["ce-0"])
        assert pd.isna(frame.loc[("ce", domain), "difference"])
    row = frame.loc[("real", "all")]
    real_rows = scores[scores["arm"] == "real"]
    rates = real_rows.groupby("position")[["overlap", "n_windows"]].sum()
    assert row["product"] == pytest.approx((rates["overlap"] / rates["n_windows"]).cumprod().sum())
    assert row["overlap"] == pytest.approx(real_rows["overlap"].sum() / real_rows["n_windows"].sum())
    assert (row["n_seeds"], row["n_prompts"]) == (2, 24)
    assert list(length_table(scores, "ce", FEW).frame["arm"][:3]) == ["real", "ce", "start"]


def test_seeds_that_disagree_in_sign_leave_the_verdict_open() -> None:
    scores = make_scores()
    changed = scores["run"] == "real-1"
    scores.loc[changed, "branch"] = scores.loc[changed, "branch"] * 0.7
    frame = length_table(scores, "ce", FEW).frame.set_index(["arm", "domain"])
    row = frame.loc[("real", "all")]
    assert row["seed_low"] < 0 < row["seed_high"]
    assert row["verdict"] == "not told apart"


def test_retention_is_survival_and_its_ratios() -> None:
    scores = make_scores()
    frame = retention_table(scores, FEW).frame.set_index(["arm", "k"])
    own = scores[scores["arm"] == "real"]
    sums = own.groupby("position")["branch"].sum() / own.loc[own["position"] == 1, "n_windows"].sum()
    for k in (1, 2, 3):
        assert frame.loc[("real", k), "S_k"] == pytest.approx(sums[k])
        assert frame.loc[("real", k), "alpha_k"] == pytest.approx(sums[k] / (sums[k - 1] if k > 1 else 1))
        assert frame.loc[("real", k), "S_k_lo"] < sums[k] < frame.loc[("real", k), "S_k_hi"]


def test_cost_tables_are_ratios_within_rounds_and_keep_the_whole_window_apart() -> None:
    overhead = pd.DataFrame(
        {"arm": ["ce", "real"] * 3, "round": [0, 0, 1, 1, 2, 2], "seconds": [1.0, 1.2, 2.0, 2.6, 1.0, 1.1]}
    )
    frame = overhead_table(overhead, "ce").frame.set_index("arm")
    assert frame.loc["real", ["overhead", "lowest", "highest"]].tolist() == pytest.approx([1.2, 1.1, 1.3])
    assert frame.loc["ce", "overhead"] == 1.0
    rollouts = pd.DataFrame(
        [{"run": "a", "teacher_forced": 1.0, "rollout": 1.5, "difference_se": 0.5, "n_contexts": 4}]
    )
    (row,) = rollout_table(rollouts).frame.to_dict("records")
    assert (row["difference"], row["difference_lo"], row["difference_hi"]) == pytest.approx(
        (0.5, -0.48, 1.48)
    )
    kept = dict.fromkeys(("path", "branch", "ratio", "ratio_lo", "ratio_hi"), 1.0)
    rows = [
        {"run": "a", "position": p, **kept, "n_windows": 5, "n_prompts": 2, "method": "m"} for p in (1, 0)
    ]
    assert variance_table(pd.DataFrame(rows)).frame["position"].tolist() == ["1", "whole window"]


def test_the_block_is_replaced_and_the_words_around_it_stay(tmp_path: Path) -> None:
    path = tmp_path / "s.md"
    table = retention_table(make_scores(12), FEW)
    write_block(path, [(table, ("arm", "k", "S_k"))])
    path.write_text(f"Before.\n\n{path.read_text()}\nAfter.\n")
    changed = replace(table, title="Another title")
    write_block(path, [(changed, ("arm", "k"))])
    text = path.read_text()
    assert text.startswith("Before.")
    assert text.rstrip().endswith("After.")
    assert text.count(BEGIN) == text.count(END) == 1
    assert "Another title" in text
    assert table.title not in text
    assert without_block(text).split() == ["Before.", "#", "Verdict", "After."]
    row = table.frame.iloc[0]
    assert f"| start | 1 | {row['S_k']:.3f} ({row['S_k_lo']:.3f} to {row['S_k_hi']:.3f}) |" in markdown(
        table, ("arm", "k", "S_k")
    )


def test_studies_load_their_training_table_without_torch(tmp_path: Path) -> None:
    text = 'name = "s"\nquestion = "?"\nprediction = "!"\n[training]\n' + "\n".join(
        f"{key} = {json.dumps(value)}" for key, value in TABLE.items()
    )
    text += '\n[[collect]]\nname = "a"\n[[analyze]]\nanalysis = "metrics"\n'
    (tmp_path / "s.toml").write_text(text)
    (tmp_path / "s.md").write_text(f"Words.\n{BEGIN}\n| 1 |\n{END}\n")
    study = load_study(tmp_path / "s.toml")
    assert isinstance(study.training, Training)
    assert study.verdict == "Words."
    code = (
        "import sys; from pathlib import Path; from acceptlab.study import load_study; "
        f"load_study(Path({str(tmp_path / 's.toml')!r})); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_figures_draw_every_arm_domain_and_serving() -> None:
    from acceptlab import figures

    scores = make_scores()
    lengths = length_table(scores, "ce", FEW).frame
    drawn = figures.draw("losses", lengths)
    left, middle, right = drawn.axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["real", "ce", "start"]
    assert [label.get_text() for label in middle.get_yticklabels()] == ["real", "start"]
    assert [line.get_gid() for line in right.lines if line.get_gid()] == ["code", "chat"]
    (points,) = [line for line in middle.lines if line.get_gid() == "interval over prompts"]
    pooled = lengths[(lengths["domain"] == "all") & (lengths["arm"] != "ce")]
    np.testing.assert_allclose(np.asarray(points.get_xdata(), float), pooled["difference"])
    retention = figures.draw("losses-retention", retention_table(scores, FEW).frame)
    for axes in retention.axes:
        (points,) = [line for line in axes.lines if line.get_gid() == "alpha_k"]
        assert len(np.asarray(points.get_xdata())) == len({"start", "ce", "real"})
    kept = {"path": 2.0, "branch": 1.0, "ratio": 0.5, "ratio_lo": 0.4, "ratio_hi": 0.6}
    frame = pd.DataFrame([{"checkpoint": c, "position": str(p), **kept} for c in "ab" for p in (1, 2, 3)])
    (axes,) = figures.draw("losses-variance", frame).axes
    assert [len(np.asarray(line.get_xdata())) for line in axes.lines if line.get_gid()] == [3, 3]
    rows = [
        {
            "serving": s,
            "arm": a,
            "domain": d,
            "expected_len": 1.0,
            "expected_len_lo": 0.9,
            "expected_len_hi": 1.1,
        }
        for s in ("sampled", "greedy")
        for a in ("ce", "real", "wtv")
        for d in ("all", "code")
    ]
    decoding = figures.draw("losses-decoding", pd.DataFrame(rows))
    assert [axes.get_title() for axes in decoding.axes] == ["sampled", "greedy"]
    assert {line.get_gid() for line in decoding.axes[0].lines} == {"all", "code"}
