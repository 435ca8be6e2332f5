"""Schedules by steps and by trained time, on numbers and on a tiny run whose clock is wound by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from acceptlab.errors import UsageError
from acceptlab.training import train
from acceptlab.training.schedule import is_over, learning_rate
from tests.training.helpers import tiny_target
from tests.training.test_train import SETTINGS, make_examples, stop_after_report

WIDE = replace(SETTINGS, steps=100, warmup_steps=10, learning_rate=1.0, final_share=0.1)


def test_learning_rate_warms_up_and_ends_at_its_share() -> None:
    rates = [learning_rate(step, 1e9, WIDE) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == pytest.approx(1.0)
    assert rates[100] == pytest.approx(0.1)
    assert rates[55] == pytest.approx(0.55)
    assert [is_over(step, 1e9, WIDE) for step in (99, 100)] == [False, True]


def test_with_minutes_the_cosine_follows_trained_time_and_steps_count_for_the_warm_up_only() -> None:
    clock = replace(WIDE, minutes=2.0)
    assert learning_rate(4, 119.0, clock) == pytest.approx(0.5)
    assert learning_rate(5000, 0.0, clock) == pytest.approx(1.0)
    assert learning_rate(10, 60.0, clock) == pytest.approx(0.55)
    assert learning_rate(10, 120.0, clock) == pytest.approx(0.1)
    assert [is_over(5000, seconds, clock) for seconds in (119.9, 120.0)] == [False, True]


def test_a_run_by_the_clock_ends_on_time_and_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # every look at the clock is 5 s later than the one before: an update takes 5 s
    now = iter(range(0, 10**6, 5))
    monkeypatch.setattr(train.time, "monotonic", lambda: next(now))
    settings = replace(SETTINGS, minutes=1.0, steps=1, report_every=5)
    examples, lines = make_examples(60), []
    cut = train.Trainer(tmp_path / "a", settings, tiny_target(), examples)
    cut._report = stop_after_report(cut)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        cut.run()
    # lost time: no update ran in it
    next(now), next(now)
    again = train.Trainer(tmp_path / "a", settings, tiny_target(), examples, lines.append)
    assert (again.step, again.trained_s) == (5, 25.0)
    again.run()
    assert (again.step, again.trained_s) == (12, 60.0)
    assert [line["step"] for line in lines] == [10, 12]
    # the rate of the last update, which began at 55 s of 60
    assert lines[-1]["learning_rate"] == pytest.approx(learning_rate(11, 55.0, settings))


def test_negative_minutes_are_refused() -> None:
    with pytest.raises(UsageError, match=r"minutes is -1.0"):
        replace(SETTINGS, minutes=-1.0)
