"""Contexts along given texts: every row against plain forwards of both models, reading, resuming, bad input."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM

from acceptlab import cli
from acceptlab.along import read_texts
from acceptlab.errors import RunError, UsageError
from acceptlab.queries import connect
from acceptlab.records import CERTIFICATE_RULES
from acceptlab.rules import parse_rule
from acceptlab.store import open_run
from acceptlab.theory.certificates import thresholds
from acceptlab.training.exchange import TOKEN_SCHEMA
from tests.engine.helpers import save_pair

N_ITEMS = 26


def token_rows() -> list[dict[str, Any]]:
    """Two answers to each of 26 prompts, of 3 to 8 tokens; the prompt of item 2 is too long for the models."""
    rng = np.random.default_rng(0)
    rows = []
    for item in range(N_ITEMS):
        prompt = rng.integers(3, 61, 260 if item == 2 else 4 + item % 3).tolist()
        for answer in range(2):
            output = rng.integers(3, 61, 3 + (item + answer) % 6).tolist()
            rows.append(
                {
                    "item": item,
                    "answer": answer,
                    "domain": ("code", "math")[item % 2],
                    "prompt_source": "self",
                    "prompt_token_ids": prompt,
                    "output_token_ids": output,
                    "ended_by_eos": item % 2 == 0,
                    "shared_len": 1,
                }
            )
    return rows


def run(home: Path, *options: str) -> tuple[int, str]:
    """The command in this process; its exit code and stderr."""
    out, err = io.StringIO(), io.StringIO()
    base = ["contexts", "texts.parquet", "--target", "target", "--draft", "draft"]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(home)
        patch.setenv("ACCEPTLAB_CACHE", str(home / "cache"))
        code = cli.run([*base, *options])
    return code, err.getvalue()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("along")
    save_pair(folder)
    pq.write_table(pa.Table.from_pylist(token_rows(), TOKEN_SCHEMA), folder / "texts.parquet")
    code, err = run(folder, "--run", "whole")
    assert code == 0, err
    return folder


def plain_probs(home: Path, model: str, token_ids: list[int]) -> np.ndarray:
    """Next-token distributions of one whole forward, float64."""
    loaded = AutoModelForCausalLM.from_pretrained(home / model)
    with torch.no_grad():
        logits = loaded(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0]
    return np.asarray(torch.softmax(logits.double(), dim=-1).numpy())


def test_every_context_is_that_of_a_plain_forward(home: Path) -> None:
    contexts = open_run(home / "whole").read("contexts").to_pandas()
    rules = [parse_rule(text) for text in CERTIFICATE_RULES]
    for row in token_rows()[:1] + token_rows()[20:21]:
        text_id = f"texts/{row['item']:05d}-0"
        found = contexts[contexts["prompt_id"] == text_id].sort_values("step")
        tokens = row["prompt_token_ids"] + row["output_token_ids"]
        first = len(row["prompt_token_ids"])
        target, draft = (plain_probs(home, name, tokens)[first - 1 : -1] for name in ("target", "draft"))
        assert list(found["step"]) == list(range(len(row["output_token_ids"])))
        assert list(found["position"]) == list(range(first - 1, len(tokens) - 1))
        assert list(found["target_argmax"]) == target.argmax(axis=1).tolist()
        assert list(found["draft_argmax"]) == draft.argmax(axis=1).tolist()
        forward = (target * np.log(target / draft)).sum(axis=1)
        # float32 logits of a cached and of a plain forward differ by some 1e-6
        assert found["kl_target_draft"].to_numpy() == pytest.approx(forward, rel=1e-4, abs=1e-6)
        exact = thresholds(target, rules)[0]
        stored = np.stack(found["thresholds_forward"].to_list())
        # stored ones keep 15 bits
        assert stored == pytest.approx(exact, rel=2e-4, abs=1e-6)


def test_the_run_is_sound_and_counts_tokens(home: Path) -> None:
    opened = open_run(home / "whole")
    assert cli.run(["runs", "check", str(home / "whole")]) == 0
    firsts = [row for row in token_rows() if row["answer"] == 0 and row["item"] != 2]
    assert (
        opened.n_rows("contexts") == opened.n_rows("steps") == sum(len(r["output_token_ids"]) for r in firsts)
    )
    prompts = {row["prompt_id"]: row for row in opened.read("prompts").to_pylist()}
    assert len(prompts) == N_ITEMS
    assert prompts["texts/00001-0"]["stop_reason"] == "length"
    assert prompts["texts/00004-0"]["stop_reason"] == "eos"
    assert "need more than the models' 256 positions" in prompts["texts/00002-0"]["skip_reason"]
    assert prompts["texts/00024-0"]["source"] == "texts.parquet, an item that training on it holds out"
    assert prompts["texts/00025-0"]["source"] == "texts.parquet"
    assert len(connect([opened]).execute("SELECT * FROM prompt_groups").df()) == N_ITEMS - 1


def test_an_interrupted_run_goes_on(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from acceptlab import along

    whole, calls = along.measure_text, []

    def interrupted(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) > 5:
            raise KeyboardInterrupt
        return whole(*arguments)

    monkeypatch.setattr(along, "measure_text", interrupted)
    assert run(home, "--run", "halves")[0] == 130
    monkeypatch.setattr(along, "measure_text", whole)
    code, err = run(home, "--run", "halves", "--resume")
    assert code == 0, err
    one, two = (
        open_run(home / name).read("contexts").to_pandas().drop(columns="run_id")
        for name in ("whole", "halves")
    )
    keys = ["prompt_id", "step"]
    for frame in (one, two):
        frame["prompt_id"] = frame["prompt_id"].astype(str)
    left, right = (frame.sort_values(keys, ignore_index=True)["kl_target_draft"] for frame in (one, two))
    assert left.tolist() == right.tolist()


def test_answers_and_limits_choose_texts(home: Path) -> None:
    path = home / "texts.parquet"
    assert [text.id for text in read_texts(path, limit=2)] == ["texts/00000-0", "texts/00001-0"]
    both = read_texts(path, answers=2)
    assert len(both) == 2 * N_ITEMS
    assert both[1].id == "texts/00000-1"


def test_bad_texts_are_named(home: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there are no texts at"):
        read_texts(tmp_path / "nothing")
    with pytest.raises(UsageError, match="holds no text"):
        read_texts(tmp_path)
    (tmp_path / "other.parquet").write_bytes(b"no parquet")
    with pytest.raises(RunError, match="not a readable file of token ids"):
        read_texts(tmp_path / "other.parquet")
    pq.write_table(pa.table({"node": [0, 1]}), tmp_path / "nodes.parquet")
    with pytest.raises(RunError, match=r"nodes\.parquet is not a readable file of token ids"):
        read_texts(tmp_path / "nodes.parquet")
    code, err = run(home, "--run", "whole")
    assert code == 2
    assert "already holds a complete run" in err


def test_a_draft_for_blocks_only_is_refused(home: Path) -> None:
    from acceptlab import along

    class LastRowOnly:
        name = "block head"

        def reset(self) -> None: ...

        def prefill(self, token_ids: torch.Tensor) -> None: ...

        def forward(self, *arguments: torch.Tensor) -> torch.Tensor:
            return torch.zeros(1, 61)

    (text, *_) = read_texts(home / "texts.parquet")
    with pytest.raises(UsageError, match="no distribution after every prefix"):
        along._logits(LastRowOnly(), text)  # type: ignore[arg-type]


def test_a_head_that_proposes_behind_the_last_token_only_runs_token_by_token() -> None:
    from acceptlab import along
    from tests.drafters.test_cross_head import TEXT, make_model

    model, source = make_model(7, lean=True)
    source.n_slots = len(TEXT)
    text = along.GivenText("text", "chat", "source", tuple(TEXT[:5]), tuple(TEXT[5:]), False)
    rows = along._logits(model, text)
    assert len(rows) == len(text.output_ids)
    assert bool(torch.isfinite(rows).all())
