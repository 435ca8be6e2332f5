"""Unequal widths, ids without a token, and tokenizers that disagree."""

from __future__ import annotations

import logging

import pytest
import torch

from acceptlab.errors import UsageError
from acceptlab.pairs.cached import CachedModel
from acceptlab.pairs.ngram import NgramModel
from acceptlab.pairs.pair import pair_from_models
from acceptlab.pairs.vocab import PaddedModel, Vocabulary, check_tokenizers, vocabulary_of
from tests.pairs.helpers import word_tokenizer, words
from tests.tiny import tiny_model

PROMPT = torch.tensor([1, 9, 30, 59])


def last_row(model: object) -> torch.Tensor:
    model.reset()  # type: ignore[attr-defined]
    model.prefill(PROMPT[:-1])  # type: ignore[attr-defined]
    return model.forward(PROMPT[-1:], torch.tensor([3]), torch.ones((1, 4), dtype=torch.bool))[0]  # type: ignore[attr-defined]


def test_padded_vocabularies_of_unequal_size_run_at_the_tokenizers_width() -> None:
    target, draft = tiny_model("llama", vocab_size=64), tiny_model("llama", seed=1, vocab_size=72)
    pair = pair_from_models(word_tokenizer(60), target, draft)
    assert pair.target.vocab_size == pair.draft.vocab_size == 60
    with torch.inference_mode():
        for ours, model in ((pair.target, target), (pair.draft, draft)):
            row = last_row(ours)
            assert row.shape == (60,)
            plain = model(PROMPT[None]).logits[0, -1]
            # the distribution given that the id has a token; float32 sums in another order
            expected = plain[:60].softmax(-1)
            assert torch.allclose(row.softmax(-1), expected, atol=1e-6)
            assert float(row.softmax(-1).sum()) == pytest.approx(1.0, abs=1e-6)
    assert any("4 ids of the target's 64 logits have no token" in note for note in pair.notes)
    assert any("12 ids of the draft's 72 logits have no token" in note for note in pair.notes)


def test_probability_on_ids_without_a_token_is_measured_and_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    target = tiny_model("llama", vocab_size=64)
    pair = pair_from_models(word_tokenizer(60), target, tiny_model("llama", seed=1, vocab_size=60))
    assert pair.masked_prob == 0.0
    with caplog.at_level(logging.WARNING, logger="acceptlab"), torch.inference_mode():
        last_row(pair.target)
        last_row(pair.target)
        expected = float(target(PROMPT[None]).logits[0, -1].softmax(-1)[60:].sum())
    assert expected > 1e-4
    # float32 softmax and log-sum-exp round differently
    assert pair.masked_prob == pytest.approx(expected, rel=1e-5)
    assert [record.getMessage() for record in caplog.records] == [
        f"LlamaForCausalLM puts probability {expected:.2g} on ids without a token; they are masked"
    ]


def test_a_model_without_mass_on_padding_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    target = tiny_model("llama", vocab_size=64)
    with torch.no_grad():
        target.lm_head.weight[60:] = 0
        target.lm_head.weight[:60] *= 60
    padded = PaddedModel(CachedModel(target, "t"), Vocabulary(60, ()))
    with caplog.at_level(logging.WARNING, logger="acceptlab"):
        last_row(padded)
    assert padded.masked_prob < 1e-6
    assert not caplog.records


def test_a_mass_below_the_reporting_level_is_kept_quiet(caplog: pytest.LogCaptureFixture) -> None:
    inner = NgramModel(1, 4)
    share = 5e-7
    row = torch.tensor([[1 - share, 0.0, 0.0, share]]).log()
    inner.forward = lambda *_: row  # type: ignore[method-assign]
    padded = PaddedModel(inner, Vocabulary(3, ()))
    with caplog.at_level(logging.WARNING, logger="acceptlab"):
        last_row(padded)
    # float32
    assert padded.masked_prob == pytest.approx(share, rel=1e-5)
    assert not caplog.records


def test_holes_in_the_tokenizer_are_masked_on_both_models() -> None:
    tokenizer = word_tokenizer(60)
    tokenizer.add_tokens(["late"])
    assert vocabulary_of(tokenizer) == Vocabulary(61, ())
    vocabulary = Vocabulary(60, (7, 33))
    padded = PaddedModel(CachedModel(tiny_model("llama", vocab_size=64), "t"), vocabulary)
    row = last_row(padded)
    assert torch.isneginf(row[[7, 33]]).all()
    assert torch.isfinite(row).sum() == 58


def test_a_draft_narrower_than_the_target_never_proposes_the_rest() -> None:
    pair = pair_from_models(
        word_tokenizer(60), tiny_model("llama", vocab_size=60), tiny_model("llama", vocab_size=56)
    )
    assert pair.draft.vocab_size == 60
    prompt = torch.tensor([1, 9])
    pair.draft.prefill(prompt[:-1])
    row = pair.draft.forward(prompt[-1:], torch.tensor([1]), torch.ones((1, 2), dtype=torch.bool))[0]
    assert torch.isneginf(row[56:]).all()
    assert torch.isfinite(row[:56]).all()
    assert "the draft cannot produce the last 4 ids" in pair.notes


def test_equal_widths_are_left_alone() -> None:
    pair = pair_from_models(
        word_tokenizer(60), tiny_model("llama", vocab_size=60), tiny_model("gpt2", vocab_size=60)
    )
    assert isinstance(pair.target, CachedModel)
    assert isinstance(pair.draft, CachedModel)
    assert pair.notes == []


def test_same_ids_with_other_texts_are_refused_with_the_first_id_and_both_texts() -> None:
    permuted = words(60)
    permuted[17], permuted[40] = permuted[40], permuted[17]
    with pytest.raises(
        UsageError, match=r"draft 'd'.*id 17 is 'w17' in the target's and 'w40' in the draft's"
    ):
        check_tokenizers(word_tokenizer(60), word_tokenizer(texts=permuted), "d")


def test_another_tokenizer_altogether_is_refused_with_a_remedy() -> None:
    other = [*words(5), *(f"x{i}" for i in range(5, 60))]
    with pytest.raises(
        UsageError, match=r"another tokenizer than the target.*5 of 60 ids agree.*target's family"
    ):
        check_tokenizers(word_tokenizer(60), word_tokenizer(texts=other), "d")


def test_a_pair_with_a_permuted_draft_tokenizer_is_refused() -> None:
    permuted = words(60)
    permuted[17], permuted[40] = permuted[40], permuted[17]
    with pytest.raises(UsageError, match="id 17"):
        pair_from_models(
            word_tokenizer(60),
            tiny_model("llama", vocab_size=60),
            tiny_model("llama", vocab_size=60),
            draft_tokenizer=word_tokenizer(texts=permuted),
        )


def test_equal_tokenizers_and_extra_tokens_pass() -> None:
    longer = word_tokenizer(60)
    longer.add_tokens(["extra"])
    assert check_tokenizers(word_tokenizer(60), word_tokenizer(60), "d") == []
    assert check_tokenizers(word_tokenizer(60), longer, "d") == []


def test_a_renamed_spare_special_token_is_noted_and_a_renamed_end_refused() -> None:
    target, draft = word_tokenizer(60), word_tokenizer(60)
    target.add_special_tokens({"additional_special_tokens": ["<a>"]})
    draft.add_special_tokens({"additional_special_tokens": ["<b>"]})
    (note,) = check_tokenizers(target, draft, "d")
    assert "id 60: '<a>' in the target's tokenizer, '<b>' in the draft's" in note
    draft.eos_token = "<b>"
    with pytest.raises(UsageError, match="id 60 is '<a>'"):
        check_tokenizers(target, draft, "d")
