"""The default pair itself: greedy identity, stored probabilities, cost of the collector. Minutes; `make test-slow`.

The prompts are the shipped ones, or those of the file that ACCEPTLAB_TEST_PROMPTS names.
"""

from __future__ import annotations

import os

import pytest
import torch

from acceptlab.audit.identity import greedy_identity
from acceptlab.bench.collector import collector_split
from acceptlab.engine import decode
from acceptlab.pairs import Pair, load_pair
from acceptlab.pairs.assistant import assistant_of
from acceptlab.prompts import load_prompts
from tests.engine.helpers import settings
from tests.engine.test_engine import check_step

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair("smollm2-135m")


@pytest.mark.parametrize(
    "tree", ["kary:depth=3,branch=2", "chain:5", "branches:4,2,1", "dynamic:nodes=12,depth=4,topk=3"]
)
def test_greedy_text_equals_generate_on_twenty_prompts(pair: Pair, tree: str) -> None:
    prompts = load_prompts(os.environ.get("ACCEPTLAB_TEST_PROMPTS"), limit=5)[:20]
    found = greedy_identity(pair, prompts, settings(tree, max_new_tokens=40, eos_ids=pair.eos_ids))
    assert len(found) == len(prompts)
    assert found["is_identical"].all(), found[~found["is_identical"]].to_string()


def test_greedy_text_of_the_head_that_reads_the_target_is_generates() -> None:
    head_pair = load_pair("smollm2-135m-cross")
    prompts = load_prompts(os.environ.get("ACCEPTLAB_TEST_PROMPTS"), limit=1)[:4]
    for tree in ("chain:4", "branches:3,2,1"):
        found = greedy_identity(
            head_pair, prompts, settings(tree, max_new_tokens=40, eos_ids=head_pair.eos_ids)
        )
        assert found["is_identical"].all(), found[~found["is_identical"]].to_string()


def test_stored_probabilities_are_those_of_plain_forwards_after_thirty_steps(pair: Pair) -> None:
    prompt = load_prompts(os.environ.get("ACCEPTLAB_TEST_PROMPTS"), limit=1)[0]
    token_ids = pair.encode(prompt.prompt)
    steps = list(
        decode(
            pair.target,
            pair.draft,
            token_ids,
            prompt.id,
            settings(rule="rejection", max_new_tokens=160),  # past the end of the text: the steps count here
        )
    )
    assistant = assistant_of(pair)
    committed = list(token_ids)
    lengths = set()
    for index, step in enumerate(steps):
        if step.tree.n_nodes and index % 10 == 9:
            check_step(pair.target_model, assistant, committed, step)
        lengths.add(len(step.verdict.accepted))
        committed.extend(step.emitted)
    assert len(steps) >= 30
    assert {0, 3} <= lengths  # both no and full acceptance


def test_collecting_spends_its_time_inside_the_models(pair: Pair) -> None:
    torch.set_num_threads(os.cpu_count() or 1)
    prompts = load_prompts(limit=1)
    split = collector_split(pair, prompts, settings(max_new_tokens=32, eos_ids=pair.eos_ids))
    assert split.inside_passes >= 0.85
