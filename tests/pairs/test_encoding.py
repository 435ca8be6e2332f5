"""One template, one BOS, ends of text."""

from __future__ import annotations

import pytest
import torch
from transformers import GenerationConfig

from acceptlab.errors import UsageError
from acceptlab.pairs.encoding import encode_prompt, end_ids
from acceptlab.pairs.pair import pair_from_models
from tests.pairs.helpers import TEMPLATE, word_tokenizer
from tests.tiny import tiny_model

TEMPLATED = [1, 3, 9, 10, 2, 4]  # <s> user w9 w10 </s> assistant


@pytest.mark.parametrize("adds_bos", [True, False])
def test_template_and_tokenizer_together_give_one_bos(adds_bos: bool) -> None:
    tokenizer = word_tokenizer(60, adds_bos=adds_bos, template=TEMPLATE)
    assert encode_prompt(tokenizer, "w9 w10") == TEMPLATED


def test_a_prompt_that_begins_with_the_bos_itself_still_gets_one() -> None:
    assert encode_prompt(word_tokenizer(60), "<s> w9") == [1, 9]
    doubled = word_tokenizer(60, template="{{ bos_token }} " + TEMPLATE)
    assert encode_prompt(doubled, "w9 w10") == TEMPLATED


def test_plain_text_without_a_template() -> None:
    assert encode_prompt(word_tokenizer(60), "w9 w10") == [1, 9, 10]
    assert encode_prompt(word_tokenizer(60, adds_bos=False), "w9 w10") == [9, 10]


def test_an_end_that_the_tokenizer_adds_behind_every_text_is_dropped() -> None:
    assert encode_prompt(word_tokenizer(60, adds_bos=False), "w9 </s>") == [9]


def test_of_several_turns_the_first_is_used_and_a_conversation_is_taken_whole() -> None:
    tokenizer = word_tokenizer(60, template=TEMPLATE)
    assert encode_prompt(tokenizer, ["w9 w10", "w11"]) == TEMPLATED
    conversation = [
        {"role": "user", "content": "w9"},
        {"role": "assistant", "content": "w10"},
        {"role": "user", "content": "w11"},
    ]
    assert encode_prompt(tokenizer, conversation) == [1, 3, 9, 2, 4, 10, 2, 3, 11, 2, 4]


@pytest.mark.parametrize("prompt", ["", "  \n", [], [""]])
def test_nothing_to_encode_is_refused(prompt: object) -> None:
    with pytest.raises(UsageError, match="empty"):
        encode_prompt(word_tokenizer(60, template=TEMPLATE), prompt)  # type: ignore[arg-type]


def test_an_id_without_an_embedding_is_refused_by_name() -> None:
    pair = pair_from_models(
        word_tokenizer(60), tiny_model("llama", vocab_size=50), tiny_model("gpt2", vocab_size=50)
    )
    assert pair.encode("w49") == [1, 49]
    with pytest.raises(UsageError, match=r"'w55' \(id 55\).*below 50"):
        pair.encode("w9 w55")


def test_ends_are_those_of_the_generation_settings_and_the_tokenizer() -> None:
    model = tiny_model("llama", vocab_size=60)
    model.generation_config = GenerationConfig(eos_token_id=[7, 8])
    pair = pair_from_models(word_tokenizer(60), model, tiny_model("llama", vocab_size=60))
    assert pair.eos_ids == {2, 7, 8}
    tokenizer = word_tokenizer(60)
    tokenizer.eos_token = None
    model.generation_config = GenerationConfig()
    model.config.eos_token_id = 5
    assert end_ids(tokenizer, model) == {5}


def test_decoding_gives_the_text_back_without_special_tokens() -> None:
    pair = pair_from_models(
        word_tokenizer(60), tiny_model("llama", vocab_size=60), tiny_model("gpt2", vocab_size=60)
    )
    assert pair.decode(torch.tensor([1, 9, 10, 2])) == "w9 w10"
    assert pair.decode([1, 9], skip_special_tokens=False) == "<s> w9"
