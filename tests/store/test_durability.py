"""SIGKILL at every point of writing, and full disks: the run stays readable and can be resumed."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from acceptlab.errors import RunError
from acceptlab.records import TABLES
from acceptlab.store import RunWriter, open_run, parts
from acceptlab.store.check import check_run
from acceptlab.store.manifest import sha256_file
from tests.store.helpers import FIELDS, frames, prompt_tables, write_run
from tests.store.killed_writer import POINTS


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_writer_leaves_a_readable_run_that_resumes(tmp_path: Path, point: str) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "tests.store.killed_writer", str(folder), point]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    in_finish = POINTS.index(point) >= 4
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    run = open_run(folder)  # strict: what the manifest lists is whole
    listed = {part["file"] for table in TABLES for part in run.parts(table.name)} | {"manifest.json"}
    if point != POINTS[6]:
        assert files > listed  # the kill left something behind, or it tested nothing
    assert not run.is_complete
    assert run.n_rows("prompts") == (4 if in_finish else 3)
    assert check_run(folder) == []
    resumed = RunWriter.resume(folder, FIELDS)
    assert len(resumed.done_prompt_ids) == (4 if in_finish else 3)
    for number in range(len(resumed.done_prompt_ids), 5):
        resumed.write(prompt_tables(number))
    resumed.finish()
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert len(files) == 1 + len(TABLES)
    write_run(tmp_path / "whole", 5)
    whole, again = frames(tmp_path / "whole"), frames(folder)
    assert all(whole[table.name].equals(again[table.name]) for table in TABLES)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB, where this process may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a small file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_ends_with_the_remedy_and_a_readable_run(small_disk: Path) -> None:
    folder = small_disk / "run"
    writer = RunWriter.create(folder, FIELDS)

    def fill() -> None:
        for number in range(1000):
            writer.write(prompt_tables(number))

    with pytest.raises(RunError, match=rf"no space left in '{folder}.*': free some.*--resume"):
        fill()
    n_done = len(writer.done_prompt_ids)
    assert 0 < n_done < 1000
    run = open_run(folder)
    assert run.n_rows("prompts") == n_done
    assert not run.is_complete
    assert check_run(folder) == []
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    resumed = RunWriter.resume(folder, FIELDS)
    assert len(resumed.done_prompt_ids) == n_done
    resumed.write(prompt_tables(n_done))
    resumed.finish()
    assert open_run(folder).n_rows("prompts") == n_done + 1
    assert check_run(folder) == []


def test_no_space_for_joined_parts_keeps_the_small_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = write_run(tmp_path / "run", 3, finish=False)

    def full(path: Path) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(parts, "sha256_file", full)
    with pytest.raises(RunError, match="no space left in"):
        writer.finish()
    monkeypatch.undo()
    assert not list((tmp_path / "run").rglob("*.tmp"))
    assert open_run(tmp_path / "run").n_rows("prompts") == 3
    assert not open_run(tmp_path / "run").is_complete
    RunWriter.resume(tmp_path / "run", FIELDS).finish()
    assert open_run(tmp_path / "run").is_complete


def test_another_write_error_names_the_file_and_leaves_nothing_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    writer = write_run(folder, 1, finish=False)
    n_calls = 0

    def broken(path: Path) -> str:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 3:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return sha256_file(path)

    monkeypatch.setattr(parts, "sha256_file", broken)
    with pytest.raises(RunError, match=r"cannot write '.*steps/part-000002\.parquet': Input/output error"):
        writer.write(prompt_tables(1))
    monkeypatch.undo()
    assert open_run(folder).n_rows("prompts") == 1
    assert len(list(folder.rglob("*.parquet"))) == len(TABLES) + 2  # two parts that no manifest lists
    writer.finish(compression=3)
    assert len(list(folder.rglob("*.parquet"))) == len(TABLES)
