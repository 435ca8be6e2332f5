"""What cannot be run exactly is refused, by name, before a run: recurrent state, masks, missing backends.

Tree verification needs three things of a model: positions that can be given, an attention that takes a 4-D
mask, and a cache whose slots can be chosen freely. Windows are exact for as long as no text outgrows them:
`window_limit`.
"""

from __future__ import annotations

import inspect
from importlib.util import find_spec
from typing import Any

from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

from acceptlab.errors import UsageError

_MASKED_ATTENTION = ("sdpa", "eager")
_WINDOWED = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
_SLOT_CACHES = ("DynamicLayer", "DynamicSlidingWindowLayer")
_BACKENDS: dict[str, tuple[str, ...]] = {
    "gptq": ("optimum", "gptqmodel"),
    "awq": ("gptqmodel",),
    "bitsandbytes": ("bitsandbytes",),
    "aqlm": ("aqlm",),
    "quanto": ("optimum-quanto",),
    "compressed-tensors": ("compressed-tensors",),
    "auto-round": ("auto-round",),
    "hqq": ("hqq",),
    "torchao": ("torchao",),
    "vptq": ("vptq",),
    "quark": ("amd-quark",),
}
_MODULES = {"optimum-quanto": "optimum.quanto", "amd-quark": "quark"}


def check_config(config: PreTrainedConfig, name: str) -> None:
    """Refuse a model by its configuration alone.

    Args:
        config: as the model's folder has it.
        name: what the user called the model.

    Raises:
        UsageError: it cannot be run exactly, or a package for its weights is missing.
    """
    kind = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise UsageError(f"'{name}' is an encoder-decoder model ({kind}): name a decoder-only causal model")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UsageError(f"'{name}' ({kind}) is no causal language model: name a decoder-only causal model")
    if getattr(config, "is_decoder", True) is False and type(config) in MODEL_FOR_MASKED_LM_MAPPING:
        raise UsageError(f"'{name}' ({kind}) attends in both directions: name a decoder-only causal model")
    _check_backend(config, name)
    _check_attention(config, name)
    _check_state(config, MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], name)


def check_model(model: PreTrainedModel, name: str) -> None:
    """Refuse a loaded model: the same as `check_config`, and what only the model itself tells.

    Raises:
        UsageError: it cannot be run exactly.
    """
    _check_attention(model.config, name)
    _check_state(model.config, type(model), name)
    chosen = model.config._attn_implementation
    if chosen is not None and chosen not in _MASKED_ATTENTION:
        raise UsageError(
            f"'{name}' runs with the attention '{chosen}', which is not known to take a tree mask: "
            'load it with attn_implementation="sdpa"'
        )


def _check_attention(config: PreTrainedConfig, name: str) -> None:
    asked = getattr(config, "_attn_implementation", None) or getattr(config, "attn_implementation", None)
    if isinstance(asked, str) and "flash" in asked:
        raise UsageError(
            f"'{name}' runs with {asked}, which cannot take the mask of a tree: "
            'load it with attn_implementation="sdpa" (or remove the setting from its config.json)'
        )


def _check_state(config: PreTrainedConfig, model_class: type[Any], name: str) -> None:
    """Refuse a cache that is not one key and one value a token, and positions that cannot be given."""
    kind = config.model_type
    text = config.get_text_config()
    try:
        caches = {type(layer).__name__ for layer in DynamicCache(config=text).layers}
    except Exception:
        # a layer type that this release of transformers does not know; the class below decides
        caches = set()
    recurrent = sorted(cache for cache in caches if "Linear" in cache or "Conv" in cache)
    if getattr(model_class, "_is_stateful", False) or recurrent:
        raise UsageError(
            f"'{name}' ({kind}) keeps a recurrent state, which cannot be rolled back to the accepted tokens: "
            "use a model with full attention in every layer"
        )
    other = sorted(caches - set(_SLOT_CACHES))
    if other:
        raise UsageError(
            f"'{name}' ({kind}) has a cache of kind {other[0]}, whose slots cannot be chosen freely: "
            "use a model with full attention in every layer"
        )
    if "position_ids" not in inspect.signature(model_class.forward).parameters or getattr(
        text, "alibi", False
    ):
        raise UsageError(
            f"'{name}' ({kind}) takes no position ids (ALiBi or positions counted by the model itself), so "
            "siblings in a tree would get wrong positions: use a model with rotary or learned positions"
        )


def _check_backend(config: PreTrainedConfig, name: str) -> None:
    """Refuse quantized weights whose package is not installed."""
    settings = getattr(config, "quantization_config", None)
    if settings is None:
        return
    fields = settings if isinstance(settings, dict) else settings.to_dict()
    method = str(getattr(fields.get("quant_method"), "value", fields.get("quant_method") or ""))
    if not method and (fields.get("load_in_4bit") or fields.get("load_in_8bit")):
        method = "bitsandbytes"
    missing = [package for package in _BACKENDS.get(method, ()) if not _is_installed(package)]
    if missing:
        raise UsageError(
            f"'{name}' has {method.upper()} weights, which need the package {' and '.join(missing)}: "
            f"pip install {' '.join(missing)}"
        )


def _is_installed(package: str) -> bool:
    module = _MODULES.get(package, package.replace("-", "_"))
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def window_limit(config: PreTrainedConfig) -> int | None:
    """Largest number of positions (prompt, new tokens, tree depth) that is exact; None without a limit.

    Up to that length a sliding or chunked attention sees everything and a rotary table that changes with
    length has not changed yet, so a full cache gives the same numbers as the model's own.
    """
    text = config.get_text_config()
    limits: list[int] = []
    types = getattr(text, "layer_types", None)
    if types is None:
        # the rule of transformers' own cache where a configuration names no layer types
        types = [kind for kind, field in _WINDOWED.items() if getattr(text, field, None) is not None]
    for kind in set(types) & set(_WINDOWED):
        size = getattr(text, _WINDOWED[kind], None)
        if size is not None:
            limits.append(int(size))
    if "local" in (getattr(text, "attention_layers", None) or ()):
        limits.append(int(text.window_size))
    return min(limits + _rotary_limits(text), default=None)


def _rotary_limits(text: PreTrainedConfig) -> list[int]:
    """Length at which rotary tables of kind `dynamic` or `longrope` change under the cached keys."""
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    # one table for all layers, or one for each layer type
    tables = [rope] if "rope_type" in rope else [table for table in rope.values() if isinstance(table, dict)]
    limits = []
    for table in tables:
        if table.get("rope_type") in ("dynamic", "longrope"):
            original = table.get("original_max_position_embeddings")
            limits.append(int(original or text.max_position_embeddings))
    return limits
