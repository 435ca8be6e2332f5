"""Arrays made of buffers are those that pyarrow makes, and a collection does not import pandas for them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from acceptlab.store.arrays import number_array, text_array

_KINDS = [pa.bool_(), pa.int16(), pa.int32(), pa.int64(), pa.float16(), pa.float32(), pa.float64()]


@pytest.mark.parametrize("kind", _KINDS, ids=str)
@pytest.mark.parametrize("n_rows", [0, 1, 8, 19])
def test_numbers_are_those_of_pyarrow(kind: pa.DataType, n_rows: int) -> None:
    generator = np.random.default_rng(n_rows)
    values = (generator.normal(size=2 * n_rows) * 9).astype(kind.to_pandas_dtype())[::2]  # not contiguous
    for is_null in (None, np.zeros(n_rows, dtype=bool), np.arange(n_rows) % 3 == 1):
        found = number_array(values, kind, is_null)
        found.validate(full=True)
        assert found.equals(pa.array(values, type=kind, mask=is_null))
        assert found.null_count == (0 if is_null is None else is_null.sum())


@pytest.mark.parametrize(
    "values", [[], [""], ["a", None, "naïve 你好", "", None, "x\n"], [None] * 9, list("abcdefghi")]
)
def test_texts_are_those_of_pyarrow(values: list[str | None]) -> None:
    found = text_array(values)
    found.validate(full=True)
    assert found.equals(pa.array(values, type=pa.string()))


@pytest.mark.parametrize("wrong", [3, b"a", float("nan")])
def test_what_is_no_text_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=type(wrong).__name__):
        text_array(["a", wrong])


_COLLECTION = """
import sys, tempfile
from types import SimpleNamespace
from acceptlab.collect import collect
from acceptlab.engine import Settings
from acceptlab.pairing import proposal_for
from acceptlab.prompts import Prompt
from acceptlab.rules import parse_rule
from acceptlab.run import Request
from acceptlab.sampling import Warp
from acceptlab.store import RunWriter
from acceptlab.toy import TableModel, random_table
from acceptlab.tree import parse_tree

models = [TableModel(random_table(6, seed), 6) for seed in (0, 1)]
pair = SimpleNamespace(
    target=models[0], draft=models[1], window_limit=None, encode=lambda text: [1, 2, 3], decode=lambda ids: "x"
)
rule = parse_rule("greedy")
how = Settings(
    tree=parse_tree("kary:depth=2,branch=2"), rule=rule, proposal=proposal_for(rule), warp=Warp(),
    max_new_tokens=5, seed=0,
)
with tempfile.TemporaryDirectory() as folder:
    writer = RunWriter.create(folder + "/run", {"config": {}})
    collect(pair, [Prompt("a", "code", "x"), Prompt("b", "code", "y")], how, writer)
    assert writer.is_complete
print(*[name for name in ("pandas", "duckdb", "matplotlib", "scipy") if name in sys.modules])
"""


def test_a_collection_imports_nothing_of_the_analysis() -> None:
    done = subprocess.run([sys.executable, "-c", _COLLECTION], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""
