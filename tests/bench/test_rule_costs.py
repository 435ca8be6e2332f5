"""The cost of a rule: what counts as its time, and what does not, on a tiny pair with delays of known length."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from acceptlab import engine
from acceptlab.bench.rules import ALL_RULES, COLUMNS, rule_costs, settings_of
from acceptlab.errors import UsageError
from acceptlab.resampling import Resampling
from acceptlab.rules import RuleKind, parse_rule
from acceptlab.tree import parse_tree
from acceptlab.verify import verify
from tests.engine.helpers import related_pair, settings

FAST = Resampling(n_resamples=100)
TEXTS = [(f"p{i}", [3 + i, 5, 7]) for i in range(11)]
DELAY_S = 0.02


@pytest.fixture(scope="module")
def pair() -> Any:
    target, draft = related_pair("llama")
    return SimpleNamespace(target=target, draft=draft)


class SlowTarget:
    """A target whose passes take longer."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def forward(self, *arguments: torch.Tensor) -> torch.Tensor:
        time.sleep(DELAY_S)
        return torch.as_tensor(self._inner.forward(*arguments))


def methods(*rules: str) -> dict[str, engine.Settings]:
    return settings_of(
        settings(max_new_tokens=6), [parse_rule(rule) for rule in rules], parse_tree("chain:3")
    )


def test_every_rule_has_a_row_with_its_own_candidates_and_tree(pair: Any) -> None:
    wanted = methods(*ALL_RULES)
    assert {parse_rule(rule).kind for rule in wanted} == set(RuleKind) - {RuleKind.TREE}
    told: list[tuple[int, int]] = []
    frame = rule_costs(pair, TEXTS[:2], wanted, FAST, lambda done, total: told.append((done, total)))
    assert frame["rule"].tolist() == list(wanted)
    trees = dict(zip(frame["rule"], frame["tree"], strict=True))
    assert trees.pop("block") == "chain:3"
    assert set(trees.values()) == {"kary:depth=3,branch=2"}
    assert (frame["rule_ms"] > 0).all()
    assert (frame["rule_ms"] < frame["step_ms"]).all()
    assert frame["share"].tolist() == pytest.approx((frame["rule_ms"] / frame["step_ms"]).tolist())
    assert frame["share_hi"].isna().all()  # two prompts are too few for an interval
    assert told[-1] == (2 * len(wanted), 2 * len(wanted))
    assert set(frame.columns) == {*COLUMNS, "share_lo", "share_hi"}


def test_the_target_pass_is_no_part_of_a_rule_and_all_of_the_step(pair: Any) -> None:
    slow = SimpleNamespace(target=SlowTarget(pair.target), draft=pair.draft)
    [row] = rule_costs(slow, TEXTS, methods("greedy"), FAST).to_dict("records")
    assert row["step_ms"] > 1000 * DELAY_S
    assert row["rule_ms"] < 0.5 * 1000 * DELAY_S
    assert row["share_lo"] <= row["share"] <= row["share_hi"]
    assert (row["n_prompts"], row["verdict"][-2:]) == (11, "5%")


def test_a_slow_rule_is_told(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow_verify(*arguments: Any) -> Any:
        time.sleep(DELAY_S)
        return verify(*arguments)

    monkeypatch.setattr(engine, "verify", slow_verify)
    [row] = rule_costs(pair, TEXTS[:1], methods("onehot"), FAST).to_dict("records")
    assert row["rule_ms"] > 1000 * DELAY_S
    assert row["verdict"] == "OVER 5%"


def test_rules_that_would_bias_the_output_are_refused() -> None:
    dynamic = settings("dynamic:nodes=6,depth=3,topk=2")
    with pytest.raises(UsageError):
        settings_of(dynamic, [parse_rule("rejection")], parse_tree("chain:3"))
