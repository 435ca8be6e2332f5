"""Batch sizes: the same texts at every size, and times that add up over prompts."""

from __future__ import annotations

from acceptlab.bench.batches import decode_batch, measure_batches
from acceptlab.bench.interleave import Task
from acceptlab.bench.speedup import sums_of, table
from tests.bench.helpers import PROMPT, plain_text, small_pair
from tests.engine.helpers import settings

TASKS = [Task(f"p{i}", "code", PROMPT[: 2 + i]) for i in range(4)]


def test_every_prompt_gets_its_own_steps() -> None:
    pair = small_pair()
    chain = settings("chain:3", max_new_tokens=9, record=False)
    for size in (1, 3):
        samples = decode_batch(pair, TASKS, chain, size)
        for task, sample in zip(TASKS, samples, strict=True):
            assert sample.token_ids == plain_text(pair.target_model, task.token_ids, 9)
            assert sample.n_steps + sample.n_accepted >= 9
            assert sample.decode_ms >= sample.draft_ms + sample.verify_ms > 0


def test_sizes_are_compared_in_one_table() -> None:
    done = measure_batches(small_pair(), TASKS, settings("chain:2", max_new_tokens=6), [1, 2], 2)
    assert done.is_whole
    assert len(done.frame) == 2 * 2 * len(TASKS)
    found = table(sums_of(done.frame), baseline="batch:1").set_index("arm")
    assert found["same_text"].tolist() == [1.0, 1.0]
    assert found.loc["batch:1", "speed_up"] == 1.0
    assert found["n_prompts"].tolist() == [4, 4]


def test_an_interrupt_keeps_whole_rounds() -> None:
    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    done = measure_batches(small_pair(), TASKS, settings("chain:2", max_new_tokens=4), [1, 2, 4], 1, stop)
    assert not done.is_whole
    assert sorted(set(done.frame["arm"])) == ["batch:1", "batch:2"]
