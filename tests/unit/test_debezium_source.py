"""Fields of an event's source as columns, and events of several tables in one topic."""

import json
from typing import Any

import pyarrow as pa
import pytest

from exactbatch import Debezium, Flattened
from exactbatch.errors import ConfigurationError
from exactbatch.formats.decoders import find_decoder
from support.connect_avro import avro_body, avro_schema
from support.debezium_types import envelope, typed
from support.registry import registry_server

SOURCE = {"db": typed("string"), "table": typed("string"), "lsn": typed("int64"), "sequence": typed("string")}
# Two tables, neither of which has all columns.
TABLES = {
    "customer": {"id": typed("int32"), "name": typed("string")},
    "product": {"id": typed("int32"), "total": typed("int32")},
}
SCHEMA = "id int, name text, total int"


def event(table: str | None, op: str = "c", **row: Any) -> dict[str, Any]:
    source = {"db": "shop", "table": table, "lsn": 7, "sequence": '["6","7"]'}
    before, after = (row, None) if op == "d" else (None, row)
    return {"before": before, "after": after, "source": source, "op": op}


EVENTS = [
    event("customer", id=1, name="a"),
    event("product", id=2, total=3),
    event("product", "d", id=2, total=3),
]
ROWS = [
    {"id": 1, "name": "a", "total": None, "source_table": "customer", "source_db": "shop"},
    {"id": 2, "name": None, "total": 3, "source_table": "product", "source_db": "shop"},
    {"id": 2, "name": None, "total": 3, "source_table": "product", "source_db": "shop"},
]


def decode(values: list[bytes], **options: Any) -> Any:
    form = Debezium(SCHEMA, source=("table", "db"), **options)
    return find_decoder(form).decode(pa.array(values, pa.binary()))


def written(each: dict[str, Any], *, with_schema: bool = False) -> bytes:
    if with_schema:
        each = {"schema": envelope(TABLES[each["source"]["table"]], SOURCE), "payload": each}
    return json.dumps(each, separators=(",", ":")).encode()


@pytest.mark.parametrize("with_schema", [False, True])
def test_fields_of_the_source_are_columns_of_events_of_any_table(with_schema):
    decoded = decode([written(each, with_schema=with_schema) for each in EVENTS])
    assert decoded.rejects == ()
    assert decoded.rows.to_pylist() == ROWS
    assert decoded.deleted.to_pylist() == [False, False, True]


def test_they_are_in_avro_too_and_before_the_columns_of_a_version():
    with registry_server() as registry:
        values = []
        for id_, each in enumerate(EVENTS, 1):
            schema = envelope(TABLES[each["source"]["table"]], SOURCE)
            registry.has(id_, avro_schema(schema))
            values.append(bytes([0, 0, 0, 0, id_]) + avro_body(schema, each))
        decoded = decode(values, registry=registry.address, version="postgres")
    assert decoded.rejects == ()
    assert decoded.rows.to_pylist() == [{**row, "commit_lsn": 6, "lsn": 7} for row in ROWS]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"table": 5}, "column 'source_table', text: "),
        ({"table": {"name": "t"}}, "column 'source_table', text: "),
        ({"table": "a\0b"}, "column 'source_table', text: "),
    ],
)
@pytest.mark.parametrize("neighbours", [0, 3])
def test_a_field_that_is_no_text_is_a_reject(source, said, neighbours):
    bad = {**event("t", id=1), "source": source}
    decoded = decode([written(each) for each in [*EVENTS[:neighbours], bad]])
    [(at, reason)] = decoded.rejects
    assert at == neighbours
    assert reason.startswith(said)
    assert len(decoded.rows) == neighbours


def test_a_field_that_the_source_lacks_is_null():
    without = {key: value for key, value in event(None, id=1).items() if key != "source"}
    decoded = decode([written(event(None, id=1)), written(without)])
    assert decoded.rejects == ()
    assert decoded.rows.column("source_table").to_pylist() == [None, None]
    assert decoded.rows.column("source_db").to_pylist() == ["shop", None]


def test_columns_of_the_source_are_no_columns_of_the_row():
    with pytest.raises(ConfigurationError, match="source='table': .* 'source_table'"):
        Debezium("id int, source_table text", source="table")
    with pytest.raises(ConfigurationError, match="source=''"):
        Debezium("id int", source="")
    with pytest.raises(TypeError, match="source"):
        Flattened("id int", source="table")
