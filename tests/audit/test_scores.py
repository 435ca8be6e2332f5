"""Scored texts of a real collection by a tiny pair: against token-by-token forwards, the records, and their file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from acceptlab import cli
from acceptlab.audit import scores as scoring
from acceptlab.audit.scores import Text, score_text, score_texts
from acceptlab.errors import UsageError
from acceptlab.sampling import Warp
from acceptlab.store import Run, open_run
from acceptlab.store.scores import read_scores, scores_path
from acceptlab.toy import TableModel, blended, random_table
from tests.audit.helpers import EOS, VOCAB, TableReference
from tests.engine.helpers import save_pair

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of chains of 3 by a pair that is about half right, twelve prompts in two domains."""
    place = tmp_path_factory.mktemp("scores")
    save_pair(place)
    lines = [
        {"id": f"{domain}/{i}", "domain": domain, "prompt": f"word{i} word{i + 1} word{2 * i}"}
        for domain in ("code", "chat")
        for i in range(1, 7)
    ]
    (place / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    words = ["collect", "--target", str(place / "target"), "--draft", str(place / "draft")]
    words += ["--prompts", str(place / "prompts.jsonl"), "--rule", "rejection", "--tree", "chain:3"]
    assert cli.run([*words, "--max-new-tokens", "12", "--run", str(place / "run")]) == 0
    return place / "run"


@pytest.fixture(scope="module")
def scored(collected: Path) -> tuple[Run, pd.DataFrame]:
    assert cli.run(["audit", "roads", str(collected), "--half-width", "9", "--resamples", "100"]) in (0, 1)
    frame, facts = read_scores(scores_path(collected))
    run = open_run(collected)
    assert facts["run_id"] == run.run_id
    return run, frame


def test_scores_equal_forwards_token_by_token(scored: tuple[Run, pd.DataFrame]) -> None:
    run, frame = scored
    tokenizer = AutoTokenizer.from_pretrained(run.path.parent / "target")
    models = [AutoModelForCausalLM.from_pretrained(run.path.parent / name) for name in ("target", "draft")]
    texts = {p["prompt_id"]: p for p in run.read("prompts").to_pylist()}
    n_new = sum(text["n_new_tokens"] for text in texts.values())
    assert len(frame) == n_new > 60
    for name in ("code/1", "chat/4"):
        rows = frame[frame["prompt_id"] == name].sort_values("position")
        output = texts[name]["output_token_ids"]
        number = int(name[-1])
        prompt = tokenizer(f"word{number} word{number + 1} word{2 * number}").input_ids
        assert rows["position"].tolist() == list(range(len(output)))
        for place, token in enumerate(output):
            with torch.no_grad():
                target, draft = (
                    model(torch.tensor([[*prompt, *output[:place]]])).logits[0, -1].double().softmax(0)
                    for model in models
                )
            row = rows.iloc[place]
            # a float32 forward of one length differs from that of another in the last digits
            assert row["overlap"] == pytest.approx(float(torch.minimum(target, draft).sum()), abs=1e-5)
            assert row["ratio"] == pytest.approx(min(1.0, float(draft[token] / target[token])), abs=1e-4)


def test_scores_agree_with_what_the_engine_recorded(scored: tuple[Run, pd.DataFrame]) -> None:
    run, frame = scored
    by_place = frame.set_index(["prompt_id", "position"])
    prompts = run.read("prompts").to_pandas().set_index("prompt_id")
    nodes = run.read("nodes").to_pandas()
    accepted = nodes[nodes["outcome"] == "accepted"]
    assert len(accepted) > 20
    for row in accepted.itertuples():
        place = row.position - prompts.loc[row.prompt_id, "n_prompt_tokens"]
        if place >= prompts.loc[row.prompt_id, "n_new_tokens"]:
            continue  # accepted, and cut by the length limit
        here = by_place.loc[(row.prompt_id, place)]
        assert here["overlap"] == pytest.approx(row.overlap, abs=1e-5)
        assert here["ratio"] == pytest.approx(min(1.0, row.draft_prob / row.target_prob), abs=1e-4)


def test_the_command_prints_the_roads(scored: tuple[Run, pd.DataFrame], capsys: Capture) -> None:
    words = ["audit", "roads", str(scored[0].path), "--resamples", "200", "--format", "json"]
    assert cli.run([*words, "--half-width", "9"]) == 0
    out, err = capsys.readouterr()
    rows = json.loads(out)
    assert {row["domain"] for row in rows} == {"code", "chat", "all"}
    assert "loading" not in err  # scored already


def test_covariances_read_the_scores(scored: tuple[Run, pd.DataFrame], capsys: Capture) -> None:
    run = scored[0].path
    words = ["analyze", "covariance", str(run), "--resamples", "100", "--format", "json"]
    assert cli.run([*words, "--scores", str(scores_path(run))]) == 0
    target = json.loads(capsys.readouterr().out)
    assert cli.run(words) == 0
    drafted = json.loads(capsys.readouterr().out)
    assert [row["k"] for row in target] == [row["k"] for row in drafted] == [1, 2, 3] * 3
    # the first context is the root in both; roots near the limit count in the second only
    assert target[-3]["n_steps"] < drafted[-3]["n_steps"]
    assert target[-3]["S_k"] == pytest.approx(drafted[-3]["S_k"], abs=0.1)
    assert target[-1]["mean_overlap"] != pytest.approx(drafted[-1]["mean_overlap"], abs=1e-6)


def test_kept_scores_are_not_made_again(
    scored: tuple[Run, pd.DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, frame = scored
    monkeypatch.setattr(scoring, "score_text", None)

    again = scoring.score_run(run, scores_path(run.path), Quiet())
    pd.testing.assert_frame_equal(again, frame)


class Quiet:
    """Shows nothing."""

    def say(self, message: str) -> None: ...
    def start(self, what: str, total: int) -> None: ...
    def update(self, done: int) -> None: ...
    def stop(self) -> None: ...


def edited(run: Run, **changes: Any) -> Run:
    run.manifest.update(changes)
    return run


def test_another_run_or_other_models_are_refused(
    collected: Path, scored: tuple[Run, pd.DataFrame], tmp_path: Path
) -> None:
    path = tmp_path / "scores.parquet"
    fresh = open_run(collected)
    with pytest.raises(UsageError, match="does not say how it was collected"):
        scoring.score_run(edited(open_run(collected), request=None), path, None)  # type: ignore[arg-type]
    config = {**fresh.config, "prompts_sha256": "other"}
    with pytest.raises(UsageError, match="prompts of .* have changed"):
        scoring.score_run(edited(open_run(collected), config=config), path, None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="models of .* have changed"):
        scoring.score_run(edited(open_run(collected), models={}), path, Quiet())
    with pytest.raises(UsageError, match="scores with run_id"):
        scoring.score_run(edited(fresh, run_id="other"), scores_path(collected), Quiet())


def test_an_interrupted_scoring_goes_on(tmp_path: Path) -> None:
    target, draft = random_table(VOCAB, 0), blended(random_table(VOCAB, 0), random_table(VOCAB, 1), 0.6)
    texts = [Text("code", f"code/{i}", (i % 5,), (1, 2, i % 4, EOS)) for i in range(25)]
    path, facts = tmp_path / "scores.parquet", {"run_id": "toy"}

    class Stopping(TableReference):
        def target_logits(self, token_ids: Any, first: int) -> torch.Tensor:
            if self.n_forwards == 13:
                raise KeyboardInterrupt
            return super().target_logits(token_ids, first)

    pair = TableModel(target, VOCAB), TableModel(draft, VOCAB)
    with pytest.raises(KeyboardInterrupt):
        score_texts(Stopping(*pair), texts, Warp(), path, facts)
    assert read_scores(path)[0]["prompt_id"].nunique() == 10
    reference = TableReference(*pair)
    seen: list[int] = []
    frame = score_texts(reference, texts, Warp(), path, facts, seen.append)
    assert reference.n_forwards == 15
    assert seen[0] == 10
    assert seen[-1] == 25
    whole = score_texts(TableReference(*pair), texts, Warp(), tmp_path / "whole.parquet", facts)
    pd.testing.assert_frame_equal(frame, whole)


def test_toy_scores_are_those_of_the_tables() -> None:
    target, draft = random_table(VOCAB, 0), random_table(VOCAB, 1)
    text = Text("code", "code/0", (3, 1), (2, 2, 0, EOS))
    frame = score_text(TableReference(TableModel(target, VOCAB), TableModel(draft, VOCAB)), text, Warp())
    for place, token in enumerate(text.output_ids):
        before = (*text.prompt_ids, *text.output_ids[:place])
        # the tables' rows pass through float32 logits
        assert frame["overlap"][place] == pytest.approx(
            np.minimum(target(before), draft(before)).sum(), abs=1e-6
        )
        assert frame["ratio"][place] == pytest.approx(
            min(1, draft(before)[token] / target(before)[token]), abs=1e-5
        )
    cool = score_text(TableReference(TableModel(target, VOCAB), TableModel(draft, VOCAB)), text, Warp(0.5))
    assert not np.allclose(cool["overlap"], frame["overlap"])
