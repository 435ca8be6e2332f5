"""The table of backends: verdicts by hand, and a small contest end to end."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from acceptlab.bench.backend_table import backend_arms, backend_table, verdict
from acceptlab.bench.backends import draft_for, make_backend
from acceptlab.bench.interleave import Task, measure, tasks_of
from acceptlab.bench.passes import ChainPasses
from acceptlab.bench.speedup import sums_of
from acceptlab.drafters.head_model import HeadModel
from acceptlab.drafters.model import DrafterModel
from acceptlab.errors import UsageError
from acceptlab.pairs.cached import CachedModel
from acceptlab.stats import Estimate
from tests.bench.helpers import PROMPT, small_drafter, small_pair
from tests.bench.test_speedup import sample
from tests.engine.helpers import settings


def timed(chain_ms: float) -> pd.DataFrame:
    """A backend that steps in 40 ms a token, and whose chain needs so long for 10 tokens in 4 steps."""
    drafted = {"n_steps": 4, "n_drafted": 4, "n_levels": 8, "n_nodes": 8, "n_tested": 8, "n_accepted": 6}
    return pd.DataFrame(
        [
            sample("float32 / 0", "a", 400.0, 10),
            sample("float32 / 2", "a", chain_ms, 10, survivors=[4, 2], **drafted),
            sample("int8 / 0", "a", 200.0, 10, token_ids=[9] * 10),
            sample("int8 / 2", "a", 2 * chain_ms, 10, token_ids=[9] * 10, survivors=[4, 2], **drafted),
        ]
    )


def test_every_backend_is_compared_with_itself_and_with_the_first() -> None:
    found = backend_table(sums_of(timed(320.0))).set_index(["backend", "K"])
    assert found.loc[("float32", 2), "speed_up"] == pytest.approx(400 / 320)
    assert found.loc[("int8", 2), "speed_up"] == pytest.approx(200 / 640)
    assert found.loc[("int8", 0), "over_first"] == pytest.approx(2.0)
    assert found.loc[("int8", 2), "over_first"] == pytest.approx(400 / 640)
    assert found.loc[("float32", 2), "tokens_per_s"] == pytest.approx(31.25)
    assert found.loc[("float32", 2), "acceptance"] == pytest.approx(0.75)
    assert found.loc[("int8", 2), ["same_text", "same_as_first"]].tolist() == [1.0, 0.0]
    assert found.loc[("float32", 2), "verdict"] == "faster"
    # 640 ms for 4 steps are 160 a step, or 8 plain tokens of 20 ms
    assert found.loc[("int8", 2), "verdict"] == "slower: a step costs 8.00 plain tokens and emits 2.50"
    assert pd.isna(found.loc[("int8", 0), "verdict"])


@pytest.mark.parametrize(
    ("value", "lo", "hi", "word"),
    [
        (1.04, None, None, "no clear gain"),
        (1.06, None, None, "faster"),
        (0.94, None, None, "slower"),
        (1.3, 0.9, 1.7, "no clear gain"),
        (1.02, 1.01, 1.03, "faster"),
        (0.98, 0.97, 0.99, "slower"),
    ],
)
def test_the_interval_decides_where_there_is_one(
    value: float, lo: float | None, hi: float | None, word: str
) -> None:
    sums = sums_of(timed(320.0))
    estimate = Estimate(value, lo, hi, 10, 12, "by hand")
    found = verdict(estimate, sums["float32 / 2"], sums["float32 / 0"])
    assert found.split(":")[0] == word


def test_a_contest_of_backends_on_a_small_pair() -> None:
    pair = small_pair()
    arms, notes = backend_arms(pair, settings(), ["float32", "int8", "llama.cpp"], [2])
    assert [arm.name for arm in arms] == ["float32 / 0", "float32 / 2", "int8 / 0", "int8 / 2"]
    assert len(notes) == 1
    assert notes[0].startswith("left out llama.cpp: ")
    done = measure(arms, [Task("p", "code", PROMPT)], 1, 8)
    found = backend_table(sums_of(done.frame)).set_index(["backend", "K"])
    # on 32 bits speculation changes no greedy text; inputs of 8 bits share their range with the rest of the pass
    assert found.loc["float32", "same_text"].tolist() == [1.0, 1.0]
    assert (found["tokens_per_s"] > 0).all()


def test_prompts_have_to_fit_every_backend() -> None:
    class Words:
        def __init__(self, name: str, n: int) -> None:
            self.id, self.domain, self.prompt = name, "code", "x" * n

    pair = small_pair()
    short: Any = SimpleNamespace(max_len=40)
    long: Any = SimpleNamespace(max_len=None)
    encoding: Any = SimpleNamespace(
        encode=lambda text: [1] * len(text), target=pair.target, draft=pair.draft, window_limit=None
    )
    prompts: list[Any] = [Words("fits", 30), Words("does not", 31)]
    tasks, notes = tasks_of(encoding, prompts, 8, 2, [long, short])
    assert [task.prompt_id for task in tasks] == ["fits"]
    assert notes == ["left out does not: it needs 41 positions and the models have 40"]
    assert len(tasks_of(encoding, prompts, 8, 2, [long])[0]) == 2
    with pytest.raises(UsageError, match="none of 2 prompts fits the models' 40 positions: lower --max-new"):
        tasks_of(encoding, prompts, 20, 2, [short])


def test_the_plain_backend_has_a_plain_draft() -> None:
    pair = small_pair()
    drafter = small_drafter()
    drafting = replace(pair, draft_model=None, draft=DrafterModel(drafter, "d"))
    plain = draft_for("float32", drafting)
    assert type(plain) is DrafterModel
    assert plain is not drafting.draft
    assert plain.drafter is drafter
    assert draft_for("int8", drafting) is drafting.draft
    found = draft_for("float32", pair)
    assert isinstance(found, CachedModel)
    assert found.model is pair.draft_model
    assert not found.is_lean


@pytest.mark.slow
def test_the_compiled_backend_gives_the_same_numbers() -> None:
    """Needs a C++ compiler and half a minute."""
    pair = small_pair()
    model = make_backend("compile", pair)
    for n in (4, 1, 9):
        found, expected = (ChainPasses(one, PROMPT, "x").run(n) for one in (model, pair.target))
        # float32 rounding of fused kernels
        assert (found - expected).abs().max() < 1e-4


def test_what_cannot_be_compared_is_refused() -> None:
    pair = small_pair()
    with pytest.raises(UsageError, match="unknown backend 'x'"):
        backend_arms(pair, settings(), ["x"], [2])
    with pytest.raises(UsageError, match="none of these backends can be had here: llama.cpp: "):
        backend_arms(pair, settings(), ["llama.cpp"], [2])
    head = HeadModel.__new__(HeadModel)
    head.name = "head"
    with pytest.raises(UsageError, match="reads its target's states"):
        backend_arms(replace(pair, draft=head), settings(), ["float32"], [2])
