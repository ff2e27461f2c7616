"""MongoDB's events: documents in extended JSON, of both versions."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from exactbatch import Debezium
from exactbatch.formats.decoders import find_decoder
from support.debezium_types import data, typed


def event(document: Any, op: str = "c", before: Any = None) -> dict[str, Any]:
    images = [None if each is None else json.dumps(each) for each in (before, document)]
    return {
        "before": images[0],
        "after": images[1],
        "updateDescription": None,
        "source": {"ts_ms": 5000, "ord": 3, "collection": "c"},
        "op": op,
    }


def wrapped(value: dict[str, Any]) -> dict[str, Any]:
    text = data("string", "Json")
    source = {"type": "struct", "fields": [{"type": "int32", "field": "ord"}], "field": "source"}
    fields = [
        {**text, "field": "before"},
        {**text, "field": "after"},
        source,
        {**typed("string"), "field": "op"},
    ]
    return {"schema": {"type": "struct", "fields": fields}, "payload": value}


def decode(form: Debezium, *values: Any) -> Any:
    texts = [json.dumps(value, separators=(",", ":")).encode() for value in values]
    return find_decoder(form).decode(pa.array(texts, pa.binary()))


@pytest.mark.parametrize("as_sent", [dict, wrapped], ids=["bare", "with schema"])
@pytest.mark.parametrize(
    ("type_", "written", "found"),
    [
        ("text", {"$oid": "5f"}, "5f"),
        ("text", "plain", "plain"),
        ("bigint", {"$numberLong": "9223372036854775807"}, 2**63 - 1),
        ("int", {"$numberInt": "-5"}, -5),
        ("int", 5, 5),
        ("float8", 0.1, 0.1),
        ("float8", {"$numberDouble": "1e300"}, 1e300),
        ("numeric(38,4)", {"$numberDecimal": "1234"}, Decimal("1234.0000")),
        ("numeric", {"$numberDecimal": "0.10"}, "0.10"),
        ("numeric", {"$numberDecimal": "-1E+3"}, "-1E+3"),
        ("int", {"$numberInt": "-2147483648"}, -(2**31)),
        ("numeric", {"$numberLong": "5"}, "5"),
        ("numeric[]", [1.5, {"$numberDecimal": "0.10"}], ["1.5", "0.10"]),
        ("timestamptz", {"$date": 1514764800123}, datetime(2018, 1, 1, 0, 0, 0, 123000, UTC)),
        ("timestamptz", {"$date": {"$numberLong": "-1"}}, datetime(1969, 12, 31, 23, 59, 59, 999000, UTC)),
        ("timestamptz", {"$date": "2018-01-01T00:00:00Z"}, datetime(2018, 1, 1, tzinfo=UTC)),
        ("bytea", {"$binary": "AQI=", "$type": "00"}, b"\1\2"),
        ("bytea", {"$binary": {"base64": "AQI=", "subType": "00"}}, b"\1\2"),
        ("boolean", True, True),
        ("text[]", ["a", None], ["a", None]),
        ("bigint[]", [{"$numberLong": "1"}, 2], [1, 2]),
        ("jsonb", {"a": [{"$oid": "5f"}]}, '{"a": [{"$oid": "5f"}]}'),
        ("jsonb", {"$numberDecimal": "1.10"}, '{"$numberDecimal": "1.10"}'),
        ("json", [{"$date": 1514764800000}], '[{"$date": 1514764800000}]'),
        ("int", None, None),
    ],
)
def test_a_value_of_a_document_arrives(type_, written, found, as_sent):
    form = Debezium(f'"_id" int, x {type_}')
    document = {"_id": 1, "x": written}
    values = [event(document), event(document, "u"), event(None, "d", document)]
    decoded = decode(form, *map(as_sent, values))
    assert decoded.rejects == ()
    assert decoded.rows.column("x").to_pylist() == [found] * 3
    assert decoded.deleted.to_pylist() == [False, False, True]


@pytest.mark.parametrize(
    ("type_", "written", "said"),
    [
        ("text", {"$timestamp": {"t": 1, "i": 2}}, "expected string, found object"),
        ("text", {"$oid": "5f", "more": 1}, "expected string, found object"),
        ("int", {"$numberLong": "1.5"}, "column 'x', integer: expected number, found object"),
        ("bigint", {"$numberLong": "1_000"}, "column 'x', bigint: expected number, found object"),
        ("bigint", {"$numberInt": "2147483648"}, "column 'x', bigint: expected number, found object"),
        ("numeric", {"$numberLong": "9223372036854775808"}, "column 'x', numeric: expected"),
        ("numeric", {"$numberDecimal": "NaN"}, "column 'x', numeric: expected"),
        ("numeric", {"$numberDecimal": "-Infinity"}, "column 'x', numeric: expected"),
        ("timestamptz", {"$date": 10**17}, "column 'x', timestamp"),
        ("float8", {"$numberDouble": "NaN"}, "column 'x', double precision: expected number, found object"),
        ("date", {"$date": 1514764800123}, "column 'x', date"),
        ("bytea", {"$binary": "!", "$type": "00"}, "column 'x', bytea"),
    ],
)
def test_a_value_that_cannot_arrive_is_a_reject(type_, written, said):
    good = event({"_id": 1})
    decoded = decode(Debezium(f'"_id" int, x {type_}'), good, event({"_id": 2, "x": written}), good)
    assert decoded.kept.to_pylist() == [0, 2]
    [(at, reason)] = decoded.rejects
    assert at == 1
    assert said in reason


@pytest.mark.parametrize(
    "other", [{"$date": 253402300800000}, {"$numberDouble": "NaN"}, {"$binary": "!", "$type": "00"}]
)
def test_a_field_that_is_no_column_does_not_matter(other):
    decoded = decode(Debezium('"_id" int'), event({"_id": 1, "other": other}))
    assert decoded.rejects == ()
    assert decoded.rows.to_pylist() == [{"_id": 1}]


def test_images_that_are_no_documents_are_rejects():
    broken = [{**event(None), "after": text} for text in ("{", "[1]", "5", "{} {}")]
    decoded = decode(Debezium('"_id" int'), event({"_id": 1}), *broken, event(None, "d"), event(None, "u"))
    assert decoded.kept.to_pylist() == [0]
    said = [reason for _, reason in decoded.rejects]
    assert all("as text that is not JSON" in reason for reason in said[:4])
    assert "no 'before'" in said[4]
    assert "no 'after'" in said[5]


@pytest.mark.parametrize("as_sent", [dict, wrapped], ids=["bare", "with schema"])
@pytest.mark.parametrize("document", ['{"_id":"a","_id":"b","b":5}', '{"_id":"a","b":5,"j":{"x":1,"x":2}}'])
def test_a_document_with_a_name_twice_is_a_reject(document, as_sent):
    """BSON allows equal names, and no value of them is the right one."""
    form = Debezium("_id text, b int, j jsonb")
    good, bad = event({"_id": "a", "b": 5}), {**event({}), "after": document}
    decoded = decode(form, as_sent(good), as_sent(bad))
    assert [each["_id"] for each in decoded.rows.to_pylist()] == ["a"]
    assert [index for index, _ in decoded.rejects] == [1]


def test_columns_named_as_an_image_make_no_document():
    form = Debezium("id int, after text, created timestamp", epoch={"created": "us"})
    row = {"id": 1, "after": '{"a": 1}', "created": 1529507596945104}
    decoded = decode(form, *({"before": None, "after": row, "op": op} for op in "cu"))
    assert decoded.rejects == ()
    assert decoded.rows.to_pylist() == [{**row, "created": datetime(2018, 6, 20, 15, 13, 16, 945104)}] * 2


def test_rows_of_tables_beside_documents_stay_as_they_are():
    row = {"before": None, "after": {"_id": 2, "after": '{"a": 1}'}, "op": "c"}
    decoded = decode(Debezium('"_id" int, after text'), row, event({"_id": 1, "after": "x"}), row)
    assert decoded.rows.column("after").to_pylist() == ['{"a": 1}', "x", '{"a": 1}']
