"""The whole audit on a tiny transformers pair, and the rows of its table."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from acceptlab.audit.estimate import Times, full_audit
from acceptlab.audit.plain import PlainPair
from acceptlab.audit.request import AuditRequest, quick
from acceptlab.audit.rows import exact_rows, identity_rows, judged, to_frame
from acceptlab.audit.run import losslessness
from acceptlab.audit.suite import ExactCheck, check_contexts, check_texts, check_trees
from acceptlab.audit.uniformity import Outcome
from acceptlab.cli import run
from acceptlab.errors import UsageError
from acceptlab.pairs import load_pair
from acceptlab.sampling import Warp
from tests.engine.helpers import save_pair


class Quiet:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.parts: list[str] = []

    def say(self, message: str) -> None:
        self.said.append(message)

    def start(self, what: str, total: int) -> None:
        assert total > 0
        self.parts.append(what)

    def update(self, done: int) -> None:
        assert done > 0

    def stop(self) -> None:
        self.parts.append("stop")


def small(folder: Path) -> AuditRequest:
    save_pair(folder)
    return AuditRequest(
        folder=folder / "audit",
        target=str(folder / "target"),
        draft=str(folder / "draft"),
        n_tokens=100,
        n_contexts=16,
        n_seeds=2,
        n_draws=60,
        n_chain_draws=10,
        n_identity=1,
        max_new_tokens=25,
        device="cpu",
        dtype="float32",
    )


@pytest.fixture
def _few_enumerations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enumerate little here: `tests/verify` does it in full."""
    monkeypatch.setattr("acceptlab.audit.run.check_contexts", partial(check_contexts, (2,)))
    monkeypatch.setattr("acceptlab.audit.run.check_trees", partial(check_trees, (2,)))
    monkeypatch.setattr("acceptlab.audit.run.check_texts", partial(check_texts, 1))


@pytest.mark.usefixtures("_few_enumerations")
def test_a_whole_audit_and_its_repetition(tmp_path: Path) -> None:
    request, show = small(tmp_path), Quiet()
    result = losslessness(request, show, full=replace(request, n_tokens=1000))
    assert any("it would take about" in note for note in result.notes)
    parts = ("tokens", "greedy texts", "contexts", "contexts drawn")
    assert show.parts == [name for part in parts for name in (part, "stop")]
    frame = result.frame
    assert {"level", "what", "statistic", "dof", "p_value", "threshold", "verdict"} <= set(frame.columns)
    assert set(frame["level"]) == {"a", "b", "c", "d"}
    # everything but the controls, which need more draws than these
    assert [row for row in result.failures if row.level != "d"] == []
    assert frame["what"].str.contains("greedy text against").any()
    again = losslessness(request, Quiet(), full=request)
    # nothing was done anew, so nothing is known of the time
    assert not any("it would take about" in note for note in again.notes)
    pd.testing.assert_frame_equal(again.frame, frame)
    with pytest.raises(UsageError, match="audit with seed 0, not 1"):
        losslessness(replace(request, seed=1), Quiet())


def test_plain_logits_are_those_of_every_prefix(tmp_path: Path) -> None:
    save_pair(tmp_path)
    pair = load_pair(target=str(tmp_path / "target"), draft=str(tmp_path / "draft"), device="cpu")
    reference, text = PlainPair(pair), [3, 4, 5, 6, 7]
    for whole, model in ((reference.target_logits, pair.target), (reference.draft_logits, pair.draft)):
        rows = whole(text, 3)
        assert rows.shape == (3, pair.target.vocab_size)
        for row, end in zip(rows, (3, 4, 5), strict=True):
            model.reset()
            model.prefill(torch.tensor(text[: end - 1]))
            step = model.forward(
                torch.tensor(text[end - 1 : end]), torch.tensor([end - 1]), torch.ones(1, end).bool()
            )
            # float32 on two roads
            torch.testing.assert_close(row, step[0], atol=1e-5, rtol=1e-5)


def test_a_draft_that_is_no_transformers_model(tmp_path: Path) -> None:
    save_pair(tmp_path)
    pair = load_pair(target=str(tmp_path / "target"), draft="ngram:n=2", device="cpu")
    rows = PlainPair(pair).draft_logits([3, 4, 3, 4, 3], 2)
    assert rows.shape == (4, pair.target.vocab_size)
    assert int(rows[-1].argmax()) == 4


def test_the_target_alone_samples_at_the_temperature(tmp_path: Path) -> None:
    save_pair(tmp_path)
    reference = PlainPair(load_pair(target=str(tmp_path / "target"), draft="ngram:n=2", device="cpu"))
    state = torch.random.get_rng_state()
    first = reference.sample([3, 4], Warp(), 40, 0, "k", 6)
    assert reference.sample([3, 4], Warp(), 40, 0, "k", 6) == first
    assert reference.sample([3, 4], Warp(), 40, 0, "other", 6) != first
    assert len({tuple(text) for text in first}) > 1
    cold = {tuple(text) for text in reference.sample([3, 4], Warp(temperature=1e-4), 6, 0, "k", 3)}
    assert len(cold) == 1
    lens = {len(text) for text in first}
    assert len(lens) > 1, "texts that end at different places"
    assert all(text.count(2) == (text[-1] == 2) and len(text) <= 40 for text in first), "no padding is left"
    assert torch.equal(torch.random.get_rng_state(), state), "the caller's random numbers are left alone"


def test_rules_that_claim_nothing_are_refused(tmp_path: Path) -> None:
    for rules, message in (("greedy",), "does not claim to be lossless"), ((), "no rule is named"):
        with pytest.raises(UsageError, match=message):
            losslessness(AuditRequest(folder=tmp_path, rules=rules), Quiet())


def test_quick_asks_for_less() -> None:
    full = AuditRequest(folder=Path("x"))
    short = quick(full)
    assert (full.n_tokens, full.n_contexts, full.n_seeds) == (9200, 500, 20)
    assert (short.n_tokens, short.n_seeds) == (100, 5)
    assert short.top_k > 0 == full.top_k


def test_the_time_of_a_full_audit_is_extrapolated_part_by_part() -> None:
    done = replace(quick(AuditRequest(folder=Path("x"))), n_identity=1, max_new_tokens=32)
    full = AuditRequest(folder=Path("x"), n_tokens=3000, n_contexts=400, n_identity=4, max_new_tokens=64)
    times = Times({"texts": 30.0, "identity": 3.0, "contexts": 8.0, "redrawn": 60.0, "a case": 6.0})
    wanted = {"n_new_tokens": 300, "n_contexts": 64, "probed": "a case", "probe_s": 0.3}
    found = full_audit(times, done, full, **wanted)
    assert found is not None
    assert found.texts == pytest.approx((30 / 300 * 3000 * 3 + 3 * 4 * 2) / 60)
    assert found.contexts == pytest.approx(8 / 64 * 400 / 60)
    assert found.redrawn == pytest.approx(0.3 * 400 * 10 / 60)
    assert f"about {found.total:.0f} minutes" in str(found)
    assert full_audit(times, done, full, **{**wanted, "n_new_tokens": 0}) is None
    assert full_audit(times, done, full, **{**wanted, "probed": "another"}) is None
    with times.measured("texts"):
        pass
    assert times.of("texts") >= 30.0


@pytest.mark.usefixtures("_few_enumerations")
def test_exit_code_says_whether_all_checks_passed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_pair(tmp_path)
    options = {"--n-tokens": 100, "--n-contexts": 8, "--seeds": 2, "--draws": 14, "--max-new-tokens": 25}
    words = [str(word) for pair in options.items() for word in pair]
    models = ["--target", str(tmp_path / "target"), "--draft", str(tmp_path / "draft"), "--dtype", "float32"]
    folder = ["--run-folder", str(tmp_path / "audit"), "--rules", "onehot", "--format", "json"]
    # eight contexts cannot show that the controls are broken, and the audit says so
    assert run(["audit", "losslessness", *models, *folder, *words]) == 1
    shown = capsys.readouterr()
    rows = json.loads(shown.out)
    assert "MISSED" in {row["verdict"] for row in rows}
    assert shown.err.splitlines()[-1].startswith("failed: ")
    assert not [row for row in rows if row["verdict"] == "FAIL"]


def identity_frame(*margins: float | None) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "prompt_id": [f"p{i}" for i in range(len(margins))],
            "is_identical": [margin is None for margin in margins],
            "first_divergence": [None if margin is None else 7 for margin in margins],
            "margin": margins,
        }
    )


def test_greedy_identity_is_exact_in_float32_up_to_ties() -> None:
    def verdicts(dtype: str, *margins: float | None) -> list[str]:
        return [row.verdict for row in identity_rows(identity_frame(*margins), dtype)]

    assert verdicts("float32", None, None) == ["pass"]
    assert verdicts("float32", None, 1e-7) == ["pass", "pass"]
    assert verdicts("float32", 1e-7, 0.02) == ["FAIL", "FAIL"]
    assert verdicts("bfloat16", 1e-7, 0.02) == ["pass", "pass"]
    shown = identity_rows(identity_frame(None, 1e-7, 0.02), "float32")
    assert (shown[0].statistic, shown[0].n) == (1, 3)
    assert shown[1].statistic == 0.02
    assert "p2, token 7" in shown[1].what


def test_judged_together() -> None:
    outcomes = [Outcome("chi-square", 1000, 30.0, 19, p) for p in (0.02, 0.03, 0.5)]
    rows = judged([(f"m{i}", outcome, i == 0) for i, outcome in enumerate(outcomes)])
    assert [row.p_holm for row in rows] == pytest.approx([0.06, 0.06, 0.5])
    assert all(row.verdict == "pass" for row in rows)
    assert rows[0].detects_tv is not None
    assert rows[1].detects_tv is None
    assert judged([("m", outcomes[0], True)])[0].verdict == "FAIL"


def test_rows_of_enumeration_show_the_worst_case() -> None:
    def check(worst: float, is_right: bool) -> ExactCheck:
        return ExactCheck("context", "onehot", 3, "1 siblings", 10, worst, is_right)

    rows = exact_rows([check(1e-16, True), check(0.2, True), check(0.2, False)])
    assert [(row.level, row.statistic, row.n, row.verdict) for row in rows] == [
        ("a", 0.2, 20, "FAIL"),
        ("d", 0.2, 10, "caught"),
    ]
    assert exact_rows([check(0.0, False)])[0].verdict == "MISSED"
    frame = to_frame(rows)
    assert np.isnan(frame["p_value"]).all()
    assert frame["dof"].isna().all()
