"""The ways to decode: equal texts for greedy, and times that add up."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch

from acceptlab.bench.arms import PlainArm, PrefillClock, SpeculativeArm, now_ms, timed_by
from acceptlab.bench.contest import library_arms, own_arms, parse_lengths
from acceptlab.bench.interleave import Task, measure
from acceptlab.bench.library import LibraryArm
from acceptlab.bench.speedup import sums_of, table
from acceptlab.errors import UsageError
from tests.bench.helpers import PROMPT, plain_text, small_pair
from tests.engine.helpers import settings

N = 12


def test_all_arms_write_the_targets_greedy_text() -> None:
    pair = small_pair()
    arms = own_arms(pair, settings(), [1, 4], ["kary:depth=2,branch=2"], recorded="chain:4")
    theirs, notes = library_arms(pair.target_model, pair, settings(), [4])
    assert notes == []
    expected = plain_text(pair.target_model, PROMPT, N)
    for arm in (*arms, *theirs):
        assert arm.decode(PROMPT, "p", N).token_ids == expected, arm.name
    names = [arm.name for arm in (*arms, *theirs)]
    assert names == [
        "plain", "chain:1", "chain:4", "kary:depth=2,branch=2", "chain:4+records", "generate", "assisted:4",
    ]  # fmt: skip


def test_every_arm_stops_at_the_end_of_text() -> None:
    pair = small_pair()
    text = plain_text(pair.target_model, PROMPT, N)
    end = text[5]
    ending = settings(eos_ids=frozenset({end}))
    theirs, _ = library_arms(pair.target_model, pair, ending, [3])
    for arm in (*own_arms(pair, ending, [3], []), *theirs):
        assert arm.decode(PROMPT, "p", N).token_ids == text[: text.index(end) + 1], arm.name


def test_counts_of_a_speculative_arm_are_those_of_its_steps() -> None:
    pair = small_pair()
    sample = SpeculativeArm(pair, settings("chain:3", record=False), "chain:3").decode(PROMPT, "p", N)
    assert sample.n_accepted == sum(sample.survivors)
    # every step gives one token of its own, and the last one may be cut
    assert sample.n_steps + sample.n_accepted >= len(sample.token_ids) == N
    assert sample.n_nodes == sample.n_levels == 3 * sample.n_drafted
    assert 0 < sample.n_accepted < sample.n_tested <= sample.n_nodes
    assert sample.record_ms < sample.draft_ms + sample.verify_ms < sample.decode_ms


def test_assisted_generation_drafts_what_our_chain_drafts() -> None:
    """The same pair, the same chains, greedy: as many target passes, so only the loops differ."""
    pair = small_pair()
    ours = SpeculativeArm(pair, settings("chain:3", record=False), "chain:3").decode(PROMPT, "p", N)
    theirs = library_arms(pair.target_model, pair, settings(), [3])[0][1].decode(PROMPT, "p", N)
    assert theirs.n_steps == ours.n_steps
    assert theirs.n_tested is None
    # the library counts what it cut at the limit as well
    assert theirs.n_accepted == N - theirs.n_steps


def test_prefill_is_timed_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that stands still but in prefills, where it moves by a second."""
    pair = small_pair()
    clock = [0.0]
    monkeypatch.setattr("acceptlab.bench.arms.now_ms", lambda device: clock[0])

    class Slow:
        def __init__(self, inner: object) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> object:
            return getattr(self.inner, name)

        def prefill(self, token_ids: torch.Tensor) -> None:
            clock[0] += 1000.0
            self.inner.prefill(token_ids)  # type: ignore[attr-defined]

    slow = replace(pair, target=Slow(pair.target), draft=Slow(pair.draft))
    sample = SpeculativeArm(slow, settings("chain:2", record=False), "chain:2").decode(PROMPT, "p", 4)
    assert (sample.prefill_ms, sample.decode_ms) == (2000.0, 0.0)
    sample = PlainArm(slow.target, settings()).decode(PROMPT, "p", 4)
    assert (sample.prefill_ms, sample.decode_ms) == (1000.0, 0.0)


def test_processor_time_does_not_see_waiting() -> None:
    device = torch.device("cpu")
    for clock, seen in (("wall", True), ("cpu", False)):
        with timed_by(clock):
            started = now_ms(device)
            time.sleep(0.05)
            assert (now_ms(device) - started > 40) is seen
    with timed_by("cpu"):
        sample = SpeculativeArm(small_pair(), settings("chain:2"), "chain:2").decode(PROMPT, "p", 6)
    # the parts keep their shares of a step, so they stay within the decoding time
    assert 0 < sample.draft_ms + sample.verify_ms + sample.record_ms <= sample.decode_ms


def test_the_prefill_clock_hands_everything_else_through() -> None:
    pair = small_pair()
    clock = PrefillClock(pair.target)
    clock.prefill(torch.tensor(PROMPT))
    assert clock.n_slots == len(PROMPT)
    assert clock.ms > 0


def test_sampling_arms_repeat_themselves() -> None:
    pair = small_pair()
    drawn = settings("chain:3", rule="rejection")
    theirs, _ = library_arms(pair.target_model, pair, drawn, [3])
    for arm in (*own_arms(pair, drawn, [3], []), *theirs):
        first, second = (arm.decode(PROMPT, "p", N).token_ids for _ in range(2))
        assert first == second, arm.name
        assert arm.decode(PROMPT, "another", N).token_ids != first, arm.name


def test_a_measured_contest_gives_a_table() -> None:
    pair = small_pair()
    arms = own_arms(pair, settings(), [1, 2], [])
    tasks = [Task(f"p{i}", "code", PROMPT[: 3 + i]) for i in range(3)]
    seen: list[tuple[int, int]] = []
    done = measure(arms, tasks, 2, 6, lambda n, total: seen.append((n, total)))
    assert done.is_whole
    assert len(done.frame) == len(arms) * len(tasks) * 2 == seen[-1][0] == seen[-1][1]
    found = table(sums_of(done.frame))
    assert found["same_text"].tolist() == [1.0, 1.0, 1.0]
    assert found["n_tokens"].tolist() == [18, 18, 18]


def test_an_interrupt_keeps_what_was_measured() -> None:
    pair = small_pair()

    def stop(n: int, total: int) -> None:
        if n == 3:
            raise KeyboardInterrupt

    tasks = [Task(f"p{i}", "code", PROMPT) for i in range(3)]
    done = measure(own_arms(pair, settings(), [1], []), tasks, 1, 4, stop)
    assert not done.is_whole
    assert len(done.frame) == 3
    assert sums_of(done.frame)["plain"].prompt_ids == ("p0",)


def test_lists_of_lengths() -> None:
    assert parse_lengths("1-3, 5,2") == [1, 2, 3, 5]
    assert parse_lengths("") == []
    for text in ("x", "3-", "0-2", "1-65"):
        with pytest.raises(UsageError, match="chain length"):
            parse_lengths(text)


def test_a_draft_without_a_library_form_is_named() -> None:
    pair = small_pair()
    pair = replace(pair, draft_model=None)
    arms, notes = library_arms(pair.target_model, pair, settings(), [3])
    assert [type(arm) for arm in arms] == [LibraryArm]
    assert "no form that transformers can run" in notes[0]
