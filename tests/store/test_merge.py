"""Merging runs: rows keep their run_id, what must not be mixed is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from acceptlab.errors import RunError, UsageError
from acceptlab.records import TABLES
from acceptlab.store import RunWriter, merge, open_run
from acceptlab.store.check import check_run
from acceptlab.store.merge import merge_runs
from tests.store.helpers import FIELDS, prompt_tables, rewrite_part, snapshot


def make(folder: Path, numbers: range, run_id: str, finish: bool = True, **config: Any) -> Path:
    fields = {**FIELDS, "run_id": run_id, "config": {**FIELDS["config"], **config}}
    writer = RunWriter.create(folder, fields)
    for number in numbers:
        writer.write(prompt_tables(number))
    if finish:
        writer.finish(compression=3)
    writer.close()
    return folder


def test_runs_of_different_prompts_become_one(tmp_path: Path) -> None:
    first = make(tmp_path / "a", range(3), "run-a", limit=3, domains=["code"])
    second = make(tmp_path / "b", range(3, 5), "run-b", limit=2, domains=["code", "chat"])
    merged = open_run(merge_runs([first, second], tmp_path / "both"))
    assert merged.is_complete
    assert check_run(merged.path) == []
    ids = merged.read("prompts").to_pandas().groupby("run_id", observed=True).size()
    assert ids.to_dict() == {"run-a": 3, "run-b": 2}
    for table in TABLES:
        rows = [row for part in (first, second) for row in open_run(part).read(table.name).to_pylist()]
        assert merged.read(table.name).to_pylist() == rows
    assert merged.run_id not in ids
    assert [source["run_id"] for source in merged.manifest["merged_from"]] == ["run-a", "run-b"]
    assert merged.config["domains"] == ["chat", "code"]
    assert merged.config["limit"] is None
    assert merged.config["tree"] == "chain:2"
    assert merged.manifest["models"] == FIELDS["models"]


def test_a_merged_run_merges_again(tmp_path: Path) -> None:
    runs = [make(tmp_path / name, range(i, i + 1), f"run-{name}") for i, name in enumerate("abc")]
    both = merge_runs(runs[:2], tmp_path / "both")
    all_ = open_run(merge_runs([both, runs[2]], tmp_path / "all"))
    assert [source["run_id"] for source in all_.manifest["merged_from"]] == ["run-a", "run-b", "run-c"]
    assert check_run(all_.path) == []
    with pytest.raises(UsageError, match=r"hold the same run run-a"):
        merge_runs([both, runs[0]], tmp_path / "again", force=True)


def test_different_configurations_need_force(tmp_path: Path) -> None:
    first, second = (
        make(tmp_path / "a", range(2), "run-a"),
        make(tmp_path / "b", range(2, 3), "run-b", seed=1),
    )
    with pytest.raises(UsageError, match=r"differ: seed was 0, not 1; add --force"):
        merge_runs([first, second], tmp_path / "both")
    assert not (tmp_path / "both").exists()
    merged = open_run(merge_runs([first, second], tmp_path / "both", force=True))
    assert merged.config["seed"] is None
    assert merged.n_rows("prompts") == 3


def test_other_model_files_are_another_configuration(tmp_path: Path) -> None:
    first = make(tmp_path / "a", range(1), "run-a")
    fields = {**FIELDS, "run_id": "run-b", "models": {"target": {"id": "toy", "sha256": "bb"}}}
    writer = RunWriter.create(tmp_path / "b", fields)
    writer.write(prompt_tables(1))
    writer.finish(compression=3)
    with pytest.raises(UsageError, match="differ: models was"):
        merge_runs([first, tmp_path / "b"], tmp_path / "both")


def test_a_prompt_twice_under_one_configuration_is_refused(tmp_path: Path) -> None:
    first, second = make(tmp_path / "a", range(2), "run-a"), make(tmp_path / "b", range(1, 3), "run-b")
    for force in (False, True):
        with pytest.raises(UsageError, match="prompt 'code/001' is in"):
            merge_runs([first, second], tmp_path / "both", force=force)
    with pytest.raises(UsageError, match="hold the same run run-a"):
        merge_runs([first, first], tmp_path / "both", force=True)


def test_a_prompt_under_two_seeds_needs_force_and_keeps_both(tmp_path: Path) -> None:
    first, second = make(tmp_path / "a", range(2), "run-a"), make(tmp_path / "b", range(2), "run-b", seed=1)
    with pytest.raises(UsageError, match="add --force for different configurations"):
        merge_runs([first, second], tmp_path / "both")
    merged = merge_runs([first, second], tmp_path / "both", force=True)
    assert open_run(merged).n_rows("prompts") == 4
    assert check_run(merged) == []  # keys are unique within a run id


def test_incomplete_runs_need_force(tmp_path: Path) -> None:
    first = make(tmp_path / "a", range(1), "run-a")
    second = make(tmp_path / "b", range(1, 3), "run-b", finish=False)
    with pytest.raises(UsageError, match=r"'.*b' is incomplete: finish it with --resume, or add --force"):
        merge_runs([first, second], tmp_path / "both")
    assert open_run(merge_runs([first, second], tmp_path / "both", force=True)).n_rows("prompts") == 3


def test_what_cannot_be_merged_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = make(tmp_path / "a", range(1), "run-a"), make(tmp_path / "b", range(1, 2), "run-b")
    with pytest.raises(UsageError, match="at least two"):
        merge_runs([first], tmp_path / "both")
    before = snapshot(first)
    with pytest.raises(UsageError, match="already holds a complete run"):
        merge_runs([first, second], first)
    assert snapshot(first) == before

    def full(*arguments: object) -> None:
        raise RunError("no space left")

    monkeypatch.setattr(merge, "strict_rows", full)
    with pytest.raises(RunError, match="no space"):
        merge_runs([first, second], tmp_path / "both")
    assert not (tmp_path / "both").exists()


def test_a_part_without_a_required_column_is_not_rewritten(tmp_path: Path) -> None:
    first, second = make(tmp_path / "a", range(1), "run-a"), make(tmp_path / "b", range(1, 2), "run-b")
    path = rewrite_part(first, "contexts", lambda rows: rows.drop_columns(["renyi_half"]))
    with pytest.raises(RunError, match=rf"'{path}' has no 'renyi_half' in some rows"):
        merge_runs([first, second], tmp_path / "both")
    assert not (tmp_path / "both").exists()
