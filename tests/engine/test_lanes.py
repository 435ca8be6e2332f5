"""Several prompts at once against one after the other: the same steps, whatever the models, shapes and rules."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from acceptlab.engine import Settings, Step, decode
from acceptlab.errors import UsageError
from acceptlab.lanes import decode_many
from acceptlab.models import LanguageModel
from acceptlab.pairs.cached import CachedModel
from acceptlab.pairs.ngram import NgramModel
from acceptlab.pairs.trained import WatchedModel
from acceptlab.pairs.vocab import PaddedModel, Vocabulary
from acceptlab.passes import Pass, fork
from acceptlab.records import TIMING_COLUMNS
from acceptlab.toy import TableModel, blended, random_table
from tests.engine.helpers import SHAPES, related_pair, settings
from tests.tiny import VOCAB, tiny_model

PROMPTS = [("a", [3, 14, 15, 9, 26, 5]), ("b", [8]), ("c", list(range(20))), ("d", [7, 7, 7]), ("e", [1, 2])]
Pair = tuple[LanguageModel, LanguageModel]


def one_by_one(pair: Pair, how: Settings) -> dict[str, list[Step]]:
    return {name: list(decode(*pair, ids, name, how)) for name, ids in PROMPTS}


def together(pair: Pair, how: Settings, batch_size: int) -> dict[str, list[Step]]:
    found: dict[str, list[Step]] = {name: [] for name, _ in PROMPTS}
    for number, step in decode_many(*pair, PROMPTS, how, batch_size):
        found[PROMPTS[number][0]].append(step)
    return found


def assert_same(found: dict[str, list[Step]], expected: dict[str, list[Step]], atol: float) -> None:
    for name, steps in expected.items():
        assert len(found[name]) == len(steps)
        for ours, theirs in zip(found[name], steps, strict=True):
            assert ours.emitted == theirs.emitted
            assert ours.token_ids.tolist() == theirs.token_ids.tolist()
            assert (ours.verdict.outcome == theirs.verdict.outcome).all()
            assert (ours.index, ours.context_len, ours.stop_reason) == (
                theirs.index, theirs.context_len, theirs.stop_reason,
            )  # fmt: skip
            for table, other in ((ours.nodes, theirs.nodes), (ours.contexts, theirs.contexts)):
                assert table.keys() == other.keys()
                for column in ("draft_prob", "target_prob", "kl_target_draft", "overlap", "target_entropy"):
                    if column in table:
                        np.testing.assert_allclose(
                            table[column], other[column], rtol=0, atol=atol, err_msg=column
                        )


def table_pair() -> Pair:
    table = random_table(6, seed=1)
    return TableModel(table, 6), TableModel(blended(table, random_table(6, seed=2), 0.4), 6)


@hypothesis_settings(max_examples=12, deadline=None)
@given(
    shape=st.sampled_from(SHAPES),
    rule=st.sampled_from(
        ["greedy", "additive:0.1", "top:2", "typical:eps=0.09,delta=0.3", "onehot", "rejection"]
    ),
    batch_size=st.integers(2, 7),
    seed=st.integers(0, 3),
)
def test_tables_give_the_very_same_steps(shape: str, rule: str, batch_size: int, seed: int) -> None:
    if rule == "rejection" and shape.startswith(("dynamic", "opt")):
        shape = "chain:5"  # sampled candidates need a shape that is fixed
    how = settings(shape, rule, seed=seed, max_new_tokens=6)
    prompts = [(name, [token % 6 for token in ids]) for name, ids in PROMPTS]
    pair = table_pair()
    expected = {name: list(decode(*pair, ids, name, how)) for name, ids in prompts}
    found: dict[str, list[Step]] = {name: [] for name, _ in prompts}
    for number, step in decode_many(*pair, prompts, how, batch_size):
        found[prompts[number][0]].append(step)
    assert_same(found, expected, 0.0)


def lean(pair: Pair) -> Pair:
    return tuple(CachedModel(model.model, "lean", lean=True) for model in pair)  # type: ignore


def padded(pair: Pair) -> Pair:
    return tuple(PaddedModel(model, Vocabulary(VOCAB - 1, (4,))) for model in lean(pair))  # type: ignore


@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[2], SHAPES[4]])
@pytest.mark.parametrize("kind", [lean, padded, lambda pair: pair], ids=["lean", "padded", "transformers"])
def test_ragged_texts_share_passes_and_change_nothing(shape: str, kind: Callable[[Pair], Pair]) -> None:
    pair = kind(related_pair("llama"))
    # float32 sums of a product with more rows
    how = settings(shape, max_new_tokens=8)
    assert_same(together(pair, how, 3), one_by_one(pair, how), 2e-6)


@pytest.mark.parametrize("rule", ["rejection", "onehot", "typical:eps=0.09,delta=0.3"])
def test_rules_that_draw_see_their_own_streams(rule: str) -> None:
    pair = lean(related_pair("llama"))
    how = settings(rule=rule, max_new_tokens=8, seed=5)
    assert_same(together(pair, how, 4), one_by_one(pair, how), 2e-6)


def test_drafts_without_a_proposal_keep_step_with_the_others() -> None:
    target, _ = related_pair("llama")
    pair = (target, NgramModel(2, VOCAB))
    how = settings("chain:3", max_new_tokens=8)
    assert_same(together(pair, how, 3), one_by_one(pair, how), 2e-6)


def test_passes_are_shared() -> None:
    target, draft = lean(related_pair("llama"))
    sizes: dict[str, list[int]] = {"target": [], "draft": []}
    for name, model in (("target", target), ("draft", draft)):
        inner = model.forward_many

        def counted(passes: list[Pass], name: str = name, inner: Callable[..., list[torch.Tensor]] = inner):  # noqa: ANN202
            sizes[name].append(len(passes))
            return inner(passes)

        model.forward_many = counted  # type: ignore
    list(decode_many(target, draft, PROMPTS[:3], settings("chain:2", max_new_tokens=9), 3))
    assert 3 in sizes["draft"]
    assert sizes["target"][0] == 3


def test_no_more_prompts_are_taken_than_run_at_once() -> None:
    taken = []

    def prompts():  # noqa: ANN202
        for name, ids in PROMPTS:
            taken.append(name)
            yield name, [token % 6 for token in ids]

    steps = decode_many(*table_pair(), prompts(), settings("chain:2", max_new_tokens=9), 2)
    next(steps)
    assert taken == ["a", "b"]
    assert len({number for number, _ in itertools.chain(steps)}) == len(PROMPTS)


def test_a_fork_shares_weights_and_nothing_else() -> None:
    model = CachedModel(tiny_model("llama"), "tiny")
    model.prefill(torch.arange(5))
    other = fork(model)
    assert other.n_slots == 0
    other.prefill(torch.arange(3))
    assert (model.n_slots, other.n_slots) == (5, 3)
    assert other.model is model.model  # type: ignore[attr-defined]


def test_a_target_that_is_watched_runs_alone() -> None:
    watched = WatchedModel(tiny_model("llama"), "tiny")
    with pytest.raises(UsageError, match="--batch-size 1"):
        list(decode_many(watched, watched, PROMPTS, settings("chain:2"), 2))


def test_a_lane_bears_its_share_of_a_pass_only() -> None:
    pair = lean(related_pair("llama"))
    steps = [step for _, step in decode_many(*pair, PROMPTS, settings("chain:2", max_new_tokens=9), 5)]
    assert all(value >= 0 for step in steps for value in step.times_ms.values())
    assert {f"{part}_ms" for step in steps for part in step.times_ms} <= TIMING_COLUMNS
