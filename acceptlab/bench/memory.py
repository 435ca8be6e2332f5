"""What memory a collection takes: resident size while it runs, against the weights of its two models.

Measures this process only, so a caller that has run other things before measures those as well.
"""

from __future__ import annotations

import resource
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from acceptlab.collect import Progress, collect
from acceptlab.engine import Settings
from acceptlab.pairs.lean_cross import LeanCross
from acceptlab.pairs.lean_drafter import LeanDrafter
from acceptlab.pairs.vocab import PaddedModel
from acceptlab.store import RunWriter

if TYPE_CHECKING:
    import pandas as pd

    from acceptlab.pairs import Pair
    from acceptlab.prompts import Prompt

MB = 1e6
_POINTS = 8
"""Rows of the table, spread over the prompts."""

COLUMNS = {
    "n_prompts": "prompts done; 0 after loading",
    "resident_mb": "resident memory of the process then (10^6 bytes); null where the system does not tell",
    "peak_mb": "its largest value so far, loading included",
    "over_models_mb": "peak_mb less the weights of both models",
}


def resident_bytes() -> int | None:
    """Resident memory of this process, or None where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * resource.getpagesize()


def peak_bytes() -> int:
    """Largest resident memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def weight_bytes(pair: Pair) -> int:
    """Bytes of the weights of both models; what they share counts once."""
    draft = pair.draft.inner if isinstance(pair.draft, PaddedModel) else pair.draft
    modules = [
        pair.target_model,
        pair.draft_model,
        *(getattr(draft, name, None) for name in ("drafter", "head")),
    ]
    held = draft.nbytes if isinstance(draft, LeanDrafter | LeanCross) else 0
    return held + _bytes(
        tensor for module in modules if isinstance(module, nn.Module) for tensor in _tensors(module)
    )


def _tensors(module: nn.Module) -> Iterable[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())


def memory_of_collection(
    pair: Pair,
    prompts: Sequence[Prompt],
    settings: Settings,
    on_done: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[pd.DataFrame, bool]:
    """Collect prompts into a folder that is thrown away, and note the memory on the way.

    Args:
        pair: loaded target and draft.
        prompts: what to decode.
        settings: how to decode.
        on_done: called with the number of prompts done and their total.

    Returns:
        A row at the start and after every eighth of the prompts (see `COLUMNS`), and whether it was not interrupted.
    """
    rows, is_whole = _rows(pair, prompts, settings, on_done)
    import pandas as pd  # a collection has no use for it, so what it takes must not be measured

    return pd.DataFrame(rows), is_whole


def _rows(
    pair: Pair, prompts: Sequence[Prompt], settings: Settings, on_done: Callable[[int, int], None]
) -> tuple[list[dict[str, Any]], bool]:
    weights = weight_bytes(pair)
    rows = [_row(0, weights)]
    every = max(1, len(prompts) // _POINTS)

    def after(progress: Progress) -> None:
        done = progress.n_prompts_done
        if done > rows[-1]["n_prompts"] and (done % every == 0 or done == len(prompts)):
            rows.append(_row(done, weights))
            on_done(done, len(prompts))

    with tempfile.TemporaryDirectory() as name:
        try:
            collect(pair, prompts, settings, RunWriter.create(Path(name) / "run", {"config": {}}), after)
        except KeyboardInterrupt:
            return rows, False
    rows[-1] = _row(len(prompts), weights)  # completing the run takes memory too
    return rows, True


def _row(n_prompts: int, weights: int) -> dict[str, Any]:
    resident, peak = resident_bytes(), peak_bytes()
    return {
        "n_prompts": n_prompts,
        "resident_mb": None if resident is None else resident / MB,
        "peak_mb": peak / MB,
        "over_models_mb": (peak - weights) / MB,
    }
