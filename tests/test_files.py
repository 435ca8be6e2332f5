"""A file is replaced whole or not at all, and nothing is left beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from acceptlab.errors import RunError
from acceptlab.files import replacing


def test_the_file_is_replaced_at_the_end_only(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "table.csv"
    for text in ("first", "second"):
        before = path.read_text() if path.exists() else None
        with replacing(path) as temporary:
            temporary.write_text(text)
            assert temporary.suffix == path.suffix
            assert (path.read_text() if path.exists() else None) == before
        assert path.read_text() == text
    assert list(path.parent.iterdir()) == [path]


def test_a_failure_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("old")

    def fail() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_two_processes_that_write_one_file_do_not_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "states.npy"
    with replacing(path) as one:
        one.write_text("half of one")
        monkeypatch.setattr("os.getpid", lambda: -1)
        with replacing(path) as other:
            other.write_text("all of the other")
        assert one.read_text() == "half of one"
        assert path.read_text() == "all of the other"
        one.write_text("all of one")
    assert path.read_text() == "all of one"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(RunError, match=r"cannot write '.*table\.csv'"),
        replacing(tmp_path / "file" / "table.csv"),
    ):
        pass
