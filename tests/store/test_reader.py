"""Reading runs: old and damaged parts, other readers, the newest run."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
import pytest

from acceptlab.errors import RunError, UsageError
from acceptlab.records import TABLES
from acceptlab.store import find_runs, open_run
from acceptlab.store.reader import SAMPLE_FOLDER, damaged_runs
from tests.store.helpers import FIELDS, frames, rewrite_part, write_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An unfinished run of three prompts, so that every table has three parts."""
    write_run(tmp_path / "run", 3, finish=False)
    return tmp_path / "run"


def test_an_old_part_without_a_column_reads_as_nulls(folder: Path) -> None:
    n_old = rewrite_part(folder, "contexts", lambda table: table.drop_columns(["renyi_half"])).stat().st_size
    assert n_old
    run = open_run(folder)
    n_old_rows = run.parts("contexts")[0]["rows"]
    column = run.read("contexts")["renyi_half"]
    assert column.type == pa.float32()
    assert column.null_count == n_old_rows < len(column)  # kept in the newer parts
    assert column[:n_old_rows].null_count == n_old_rows
    only = run.read("contexts", ["renyi_half", "step"])
    assert only.column_names == ["step", "renyi_half"]
    assert only["renyi_half"].null_count == n_old_rows


def test_a_column_of_an_unknown_future_is_left_out(folder: Path) -> None:
    rewrite_part(folder, "steps", lambda table: table.append_column("colour", table["step"]))
    assert "colour" not in open_run(folder).read("steps").column_names


def test_a_part_of_another_type_is_named(folder: Path) -> None:
    def widen(table: pa.Table) -> pa.Table:
        index = table.column_names.index("token_id")
        return table.set_column(index, "token_id", table["token_id"].cast(pa.int64()))

    path = rewrite_part(folder, "nodes", widen)
    with pytest.raises(RunError, match=f"'{path}' stores column 'token_id' as int64, not int32"):
        open_run(folder)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def overwrite(path: Path) -> None:
    path.write_bytes(b"x" * path.stat().st_size)


def lengthen(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:4] + b"x" + content[4:])


@pytest.mark.parametrize("damage", [truncate, overwrite, lengthen, Path.unlink])
def test_a_damaged_part_is_named_and_lenient_readers_go_on(folder: Path, damage: object) -> None:
    path = open_run(folder).files("nodes")[1]
    n_rows = open_run(folder).n_rows("nodes")
    damage(path)  # type: ignore[operator]
    with pytest.raises(RunError) as caught:
        open_run(folder)
    assert str(path) in str(caught.value)
    run = open_run(folder, strict=False)
    assert len(run.faults) == 1
    assert str(path) in run.faults[0]
    assert path not in run.files("nodes")
    assert 0 < run.read("nodes").num_rows == run.n_rows("nodes") < n_rows


def test_damage_inside_a_part_is_named_when_it_is_read(folder: Path) -> None:
    path = open_run(folder).files("nodes")[0]
    content = bytearray(path.read_bytes())
    content[4:200] = b"\xff" * 196  # the first column's page; the footer is whole
    path.write_bytes(bytes(content))
    run = open_run(folder)
    with pytest.raises(RunError, match=str(path)):
        run.read("nodes")


def test_manifests_that_cannot_be_read(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"'nowhere' is not a run"):
        open_run("nowhere")
    path = folder / "manifest.json"
    whole = json.loads(path.read_text())
    for content, says in (
        ("{", "damaged"),
        ("[]", "not a manifest"),
        (json.dumps({**whole, "schema_version": 99}), "newer than"),
        (json.dumps({key: value for key, value in whole.items() if key != "parts"}), "lacks 'parts'"),
    ):
        path.write_text(content)
        with pytest.raises(RunError, match=says):
            open_run(folder)
    stray = json.loads(json.dumps(whole))
    stray["parts"]["nodes"][0]["file"] = "../other/part-000001.parquet"
    path.write_text(json.dumps(stray))
    with pytest.raises(RunError, match="no part of table 'nodes'"):
        open_run(folder)


def test_reading_some_columns_and_tables(folder: Path) -> None:
    run = open_run(folder)
    assert run.read("nodes", ["depth", "prompt_id"]).column_names == ["prompt_id", "depth"]
    assert run.read("nodes", []).num_columns == 0
    for ask, says in (
        (lambda: run.read("nodes", ["colour"]), "no column 'colour'"),
        (lambda: run.read("node"), "no table 'node'"),
        (lambda: run.files("node"), "no table 'node'"),
    ):
        with pytest.raises(UsageError, match=says):
            ask()
    pieces = list(run.batches("nodes", n_rows=2))
    assert max(piece.num_rows for piece in pieces) == 2
    assert pa.concat_tables(pieces).unify_dictionaries().equals(run.read("nodes"))


def test_a_run_without_rows_reads_as_empty_tables(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 0, finish=False)
    run = open_run(tmp_path / "run")
    assert run.files("nodes") == []
    assert run.read("nodes").schema.equals(run.read("nodes", None).schema)
    assert run.read("nodes", ["depth"]).column_names == ["depth"]


def test_duckdb_and_pandas_read_the_same_values(folder: Path) -> None:
    expected = frames(folder)
    for table in TABLES:
        pattern = f"{folder}/{table.name}/*.parquet"
        found = duckdb.sql(f"SELECT * FROM '{pattern}' ORDER BY {', '.join(table.key)}").to_arrow_table()
        assert found.to_pylist() == pa.Table.from_pandas(expected[table.name]).to_pylist()
        files = [pd.read_parquet(path) for path in open_run(folder).files(table.name)]
        assert sum(len(frame) for frame in files) == len(expected[table.name])
    query = f"SELECT target_probs[1], list_sum(draft_probs), len(target_token_ids) FROM '{folder}/contexts/*.parquet'"
    top, total, length = duckdb.sql(query).fetchall()[0]
    assert 0 < top <= 1
    assert 0 < total <= 1
    assert length == 32


def manifest_of(folder: Path, **changes: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_runs_are_found_complete_and_newest_first(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for name, finish, created in (
        ("old", True, "2026-01-01T00:00:00+00:00"),
        ("new", True, "2026-03-01T00:00:00+00:00"),
        ("broken-off", False, "2026-05-01T00:00:00+00:00"),
    ):
        write_run(runs / name, 1, finish=finish, fields={**FIELDS, "created": created})
    (runs / "not-a-run").mkdir()
    (runs / "damaged").mkdir()
    (runs / "damaged" / "manifest.json").write_text("{")
    assert [path.name for path in find_runs(runs)] == ["new", "old", "broken-off"]
    assert [path.name for path in find_runs(runs / "new")] == ["new"]
    assert len(damaged_runs(runs)) == 1
    assert str(runs / "damaged") in damaged_runs(runs)[0]


def test_without_runs_the_sample_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / SAMPLE_FOLDER, 1)
    assert find_runs() == [SAMPLE_FOLDER]
    assert find_runs(sample=False) == []
    write_run(tmp_path / "data" / "runs" / "mine", 1)
    assert find_runs() == [Path("data/runs/mine")]
