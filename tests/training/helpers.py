"""A tiny Llama target with a chat tokenizer of single characters, for the training tests."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from acceptlab.drafters.llama import LlamaShape, LlamaStack
from tests.tiny import VOCAB, tiny_model

EOS = 2
_LETTERS = "abcdefghijklmnopqrstuvwxyz .?0123456789|ABCDEFGHIJ:"


class CharTokenizer:
    """Ids 3.. stand for characters, 0 to 2 for markup; other ids of the model decode to letters too."""

    eos_token_id = EOS

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [3 + _LETTERS.index(c) for c in text]}

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(_LETTERS[(int(i) - 3) % len(_LETTERS)] for i in token_ids)

    def apply_chat_template(
        self,
        conversation: list[dict[str, str]],
        tokenize: bool = True,
        add_generation_prompt: bool = False,
    ) -> str:
        return f"|A:{conversation[0]['content']}|B:"


@cache
def tiny_target() -> LlamaStack:
    model = tiny_model("llama", tie_word_embeddings=True)
    return LlamaStack.from_state(LlamaShape.from_config(model.config), model.state_dict())


__all__ = ["EOS", "VOCAB", "CharTokenizer", "tiny_target"]
