"""Printing of tables: formats, missing values, intervals, width."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from acceptlab.cli.output import OutputFormat, emit, format_number, to_display
from acceptlab.errors import RunError, UsageError


def _frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "domain": ["code", "all [x]"],
            "rate": [0.51234, None],
            "rate_lo": [0.4, None],
            "rate_hi": [0.6, np.nan],
            "n_nodes": pd.array([7, None], dtype="Int64"),
            "reason": [None, "fewer than 10 prompts"],
            "method": ["percentile", "percentile"],
        }
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.51234, "0.5123"),
        (1.0, "1.0000"),
        (12.3456, "12.346"),
        (123.456, "123.46"),
        (1234.56, "1234.6"),
        (0.00123456, "0.001235"),
        (1234567.0, "1.235e+06"),
        (-0.25, "-0.2500"),
        (float("inf"), "inf"),
        (float("-inf"), "-inf"),
        (float("nan"), "-"),
    ],
)
def test_numbers_read_well(value: float, text: str) -> None:
    assert format_number(value) == text


def test_table_joins_intervals_and_marks_missing() -> None:
    view, below = to_display(_frame())
    assert list(view.columns) == ["domain", "rate", "n_nodes", "reason"]
    assert list(view["rate"]) == ["0.5123 [0.4000, 0.6000]", "-"]
    assert list(view["n_nodes"]) == ["7", "-"]
    assert below == ["method: percentile"]


def test_a_method_that_differs_stays_a_column() -> None:
    frame = _frame().assign(method=["percentile", "BCa"])
    view, below = to_display(frame)
    assert list(view["method"]) == ["percentile", "BCa"]
    assert below == []


def test_plain_table_shows_every_column_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    wide = pd.DataFrame({"name": ["word " * 60], **{f"column_{i}": [float(i)] for i in range(40)}})
    emit(wide, title="Wide", notes=["a note"])
    out, err = capsys.readouterr()
    assert ("word " * 60).strip() in out
    assert all(f"column_{i}" in out for i in range(40))
    assert err == "Wide\nnote: a note\n"


def test_csv_keeps_the_bounds_and_full_precision(capsys: pytest.CaptureFixture[str]) -> None:
    emit(_frame(), fmt="csv")
    back = pd.read_csv(io.StringIO(capsys.readouterr().out))
    assert list(back.columns) == list(_frame().columns)
    assert back["rate"].tolist()[0] == 0.51234
    assert back["rate"].isna().tolist() == [False, True]


def test_json_is_strict_and_writes_null_and_inf(capsys: pytest.CaptureFixture[str]) -> None:
    frame = _frame().assign(
        kl=[np.inf, np.float32(0.5)], items=[[1, 2.5], [np.nan]], flag=[np.True_, np.False_]
    )
    emit(frame, fmt="json")
    rows = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert rows[0]["kl"] == "inf"
    assert rows[1]["rate"] is None
    assert rows[1]["n_nodes"] is None
    assert rows[1]["items"] == [None]
    assert [row["flag"] for row in rows] == [True, False]


@pytest.mark.parametrize("fmt", ["table", "csv", "json"])
def test_an_empty_frame_prints(fmt: OutputFormat, capsys: pytest.CaptureFixture[str]) -> None:
    emit(_frame().iloc[:0], fmt=fmt)
    out = capsys.readouterr().out
    assert out == "[]\n" if fmt == "json" else "domain" in out


def _read_json(path: Path) -> pd.DataFrame:
    return pd.DataFrame(json.loads(path.read_text()))


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
def test_the_suffix_decides(suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "made" / f"table.{suffix}"
    emit(_frame(), output=path)
    readers = {"csv": pd.read_csv, "json": _read_json, "parquet": pd.read_parquet}
    assert readers[suffix](path)["rate"].tolist()[0] == 0.51234
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"wrote 2 rows to {path}\n"
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_parquet_needs_a_file() -> None:
    with pytest.raises(UsageError, match="--output"):
        emit(_frame(), fmt="parquet")


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write"):
        emit(_frame(), output=tmp_path / "file" / "x.csv")


def test_a_narrow_terminal_gets_blocks_with_their_keys(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_: os.terminal_size((60, 24)))
    frame = pd.DataFrame({"domain": ["code"], "depth": [3], **{f"long_name_{i}": [i / 7] for i in range(12)}})
    emit(frame)
    out = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    lines = [line for line in out.splitlines() if line.strip()]
    assert max(map(len, lines)) <= 60
    assert all(f"long_name_{i} " in out for i in range(12))
    headers = [line for line in lines if "long_name" in line]
    assert len(headers) > 1
    assert all("domain" in line and "depth" in line for line in headers)
