"""What could mean two things, or fits no column, is a reject that says what to declare; nothing crashes."""

import json
import pickle
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exactbatch import Debezium
from exactbatch.errors import ConfigurationError
from exactbatch.formats.connect.types_of_schema import from_avro
from exactbatch.formats.debezium import avro_events
from exactbatch.formats.decoders import find_decoder
from exactbatch.formats.registry.registry_properties import with_registry
from support.connect_avro import avro_body, avro_schema
from support.debezium_types import (
    CONNECTORS,
    VARIABLE,
    array,
    connect,
    data,
    decimal,
    encoded,
    envelope,
    record,
    time,
    typed,
    unscaled,
)

KINDS = {float: "double", str: "string"}
BITS = encoded((7 * 10**36).to_bytes(16, "little"))


def with_schema(schema: dict[str, Any], *written: Any) -> list[bytes]:
    schema = envelope({"id": typed("int32"), "x": schema}, {})
    return [
        json.dumps(
            {"schema": schema, "payload": {"before": None, "after": {"id": 1, "x": each}, "op": "c"}},
            separators=(",", ":"),
        ).encode()
        for each in written
    ]


def bare(*written: Any) -> list[bytes]:
    return [
        json.dumps({"before": None, "after": {"id": 1, "x": each}, "op": "c"}).encode() for each in written
    ]


def reasons(column: str, values: list[bytes], **options: Any) -> list[str]:
    form = Debezium(f"id int, x {column}", **options)
    decoded = find_decoder(form).decode(pa.array(values, pa.binary()))
    assert len(decoded.rows) + len(decoded.rejects) == len(values)
    return [reason for _, reason in decoded.rejects]


@pytest.mark.parametrize("name", ["x", r"\u0078"])
def test_a_struct_given_twice_is_a_reject(name):
    [value] = with_schema(record("a.B", y=typed("int32")), {"y": 1})
    twice = value.replace(b'"x":{"y":1}', b'"x":{"y":1},"%s":{"y":2}' % name.encode())
    assert reasons("jsonb", [value, twice]) == ["column 'x', jsonb: field 'x' was specified twice"]


@pytest.mark.parametrize(
    ("column", "schema", "written", "said"),
    [
        ("bytea", typed("string"), "AQ==", "declare binary='base64'"),
        ("timestamp", typed("int64"), 1, "does not say what its int64 counts"),
        ("time", typed("int32"), 1, "does not say what its int32 counts"),
        ("date", time("int64", "MicroTimestamp"), 1, "found a date and time"),
        ("timestamp", time("int64", "MicroTime"), 1, "declare the column as time or interval"),
        (
            "int",
            time("string", "ZonedTimestamp"),
            "2020-01-01T00:00:00Z",
            "declare the column as timestamptz",
        ),
        ("time", time("int64", "MicroTime"), 86400000001, "declare the column as interval"),
        ("time", time("int64", "NanoTime"), -1, "declare the column as interval"),
        ("interval", time("int64", "MicroDuration"), 1, "interval.handling.mode=string"),
        ("timestamp", time("int64", "MicroTimestamp"), 9223372036825200000, "pg_catalog.timestamp"),
        ("timestamp", time("int64", "Timestamp"), 9223372036825200, "pg_catalog.timestamp"),
        ("timestamptz", time("string", "ZonedTimestamp"), "-infinity", "pg_catalog.timestamptz"),
        ("timestamp", time("int64", "Timestamp"), 2**62, "out of bounds"),
        ("timestamp", time("int64", "MicroTimestamp"), -(2**62) - 2**61, "that Postgres can store"),
        ("date", time("int32", "Date"), -2147472692, "pg_catalog.date"),
        ("date", time("int32", "Date"), -2440589, "that Postgres can store"),
        ("text", time("int64", "MicroTimestamp"), 2**62, "the years 1 to 9999"),
        (
            "numeric(4,2)",
            decimal(2),
            unscaled(10000),
            "expected at most 2 digits before the point, found 100.00",
        ),
        ("numeric(4,1)", decimal(2), unscaled(101), "at most 1 places, found 1.01"),
        (
            "numeric(38,2)",
            decimal(0),
            unscaled(7 * 10**36),
            f"at most 36 digits before the point, found 7{'0' * 36}",
        ),
        (
            "numeric(38,38)",
            decimal(0),
            unscaled(10**37),
            f"at most 0 digits before the point, found 1{'0' * 37}",
        ),
        ("numeric(38,2)", data("bytes", "Bits", length=128), BITS, "digits before the point"),
        ("int", decimal(1), unscaled(15), "data loss"),
        ("int", decimal(0), unscaled(2**31), "out of bounds"),
        ("numeric(4,2)", decimal(2), "", "expected the bytes of a decimal, found none"),
        ("numeric(4,2)", decimal(2), "1234=", "expected bytes as base64"),
        ("numeric(4,2)", decimal(2), 12.5, "decimal.format has to be BASE64"),
        ("numeric(4,2)", connect("bytes", "Decimal"), unscaled(1), "gives no scale"),
        ("numeric", VARIABLE, {"scale": 1, "value": None}, "a decimal with a scale and a value"),
        ("numeric", VARIABLE, {"scale": 10**9, "value": unscaled(1)}, "a scale of 1000000000"),
        ("jsonb", typed("string"), "\0", "U+0000"),
        ("text", data("bytes", "Bits", length=8), "AQ==", "declare the column as bytea"),
        ("text", record("a.B", y=typed("string")), {"y": "z"}, "declare the column as jsonb"),
        ("text", typed("int32"), 1, "declare the column as numeric"),
        ("int", typed("boolean"), True, "declare the column as boolean"),
        ("boolean", typed("int16"), 1, "declare the column as numeric"),
        ("int[]", typed("int32"), 1, "declare the column as array"),
        ("pg_catalog.point", record("io.debezium.data.geometry.Point", x=typed("double")), {"x": 1}, "'y'"),
        ("int", typed("int32"), "1", "expected number, found string"),
        ("int", typed("int32"), 2**40, "1099511627776"),
        ("float8", typed("double"), "1.5", "expected number, found string"),
        ("float8", typed("double"), float("nan"), "found NaN or infinity"),
        ("real", typed("float"), 1e39, "found NaN or infinity"),
        ("real", typed("double"), 1e39, "found NaN or infinity"),
        ("real", decimal(0), unscaled(10**39), "found NaN or infinity"),
        ("float8[]", array(typed("double")), ["NaN", "1.5"], "expected number, found string"),
        ("float4[]", array(typed("float")), ["NaN", 1e39], "found NaN or infinity"),
        ("int", typed("double"), "NaN", "writes this field as double: declare the column as numeric"),
        ("bigint", typed("double"), 0.9, "writes this field as double: declare the column as numeric"),
        ("int[]", array(typed("float")), [1.5], "writes this field as float: declare the column as numeric"),
        ("jsonb", decimal(2), unscaled(12345), "declare the column as numeric"),
        ("json", data("bytes", "Bits", length=9), "AQE=", "declare the column as numeric"),
        ("jsonb", time("int64", "MicroTimestamp"), 1, "declare the column as timestamp"),
        ("numeric(10,2)", typed("double"), "NaN", "NaN"),
        ("jsonb", typed("double"), "-Infinity", "JSON has no number -Infinity"),
        ("jsonb", array(record("a.B", y=typed("float"))), [{"y": 1}, {"y": "NaN"}], "JSON has no number NaN"),
    ],
)
def test_a_value_that_does_not_fit_its_column_is_a_reject(column, schema, written, said):
    values = with_schema(schema, None, written, None)
    # A field that fits no column is refused with the first event.
    assert said in reasons(column, values)[-1]
    assert all("column 'x', " in reason for reason in reasons(column, values))


@pytest.mark.parametrize(
    ("column", "written", "options", "said"),
    [
        ("timestamp", 1529507596945104, {}, "Declare epoch={'x': 'us'}"),
        ("timestamptz", 1529507596945104, {}, "Declare epoch={'x': 'us'}"),
        ("timestamptz", "infinity", {}, "pg_catalog.timestamptz"),
        ("timestamptz", "soon", {}, "column 'x', timestamp with time zone: Failed to parse string: 'soon'"),
        ("date", 17702, {}, "times="),
        ("time", 1, {}, "times="),
        ("numeric(10,2)", "1234", {}, "declare decimals='string' or decimals='precise'"),
        ("numeric(12,2)[]", ["12.5", "1234"], {}, "declare decimals='string' or decimals='precise'"),
        ("numeric", "12345678", {}, "declare decimals='string' or decimals='precise'"),
        ("numeric(10,2)", "AQ==", {}, "column 'x'"),
        ("numeric", True, {}, "column 'x', numeric: expected a number, bare or in a string"),
        ("numeric", {"a": 1}, {"decimals": "string"}, "expected a number, bare or in a string"),
        ("numeric[]", [[1]], {}, "column 'x', numeric[]: expected a number, bare or in a string"),
        ("numeric[]", 1.5, {}, "column 'x', numeric[]: expected an array"),
        ("numeric(10,2)", "1.25", {"decimals": "precise"}, "expected bytes as base64"),
        ("timestamp", "2018-06-20T00:00:00", {"times": "microseconds"}, "expected number, found string"),
    ],
)
def test_a_value_without_a_schema_that_needs_a_declaration_is_a_reject(column, written, options, said):
    [reason] = reasons(column, bare(written), **options)
    assert said in reason


@pytest.mark.parametrize(
    ("column", "written", "options", "found"),
    [
        ("timestamp", 1529507596945104, {"epoch": {"x": "us"}}, "2018-06-20 15:13:16.945104"),
        ("timestamp", 1529507596945, {"times": "connect"}, "2018-06-20 15:13:16.945000"),
        ("timestamp", 1529507596945104999, {"times": "nanoseconds"}, "2018-06-20 15:13:16.945104"),
        (
            "timestamp",
            1529507596945104,
            {"times": "adaptive", "epoch": {"x": "us"}},
            "2018-06-20 15:13:16.945104",
        ),
        ("timestamp", "2019-07-09T02:28:57.5Z", {"times": "isostring"}, "2019-07-09 02:28:57.500000"),
        ("timestamptz", "2018-06-20T15:13:16.9451049+02:00", {}, "2018-06-20 13:13:16.945104+00:00"),
        ("timestamp", "2018-06-20 15:13:16.9451049", {}, "2018-06-20 15:13:16.945104"),
        ("timestamptz", "2018-06-20", {}, "2018-06-20 00:00:00+00:00"),
        ("date", 17702, {"times": "adaptive"}, "2018-06-20"),
        ("date", "2017-09-15Z", {"times": "isostring"}, "2017-09-15"),
        ("date", "2017-09-15Z", {}, "2017-09-15"),
        ("time", 1, {"times": "adaptive_time_microseconds"}, "00:00:00.000001"),
        ("time", 1, {"times": "connect"}, "00:00:00.001000"),
        ("time", "04:05:11Z", {"times": "isostring"}, "04:05:11"),
        ("numeric(10,2)", unscaled(-150), {"decimals": "precise"}, "-1.50"),
        (
            "numeric",
            {"scale": 3, "value": unscaled(1500)},
            {"decimals": "precise"},
            "1.500",
        ),
        ("numeric(10,2)[]", [unscaled(-150)], {"decimals": "precise"}, "[Decimal('-1.50')]"),
        ("numeric[]", [{"scale": 3, "value": unscaled(1500)}], {"decimals": "precise"}, "['1.500']"),
        ("numeric(10,2)", "1234", {"decimals": "string"}, "1234.00"),
        ("numeric(10,2)", "12.34", {}, "12.34"),
        ("numeric(10,2)", 12.34, {}, "12.34"),
        *(
            (column, written, {"decimals": decimals}, found)
            for column in ("numeric", "numeric(50,3)")
            for decimals in (None, "double", "string")
            for written, found in ((12.5, "12.5"), (12, "12"), ("12.50", "12.50"), (-1e-7, "-1e-07"))
        ),
        ("numeric[]", [12.5, None, 12, "12.50"], {}, "['12.5', None, '12', '12.50']"),
        ("numeric(50,3)[]", [1e22, "NAN"], {"decimals": "string"}, "['1e+22', 'NaN']"),
        ("numeric", "NEGATIVE_INFINITY", {"decimals": "string"}, "-Infinity"),
        ("float8", "NaN", {}, "nan"),
        ("real[]", ["-Infinity", 0.5], {}, "[-inf, 0.5]"),
        ("numeric", "NaN", {"decimals": "double"}, "NaN"),
        ("bytea", "00ff", {"binary": "hex"}, "b'\\x00\\xff'"),
    ],
)
def test_a_value_without_a_schema_is_read_as_declared(column, written, options, found):
    form = Debezium(f"id int, x {column}", **options)
    decoded = find_decoder(form).decode(pa.array(bare(written), pa.binary()))
    assert decoded.rejects == ()
    [value] = decoded.rows.column("x").to_pylist()
    assert str(value) == found


@pytest.mark.parametrize(
    ("column", "options", "said"),
    [
        ("text", {"epoch": {"x": "us"}}, "for 'x', text"),
        ("timestamp", {"epoch": {"x": "d"}}, "found 'd' for 'x', timestamp"),
        ("timestamp", {"epoch": {"y": "us"}}, "which is not a column"),
        ("timestamp", {"times": "adaptive"}, "depends on its precision at the source"),
        ("time", {"times": "adaptive"}, "depends on its precision at the source"),
        ("timestamp", {"times": "adaptive_time_microseconds"}, "depends on its precision"),
        ("int", {"times": "seconds"}, "expected times to be"),
        ("int", {"decimals": "float"}, "expected decimals to be"),
        ("int", {"registry": "http://r", "times": "connect"}, "the schemas say what"),
        ("int", {"registry": "http://me:secret@r"}, "contains a user and password"),
    ],
)
def test_declarations_that_cannot_be_are_refused(column, options, said):
    with pytest.raises(ConfigurationError, match=said):
        Debezium(f"id int, x {column}", **options)


@pytest.mark.parametrize("number", [10**100_000 + 1, 1 << 8 * 41_525], ids=["digits", "bytes"])
def test_a_decimal_of_too_many_digits_is_not_rounded(number):
    number = unscaled(number)
    for schema, written in ((decimal(1), number), (VARIABLE, {"scale": 1, "value": number})):
        [reason] = reasons("numeric", with_schema(schema, written))
        assert "expected a decimal of at most 100000 digits" in reason


@pytest.mark.parametrize(
    ("written", "said"),
    [(float("nan"), "JSON has no number nan"), (float("-inf"), "JSON has no number -inf"), ("\0", "U+0000")],
)
def test_what_json_cannot_hold_is_a_reject_in_avro(monkeypatch, written, said):
    schema = envelope({"id": typed("int32"), "x": record("a.B", y=typed(KINDS[type(written)]))}, {})
    monkeypatch.setattr(
        "exactbatch.formats.avro.bodies.fetch_schema", lambda *_: json.dumps(avro_schema(schema))
    )
    event = {"before": None, "after": {"id": 1, "x": {"y": written}}, "source": {}, "op": "c"}
    [reason] = reasons("jsonb", [b"\0\0\0\0\x01" + avro_body(schema, event)], registry="http://registry")
    assert said in reason


def test_bytes_of_a_schema_are_base64_whatever_is_declared():
    form = Debezium("id int, x bytea", binary="hex")
    values = [*with_schema(typed("bytes"), "q80="), *with_schema(typed("string"), "abcd")]
    decoded = find_decoder(form).decode(pa.array(values, pa.binary()))
    assert decoded.rows.column("x").to_pylist() == [b"\xab\xcd", b"\xab\xcd"]


def test_a_format_may_be_sent_to_a_task_after_it_has_decoded():
    form = with_registry(Debezium("id int, x text", version="mysql", registry="http://r"), {})
    assert find_decoder(form).decode(pa.array([b"no header"], pa.binary())).rejects
    assert pickle.loads(pickle.dumps(form)) == form
    bare_form = Debezium("id int, x text")
    find_decoder(bare_form).decode(pa.array(with_schema(typed("string"), "a"), pa.binary()))
    assert pickle.loads(pickle.dumps(bare_form)) == bare_form


def test_no_floating_point_number_becomes_an_integer():
    """pyarrow cuts a Python float to an integer without an error."""
    for type_, values in ((pa.int32(), [1, 0.9]), (pa.list_(pa.int64()), [[1], [0.9]])):
        with pytest.raises(ValueError, match="expected an integer, found a floating-point number"):
            avro_events.build_array(values, type_)


@pytest.mark.parametrize(
    ("schema", "type_"),
    [
        ({"type": "string", "logicalType": "decimal", "precision": 6, "scale": 2}, "string"),
        ({"type": "long", "logicalType": "date"}, "int64"),
        ({"type": "int", "logicalType": "timestamp-micros"}, "int32"),
    ],
)
def test_a_logical_type_on_another_type_of_avro_is_ignored(schema, type_):
    written = from_avro(schema, {})
    assert (written.type, written.name) == (type_, "")


def test_the_properties_of_a_registry_reach_its_client():
    secret = {"schema.registry.basic.auth.user.info": "me:secret", "group.id": "x"}
    form = with_registry(Debezium("id int", registry="http://r"), secret)
    assert form.properties == {"schema.registry.basic.auth.user.info": "me:secret"}
    assert "secret" not in repr(form)


def test_events_with_a_block_of_their_transaction_are_rows():
    [value] = bare(None)
    event = json.loads(value) | {"transaction": {"id": "571", "total_order": 1, "data_collection_order": 1}}
    decoded = find_decoder(Debezium("id int")).decode(pa.array([json.dumps(event).encode()], pa.binary()))
    assert len(decoded.rows) == 1


def test_events_of_several_schemas_and_forms_keep_their_order():
    """One column, whose type changes at the source, in one block, compact and spaced."""
    form = Debezium("id int, x timestamp", epoch={"x": "us"})
    values = [
        *with_schema(time("int64", "Timestamp"), 1000, None),
        *bare(2_000_000),
        *with_schema(time("int64", "MicroTimestamp"), 3_000_000),
        json.dumps(
            json.loads(with_schema(time("int64", "NanoTimestamp"), 4_000_000_000)[0]), indent=1
        ).encode(),
        *with_schema(typed("int64"), 5),
        b'{"schema":{"type":"struct"},"payload":[]}',
        b'{"schema":{},"payload":{}}',
        *with_schema(time("int64", "Timestamp"), 6000),
    ]
    decoded = find_decoder(form).decode(pa.array(values, pa.binary()))
    assert decoded.kept.to_pylist() == [0, 1, 2, 3, 4, 8]
    assert [at and at.second for at in decoded.rows.column("x").to_pylist()] == [1, None, 2, 3, 4, 6]
    assert [at for at, _ in decoded.rejects] == [5, 6, 7]


def test_a_placeholder_beside_a_schema_is_a_reject():
    out = "__debezium_unavailable_value"
    for schema, column, written in (
        (typed("string"), "text", out),
        (typed("bytes"), "bytea", encoded(out.encode())),
        (decimal(2), "numeric(10,2)", encoded(out.encode())),
        (data("string", "Json"), "jsonb", out),
    ):
        [reason] = reasons(column, with_schema(schema, written, None))
        assert reason.startswith("column 'x': the source left the value out")


@pytest.fixture(scope="module")
def events() -> list[bytes]:
    """An event for each value of the documentation."""
    return [
        event
        for values in CONNECTORS.values()
        for value in values
        for event in (*with_schema(value.schema, value.written), *bare(value.written))
    ]


FORMS = [
    Debezium("id int, x text", version="postgres"),
    Debezium("id int, x numeric(10,2)", version="mysql"),
    Debezium("id int, x timestamp", version="sqlserver"),
    Debezium("id int, x jsonb", version="oracle", decimals="precise"),
    Debezium("id int, x bytea[]", times="connect"),
]


@pytest.mark.slow
@given(seed=st.integers(0, 2**32))
def test_broken_events_are_rows_rejects_or_counted(events, seed):
    """Bytes of real events are changed, doubled, dropped, and cut: nothing crashes, and each value is accounted for."""
    chance = random.Random(seed)
    values: list[bytes | None] = []
    for _ in range(12):
        value = bytearray(chance.choice(events))
        for _ in range(chance.choice((0, 1, 1, 3))):
            at = chance.randrange(len(value))
            match chance.randrange(5):
                case 0:
                    value[at] = chance.randrange(256)
                case 1:
                    value[at:at] = value[at : at + chance.randrange(40)]
                case 2:
                    del value[at : at + chance.randrange(40)]
                case 3:
                    value[at : at + 1] = chance.choice(
                        (b"null", b"1e400", b'"\\u0000"', b"[]", b"{", b"-", b"9" * 50)
                    )
                case _:
                    del value[at:]
            if not value:
                break
        values.append(bytes(value))
    values.append(None)
    for form in FORMS:
        decoded = find_decoder(form).decode(pa.array(values, pa.binary()))
        places = [*decoded.kept.to_pylist(), *(at for at, _ in decoded.rejects)]
        assert len(set(places)) == len(places)
        assert len(decoded.rows) + len(decoded.rejects) + decoded.tombstones == len(values)
        assert len(decoded.deleted) == len(decoded.rows)
        assert all(reason for _, reason in decoded.rejects)
        decoded.rows.validate(full=True)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_broken_avro_is_rows_or_rejects(seed):
    chance = random.Random(seed)
    values = []
    with pytest.MonkeyPatch.context() as patch:
        schemas = {}
        patch.setattr("exactbatch.formats.avro.bodies.fetch_schema", lambda _r, id_, *_: schemas.get(id_))
        for id_ in range(4):
            value = chance.choice(chance.choice([*CONNECTORS.values()]))
            schema = envelope(
                {"id": typed("int32"), "x": value.schema},
                {"lsn": typed("int64"), "sequence": typed("string")},
            )
            schemas[id_] = json.dumps(avro_schema(schema))
            source = {"lsn": 2, "sequence": '["1","2"]'}
            event = {"before": None, "after": {"id": 1, "x": value.written}, "source": source, "op": "c"}
            body = bytearray(bytes([0, 0, 0, 0, id_]) + avro_body(schema, event))
            values.append(bytes(body))
            for _ in range(4):
                broken = bytearray(body)
                broken[chance.randrange(len(body))] = chance.randrange(256)
                values.append(bytes(broken[: chance.choice((None, chance.randrange(len(body))))]))
        for column in ("text", "numeric(10,2)", "jsonb", "timestamp"):
            form = Debezium(f"id int, x {column}", version="postgres", registry="http://registry")
            decoded = find_decoder(form).decode(pa.array(values, pa.binary()))
            assert len(decoded.rows) + len(decoded.rejects) + decoded.tombstones == len(values)
            decoded.rows.validate(full=True)


def test_text_that_only_says_nan_stays_text():
    schema = record("a.B", y=typed("string"))
    form = Debezium("id int, x jsonb")
    decoded = find_decoder(form).decode(pa.array(with_schema(schema, {"y": "NaN"}), pa.binary()))
    assert decoded.rejects == ()
    assert decoded.rows.column("x").to_pylist() == ['{"y":"NaN"}']


def test_a_number_out_of_range_counts_only_where_the_row_is_read():
    values = [
        json.dumps({"before": {"id": 1, "x": 1e39}, "after": {"id": 1, "x": each}, "op": "u"}).encode()
        for each in (1.5, "NaN")
    ]
    decoded = find_decoder(Debezium("id int, x real")).decode(pa.array(values, pa.binary()))
    assert decoded.rejects == ()
    assert list(map(str, decoded.rows.column("x").to_pylist())) == ["1.5", "nan"]
