"""`check_run`: a sound run has no fault, and each way to break one gives its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from acceptlab.store import RunWriter, open_run
from acceptlab.store.check import check_run
from acceptlab.store.invariants import INVARIANTS
from tests.store.helpers import FIELDS, prompt_tables, rewrite_part, write_run
from tests.synthetic import make_run

Change = Callable[[pa.Table], pa.Table]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A complete run of greedy trees, with accepted second siblings, untested nodes and cut steps."""
    writer = RunWriter.create(tmp_path / "run", FIELDS)
    for number in range(4):
        writer.write(prompt_tables(number, tree="kary:depth=2,branch=2"))
    writer.write({"prompts": {**prompt_tables(9)["prompts"], **skipped()}})
    writer.finish(compression=3)
    return tmp_path / "run"


def skipped() -> dict[str, list[object]]:
    return {
        "n_new_tokens": [0],
        "output_token_ids": [[]],
        "stop_reason": ["skipped"],
        "skip_reason": ["the prompt has no tokens"],
    }


@pytest.mark.parametrize(
    ("rule", "tree"),
    [
        ("greedy", "kary:depth=3,branch=2"),
        ("typical:eps=0.09,delta=0.3", "branches:3,2,1"),
        ("onehot", "branches:4,2"),
        ("rejection", "kary:depth=2,branch=3"),
        ("rejection", "chain:4"),
    ],
)
def test_a_sound_run_has_no_fault(tmp_path: Path, rule: str, tree: str) -> None:
    folder = make_run(
        tmp_path / "run", n_prompts=6, n_steps=6, rule=rule, tree=tree, vocab_size=100, n_skipped=2
    )
    assert check_run(folder) == []


def test_an_unfinished_and_an_empty_run_are_sound(tmp_path: Path) -> None:
    write_run(tmp_path / "half", 2, finish=False)
    write_run(tmp_path / "empty", 0)
    write_run(tmp_path / "started", 0, finish=False)
    for name in ("half", "empty", "started"):
        assert check_run(tmp_path / name) == []


def test_a_changed_byte_is_found_by_its_checksum(folder: Path) -> None:
    path = open_run(folder).files("contexts")[0]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    faults = check_run(folder)
    assert len(faults) == 2
    assert f"'{path}' has another checksum" in faults[0]
    assert "the rows were not checked" in faults[1]


def test_a_missing_part_is_named_and_rows_are_not_judged(folder: Path) -> None:
    path = open_run(folder).files("steps")[0]
    path.unlink()
    faults = check_run(folder)
    assert len(faults) == 2
    assert f"'{path}' is missing" in faults[0]
    assert "the rows were not checked" in faults[1]


def setting(column: str, value: object, where: Callable[[pa.Table], np.ndarray] | None = None) -> Change:
    """Set a column to a value (or to a function of its values) in the first row, or the first that `where` allows."""

    def change(table: pa.Table) -> pa.Table:
        index = table.column_names.index(column)
        values = table[column].to_pylist()
        row = 0 if where is None else int(np.flatnonzero(where(table))[0])
        values[row] = value(values[row]) if callable(value) else value
        kind = table.schema.field(column).type
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        return table.set_column(index, column, pa.array(values, plain))

    return change


def column(table: pa.Table, name: str) -> np.ndarray:
    return np.array(table[name].to_pylist(), dtype=object)


def where(name: str, value: object) -> Callable[[pa.Table], np.ndarray]:
    return lambda table: column(table, name) == value


def plus(amount: float) -> Callable[[float], float]:
    return lambda value: value + amount


def below_a_rejected(table: pa.Table) -> np.ndarray:
    return (
        (column(table, "outcome") == "untested")
        & (column(table, "depth") == 2)
        & (column(table, "test_prob") == 0)
    )


def later_sibling_of_accepted(table: pa.Table) -> np.ndarray:
    outcome, rank = column(table, "outcome"), column(table, "child_rank")
    after = np.concatenate([[False], outcome[:-1] == "accepted"])
    return after & (rank == 1) & (outcome == "untested")


def reached_in_an_uncut_step(table: pa.Table) -> np.ndarray:
    return (column(table, "outcome") == "rejected") & (column(table, "step") == 0)


BREAKS: list[tuple[str, Change, str]] = [
    ("nodes", setting("draft_prob", 1.5), "a probability is outside 0 to 1"),
    ("nodes", setting("draft_entropy", -0.5), "an entropy or divergence is negative"),
    ("nodes", setting("outcome", "maybe"), "the outcome is unknown"),
    ("nodes", setting("step", 77), "the step is missing from steps"),
    ("nodes", setting("depth", 5), "the depth does not follow the parent's"),
    ("nodes", setting("parent", 6), "the depth does not follow the parent's"),
    ("nodes", setting("position", plus(1)), "the position is not"),
    ("nodes", setting("accept_ratio", lambda ratio: ratio / 2), "accept_ratio is not min(1"),
    ("nodes", setting("accept_ratio", None), "accept_ratio is not min(1"),
    ("nodes", setting("path_draft_prob", lambda prob: prob / 2), "path_draft_prob is not"),
    ("nodes", setting("test_prob", 0.5), "test_prob does not follow"),
    (
        "nodes",
        setting("accept_prob", None, where("test_prob", 1.0)),
        "test_prob is positive and accept_prob null",
    ),
    ("nodes", setting("outcome", "rejected", below_a_rejected), "below one that was not accepted"),
    ("nodes", setting("outcome", "rejected", later_sibling_of_accepted), "after an accepted sibling"),
    (
        "nodes",
        setting("outcome", "untested", reached_in_an_uncut_step),
        "a node that was reached is untested",
    ),
    ("nodes", setting("outcome", "accepted", where("outcome", "rejected")), "the outcome has probability 0"),
    ("nodes", setting("outcome", "rejected", where("outcome", "accepted")), "the outcome has probability 0"),
    (
        "nodes",
        setting("target_margin", lambda margin: margin / 2),
        "a measure differs from the parent's context",
    ),
    ("contexts", setting("overlap", 1.5), "a probability is outside 0 to 1"),
    ("contexts", setting("renyi_half", -1.0), "an entropy or divergence is negative"),
    ("contexts", setting("target_argmax", plus(1)), "the argmax is not the first"),
    ("contexts", setting("draft_probs", lambda probs: probs[::-1]), "tokens are not in order"),
    ("steps", setting("n_nodes", plus(1)), "n_nodes is not"),
    ("steps", setting("n_tested", plus(1)), "n_tested is not"),
    ("steps", setting("accepted_len", plus(1)), "accepted_len is not the number"),
    ("steps", setting("expected_accepted_len", plus(0.1)), "expected_accepted_len is not"),
    ("steps", setting("emitted_len", plus(1)), "emitted_len is not accepted_len + 1"),
    ("steps", setting("bonus_token_id", None), "the bonus token is missing though the text went on"),
    ("steps", setting("bonus_token_id", None), "a cut step emitted more than it accepted"),
    ("steps", setting("step", 9), "do not count from 0"),
    ("steps", setting("context_len", plus(1)), "context_len does not follow"),
    ("steps", setting("stop_reason", "eos"), "the stop reason does not mark the last step"),
    ("steps", setting("stop_reason", "tired"), "the stop reason is unknown"),
    ("prompts", setting("stop_reason", "tired"), "the stop reason is unknown"),
    ("prompts", setting("stop_reason", "context"), "the stop reason is not that of the last step"),
    ("prompts", setting("n_new_tokens", plus(1)), "n_new_tokens is not the sum of emitted_len"),
    ("prompts", setting("output_token_ids", [1]), "n_new_tokens is not the length"),
    ("prompts", setting("skip_reason", "none"), "a skipped prompt has steps or no reason"),
    ("nodes", setting("draft_prob", float("nan")), "column 'draft_prob' holds not-a-number in 1 rows"),
    ("contexts", setting("target_probs", [float("nan")] * 32), "'target_probs' holds not-a-number in 1 rows"),
    ("contexts", setting("overlap", float("inf")), "column 'overlap' holds infinity in 1 rows"),
    ("nodes", setting("run_id", "another"), "nodes: 1 run ids are not the manifest's, one is 'another'"),
    ("contexts", setting("prompt_id", "foreign"), "prompts are missing from table prompts, one is 'foreign'"),
]


@pytest.mark.parametrize(("table", "change", "says"), BREAKS)
def test_each_way_to_break_a_run_gives_its_fault(folder: Path, table: str, change: Change, says: str) -> None:
    rewrite_part(folder, table, change)
    faults = check_run(folder)
    assert any(says in fault and fault.startswith(f"{table}: ") for fault in faults), faults
    assert all("\n" not in fault for fault in faults)


def test_every_invariant_is_broken_by_some_case() -> None:
    cases = [*(says for _, _, says in BREAKS), "the accepted nodes are not one path"]
    assert [rule.says for rule in INVARIANTS if not any(says in rule.says for says in cases)] == []


def test_accepted_nodes_beside_each_other_are_not_a_path(folder: Path) -> None:
    rewrite_part(folder, "nodes", setting("outcome", "accepted", later_sibling_of_accepted))
    assert any("the accepted nodes are not one path" in fault for fault in check_run(folder))


@pytest.mark.parametrize("table", ["nodes", "contexts", "steps", "prompts"])
def test_rows_that_share_a_key_are_found(folder: Path, table: str) -> None:
    rewrite_part(folder, table, lambda rows: pa.concat_tables([rows, rows.slice(0, 1)]))
    faults = check_run(folder)
    assert any(
        fault.startswith(f"{table}: 1 keys occur more than once, one is prompt_id 'code/") for fault in faults
    )


def test_an_old_part_without_a_column_is_no_fault(folder: Path) -> None:
    rewrite_part(folder, "contexts", lambda rows: rows.drop_columns(["renyi_half"]))
    assert check_run(folder) == []


def test_infinite_divergences_are_no_fault(folder: Path) -> None:
    for table in ("nodes", "contexts"):  # the same value in both, as siblings and their context have it

        def infinite(rows: pa.Table) -> pa.Table:
            index = rows.column_names.index("kl_target_draft")
            return rows.set_column(index, "kl_target_draft", pa.array([np.inf] * rows.num_rows, pa.float32()))

        rewrite_part(folder, table, infinite)
    assert check_run(folder) == []
