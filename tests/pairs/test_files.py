"""Folders that appear whole or not at all, locks, and remembered checksums."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import time
from pathlib import Path

import pytest

from acceptlab.errors import RunError
from acceptlab.pairs import files
from acceptlab.pairs.files import cache_root, cached_sha256, folder_lock, new_folder, weight_files


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ACCEPTLAB_CACHE", str(tmp_path / "mine"))
    assert cache_root() == tmp_path / "mine"
    monkeypatch.delenv("ACCEPTLAB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "acceptlab"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_root() == tmp_path / "home" / ".cache" / "acceptlab"


def test_a_checksum_is_taken_again_when_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(b"one")
    taken: list[Path] = []
    full = files.sha256_of
    monkeypatch.setattr(files, "sha256_of", lambda p: taken.append(p) or full(p))
    for _ in range(3):
        assert cached_sha256(path) == hashlib.sha256(b"one").hexdigest()
    assert len(taken) == 1
    path.write_bytes(b"two!")
    assert cached_sha256(path) == hashlib.sha256(b"two!").hexdigest()
    os.utime(path, ns=(1, 1))
    cached_sha256(path)
    assert len(taken) == 3


def test_a_damaged_store_of_checksums_is_ignored(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(b"one")
    (cache / "hashes.json").write_text("{not json")
    assert cached_sha256(path) == hashlib.sha256(b"one").hexdigest()


def _fail_inside(final: Path, error: BaseException) -> None:
    with new_folder(final) as temporary:
        (temporary / "a").write_text("1")
        raise error


def test_a_new_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    final = tmp_path / "made"
    with new_folder(final) as temporary:
        (temporary / "a").write_text("1")
        assert not final.exists()
    assert (final / "a").read_text() == "1"
    for error in (OSError("disk full"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            _fail_inside(tmp_path / "other", error)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["made"]


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    leftover = tmp_path / ".made.12345678.tmp"
    leftover.mkdir()
    (leftover / "half").write_text("x")
    with new_folder(tmp_path / "made"):
        assert not leftover.exists()


def _make_once(final: Path, log: Path) -> None:
    with folder_lock(final):
        if final.exists():
            return
        with new_folder(final), log.open("a") as stream:
            stream.write("made\n")
            stream.flush()
            time.sleep(0.3)


def test_two_processes_do_not_make_the_same_folder_twice(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=_make_once, args=(tmp_path / "made", tmp_path / "log")) for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert (tmp_path / "log").read_text() == "made\n"


def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(RunError, match=r"cannot write the cache folder.*ACCEPTLAB_CACHE"),
        folder_lock(tmp_path / "file" / "made"),
    ):
        pass


def test_weight_files_prefer_safetensors(tmp_path: Path) -> None:
    for name in ("b.safetensors", "a.safetensors", "c.bin", "d.gguf", "config.json"):
        (tmp_path / name).write_text("")
    assert [path.name for path in weight_files(tmp_path)] == ["a.safetensors", "b.safetensors"]
    for name in ("a.safetensors", "b.safetensors"):
        (tmp_path / name).unlink()
    assert [path.name for path in weight_files(tmp_path)] == ["c.bin"]
