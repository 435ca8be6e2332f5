"""The last gate before a file: what each kind of column takes, turns into null, or refuses by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from acceptlab.errors import RunError
from acceptlab.records import CONTEXTS, NODES, PROMPTS, STEPS, Outcome
from acceptlab.store.convert import to_arrow
from acceptlab.store.schema import arrow_schema
from tests.store.helpers import Tables, prompt_tables


@pytest.fixture
def tables() -> Tables:
    return prompt_tables(1)


def test_all_null_columns_keep_their_type(tables: Tables) -> None:
    n_rows = len(tables["steps"]["step"])
    tables["steps"] |= {"stop_reason": [None] * n_rows, "bonus_token_id": [None] * n_rows}
    tables["nodes"]["accept_prob"] = [None] * len(tables["nodes"]["step"])
    steps = to_arrow(STEPS, tables["steps"], "run-1")
    assert steps.schema.equals(arrow_schema(STEPS))
    assert steps["stop_reason"].null_count == steps["bonus_token_id"].null_count == n_rows
    assert steps["bonus_token_id"].type == pa.int32()
    nodes = to_arrow(NODES, tables["nodes"], "run-1")
    assert nodes["accept_prob"].type == pa.float32()
    assert nodes["accept_prob"].null_count == nodes.num_rows


def test_nulls_inside_dictionary_values_become_nulls_of_the_rows(tables: Tables) -> None:
    n_rows = len(tables["steps"]["step"])
    assert n_rows >= 2
    indices = pa.array([0, *[1] * (n_rows - 1)], pa.int32())
    given = pa.DictionaryArray.from_arrays(indices, pa.array(["length", None]))
    assert given.null_count == 0  # the nulls hide in the values
    tables["steps"]["stop_reason"] = given
    stored = to_arrow(STEPS, tables["steps"], "run-1")["stop_reason"].combine_chunks()
    assert stored.null_count == n_rows - 1
    assert stored.dictionary.null_count == 0
    assert stored.to_pylist() == ["length", *[None] * (n_rows - 1)]


def test_a_null_in_dictionary_values_is_refused_where_none_may_stand(tables: Tables) -> None:
    n_rows = len(tables["steps"]["step"])
    tables["steps"]["domain"] = pa.DictionaryArray.from_arrays(
        pa.array([0] * n_rows, pa.int32()), pa.array([None], pa.string())
    )
    with pytest.raises(RunError, match=r"'steps\.domain' has a null"):
        to_arrow(STEPS, tables["steps"], "run-1")


def test_not_a_number_becomes_null_where_it_may(tables: Tables) -> None:
    n_rows = len(tables["nodes"]["step"])
    ratios = np.full(n_rows, 0.5)
    ratios[1] = np.nan
    tables["nodes"]["accept_ratio"] = ratios
    stored = to_arrow(NODES, tables["nodes"], "run-1")["accept_ratio"]
    assert stored.to_pylist() == [0.5, None, *[0.5] * (n_rows - 2)]


def first(value: Any) -> Any:
    """Replace the first value of a column."""
    return lambda values: [value, *list(values)[1:]]


REFUSED = [
    ("nodes", "draft_prob", first(np.nan), "is not a number"),
    ("nodes", "draft_prob", first(None), "is not a number"),
    ("nodes", "draft_prob", first(np.inf), "is infinite"),
    ("nodes", "draft_prob", first(1e300), "is infinite in some row, or too large"),
    ("nodes", "kl_target_draft", first(-np.inf), "is minus infinity"),
    ("nodes", "draft_prob", first("high"), "where numbers are required"),
    ("nodes", "node", first(40_000), "holds 40000, outside the range of int16"),
    ("nodes", "token_id", first(2**31), "holds 2147483648, outside the range of int32"),
    ("nodes", "token_id", first(1.5), "where whole numbers are required"),
    ("nodes", "token_id", first(None), "has a null"),
    ("nodes", "is_target_argmax", first(2), "where true or false is required"),
    ("nodes", "outcome", first(None), "has a null"),
    ("nodes", "outcome", first(3), "not text"),
    ("nodes", "outcome", lambda values: list(values)[1:], "rows"),
    ("contexts", "target_probs", first([np.nan] * 32), "is not a number in some list"),
    ("contexts", "target_probs", first([None] * 32), "is not a number in some list"),
    ("contexts", "target_probs", first(None), "is not a number in some list"),
    ("contexts", "target_probs", first([np.inf] * 32), "is infinite"),
    ("contexts", "target_token_ids", first([1.5] * 32), "where whole numbers are required"),
    ("contexts", "target_token_ids", first(None), "has a null"),
    ("contexts", "target_token_ids", first([2**40] * 32), "outside the range"),
]


@pytest.mark.parametrize(("table", "column", "change", "says"), REFUSED)
def test_a_value_that_a_column_cannot_hold_is_refused_by_name(
    tables: Tables, table: str, column: str, change: Any, says: str
) -> None:
    declared = {"nodes": NODES, "contexts": CONTEXTS}[table]
    tables[table][column] = change(tables[table][column])
    with pytest.raises(RunError, match=rf"'{table}\.{column}' .*{says}"):
        to_arrow(declared, tables[table], "run-1")


def test_columns_are_exactly_the_declared_ones(tables: Tables) -> None:
    short = {name: values for name, values in tables["nodes"].items() if name != "depth"}
    with pytest.raises(RunError, match="table 'nodes' lacks column 'depth'"):
        to_arrow(NODES, short, "run-1")
    with pytest.raises(RunError, match="table 'nodes' has no column 'colour'"):
        to_arrow(NODES, {**tables["nodes"], "colour": tables["nodes"]["depth"]}, "run-1")
    with pytest.raises(RunError, match="has no column 'run_id'"):
        to_arrow(NODES, {**tables["nodes"], "run_id": tables["nodes"]["depth"]}, "run-1")


def test_infinity_is_a_value_of_divergences_and_thresholds(tables: Tables) -> None:
    n_rows = len(tables["contexts"]["step"])
    tables["contexts"] |= {"kl_target_draft": np.full(n_rows, np.inf), "renyi_half": [np.inf] * n_rows}
    tables["contexts"]["thresholds_forward"] = np.full((n_rows, 8), np.inf)
    stored = to_arrow(CONTEXTS, tables["contexts"], "run-1")
    assert set(stored["kl_target_draft"].to_pylist()) == {np.inf}
    assert set(stored["thresholds_forward"].to_pylist()[0]) == {np.inf}


def test_sequences_of_many_kinds_store_the_same(tables: Tables) -> None:
    expected = to_arrow(NODES, tables["nodes"], "run-1")
    for kind in (list, pa.array, pd.Series, lambda values: pa.chunked_array([pa.array(values)])):
        columns = {name: kind(values) for name, values in tables["nodes"].items()}
        assert to_arrow(NODES, columns, "run-1").equals(expected)
    outcomes = [Outcome(outcome) for outcome in tables["nodes"]["outcome"]]
    assert to_arrow(NODES, {**tables["nodes"], "outcome": outcomes}, "run-1").equals(expected)


def test_lists_may_be_ragged_empty_or_a_matrix(tables: Tables) -> None:
    tables["prompts"]["output_token_ids"] = [[]]
    assert to_arrow(PROMPTS, tables["prompts"], "run-1")["output_token_ids"].to_pylist() == [[]]
    matrix = to_arrow(CONTEXTS, tables["contexts"], "run-1")
    tables["contexts"]["target_token_ids"] = [list(row) for row in tables["contexts"]["target_token_ids"]]
    assert to_arrow(CONTEXTS, tables["contexts"], "run-1").equals(matrix)
    n_rows = len(tables["contexts"]["step"])
    tables["contexts"]["target_token_ids"] = [np.arange(n, dtype=np.int64) for n in range(n_rows)]
    ragged = to_arrow(CONTEXTS, tables["contexts"], "run-1")["target_token_ids"].to_pylist()
    assert [len(row) for row in ragged] == list(range(n_rows))


def test_probabilities_and_thresholds_are_rounded_down_and_measures_to_nearest(tables: Tables) -> None:
    third = 1 / 3
    n_rows = len(tables["contexts"]["step"])
    tables["contexts"] |= {
        "target_probs": np.full((n_rows, 32), third),
        "thresholds_forward": np.full((n_rows, 8), third),
        "overlap": np.full(n_rows, third),
    }
    stored = to_arrow(CONTEXTS, tables["contexts"], "run-1").to_pylist()[0]
    # 1/3 = 1.0101...b / 4: cut after 11 and 14 bits
    assert stored["target_probs"] == [0xAAA / 4 / 2**11] * 32
    assert stored["thresholds_forward"] == [0x5555 / 4 / 2**14] * 8
    assert stored["overlap"] == float(np.float32(third))
