"""Avro bodies become rows by the schema that they were written with, and by no other."""

import io
import json
import pickle
import ssl
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exactbatch.errors import ConfigurationError, RegistryUnavailable
from exactbatch.formats import Avro, Text, WithKeyAndHeaders
from exactbatch.formats.decoders import find_decoder
from exactbatch.formats.postgres_limits import EARLIEST_TIMESTAMP
from exactbatch.formats.registry.registry_properties import with_registry
from support.certificates import Authority
from support.decoding import decode, reason, rows
from support.registry import registry_server


def body(schema: Any, value: Any) -> bytes:
    fastavro.schemaless_writer(stream := io.BytesIO(), fastavro.parse_schema(schema), value)
    return stream.getvalue()


def record(*fields: tuple[str, Any], name: str = "R", **more: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        **more,
        "fields": [{"name": field, "type": type_} for field, type_ in fields],
    }


def value_of(type_: Any, value: Any, column: str | None = None) -> Any:
    """What a field becomes, and of which type its column is."""
    schema = record(("x", "int"), ("a", type_), ("y", "string"))
    avro = Avro(json.dumps(schema), fields=None if column is None else f"a {column}")
    [row] = rows(avro, body(schema, {"x": 1, "a": value, "y": "é"}))
    [its] = [each for each in avro.columns if each.name == "a"]
    return row["a"], its.type


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
MOMENT = datetime(2024, 2, 29, 10, 0, 0, 123000, UTC)


@pytest.mark.parametrize(
    ("type_", "value", "there", "column"),
    [
        ("boolean", True, True, "boolean"),
        ("int", -(2**31), -(2**31), "integer"),
        ("long", 2**63 - 1, 2**63 - 1, "bigint"),
        ("float", 1.5, 1.5, "real"),
        ("double", 1e308, 1e308, "double precision"),
        ("string", "é", "é", "text"),
        ("bytes", b"\xff\0", b"\xff\0", "bytea"),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", b"ab", "bytea"),
        (ENUM, "B", "B", "text"),
        (["null", "long"], None, None, "bigint"),
        (["string", "null"], "x", "x", "text"),
        ({"type": "int", "logicalType": "date"}, date(1969, 12, 31), date(1969, 12, 31), "date"),
        ({"type": "long", "logicalType": "timestamp-millis"}, MOMENT, MOMENT, "timestamp with time zone"),
        (
            ["null", {"type": "long", "logicalType": "timestamp-micros"}],
            MOMENT,
            MOMENT,
            "timestamp with time zone",
        ),
        (
            {"type": "long", "logicalType": "local-timestamp-millis"},
            MOMENT.replace(tzinfo=None),
            MOMENT.replace(tzinfo=None),
            "timestamp without time zone",
        ),
        (
            {"type": "long", "logicalType": "timestamp-nanos"},
            1_999,
            datetime(1970, 1, 1, 0, 0, 0, 1, UTC),
            None,
        ),
        ({"type": "int", "logicalType": "time-millis"}, time(1, 2, 3), "01:02:03", "time without time zone"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
            Decimal("-1.25"),
            Decimal("-1.25"),
            "numeric(10,2)",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": 2},
            Decimal("9" * 50),
            "9" * 50 + ".00",
            "numeric(60,2)",
        ),
        ({"type": "string", "logicalType": "uuid"}, UUID(int=1), str(UUID(int=1)), "uuid"),
        (
            {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"},
            UUID(int=1).bytes,
            str(UUID(int=1)),
            "uuid",
        ),
        # Avro's specification: a logical type that its type cannot have is ignored.
        ({"type": "fixed", "name": "U", "size": 2, "logicalType": "uuid"}, b"ab", b"ab", "bytea"),
        ({"type": "bytes", "logicalType": "uuid"}, b"ab", b"ab", "bytea"),
        ({"type": "long", "logicalType": "uuid"}, 5, 5, "bigint"),
        (
            {"type": "map", "values": {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}},
            {"k": UUID(int=1).bytes},
            json.dumps({"k": str(UUID(int=1))}, separators=(",", ":")),
            "jsonb",
        ),
        (
            {"type": "map", "values": {"type": "long", "logicalType": "timestamp-nanos"}},
            {"k": -1},
            '{"k":"1969-12-31T23:59:59.999999Z"}',
            "jsonb",
        ),
        (
            {"type": "map", "values": {"type": "long", "logicalType": "local-timestamp-nanos"}},
            {"k": 1_500},
            '{"k":"1970-01-01T00:00:00.000001"}',
            "jsonb",
        ),
        ({"type": "array", "items": "int"}, [3, 1], [3, 1], "integer[]"),
        ({"type": "array", "items": ["null", "string"]}, ["x", None, ""], ["x", None, ""], "text[]"),
        (["null", {"type": "array", "items": ENUM}], None, None, "text[]"),
        (
            {"type": "array", "items": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
            [MOMENT, None],
            [MOMENT, None],
            "timestamp with time zone[]",
        ),
        ({"type": "map", "values": "long"}, {"k": 2**60}, '{"k":1152921504606846976}', "jsonb"),
        (["null", "long", "string"], "x", '"x"', "jsonb"),
        (["null", "long", "string"], None, None, "jsonb"),
        ({"type": "array", "items": {"type": "array", "items": "int"}}, [[1], []], "[[1],[]]", "jsonb"),
        (
            {
                "type": "record",
                "name": "S",
                "fields": [
                    {"name": "d", "type": {"type": "int", "logicalType": "date"}},
                    {
                        "name": "n",
                        "type": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2},
                    },
                    {"name": "b", "type": "bytes"},
                ],
            },
            {"d": date(2024, 2, 29), "n": Decimal("1.10"), "b": b"\xff"},
            '{"d":"2024-02-29","n":1.10,"b":"/w=="}',
            "jsonb",
        ),
        ({"type": "string", "avro.java.string": "String"}, "x", "x", "text"),
    ],
)
def test_a_field_becomes_a_column(type_, value, there, column):
    found, its = value_of(type_, value)
    assert found == there
    assert column is None or its == column


@pytest.mark.parametrize(("precision", "scale"), [(10, 2), (64, 2)])
def test_a_decimal_fits_a_numeric_of_any_or_no_precision(precision, scale):
    type_ = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    for column in ("numeric", "numeric(50,2)"):
        assert value_of(type_, Decimal("5.00"), column) == ("5.00", column)
        assert value_of(["null", type_], None, column) == (None, column)
        assert value_of(type_, Decimal("-0.01"), column) == ("-0.01", column)
    assert value_of(type_, Decimal("5.00"), "numeric(12,3)") == (Decimal("5.000"), "numeric(12,3)")


def test_a_decimal_of_no_bytes_is_a_reject():
    schema = record(("d", {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}))
    assert "expected the bytes of a decimal, found none" in reason(Avro(json.dumps(schema)), b"\0")


def test_decimals_of_an_array_fit_a_numeric_without_a_precision():
    type_ = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
    array = {"type": "array", "items": ["null", type_]}
    for column in ("numeric[]", "numeric(50,2)[]"):
        found, its = value_of(["null", array], [Decimal("5.00"), None, Decimal("-12345678.90")], column)
        assert (found, its) == (["5.00", None, "-12345678.90"], column)
        assert value_of(["null", array], None, column) == (None, column)


@pytest.mark.parametrize("type_", ["int", "long"])
def test_an_integer_fits_a_numeric(type_):
    largest = 2**31 - 1 if type_ == "int" else 2**63 - 1
    for number in (0, -5, largest):
        assert value_of(type_, number, "numeric") == (str(number), "numeric")
        assert value_of(type_, number, "numeric(24,2)") == (Decimal(number), "numeric(24,2)")
        items = {"type": "array", "items": type_}
        assert value_of(items, [number], "numeric[]") == ([str(number)], "numeric[]")
        assert value_of(items, [number], "numeric(19,0)[]") == ([Decimal(number)], "numeric(19,0)[]")
    schema = record(("a", type_))
    assert reason(Avro(json.dumps(schema), fields="a numeric(3,1)"), body(schema, {"a": 100})) == (
        "column 'a', numeric(3,1): expected at most 2 digits before the point and 1 after it, found 100"
    )


@pytest.mark.parametrize("column", ["numeric(38,37)", "numeric(38,10)"])
def test_a_long_decimal_that_does_not_fit_a_narrow_column_is_a_reject_and_no_other_number(column):
    """Arrow would multiply it modulo 2^128, and the remainder may fit."""
    type_ = {"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 0}
    schema = record(("a", type_))
    avro = Avro(json.dumps(schema), fields=f"a {column}")
    numbers = ["4", "40", "4" * 30]
    decoded = decode(avro, *(body(schema, {"a": Decimal(number)}) for number in numbers))
    fitting = [number for number in numbers if len(number) <= (1 if column == "numeric(38,37)" else 28)]
    assert [each["a"] for each in decoded.rows.to_pylist()] == [Decimal(number) for number in fitting]
    assert [index for index, _ in decoded.rejects] == list(range(len(fitting), len(numbers)))


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_is_no_number_of_json_is_a_reject_and_never_null(number):
    type_ = {"type": "map", "values": ["null", "double"]}
    avro = Avro(json.dumps({"type": "record", "name": "R", "fields": [{"name": "x", "type": type_}]}))
    good, bad = (
        body(json.loads(str(avro.schema)), {"x": {"k": None}}),
        body(json.loads(str(avro.schema)), {"x": {"k": number}}),
    )
    decoded = find_decoder(avro).decode(pa.array([good, bad], pa.binary()))
    assert decoded.rows.to_pylist() == [{"x": '{"k":null}'}]
    assert decoded.rejects == ((1, f"column 'x', jsonb: JSON has no number {number}"),)


def test_a_named_type_stands_for_itself_wherever_it_is_used():
    for namespace in ({}, {"namespace": "a.b"}):
        fields = [{"name": "e", "type": ENUM}, {"name": "f", "type": ["null", "E"]}]
        fields.append({"name": "g", "type": {"type": "array", "items": "E"}})
        schema = {"type": "record", "name": "R", **namespace, "fields": fields}
        value = {"e": "A", "f": "B", "g": ["A"]}
        assert rows(Avro(json.dumps(schema)), body(schema, value)) == [value]


def test_a_schema_that_refers_to_itself_is_jsonb():
    schema = record(("n", "int"), ("next", ["null", "R"]))
    value = {"n": 1, "next": {"n": 2, "next": None}}
    assert rows(Avro(json.dumps(schema)), body(schema, value)) == [{"n": 1, "next": '{"n":2,"next":null}'}]


def test_a_schema_that_is_no_record_is_one_column():
    assert rows(Avro('"long"'), body("long", 5)) == [{"value": 5}]
    assert rows(Avro('["null", "string"]', fields="k text"), b"\0", b"\2\2x") == [{"k": None}, {"k": "x"}]


def test_a_schema_that_is_no_record_is_a_reject_for_several_columns(registry):
    """A producer of plain strings registers the schema "string" by itself."""
    registry.has(1, "string")
    value = Avro(registry=registry.address, fields="note text, id bigint")
    assert "expected a record for 2 columns, found text" in reason(value, b"\0\0\0\0\1" + body("string", "x"))


def test_the_name_of_the_schema_is_a_column(registry):
    order = record(("id", "long")) | {"name": "Order", "namespace": "com.shop"}
    mood = {"type": "enum", "name": "Mood", "symbols": ["GOOD"]}
    registry.has(1, order)
    registry.has(2, record(("id", "long"), ("kind", "string")) | {"name": "org.Refund"})
    registry.has(3, "long")
    registry.has(4, record(("id", "long")) | {"name": "N" * 256})
    registry.has(5, mood)
    value = Avro(registry=registry.address, fields="id bigint", schema_name="kind")
    assert [column.name for column in value.columns] == ["id", "kind"]
    decoded = decode(
        value,
        b"\0\0\0\0\2" + body(record(("id", "long"), ("kind", "string")), {"id": 7, "kind": "x"}),
        b"\0\0\0\0\1" + body(order, {"id": 5}),
        b"\0\0\0\0\1",
        b"\0\0\0\0\3" + body("long", 9),
        b"\0\0\0\0\4" + body(order, {"id": 5}),
        b"\0\0\0\0\1" + body(order, {"id": 6}),
    )
    assert decoded.rows.to_pylist() == [
        {"id": 7, "kind": "org.Refund"},
        {"id": 5, "kind": "com.shop.Order"},
        {"id": 9, "kind": None},
        {"id": 6, "kind": "com.shop.Order"},
    ]
    assert [index for index, _ in decoded.rejects] == [2, 4]
    assert decoded.rejects[1][1].startswith("schema 4: expected names in a schema of at most 255 characters")
    text = Avro(registry=registry.address, fields="mood text", schema_name="kind")
    assert rows(text, b"\0\0\0\0\5\0") == [{"mood": "GOOD", "kind": "Mood"}]


def test_a_name_of_schemas_needs_a_registry_and_a_name_of_its_own():
    with pytest.raises(ConfigurationError, match="all values have the same schema without a registry"):
        Avro('"int"', schema_name="kind")
    with pytest.raises(ConfigurationError, match="schema_name='id': a field has a column of this name, too"):
        Avro(registry="http://x", fields="id int", schema_name="id")


def test_columns_are_chosen_and_may_be_wider_or_checked():
    schema = record(("a", "long"), ("b", "string"), ("c", "float"))
    avro = Avro(json.dumps(schema), fields="b uuid, c float8, a smallint")
    decoded = decode(avro, *(body(schema, {"a": a, "b": "x", "c": 1.5}) for a in (1, 40_000)))
    assert decoded.rows.to_pylist() == [{"b": "x", "c": 1.5, "a": 1}]
    [(index, why)] = decoded.rejects
    assert (index, why[:23]) == (1, "column 'a', smallint: V")


@pytest.mark.parametrize(
    ("type_", "column"),
    [
        ("string", "int"),
        ("double", "real"),
        ("long", "text"),
        ("bytes", "text"),
        ("string", "text[]"),
        ({"type": "array", "items": "int"}, "int"),
        ({"type": "map", "values": "int"}, "text[]"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "bigint"),
        ({"type": "int", "logicalType": "date"}, "timestamptz"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}, "float8"),
    ],
)
def test_a_field_that_does_not_fit_its_column_is_refused_at_once(type_, column):
    with pytest.raises(ConfigurationError, match="expected a field whose values fit, found"):
        Avro(json.dumps(record(("a", type_))), fields=f"a {column}")


def test_what_is_no_schema_is_refused_at_once(tmp_path):
    (tmp_path / "wrong.avsc").write_text("{")
    for wrong, match in (
        ({"schema": "{}"}, "invalid Avro schema"),
        ({"schema": '{"type":"nothing"}'}, "invalid Avro schema"),
        ({"schema": tmp_path / "none.avsc"}, "is neither JSON text nor a readable .avsc file"),
        ({"schema": tmp_path / "wrong.avsc"}, "invalid Avro schema"),
        ({"schema": '"int"', "registry": "http://x"}, "found both or neither"),
        ({}, "found both or neither"),
        ({"registry": "http://x"}, "needs the fields to take"),
        (
            {"registry": "http://me:s3cret@x", "fields": "a int"},
            "address of the schema registry contains a user and password",
        ),
        (
            {"schema": json.dumps(record(("a", "int"))), "fields": "b int"},
            "are not fields of the schema",
        ),
    ):
        with pytest.raises(ConfigurationError, match=match) as refused:
            Avro(**wrong)
        assert "s3cret" not in str(refused.value)


def test_a_schema_may_stand_in_a_file(tmp_path):
    schema = record(("a", "int"))
    (path := tmp_path / "r.avsc").write_text(json.dumps(schema))
    for written in (path, str(path)):
        avro = Avro(written)
        path.rename(tmp_path / "gone")  # executors do not have the file
        assert rows(pickle.loads(pickle.dumps(avro)), body(schema, {"a": 5})) == [{"a": 5}]
        (tmp_path / "gone").rename(path)


SCHEMA = record(("a", ["null", "int"]), ("b", "string"))
AVRO = Avro(json.dumps(SCHEMA))
GOOD = [body(SCHEMA, {"a": a, "b": b}) for a, b in ((1, "x"), (None, ""), (-5, "é" * 70))]


def test_what_does_not_decode_or_leaves_bytes_over_is_refused():
    left = "the body does not end with the last field of its schema"
    assert reason(AVRO, GOOD[0] + b"\0") == left
    for broken in (b"", b"\x02\x02", b"\x00\x01", b"\x02\x02\xff" * 9, GOOD[1] + b"\x01", GOOD[0][:-1]):
        assert reason(AVRO, broken) == left
    for broken, why in (
        (
            b"\x04\x00",
            "column 'a', integer: the number of an enum's symbol or a union's branch is out of range",
        ),
        (b"\x00\x02\xff", "column 'b', text: expected text in UTF-8"),
        (GOOD[2][:-1], "column 'b', text: the body ends before this field does"),
    ):
        assert reason(AVRO, broken).startswith(why)
    decoded = decode(AVRO, GOOD[0], b"\x04", GOOD[1], None, GOOD[0] + GOOD[1])
    assert decoded.kept.to_pylist() == [0, 2]


def test_bodies_that_are_joined_never_make_up_for_each_other():
    whole = GOOD[2]
    for cut in range(1, len(whole)):
        assert decode(AVRO, GOOD[0], whole[:cut], whole[cut:], GOOD[1]).rows.to_pylist()[:1] == [
            {"a": 1, "b": "x"}
        ]
    assert decode(AVRO, GOOD[0] + GOOD[1], b"").rows.to_pylist() == []
    # The first lacks a byte and the second has one too many.
    assert decode(Avro('"bytes"'), b"\x06ab", b"\x00\x02c").rows.to_pylist() == []


def test_what_postgres_cannot_store_is_refused():
    moment = {"type": "long", "logicalType": "timestamp-micros"}
    for type_, value in (
        ("string", "a\0"),
        (moment, EARLIEST_TIMESTAMP - 1),
        ({"type": "map", "values": "string"}, {"k": "\0"}),
        ({"type": "array", "items": "string"}, ["\0"]),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0}, b"\x7f\xff"),
    ):
        schema = record(("a", type_))
        plain = record(("a", "bytes" if isinstance(value, bytes) else "long" if type_ is moment else type_))
        assert reason(Avro(json.dumps(schema)), body(plain, {"a": value})).startswith("column 'a', ")


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.none()
        | st.sampled_from(GOOD)
        | st.sampled_from(GOOD).flatmap(lambda each: st.integers(0, 9).map(lambda cut: each[cut:]))
        | st.binary(max_size=6),
        max_size=12,
    )
)
def test_a_block_of_bodies_decodes_as_they_do_one_by_one(values):
    for avro in (AVRO, Avro('"string"'), Avro(json.dumps(record(("a", {"type": "array", "items": "int"}))))):
        block = decode(avro, *values)
        alone = [decode(avro, value) for value in values]
        assert block.rows.to_pylist() == [row for each in alone for row in each.rows.to_pylist()]
        assert block.kept.to_pylist() == [i for i, each in enumerate(alone) if len(each.kept)]
        assert block.rejects == tuple((i, why) for i, each in enumerate(alone) for _, why in each.rejects)


@pytest.fixture
def registry():
    with registry_server() as server:
        yield server


def framed(schema_id: int, its_body: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + its_body


def test_each_value_is_decoded_by_schema_that_it_was_written_with(registry):
    old, new = record(("a", "int")), record(("b", ["null", "string"]), ("x", "double"), ("a", "long"))
    registry.has(1, old)
    registry.has(70_000, new)
    avro = Avro(registry=registry.address, fields="a bigint, b text")
    values = [framed(1, body(old, {"a": 1})), framed(70_000, body(new, {"a": 2**40, "b": "x", "x": 0.5}))] * 2
    decoded = decode(avro, *values, None, framed(1, body(old, {"a": 3})))
    assert decoded.rows.to_pylist() == [
        {"a": 1, "b": None},
        {"a": 2**40, "b": "x"},
        {"a": 1, "b": None},
        {"a": 2**40, "b": "x"},
        {"a": 3, "b": None},
    ]
    decode(avro, *values)
    # Once for each schema and process.
    assert sorted(registry.asked) == [("/schemas/ids/1", None), ("/schemas/ids/70000", None)]


def test_values_without_a_schema_of_the_registry_are_refused(registry):
    registry.has(1, record(("a", "int")))
    registry.has(2, record(("a", "string")))
    avro = Avro(registry=registry.address, fields="a int")
    good = framed(1, body("int", 5))
    decoded = decode(
        avro, b"\1" + good[1:], good, b"", b"\0\0\0", framed(9, b""), framed(2, body("string", "")), good
    )
    assert decoded.kept.to_pylist() == [1, 6]
    assert decoded.rejects == (
        (0, "expected byte 0 and the 4 bytes of a schema ID, found 01 00 00 00 01"),
        (2, "expected byte 0 and the 4 bytes of a schema ID, found nothing"),
        (3, "expected byte 0 and the 4 bytes of a schema ID, found 00 00 00"),
        (4, "the registry has no schema with the ID 9"),
        (5, "schema 2: column 'a', integer: expected a field whose values fit, found text"),
    )


@pytest.mark.parametrize("levels", [200, 250, 300])
def test_bodies_of_a_schema_that_nests_deep_are_rejects(registry, levels):
    schema = "int"
    for level in range(levels):
        schema = record(("a", schema), name=f"R{level}")
    registry.has(1, record(("a", schema)))
    avro = Avro(registry=registry.address, fields="a jsonb")
    assert len(decode(avro, b"\0\0\0\0\1", b"\0\0\0\0\1\0\0").rejects) == 2


NO_RETRIES = {"schema.registry.max.retries": 0}


def test_a_registry_that_does_not_answer_is_no_reject(registry):
    value = framed(1, body("int", 5))
    avro = with_registry(Avro(registry=registry.address, fields="a int"), NO_RETRIES)
    for status in (408, 429, 500, 503, 507):
        registry.answers_with(1, status, {})
        with pytest.raises(RegistryUnavailable, match=f"answered HTTP status {status} for schema 1"):
            decode(avro, value)
    with pytest.raises(RegistryUnavailable, match="cannot be reached for schema 1: ConnectError"):
        decode(replace(avro, registry="http://127.0.0.1:1"), value)
    registry.has(1, record(("a", "int")))
    assert rows(avro, value) == [{"a": 5}]


def test_a_registry_is_asked_again_before_a_batch_fails(registry):
    registry.answers_with(1, 503, {})
    properties = {"schema.registry.max.retries": 2, "schema.registry.retries.wait.ms": 1}
    with pytest.raises(RegistryUnavailable):
        decode(
            with_registry(Avro(registry=registry.address, fields="a int"), properties),
            framed(1, body("int", 5)),
        )
    assert len(registry.asked) == 3


@pytest.mark.parametrize(
    ("status", "answer", "message"),
    [
        (401, {"error_code": 40101}, "answered HTTP status 401 for schema 1"),
        (404, {"error_code": 404}, "answered HTTP status 404 for schema 1"),
        (404, "not found", "answered HTTP status 404 for schema 1"),
        (200, {}, "sent no schema text for schema 1"),
        (200, "a page", "did not answer as a schema registry does when asked for schema 1"),
    ],
)
def test_a_registry_that_refuses_or_is_none_ends_the_batch(registry, status, answer, message):
    registry.answers_with(1, status, answer)
    with pytest.raises(ConfigurationError, match=message):
        decode(Avro(registry=registry.address, fields="a int"), framed(1, b"\x02"))


def test_an_address_that_is_none_ends_the_batch():
    with pytest.raises(
        ConfigurationError, match="client of the schema registry at 'no address' cannot start"
    ):
        decode(Avro(registry="no address", fields="a int"), framed(1, b""))


CUSTOMER = record(("name", "string"), ("home", "shop.Address"), name="Customer", namespace="shop")
ADDRESS = record(("city", "string"), name="Address", namespace="shop")
ORDER = record(
    ("id", "long"), ("customer", "shop.Customer"), ("to", "shop.Address"), name="Order", namespace="shop"
)


def reference(name: str, subject: str, version: int) -> dict[str, Any]:
    return {"name": name, "subject": subject, "version": version}


@pytest.mark.parametrize(("order", "amount"), [("BC", "12.34"), ("CB", "0.1234")])
def test_of_two_versions_of_a_referenced_schema_the_first_counts_as_for_the_serializer(
    registry, order, amount
):
    """C references another version of B: met before A's own if C is named first, depth first."""
    b = {scale: reference("shop.B", "bs", scale) for scale in (2, 4)}
    named = {"B": b[2], "C": reference("shop.C", "cs", 1)}
    whole = record(("b", "shop.B"), ("c", "shop.C"), name="A", namespace="shop")
    registry.has(1, whole, references=[named[name] for name in order])
    for scale, its in b.items():
        type_ = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": scale}
        schema = record(("amount", type_), name="B", namespace="shop")
        registry.answers[f"/subjects/bs/versions/{its['version']}?deleted=true"] = (
            200,
            {"subject": "bs", "version": scale, "id": scale, "schema": json.dumps(schema)},
        )
    schema = record(("b", "shop.B"), name="C", namespace="shop")
    registry.answers["/subjects/cs/versions/1?deleted=true"] = (
        200,
        {"subject": "cs", "version": 1, "id": 9, "schema": json.dumps(schema), "references": [b[4]]},
    )
    avro = Avro(registry=registry.address, fields="b jsonb, c jsonb")
    [row] = decode(avro, framed(1, b"\x04\x04\xd2\x04\x04\xd2")).rows.to_pylist()
    assert row == {"b": f'{{"amount":{amount}}}', "c": f'{{"b":{{"amount":{amount}}}}}'}


def test_a_schema_with_references_decodes_as_the_whole(registry):
    customer, address = reference("shop.Customer", "customers", 3), reference("shop.Address", "addresses", 1)
    registry.has(1, ORDER, references=[customer, address])
    path = "/subjects/{subject}/versions/{version}?deleted=true"
    registry.answers[path.format(**customer)] = (
        200,
        {
            "subject": "customers",
            "version": 3,
            "id": 8,
            "schema": json.dumps(CUSTOMER),
            "references": [address],
        },
    )
    registry.answers[path.format(**address)] = (
        200,
        {"subject": "addresses", "version": 1, "id": 9, "schema": json.dumps(ADDRESS)},
    )
    whole = record(
        ("id", "long"),
        (
            "customer",
            record(("name", "string"), ("home", ADDRESS), name="Customer", namespace="shop"),
        ),
        ("to", "shop.Address"),
        name="Order",
        namespace="shop",
    )
    order = {"id": 7, "customer": {"name": "Ada", "home": {"city": "London"}}, "to": {"city": "Turin"}}
    avro = Avro(registry=registry.address, fields="id bigint, customer jsonb, to jsonb")
    assert rows(avro, framed(1, body(whole, order))) == [
        {"id": 7, "customer": '{"name":"Ada","home":{"city":"London"}}', "to": '{"city":"Turin"}'}
    ]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            {"id": 8, "schema": "{}"},
            "schema 1 of the registry and its references (shop.Customer) do not form an Avro schema",
        ),
        (
            {"id": 8, "schema": "x", "schemaType": "JSON"},
            "schema 1's reference shop.Customer of the registry is JSON, not AVRO",
        ),
    ],
)
def test_a_reference_that_is_no_avro_schema_is_a_reject(registry, answer, why):
    registry.has(1, ORDER, references=[reference("shop.Customer", "customers", 3)])
    registry.answers["/subjects/customers/versions/3?deleted=true"] = (200, answer)
    assert why in reason(Avro(registry=registry.address, fields="id bigint"), framed(1, b"\x02"))


def test_a_reference_that_the_registry_does_not_give_ends_the_batch(registry):
    registry.has(1, ORDER, references=[reference("shop.Customer", "customers", 3)])
    registry.answers["/subjects/customers/versions/3?deleted=true"] = (404, {"error_code": 40401})
    with pytest.raises(ConfigurationError, match="answered HTTP status 404 for schema 1"):
        decode(Avro(registry=registry.address, fields="id bigint"), framed(1, b"\x02"))


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        (
            {"schema.registry.password": "x"},
            r"unsupported property of the schema registry: schema\.registry\.password",
        ),
        ({"schema.registry.url": "x"}, "unsupported"),
        ({"schema.registry.bearer.auth.credentials.source": "CUSTOM"}, "unsupported"),
        ({"schema.registry.ssl.ca.location": False}, "expected text, found bool"),
        ({"schema.registry.timeout": "10"}, "expected a number, found str"),
    ],
)
def test_properties_that_the_registry_does_not_have_are_refused(properties, message):
    with pytest.raises(ConfigurationError, match=message):
        with_registry(Avro(registry="http://x", fields="a int"), properties)


def test_a_user_without_a_password_is_refused(registry):
    avro = with_registry(
        Avro(registry=registry.address, fields="a int"), {"schema.registry.basic.auth.user.info": "me"}
    )
    with pytest.raises(ConfigurationError, match="cannot start: basic.auth.user.info must be in the form"):
        decode(avro, framed(1, b""))


def test_a_client_certificate_reaches_the_registry(tmp_path):
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("127.0.0.1", ["127.0.0.1"])
    own, own_key = authority.issue("client", password="k3y")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(certificate, key)
    with registry_server(context) as registry:
        registry.has(1, "int")
        properties = {
            **NO_RETRIES,
            "schema.registry.ssl.ca.location": str(authority.certificate),
            "schema.registry.ssl.certificate.location": str(own),
            "schema.registry.ssl.key.location": str(own_key),
            "schema.registry.ssl.key.password": "k3y",
        }
        value, plain = framed(1, body("int", 5)), Avro(registry=registry.address, fields="a int")
        with pytest.raises(RegistryUnavailable):
            decode(with_registry(plain, dict(list(properties.items())[:2])), value)
        assert rows(with_registry(plain, properties), value) == [{"a": 5}]


def test_a_bearer_token_reaches_the_registry(registry):
    registry.has(1, "int")
    properties = {
        "schema.registry.bearer.auth.credentials.source": "STATIC_TOKEN",
        "schema.registry.bearer.auth.token": "t0ken",
        "schema.registry.bearer.auth.logical.cluster": "lsrc-1",
    }
    avro = with_registry(Avro(registry=registry.address, fields="a int"), properties)
    assert rows(avro, framed(1, body("int", 5))) == [{"a": 5}]
    assert registry.asked == [("/schemas/ids/1", "Bearer t0ken")]


def test_secrets_of_the_registry_come_from_the_kafka_properties(registry):
    registry.has(1, "string")
    avro = Avro(registry=registry.address, fields="a text")
    properties = {"bootstrap.servers": "x:1", "schema.registry.basic.auth.user.info": "me:se:cret"}
    for format_ in (
        with_registry(avro, properties),
        with_registry(WithKeyAndHeaders(Text(), key=avro), properties).key,
        with_registry(WithKeyAndHeaders(avro), properties).value,
        with_registry(WithKeyAndHeaders(Text(), headers={"h": avro}), properties).headers["h"],
    ):
        assert "se:cret" not in repr(format_)
        assert format_ == avro
        assert format_.properties == {"schema.registry.basic.auth.user.info": "me:se:cret"}
    assert rows(pickle.loads(pickle.dumps(with_registry(avro, properties))), framed(1, body("string", "x")))
    assert registry.asked == [("/schemas/ids/1", "Basic bWU6c2U6Y3JldA==")]
    assert with_registry(Text(), properties) == Text()


def test_no_value_and_only_broken_ones_give_no_row(registry):
    avro = Avro(registry=registry.address, fields="a int")
    assert rows(avro) == []
    assert rows(AVRO) == []
    assert len(decode(avro, b"x", None).rejects) == 1
    assert decode(replace(avro), None).rows.schema == pa.schema([("a", pa.int32())])


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
MILLIS = {"type": "int", "logicalType": "time-millis"}
MICROS = {"type": "long", "logicalType": "time-micros"}


@pytest.mark.parametrize(
    ("type_", "plain", "good", "bad", "said"),
    [
        (DECIMAL, "bytes", (9999).to_bytes(2, "big"), (99999).to_bytes(4, "big"), "at most 4 digits"),
        (DECIMAL, "bytes", b"\xff", (-10000).to_bytes(4, "big", signed=True), "at most 4 digits"),
        (
            {**DECIMAL, "type": "fixed", "name": "F", "size": 3},
            {"type": "fixed", "name": "F", "size": 3},
            (9999).to_bytes(3, "big"),
            (10001).to_bytes(3, "big"),
            "at most 4 digits",
        ),
        (MILLIS, "int", 86_399_999, -1, "found -1 milliseconds"),
        (MILLIS, "int", 0, 86_400_000, "found 86400000 milliseconds"),
        (MICROS, "long", 86_399_999_999, -1, "found -1 microseconds"),
        (MICROS, "long", 0, 86_400_000_000, "found 86400000000 microseconds"),
        (MICROS, "long", 1, 2**63 - 1, "found 9223372036854775807 microseconds"),
    ],
)
def test_decimals_and_times_that_avro_does_not_allow_are_refused(type_, plain, good, bad, said):
    """Alone, in a union, and inside of what becomes jsonb; also for a column that has room for the number."""

    def nested(inner: Any) -> Iterator[tuple[Any, Any]]:
        yield inner, lambda value: value
        yield ["null", inner], lambda value: value
        yield ["null", "boolean", inner], lambda value: value
        yield {"type": "map", "values": inner}, lambda value: {"k": value}
        yield {"type": "array", "items": inner}, lambda value: [value]
        yield {**record(("n", inner)), "name": "S"}, lambda value: {"n": value}

    for (read_by, _), (written_by, wrap) in zip(nested(type_), nested(plain), strict=True):
        avro = Avro(json.dumps(record(("x", "int"), ("a", read_by))))
        written = record(("x", "int"), ("a", written_by))
        fine, wrong = (body(written, {"x": 1, "a": wrap(value)}) for value in (good, bad))
        assert decode(avro, fine, wrong, fine).kept.to_pylist() == [0, 2]
        why = reason(avro, wrong)
        assert why.startswith("column 'a', ")
        assert said in why


def test_decimal_with_too_many_digits_is_not_rounded_into_wider_column():
    avro = Avro(json.dumps(record(("a", DECIMAL))), fields="a numeric(10,2)")
    [row] = rows(avro, body(record(("a", "bytes")), {"a": (9999).to_bytes(2, "big")}))
    assert row == {"a": Decimal("99.99")}
    why = reason(avro, body(record(("a", "bytes")), {"a": (12345).to_bytes(2, "big")}))
    assert why == "column 'a', numeric(10,2): expected a decimal of at most 4 digits, found more"


def test_a_reason_names_the_field_and_no_exception():
    schema = record(("x", "int"), ("e", {"type": "enum", "name": "E", "symbols": ["A"]}), ("s", "string"))
    avro = Avro(json.dumps(schema), fields="s text, x int")
    written = record(("x", "int"), ("e", "int"), ("s", "bytes"))
    assert reason(avro, body(written, {"x": 1, "e": 7, "s": b""})) == (
        "field 'e': the number of an enum's symbol or a union's branch is out of range"
    )
    assert reason(avro, body(written, {"x": 1, "e": 0, "s": b"\xff"})) == (
        "column 's', text: expected text in UTF-8, found other bytes"
    )


@pytest.mark.parametrize("number", ["123.00", "1.25"])
def test_a_decimal_that_does_not_fit_a_narrower_column_is_named(number):
    schema = record(("a", {**DECIMAL, "precision": 10}))
    avro = Avro(json.dumps(schema), fields="a numeric(3,1)")
    assert reason(avro, body(schema, {"a": Decimal(number)})) == (
        f"column 'a', numeric(3,1): expected at most 2 digits before the point and 1 after it, found {number}"
    )


def debezium_time(kind: str, name: str) -> Any:
    """A nullable field as Confluent's converter writes a time of Debezium."""
    return ["null", {"type": kind, "connect.version": 1, "connect.name": f"io.debezium.time.{name}"}]


@pytest.mark.parametrize(
    ("type_", "value", "column", "there"),
    [
        (debezium_time("int", "Date"), 19782, "date", date(2024, 2, 29)),
        (debezium_time("long", "Timestamp"), 1709200800123, "timestamptz", MOMENT),
        (debezium_time("long", "MicroTimestamp"), 1709200800123000, "timestamp", MOMENT.replace(tzinfo=None)),
        (debezium_time("long", "NanoTimestamp"), 1709200800123000999, "timestamptz", MOMENT),
        (debezium_time("long", "MicroTime"), 1, "time", "00:00:00.000001"),
        (debezium_time("string", "ZonedTimestamp"), "2024-02-29T10:00:00.123Z", "timestamptz", MOMENT),
        (debezium_time("long", "MicroTimestamp"), None, "timestamp", None),
        (debezium_time("long", "MicroTimestamp"), 1709200800123000, "bigint", 1709200800123000),
        (debezium_time("long", "MicroTimestamp"), 0, "text", "1970-01-01 00:00:00.000000"),
        (debezium_time("int", "Date"), 19782, None, 19782),
        (debezium_time("string", "ZonedTimestamp"), "2024-02-29T10:00:00Z", None, "2024-02-29T10:00:00Z"),
    ],
)
def test_times_of_debezium_fit_into_times(type_, value, column, there):
    assert value_of(type_, value, column)[0] == there


@pytest.mark.parametrize(
    ("type_", "value", "column", "said"),
    [
        (debezium_time("long", "MicroTimestamp"), 9223372036825200000, "timestamp", "pg_catalog.timestamp"),
        (debezium_time("long", "MicroTimestamp"), 1, "date", "found a date and time"),
        (debezium_time("long", "MicroTimestamp"), 1, "boolean", "declare the column as timestamp"),
        (
            debezium_time("long", "MicroTimestamp"),
            1,
            "jsonb",
            "expected a field whose values fit, found bigint",
        ),
        ({"type": "long", "connect.name": "a.B"}, 1, "timestamp", "whose values fit, found bigint"),
    ],
)
def test_a_time_of_debezium_that_does_not_fit_is_refused(type_, value, column, said):
    schema = record(("a", type_))
    try:
        why = reason(Avro(json.dumps(schema), fields=f"a {column}"), body(schema, {"a": value}))
    except ConfigurationError as error:
        why = str(error)
    assert why.startswith(f"column 'a', {column}")
    assert said in why
