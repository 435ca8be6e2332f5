"""Declarations -> Arrow schemas, Parquet options and the schema page."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from acceptlab.records import SCHEMA_VERSION, TABLES, Table
from acceptlab.store.docs import SCHEMA_PAGE, schema_page
from acceptlab.store.provenance import CHECKOUT
from acceptlab.store.schema import (
    DICTIONARY_COLUMNS,
    arrow_schema,
    file_schema,
    reading_schema,
    write_options,
)

each_table = pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)


@each_table
def test_every_column_has_its_declared_type_and_nullability(table: Table) -> None:
    schema = arrow_schema(table)
    assert schema.names == [column.name for column in table.columns]
    for column, field in zip(table.columns, schema, strict=True):
        kind = field.type.value_type if column.name in DICTIONARY_COLUMNS else field.type
        if pa.types.is_list(kind):
            assert not kind.value_field.nullable
            assert f"list<{kind.value_type}>".replace("float", "float32") == column.type.replace(
                "float16", "halffloat"
            )
        else:
            assert str(kind) == {"float32": "float", "float64": "double"}.get(column.type, column.type)
        assert field.nullable == column.nullable
        assert field.metadata[b"doc"].decode() == column.doc
        assert field.metadata[b"unit"].decode() == column.unit


@each_table
def test_the_schema_names_its_version_and_key(table: Table) -> None:
    about = json.loads(arrow_schema(table).metadata[b"acceptlab"])
    assert about == {
        "schema_version": SCHEMA_VERSION,
        "table": table.name,
        "grain": table.grain,
        "key": list(table.key),
    }


@each_table
def test_the_options_are_ones_that_parquet_takes(table: Table, tmp_path: pytest.TempPathFactory) -> None:
    path = f"{tmp_path}/empty.parquet"
    pq.write_table(file_schema(table).empty_table(), path, **write_options(table))
    found = pq.read_schema(path)
    assert found.equals(arrow_schema(table))
    assert found.metadata == arrow_schema(table).metadata


@each_table
def test_files_carry_units_and_the_version(table: Table) -> None:
    schema = file_schema(table)
    assert schema.equals(arrow_schema(table))
    assert schema.metadata == arrow_schema(table).metadata
    units = {field.name: field.metadata[b"unit"].decode() for field in schema if field.metadata}
    assert units == {column.name: column.unit for column in table.columns if column.unit}


@each_table
def test_readers_allow_nulls_everywhere(table: Table) -> None:
    assert all(field.nullable for field in reading_schema(table))


def test_the_committed_schema_page_is_fresh() -> None:
    committed = (CHECKOUT / SCHEMA_PAGE).read_text(encoding="utf-8")
    assert committed == schema_page(), "run python -m acceptlab.store.docs"


def test_the_schema_page_names_every_column() -> None:
    page = schema_page()
    for table in TABLES:
        assert f"## {table.name}\n" in page
        for column in table.columns:
            assert f"| `{column.name}` | `{column.type}`" in page
