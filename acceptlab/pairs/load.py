"""From names on the command line to a loaded pair."""

from __future__ import annotations

from acceptlab.errors import RunError, UsageError
from acceptlab.pairs.default import pair_members
from acceptlab.pairs.devices import is_out_of_memory, resolve_device, resolve_dtype
from acceptlab.pairs.drafts import load_draft
from acceptlab.pairs.heap import large_blocks_apart, release_code, trim_memory
from acceptlab.pairs.pair import Pair, common_width, pair_from_models
from acceptlab.pairs.source import find_source, load_model, load_tokenizer


@large_blocks_apart()
def load_pair(
    name: str | None = None,
    *,
    target: str | None = None,
    draft: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    lean: bool = True,
) -> Pair:
    """Load a pair: a named one, or any target with any draft.

    Args:
        name: a named pair; None with no target is the default pair `smollm2-135m`.
        target: hub id, local folder or GGUF file.
        draft: the same, or `self:skip=12,14`, `ngram:n=3`, the folder of a trained drafter,
            or `drafter:NAME` for a shipped one.
        device: auto (cuda, then mps, then cpu), cpu, cuda, cuda:1, mps.
        dtype: auto, float32, bfloat16, float16.
        lean: run models on packed weights where that is possible; otherwise all passes go through transformers.

    Raises:
        UsageError: a model that does not exist or cannot be run exactly, or tokenizers that disagree.
        RunError: too little memory, a broken file, a failed download.
    """
    pair_name, target_name, draft_name = pair_members(name, target, draft)
    place = resolve_device(device)
    numbers = resolve_dtype(dtype, place)
    source = find_source(target_name)
    tokenizer = load_tokenizer(source)
    if tokenizer is None:
        raise UsageError(f"'{source.id}' has no tokenizer: put the target's tokenizer files into its folder")
    trim_memory()  # a tokenizer is read in several times its size
    try:
        target_model = load_model(source, numbers, place)
        width = common_width(tokenizer, target_model)
        loaded = load_draft(draft_name, target_model, width, numbers, place)
        release_code()
        pair = pair_from_models(
            tokenizer, target_model, loaded, name=pair_name, target_source=source, lean=lean
        )
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise RunError(
            f"memory ran out on {place} while loading '{pair_name}': use smaller models or dtype"
        ) from None
    release_code()
    return pair
