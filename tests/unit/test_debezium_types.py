"""Values of every type and mode in Debezium's documentation arrive as the source's, from JSON and from Avro."""

import json
from datetime import datetime
from math import isfinite
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from exactbatch import Debezium
from exactbatch.formats.decoders import find_decoder
from support.connect_avro import avro_body, avro_schema
from support.debezium_types import CONNECTORS, Value, envelope, typed

VALUES = [(name, value) for name, values in CONNECTORS.items() for value in values]
ALL = pytest.mark.parametrize(
    "value", [value for _, value in VALUES], ids=[f"{name}: {value.source}" for name, value in VALUES]
)


def event(row: dict[str, Any], op: str = "c") -> dict[str, Any]:
    before, after = (row, None) if op == "d" else (None, row)
    return {
        "before": before,
        "after": after,
        "source": {"lsn": 5, "sequence": '["4","5"]'},
        "op": op,
        "ts_ms": 1,
    }


def schema_of(value: Value) -> dict[str, Any]:
    return envelope(
        {"id": typed("int32"), "x": value.schema}, {"lsn": typed("int64"), "sequence": typed("string")}
    )


def written_in_json(schema: dict[str, Any], events: list[dict[str, Any]]) -> list[bytes]:
    return [
        json.dumps({"schema": schema, "payload": each}, separators=(",", ":")).encode() for each in events
    ]


def printed(value: Any, type_: pa.DataType) -> str:
    """A decoded value as Postgres prints it."""
    match value:
        case bool():
            return "true" if value else "false"
        case bytes():
            return f"\\x{value.hex()}"
        case datetime():
            zone = "+00" if getattr(type_, "tz", None) else ""
            text = value.replace(tzinfo=None).isoformat(" ")
            return (text.rstrip("0") if "." in text else text) + zone
        case float() if not isfinite(value):
            return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
        case float():
            return f"{value:.17g}" if value != float(f"{value:g}") else f"{value:g}"
        case list():
            return f"{{{','.join('NULL' if each is None else printed(each, type_.value_type) for each in value)}}}"
        case _:
            return str(value)


# What Postgres, and not the format, makes of text that it parses.
PARSED = {
    "char(3)": str.rstrip,
    "uuid": str.lower,
    "interval": lambda text: {
        "P1Y2M3DT4H5M6.78S": "1 year 2 mons 3 days 04:05:06.78",
        "P0Y0M1DT0H0M-6.5S": "1 day -00:00:06.5",
    }.get(text, text.removesuffix(".000000")),
    "time": lambda text: text.rstrip("0").rstrip(".") if "." in text else text,
    "timetz": lambda text: text.replace("Z", "+00"),
    "pg_catalog.timestamptz": lambda text: text.replace("Z", "+00").replace("T", " "),
    "pg_catalog.timestamp": lambda text: text.replace("T", " "),
    "jsonb": lambda text: json.dumps(json.loads(text)) if "2.50" not in text else text,
    "bytea[]": lambda text: '{"\\\\xfe"}',
}


def check(decoded: Any, value: Value, rows: int) -> None:
    assert decoded.rejects == ()
    assert len(decoded.rows) == rows
    if value.printed.endswith(" BC"):  # Python has no such date
        [days] = pc.unique(decoded.rows.column("x").cast(pa.int32()).drop_null()).to_pylist()
        assert days == value.written
        return
    column = decoded.rows.column("x")
    values = column.to_pylist()
    assert values[1] is None
    text = {printed(each, column.type) for at, each in enumerate(values) if at != 1}
    assert {PARSED.get(value.column, str)(each) for each in text} == {value.printed}


@ALL
def test_a_value_arrives_as_the_source_has_it(value):
    form = Debezium(f"id int, x {value.column}", version="postgres")
    events = [event({"id": 1, "x": value.written}), event({"id": 2, "x": None})]
    events += [event({"id": 3, "x": value.written}, "u"), event({"id": 3, "x": value.written}, "d")]
    values = written_in_json(schema_of(value), events)
    check(find_decoder(form).decode(pa.array(values, pa.binary())), value, 4)


@pytest.fixture
def registry(monkeypatch):
    schemas: dict[int, str] = {}
    monkeypatch.setattr(
        "exactbatch.formats.avro.bodies.fetch_schema", lambda _registry, id_, *_: schemas.get(id_)
    )
    return schemas


@ALL
def test_a_value_arrives_from_avro(value, registry):
    schema = schema_of(value)
    registry[7] = json.dumps(avro_schema(schema))
    events = [event({"id": 1, "x": value.written}), event({"id": 2, "x": None})]
    events += [event({"id": 3, "x": value.written}, "u"), event({"id": 3, "x": value.written}, "d")]
    values = [b"\0\0\0\0\x07" + avro_body(schema, each) for each in events]
    form = Debezium(f"id int, x {value.column}", version="postgres", registry="http://registry")
    decoded = find_decoder(form).decode(pa.array(values, pa.binary()))
    check(decoded, value, 4)
    assert decoded.deleted.to_pylist() == [False] * 3 + [True]
    assert decoded.rows.column("commit_lsn").to_pylist() == [4] * 4
    assert decoded.rows.column("lsn").to_pylist() == [5] * 4
