"""The engine against target-only decoding: same text, same probabilities, right lengths."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from acceptlab.engine import Step, decode
from acceptlab.pairs.cached import CachedModel
from acceptlab.records import Outcome, StopReason
from tests.engine.helpers import SHAPES, related_pair, settings
from tests.tiny import FAMILIES, VOCAB, tiny_model

PROMPT = [3, 14, 15, 9, 26, 5]


def text_of(steps: list[Step]) -> list[int]:
    return [token for step in steps for token in step.emitted]


def stepping(model: CachedModel, n_new_tokens: int, eos: int | None = None) -> list[int]:
    """What transformers itself generates greedily."""
    options = {"eos_token_id": eos, "pad_token_id": 0} if eos is not None else {"pad_token_id": 0}
    output = model.model.generate(
        torch.tensor([PROMPT]),
        attention_mask=torch.ones((1, len(PROMPT)), dtype=torch.int64),
        max_new_tokens=n_new_tokens,
        do_sample=False,
        **options,
    )
    return output[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text_equals_generate_for_every_shape(family: str, tmp_path: Path) -> None:
    target, draft = related_pair(family)
    tree_file = tmp_path / "tree.json"
    tree_file.write_text(json.dumps({"parents": [-1, -1, 0, 1, 1, 4]}))
    expected = stepping(target, 24)
    outcomes = set()
    for shape in (*SHAPES, f"file:{tree_file}"):
        steps = list(decode(target, draft, PROMPT, "a", settings(shape)))
        assert text_of(steps) == expected, shape
        outcomes |= {outcome for step in steps for outcome in step.verdict.outcomes}
    # a pair that always or never agrees would not exercise the cache
    assert outcomes == set(Outcome)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_every_stored_probability_is_that_of_a_plain_forward(family: str) -> None:
    target, draft = related_pair(family)
    steps = list(decode(target, draft, PROMPT, "a", settings("branches:3,2,1", max_new_tokens=60)))
    accepted = {len(step.verdict.accepted) for step in steps[:30]}
    assert len(steps) >= 20
    assert {0, 3} <= accepted  # both a full and no acceptance
    committed = list(PROMPT)
    for step in steps[:30]:
        if step.tree.n_nodes:
            check_step(target.model, draft.model, committed, step)
        committed.extend(step.emitted)


def check_step(target: PreTrainedModel, draft: PreTrainedModel, committed: list[int], step: Step) -> None:
    tokens = step.token_ids.tolist()
    for node in range(step.tree.n_nodes):
        prefix = committed + [tokens[i] for i in step.tree.path(node)[:-1]]
        for name, model in (("target_prob", target), ("draft_prob", draft)):
            with torch.inference_mode():
                probs = torch.softmax(model(torch.tensor([prefix])).logits[0, -1].double(), -1)
            # float32 logits summed in another order
            assert step.nodes[name][node] == pytest.approx(float(probs[tokens[node]]), abs=5e-5)


def test_an_accepted_eos_ends_the_text_where_stepping_ends_it() -> None:
    target, _ = related_pair("llama")
    free = stepping(target, 24)
    eos = free[9]
    expected = stepping(target, 24, eos=eos)
    assert expected == free[: free.index(eos) + 1]
    for draft in (CachedModel(target.model, "same"), related_pair("llama")[1]):
        steps = list(decode(target, draft, PROMPT, "a", settings(eos_ids=frozenset({eos}))))
        assert text_of(steps) == expected
        assert steps[-1].stop_reason is StopReason.EOS
        assert all(step.stop_reason is None for step in steps[:-1])


def test_nodes_below_an_eos_are_untested() -> None:
    target = CachedModel(tiny_model("llama"), "target")
    eos = stepping(target, 1)[0]
    (step,) = decode(
        target, CachedModel(target.model, "same"), PROMPT, "a", settings(eos_ids=frozenset({eos}))
    )
    below = [node for node in range(step.tree.n_nodes) if 0 in step.tree.path(node)[:-1]]
    assert below
    assert step.verdict.outcomes[0] is Outcome.ACCEPTED
    assert all(step.verdict.outcomes[node] is Outcome.UNTESTED for node in below)
    assert all(step.verdict.test_prob[node] == 0 for node in below)
    assert step.emitted == (eos,)
    assert step.bonus_token_id is None


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_never_more_than_the_limit(limit: int) -> None:
    target, draft = related_pair("llama")
    steps = list(decode(target, draft, PROMPT, "a", settings("chain:5", max_new_tokens=limit)))
    assert text_of(steps) == stepping(target, limit)
    assert steps[-1].stop_reason is StopReason.LENGTH


def test_one_token_drafts_nothing() -> None:
    target, draft = related_pair("llama")
    (step,) = decode(target, draft, PROMPT, "a", settings(max_new_tokens=1))
    assert step.tree.n_nodes == 0
    assert step.verdict.outcomes == ()
    assert step.nodes == {}
    assert step.contexts == {}


def test_emitted_is_accepted_plus_one_where_not_cut() -> None:
    target, draft = related_pair("llama")
    for step in decode(target, draft, PROMPT, "a", settings(max_new_tokens=60)):
        if step.stop_reason is None:
            assert len(step.emitted) == len(step.verdict.accepted) + 1


def test_identical_models_accept_everything_and_reruns_are_identical() -> None:
    target = CachedModel(tiny_model("llama"), "target")
    draft = CachedModel(target.model, "same")
    first, second = (list(decode(target, draft, PROMPT, "a", settings("chain:3"))) for _ in range(2))
    assert all(len(step.verdict.accepted) == 3 for step in first if step.tree.n_nodes)
    assert [step.emitted for step in first] == [step.emitted for step in second]


def test_a_text_stops_before_positions_run_out() -> None:
    target, draft = related_pair("llama", max_position_embeddings=16)
    steps = list(decode(target, draft, PROMPT, "a", settings("chain:3", max_new_tokens=50)))
    assert steps[-1].stop_reason is StopReason.CONTEXT
    assert len(PROMPT) + len(text_of(steps)) <= 16
    assert text_of(steps) == stepping(target, len(text_of(steps)))


def test_a_prompt_of_one_token_works() -> None:
    target, draft = related_pair("llama")
    steps = list(decode(target, draft, [7], "a", settings(max_new_tokens=5)))
    with torch.inference_mode():
        first = int(target.model(torch.tensor([[7]])).logits[0, -1].argmax())
    assert text_of(steps)[0] == first
    assert len(text_of(steps)) == 5
    assert max(text_of(steps)) < VOCAB
