"""Ways to run one target on a processor: plain, packed, compiled, in fewer bits, in another library.

Boundary: a loaded pair in, language models out, each with what it is and why it cannot be had, if it cannot. Nothing
here is timed. Except for the 32-bit ones, a backend is another model: its text and its acceptance are its own.
"""

from __future__ import annotations

import copy
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from acceptlab.drafters.model import DrafterModel
from acceptlab.errors import UsageError
from acceptlab.models import LanguageModel
from acceptlab.pairs.cached import CachedModel
from acceptlab.pairs.lean_drafter import plain_drafter
from acceptlab.pairs.vocab import PaddedModel, Vocabulary, fit, vocabulary_of

if TYPE_CHECKING:
    from acceptlab.pairs import Pair


@dataclass(frozen=True)
class Backend:
    """A way to run the target."""

    name: str
    what: str
    make: Callable[[Pair], LanguageModel]
    trees: bool = True
    """Whether it takes the mask of a tree."""
    plain_draft: bool = False
    """Whether the draft runs plainly as well; else it is the pair's own, on packed weights where those run."""


def make_backend(name: str, pair: Pair) -> LanguageModel:
    """The pair's target on a backend, with rows as wide as the pair's own.

    Raises:
        UsageError: no such backend, or it cannot be had here.
    """
    if name not in BACKENDS:
        raise UsageError(f"unknown backend '{name}': use one of {', '.join(BACKENDS)}")
    if name != "llama.cpp" and pair.target_model.dtype != torch.float32:
        raise UsageError(
            f"backends start from float32 weights, not {pair.target_model.dtype}: add --dtype float32"
        )
    return _fitted(BACKENDS[name].make(pair), pair.target, pair)


def draft_for(name: str, pair: Pair) -> LanguageModel:
    """The draft that goes with a backend: the same weights and, to rounding, the same numbers everywhere."""
    if not BACKENDS[name].plain_draft:
        return pair.draft
    draft = pair.draft.inner if isinstance(pair.draft, PaddedModel) else pair.draft
    if isinstance(draft, DrafterModel):
        return _fitted(DrafterModel(plain_drafter(draft), draft.name), pair.draft, pair)
    if pair.draft_model is not None:
        return _fitted(CachedModel(pair.draft_model, draft.name, lean=False), pair.draft, pair)
    return pair.draft


def _fitted(made: LanguageModel, like: LanguageModel, pair: Pair) -> LanguageModel:
    """The model with rows as wide as those of the model that it stands for."""
    if not isinstance(like, PaddedModel):
        return made
    width = like.vocab_size
    missing = tuple(i for i in vocabulary_of(pair.tokenizer).missing if i < width)
    return fit(made, Vocabulary(width, missing))


def _float32(pair: Pair) -> LanguageModel:
    return CachedModel(pair.target_model, "float32", lean=False)


def _packed(pair: Pair) -> LanguageModel:
    model = CachedModel(pair.target_model, "packed", lean=True)
    if not model.is_lean:
        raise UsageError(
            "packed weights do not run here: they need a Llama-type target in float32 on an x86 processor"
        )
    return model


def _bfloat16(pair: Pair) -> LanguageModel:
    return CachedModel(_copy_of(pair.target_model).to(torch.bfloat16), "bfloat16", lean=False)


def _compiled(pair: Pair) -> LanguageModel:
    """The feed-forward blocks compiled by torch.compile, for any number of rows: attention has caches of its own."""
    if not (shutil.which("g++") or shutil.which("clang++")):
        raise UsageError("torch.compile needs a C++ compiler: install g++, or leave this backend out")
    model = _copy_of(pair.target_model)
    blocks = [module for name, module in model.named_modules() if name.rpartition(".")[2] == "mlp"]
    if not blocks:
        raise UsageError(f"{type(model).__name__} has no blocks named mlp to compile: leave this backend out")
    made = CachedModel(model, "compile", lean=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler warns of itself
        # one compiled function for all layers: the weights are among its inputs
        compiled: Any = torch.compile(type(blocks[0]).forward, dynamic=True)
        for block in blocks:
            block.forward = partial(compiled, block)
        try:
            for n_rows in (4, 1):  # one row is compiled apart from all other numbers
                made.reset()
                places = torch.arange(n_rows)
                made.forward(places, places, places[None, :] <= places[:, None])
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise UsageError(f"torch.compile fails here ({reason}): leave this backend out") from None
    made.reset()
    return made


class Int8Linear(nn.Module):
    """A linear layer with 8-bit weights; inputs are quantized by the range of all rows of the pass (dynamic).

    So what a token gets depends on which tokens are in the pass with it: verification and stepping are not the same
    model, and greedy text differs between them.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        with warnings.catch_warnings():
            # deprecated in favour of a package of its own, and still the only one that ships with torch
            warnings.simplefilter("ignore")
            from torch.ao.quantization import quantize_dynamic

            wrapped = nn.Sequential(linear).eval()
            quantize: Any = quantize_dynamic
            self._inner: Any = quantize(wrapped, {nn.Linear}, dtype=torch.qint8)[0]
        self.weight = torch.empty(linear.weight.shape, device="meta")
        """Stands for the plain weight, of which only the shape is asked."""

    def forward(self, x: Tensor) -> Tensor:
        """The product, in float32."""
        out: Tensor = self._inner(x)
        return out


def _int8(pair: Pair) -> LanguageModel:
    if find_spec("torch.ao.quantization") is None:
        raise UsageError("this release of torch has no dynamic quantization any more: leave int8 out")
    model = _copy_of(pair.target_model)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, Int8Linear(module))
    return CachedModel(model, "int8", lean=False)


def _llama_cpp(pair: Pair) -> LanguageModel:
    from acceptlab.bench.llama_cpp import load_llama_cpp

    return load_llama_cpp(pair)


def _copy_of(model: Any) -> Any:
    """A copy that can be changed; the hooks of heads that watch the target are not copied."""
    copied = copy.deepcopy(model)
    for module in copied.modules():
        module._forward_hooks.clear()
    return copied


BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (
        Backend("float32", "transformers as it is, 32 bits", _float32, plain_draft=True),
        Backend("packed", "32 bits, weights laid out once for small products", _packed),
        Backend("compile", "32 bits, feed-forward blocks by torch.compile", _compiled),
        Backend("int8", "8-bit weights, inputs quantized in every pass (torch dynamic quantization)", _int8),
        Backend("bfloat16", "16-bit weights and activations", _bfloat16),
        Backend("llama.cpp", "llama.cpp on the pair's GGUF file, chains only", _llama_cpp, trees=False),
    )
}
"""All backends by name, in the order of tables."""
