"""A draft out of the target itself: the same model without some of its layers, no weight held twice.

After self-speculative decoding by layer skipping (Zhang et al. 2023, "Draft & Verify").
"""

from __future__ import annotations

import copy
from collections.abc import Collection

from torch import nn
from transformers import PreTrainedModel

from acceptlab.errors import UsageError


def skip_layers(model: PreTrainedModel, skipped: Collection[int]) -> PreTrainedModel:
    """The model without the layers of these indices (from 0), sharing every parameter and buffer with it.

    The modules are shallow twins, so the layers left can be numbered anew for the draft's own cache while the
    target's modules stay as they are.

    Raises:
        UsageError: an index out of range, no layer left, or a model whose layers are not found.
    """
    n_layers = int(model.config.get_text_config().num_hidden_layers)
    for index in sorted(skipped):
        if not 0 <= index < n_layers:
            raise UsageError(
                f"self:skip names layer {index}, but the target's layers are 0 to {n_layers - 1}"
            )
    if len(set(skipped)) >= n_layers:
        raise UsageError(f"self:skip leaves none of the target's {n_layers} layers: skip fewer")
    if any("forward" in module.__dict__ for module in model.modules()):
        # a hook of accelerate, bound to the original module: a twin would run the target's own layers
        raise UsageError(
            "self:skip cannot share a target that is spread over devices or offloaded: use another draft"
        )
    kept = [index for index in range(n_layers) if index not in skipped]
    draft = _twin(model)
    path = _layers_path(draft, n_layers)
    stack = draft.get_submodule(path)
    layers = [stack[index] for index in kept]  # type: ignore[index]
    for new_index, layer in enumerate(layers):
        for part in layer.modules():
            if isinstance(getattr(part, "layer_idx", None), int):
                part.layer_idx = new_index
    parent, _, name = path.rpartition(".")
    setattr(draft.get_submodule(parent), name, nn.ModuleList(layers))
    _use_config(draft, kept, n_layers)
    return draft.eval()


def _twin(module: nn.Module) -> nn.Module:
    """A copy of the module tree whose parameters and buffers are the originals."""
    twin = copy.copy(module)
    for key, value in module.__dict__.items():
        # registries (parameters, buffers, hooks) are copied: what the twin gains must not reach the original
        twin.__dict__[key] = copy.copy(value) if isinstance(value, dict) else value
    twin._modules = {name: None if child is None else _twin(child) for name, child in module._modules.items()}
    return twin


def _layers_path(model: nn.Module, n_layers: int) -> str:
    """Dotted name of the decoder's stack of layers: the first list of modules of that length."""
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == n_layers:
            return str(name)
    raise UsageError(
        f"self:skip does not know where {type(model).__name__} keeps its layers: use another draft"
    )


def _use_config(draft: nn.Module, kept: list[int], n_layers: int) -> None:
    """Give the draft's modules configurations that tell the layers left, in place of the target's."""
    replaced: dict[int, object] = {}
    for module in draft.modules():
        config = getattr(module, "config", None)
        if config is None or not hasattr(config, "to_dict"):
            continue
        if id(config) not in replaced:
            fresh = copy.deepcopy(config)
            text = fresh.get_text_config()
            types = getattr(text, "layer_types", None)
            if int(text.num_hidden_layers) == n_layers:
                if types is not None:
                    text.layer_types = [types[index] for index in kept]
                text.num_hidden_layers = len(kept)
            replaced[id(config)] = fresh
        module.config = replaced[id(config)]  # type: ignore[assignment]
