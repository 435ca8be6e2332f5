"""Large blocks are mapped on their own while models are loaded, and come from the heap again afterwards."""

from __future__ import annotations

import ctypes

import pytest
import torch

from acceptlab.pairs import heap
from acceptlab.pairs.heap import large_blocks_apart


class _Facts(ctypes.Structure):
    """What the GNU library tells about its heap (`mallinfo2`)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def mapped_bytes() -> int:
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        pytest.skip("this system's library does not tell what it has mapped")
    library.mallinfo2.restype = _Facts
    return int(library.mallinfo2().hblkhd)


def test_large_blocks_are_mapped_on_their_own_while_it_lasts() -> None:
    before = mapped_bytes()
    with large_blocks_apart():
        for _ in range(3):  # a freed one does not move the next ones into the heap
            block = torch.empty(3_000_000)
            # exact up to the page that the block's size is rounded to
            assert 12_000_000 <= mapped_bytes() - before < 12_010_000
            del block
            assert mapped_bytes() == before
    block = torch.empty(3_000_000)
    assert mapped_bytes() == before
    assert block.nbytes == 12_000_000


def test_the_heap_is_as_before_even_after_a_failure() -> None:
    before = mapped_bytes()
    with pytest.raises(ValueError, match="broken"), large_blocks_apart():
        raise ValueError("broken")
    block = torch.empty(3_000_000)
    assert mapped_bytes() == before
    assert block.nbytes == 12_000_000


def test_elsewhere_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    heap._library_call.cache_clear()
    monkeypatch.setattr("sys.platform", "darwin")
    try:
        assert heap._library_call("mallopt") is None
        with large_blocks_apart():
            assert torch.ones(1).item() == 1.0
    finally:
        heap._library_call.cache_clear()
