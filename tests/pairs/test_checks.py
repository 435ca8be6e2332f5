"""Models that cannot be run exactly are refused by name, and windows are told."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers import (
    BertConfig,
    BloomConfig,
    FalconConfig,
    Gemma2Config,
    GPTNeoConfig,
    JambaConfig,
    Llama4TextConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    MptConfig,
    Phi3Config,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3NextConfig,
    RecurrentGemmaConfig,
    RwkvConfig,
    T5Config,
)

from acceptlab.errors import UsageError
from acceptlab.pairs import checks
from acceptlab.pairs.cached import CachedModel
from acceptlab.pairs.checks import check_config, check_model, window_limit
from acceptlab.pairs.pair import pair_from_models
from acceptlab.pairs.probe import plain_rows, probe
from tests.pairs.helpers import word_tokenizer
from tests.tiny import FAMILIES, tiny_config, tiny_model

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 2.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
DYNAMIC_ROPE = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "original_max_position_embeddings": 32,
    "short_factor": [1.0] * 48,
    "long_factor": [2.0] * 48,
}
TINY_STATE: dict[str, Any] = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2}


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (MambaConfig(), "mamba"),
        (JambaConfig(), "jamba"),
        (RwkvConfig(), "rwkv"),
        (RecurrentGemmaConfig(), "recurrent_gemma"),
        (Qwen3NextConfig(), "qwen3_next"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_recurrent_and_hybrid_state_is_refused_by_name(config: PreTrainedConfig, kind: str) -> None:
    with pytest.raises(UsageError, match=rf"'my/model' \({kind}\) keeps a recurrent state.*rolled back"):
        check_config(config, "my/model")


def test_a_loaded_mamba_or_jamba_is_refused() -> None:
    jamba = JambaConfig(
        **TINY_STATE,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=4,
        use_mamba_kernels=False,
        mamba_d_state=4,
        mamba_dt_rank=4,
    )
    for config in (MambaConfig(**TINY_STATE, state_size=4), jamba):
        model = transformers.AutoModelForCausalLM.from_config(config)
        with pytest.raises(UsageError, match="recurrent state"):
            pair_from_models(word_tokenizer(60), model, tiny_model("llama", vocab_size=60))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (BloomConfig(), "takes no position ids"),
        (MptConfig(), "takes no position ids"),
        (FalconConfig(alibi=True), "takes no position ids"),
        (T5Config(), "encoder-decoder"),
        (BertConfig(), "both directions"),
        (transformers.ViTConfig(), "no causal language model"),
    ],
)
def test_other_kinds_are_refused_with_a_remedy(config: PreTrainedConfig, said: str) -> None:
    with pytest.raises(UsageError, match=rf"'my/model' .*{said}.*: (use|name) a"):
        check_config(config, "my/model")


@pytest.mark.parametrize("family", FAMILIES)
def test_plain_attention_passes(family: str) -> None:
    config = tiny_config(family)
    check_config(config, family)
    assert window_limit(config) is None


@pytest.mark.parametrize("kind", ["flash_attention_2", "flash_attention_3"])
def test_flash_attention_is_refused_with_the_remedy(kind: str) -> None:
    model = tiny_model("llama")
    model.config._attn_implementation_internal = kind
    remedy = r'attn_implementation="sdpa"'
    with pytest.raises(UsageError, match=rf"{kind}.*{remedy}"):
        check_model(model, "m")
    with pytest.raises(UsageError, match=remedy):
        check_config(model.config, "m")


def test_an_attention_that_nobody_tried_is_refused() -> None:
    model = tiny_model("llama")
    model.config._attn_implementation_internal = "flex_attention"
    with pytest.raises(UsageError, match="flex_attention"):
        check_model(model, "m")


@pytest.mark.parametrize(
    ("settings", "packages"),
    [
        ({"quant_method": "gptq", "bits": 4}, "optimum gptqmodel"),
        ({"quant_method": "awq", "bits": 4}, "gptqmodel"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"load_in_8bit": True}, "bitsandbytes"),
        ({"quant_method": "quanto"}, "optimum-quanto"),
    ],
)
def test_quantized_weights_without_their_package_name_it(
    settings: dict[str, Any], packages: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_is_installed", lambda package: False)
    config = tiny_config("llama")
    config.quantization_config = settings
    with pytest.raises(UsageError, match=rf"'my/model'.*pip install {packages}$") as caught:
        check_config(config, "my/model")
    assert "\n" not in str(caught.value)


def test_quantized_weights_with_their_package_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_is_installed", lambda package: True)
    config = tiny_config("llama")
    config.quantization_config = {"quant_method": "gptq", "bits": 4}
    check_config(config, "m")
    assert checks._BACKENDS["gptq"] == ("optimum", "gptqmodel")


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        (MistralConfig(sliding_window=4), 4),
        (MistralConfig(sliding_window=None), None),
        (Qwen2Config(use_sliding_window=False, sliding_window=7), None),
        (Qwen2Config(use_sliding_window=True, sliding_window=7, max_window_layers=0), 7),
        (Gemma2Config(sliding_window=9), 9),
        (Llama4TextConfig(attention_chunk_size=11), 11),
        (GPTNeoConfig(window_size=13), 13),
        (LlamaConfig(rope_parameters=LLAMA3_ROPE), None),
        (LlamaConfig(max_position_embeddings=80, rope_parameters=DYNAMIC_ROPE), 80),
        (Phi3Config(original_max_position_embeddings=32, rope_parameters=LONG_ROPE), 32),
    ],
)
def test_the_window_limit_is_the_length_up_to_which_a_full_cache_is_exact(
    config: PreTrainedConfig, limit: int | None
) -> None:
    assert window_limit(config) == limit


def window_error(window: int, n_tokens: int) -> float:
    """Largest logit difference between one-by-one decoding in slots and a plain forward."""
    model = tiny_model("mistral", sliding_window=window)
    cached = CachedModel(model, "m")
    tokens = torch.arange(n_tokens) * 5 % 60
    with torch.inference_mode():
        expected = model(tokens[None]).logits[0]
    cached.prefill(tokens[:2])
    worst = 0.0
    for i in range(2, n_tokens):
        row = cached.forward(tokens[i : i + 1], torch.tensor([i]), torch.ones((1, i + 1), dtype=torch.bool))
        worst = max(worst, float((row[0] - expected[i]).abs().max()))
    return worst


def test_a_sliding_window_is_exact_within_its_limit_and_would_be_wrong_beyond() -> None:
    # float32 sums in another order
    assert window_error(window=4, n_tokens=4) < 1e-5
    assert window_error(window=9, n_tokens=9) < 1e-5
    # the silent fault that the limit is there for
    assert window_error(window=4, n_tokens=9) > 1e-2


def test_a_pair_tells_the_smaller_window_of_its_models() -> None:
    mistral = tiny_model("mistral", vocab_size=60, sliding_window=12)
    pair = pair_from_models(word_tokenizer(60), tiny_model("llama", vocab_size=60), mistral)
    assert pair.window_limit == 12
    assert any("exact up to 12 positions" in note for note in pair.notes)
    pair = pair_from_models(
        word_tokenizer(60), mistral, tiny_model("mistral", vocab_size=60, sliding_window=4)
    )
    assert pair.window_limit == 4


def test_both_models_of_a_pair_are_probed_unless_the_window_is_too_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    probed: list[str] = []
    monkeypatch.setattr("acceptlab.pairs.pair.probe", lambda cached, model, name, rows: probed.append(name))
    llama, narrow = tiny_model("llama", vocab_size=60), tiny_model("mistral", vocab_size=60, sliding_window=8)
    pair_from_models(word_tokenizer(60), llama, tiny_model("gpt2", vocab_size=60))
    assert sorted(probed) == ["GPT2LMHeadModel", "LlamaForCausalLM"]
    pair_from_models(word_tokenizer(60), llama, narrow)
    assert probed[2:] == ["LlamaForCausalLM"]


def test_evaluation_mode_and_reruns() -> None:
    config = tiny_config("gpt2", vocab_size=60, attn_pdrop=0.5, resid_pdrop=0.5, embd_pdrop=0.5)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.train()
    pair = pair_from_models(word_tokenizer(60), model, tiny_model("llama", vocab_size=60))
    assert not any(module.training for module in pair.target_model.modules())
    assert not any(parameter.requires_grad for parameter in model.parameters())
    rows = []
    for _ in range(2):
        pair.target.reset()
        pair.target.prefill(torch.tensor([1, 5]))
        rows.append(
            pair.target.forward(torch.tensor([9]), torch.tensor([2]), torch.ones((1, 3), dtype=torch.bool))
        )
    assert torch.equal(rows[0], rows[1])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_probe_passes_exact_models(family: str, attention: str) -> None:
    model = tiny_model(family, attention=attention)
    cached = CachedModel(model, family)
    # total variation of float32 softmaxes; the refusal is at 1e-3
    assert probe(cached, model, family, plain_rows(model)) < 1e-5
    assert cached.n_slots == 0


@pytest.mark.parametrize("fault", ["mask", "positions"])
def test_the_probe_refuses_a_model_that_ignores_what_it_is_given(fault: str) -> None:
    model = tiny_model("gpt2")
    cached = CachedModel(model, "m")
    forward = model.forward

    def faulty(**arguments: Any) -> Any:
        if fault == "mask" and arguments.get("attention_mask") is not None:
            arguments["attention_mask"] = torch.zeros_like(arguments["attention_mask"])
        if fault == "positions" and cached.n_slots:
            n_rows = arguments["input_ids"].shape[1]
            arguments["position_ids"] = torch.arange(cached.n_slots, cached.n_slots + n_rows)[None]
        return forward(**arguments)

    cached.model = faulty  # type: ignore[assignment]
    with pytest.raises(UsageError, match=r"'m' \(gpt2\) gives other distributions in a tree"):
        probe(cached, model, "m", plain_rows(model))
