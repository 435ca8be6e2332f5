"""Large blocks are mapped on their own while models are loaded, and program code is let go of afterwards."""

from __future__ import annotations

import ctypes
import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from acceptlab.bench.memory import resident_bytes
from acceptlab.pairs import heap
from acceptlab.pairs.heap import keep_few_products, large_blocks_apart, release_code, unwritten_mappings
from acceptlab.run import Request, plan, prepare


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


def entry(place: str, rights: str = "r-xp", inode: int = 7, **kilobytes: int) -> str:
    """One mapping as Linux describes it."""
    sizes = {"Rss": 8, "Private_Clean": 8, "Private_Dirty": 0, "Anonymous": 0, "AnonHugePages": 0, "Swap": 0}
    lines = [f"{name}:{value:>16} kB" for name, value in {**sizes, **kilobytes}.items()]
    return (
        "\n".join([f"{place} {rights} 00001000 fe:00 {inode:<26} /lib/a b.so", *lines, "VmFlags: rd ex mr"])
        + "\n"
    )


@pytest.mark.parametrize(
    ("described", "is_unwritten"),
    [
        (entry("1000-3000"), True),
        (entry("1000-3000", "r--p"), True),
        (entry("1000-3000", "rw-p"), False),
        (entry("1000-3000", "r--s"), False),
        (entry("1000-3000", inode=0), False),
        (entry("1000-3000", "r--p", Anonymous=4), False),
        (entry("1000-3000", "r--p", Private_Dirty=4), False),
        (entry("1000-3000", "r--p", Swap=4), False),
    ],
)
def test_only_what_the_file_holds_too_is_let_go(described: str, is_unwritten: bool) -> None:
    around = entry("7f00000-7f01000", "rw-p"), entry("7ffff000-ffffffff8000", "r-xp")
    found = unwritten_mappings(around[0] + described + around[1])
    assert found == [*[(0x1000, 0x3000)] * is_unwritten, (0x7FFFF000, 0xFFFFFFFF8000)]
    assert unwritten_mappings("") == []


def test_code_that_is_let_go_still_runs() -> None:
    x = torch.randn((40, 40), generator=torch.Generator().manual_seed(0))
    expected, before = torch.linalg.inv(x) @ x, resident_bytes()
    if before is None:
        pytest.skip("this system does not tell the resident memory")
    release_code()
    after = resident_bytes()
    assert after is not None
    # torch alone has some 80 MB of code in memory by now
    assert before - after > 20e6
    assert torch.equal(torch.linalg.inv(x) @ x, expected)


def test_a_bound_of_the_user_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "7")
    keep_few_products()
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "7"
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY")
    keep_few_products()
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "48"


@pytest.mark.parametrize(
    ("changes", "only_this", "bound"),
    [
        ({}, True, "48"),
        ({}, False, None),
        ({"tree": "dynamic:nodes=16,depth=4,topk=4"}, True, None),
        ({"batch_size": 4}, True, None),
    ],
)
def test_only_a_collection_whose_passes_are_alike_is_bounded(
    changes: dict[str, Any], only_this: bool, bound: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # set and deleted, so that what the call sets is undone after the test
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "1")
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY")
    pair = SimpleNamespace(eos_ids=frozenset({2}))
    monkeypatch.setattr("acceptlab.pairs.load.load_pair", lambda *args, **kwargs: pair)
    prepare(plan(Request(domains=("code",), limit=1, **changes)), only_this=only_this)
    assert os.environ.get("ONEDNN_PRIMITIVE_CACHE_CAPACITY") == bound
