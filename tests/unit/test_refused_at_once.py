"""Many refused values in one block: found at once, for the reasons for which each is refused alone."""

import io
import json

import fastavro
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from exactbatch.columns import Column
from exactbatch.formats import Avro, Csv, Custom, Debezium, Flattened, Json, Protobuf, Text
from exactbatch.formats.avro.bodies import Bodies
from exactbatch.formats.decoder import refused_by
from exactbatch.formats.decoders import find_decoder
from exactbatch.formats.postgres_limits import find_unstorable
from support.decoding import decode
from support.json_values import BROKEN
from support.protobuf_schema import shop_class, shop_descriptors
from support.registry import registry_server

# fmt: off
TOKENS = st.sampled_from([
    "1", "-3", "1.5", "99999", "1e39", "1e5", "1e400", "0e400", "2e308", "1.5e309", "1.5e310",
    "123456.7", "1.234", "12345678901", "00", "-0", "-",
    "1.", "1e", "+1", ".5", "null", "true", "nul", "NaN", "-Infinity", "Inf", "-Inf", "N", "[]", "{}", "[1]",
    '["x",1]', '[1,"x"]', '["a\\u0000",5]', '[null,"2024-01-01"]', "[[1]]", '{"b":1}', '{"b":"x"}', '{"b":{}}',
    '{"b":1,"b":2}', '{"b":[1]}', '""', '"x"', '"1.25"', '"1.255"', '"1e5"', '" 1"', '"\\u0000"', '"\\ud800"',
    '"\\\\ud800"', '"\\ud83d\\ude00"', '"\\q"', '"\\u12"', '"}{"', '"é"', '"2024-02-29"', '"2024-02-30"',
    '"2024-13-01"', '"0000-01-01"', '"10000-01-01"', '"2024-2-3"', '"2024-02-29T10:00Z"', '"2024-02-29T25:00"',
    '"2024-02-29T10:00:00.1234567"', '"2024-02-29 10"', '"2024-02-29T10:00:60"', '"T"', '"', "x", '"a\nb"', "[1,]",
    "[1 2]", '{"a":}', '{"a" 1}', "1.230", '"1.230"', '"+1"', '"1e8"', '"1e9"', '"12e-1"', '"1e-39"', '"1e99999999999"',
    "1e-400", "0e-99999999999", "1e38", "-4e38", '"0e50"', '"1e39"', '"00.5"', '{"b":"\\u0000"}', '[["\\u0000"]]',
    '{"\\u0000":1}', '{"b":NaN}', '[{"b":1},{"b":"x"}]', '[{"b":1},5]', '[{"b":"x"},{"b":"\\u0000"}]', "[null,[1]]",
    '[[{"b":1.5}],[null]]', '[["x",1],[]]', '[{"b":1,"b":2}]', "[NaN]", '["NaN",1]', '["NaN",true]',
    "[" * 600 + "]" * 600, "1" * 400, "0." + "0" * 50, '"0.%s1"' % ("0" * 100), "1." + "0" * 400,
    "1" * 300 + "e9", "-1e308",
])
TYPES = st.sampled_from([
    "smallint", "int", "bigint", "real", "float8", "bool", "text", "bytea", "date", "timestamp", "timestamptz",
    "numeric(10,2)", "numeric(38,30)", "numeric", "json", "jsonb", "uuid", "int[]", "text[]", "date[]",
    "numeric(5,2)[]", "numeric[]", "bool[]", "json[]", "jsonb[]", "real[]",
])
# fmt: on
MEMBERS = st.lists(st.tuples(st.sampled_from(["a", "b", "c", "x", ""]), TOKENS), max_size=4)
BETWEEN = st.sampled_from([*[(",", ":")] * 8, (" ,", ": "), (",,", ":"), ("", ":"), (",", ""), (";", ":")])
OBJECTS = st.tuples(MEMBERS, BETWEEN).map(
    lambda drawn: ("{" + drawn[1][0].join(f'"{n}"{drawn[1][1]}{v}' for n, v in drawn[0]) + "}").encode()
)
PATHS = st.sampled_from([
    "a {}, b {}, c {}", "a {}, b {}, c {}", "a {} from 'a.b', b {} from 'b', c {} from 'c.b.b'",
    "a {} from 'a[0].b', b {} from 'b[1]', c {} from 'c[0][0]'", "a {} from 'a[].b', b {} from 'b', c {} from 'c'",
    "a {} from 'a[][].b', b {} from 'b.b', c {} from 'a[].b'", "a {} from 'a.b', b {} from 'b[0].b', c {} from 'b[1]'",
    "a {} from 'a[1][0]', b {} from 'a[0]', c {} from 'c', d text from 'b' default 'x', e jsonb from '$'",
])  # fmt: skip
SCHEMAS = st.tuples(PATHS, TYPES, TYPES, TYPES).map(lambda drawn: drawn[0].format(*drawn[1:]))
STRICT = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

FEW = settings(STRICT, max_examples=25)


def why_each(form, values):
    """The reason for which each value is refused alone; None for a good one."""
    found = [decode(form, value).rejects for value in values]
    return {index: rejects[0][1] for index, rejects in enumerate(found) if rejects}


@STRICT
@given(SCHEMAS, st.lists(OBJECTS | OBJECTS | BROKEN, min_size=2, max_size=12))
def test_a_block_of_json_has_the_reasons_of_its_values(schema, values):
    form = Json(schema)
    assert dict(decode(form, *values).rejects) == why_each(form, values)


LIMITS = [
    0,
    2**31,
    2_145_042_905,
    -2_440_588,
    -210_866_803_200_000_000,
    2**63,
    9_223_372_036_854_775,
    9_223_372_036_854,
]
EDGES = st.sampled_from([sign * limit for limit in LIMITS for sign in (1, -1)]).flatmap(
    lambda limit: st.integers(limit - 2, limit + 2) | st.integers(limit * 1000 - 1001, limit * 1000 + 1001)
)  # fmt: skip


@STRICT
@given(st.sampled_from(["s", "ms", "us", "ns"]), st.lists(EDGES | EDGES.map(float), min_size=2, max_size=12))
def test_a_block_of_json_with_numbers_since_1970_has_the_reasons_of_its_values(unit, numbers):
    form = Json("a timestamptz, b date", epoch={"a": unit, "b": "d"})
    values = [b'{"%s":%s}' % (name, str(number).encode()) for number in numbers for name in (b"a", b"b")]
    assert dict(decode(form, *values).rejects) == why_each(form, values)


def test_zeros_behind_the_places_of_a_decimal_are_taken_also_next_to_a_bad_value():
    """Arrow takes 1.230 as a numeric(10,2), whatever else is in its block."""
    values = [b'{"a":"1.230"}', b'{"a":"x"}', b'{"a":100e-2}', b'{"a":1.500}']
    decoded = decode(Json("a numeric(10,2)"), *values)
    assert decoded.kept.to_pylist() == [0, 2, 3]


ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", "a", "b"]), TOKENS | st.just('"__debezium_unavailable_value"')),
    max_size=4,
).map(lambda drawn: "{" + ",".join(f'"{n}":{v}' for n, v in drawn) + "}")
IMAGES = ROWS | ROWS | ROWS | st.sampled_from(["null", '"x"', "1", "[]"])
OPS = st.sampled_from(['"c"', '"u"', '"d"', '"r"', '"c"', '"u"', '"t"', '"m"', '"x"', "1", "null"])
SOURCES = st.sampled_from(
    ["", ',"source":{"n":1,"table":"t"}', ',"source":1', ',"payload":{}', ',"payload":null']
)
ENVELOPES = st.tuples(IMAGES, IMAGES, OPS, SOURCES).map(
    lambda drawn: '{{"before":{},"after":{},"op":{}{}}}'.format(*drawn)
)
WRAPPED = ENVELOPES | ENVELOPES.map(lambda event: f'{{"payload":{event}}}')
MARKS = st.sampled_from([
    "", "", ',"__deleted":"false"', ',"__deleted":true', ',"__deleted":1', ',"__op":"u"', ',"__op":"x"',
    ',"__op":"d","__deleted":"false"', ',"source":{},"op":"c","after":{}',
])  # fmt: skip
FLAT = st.tuples(ROWS, MARKS).map(lambda drawn: f"{drawn[0][:-1]}{drawn[1]}}}".replace("{,", "{"))
EVENT_TYPES = st.tuples(TYPES, TYPES, TYPES).map(lambda drawn: f"a {drawn[0]}, b {drawn[1]}, c {drawn[2]}")


@STRICT
@given(EVENT_TYPES, st.sampled_from([None, "n"]), st.lists(WRAPPED.map(str.encode), min_size=2, max_size=12))
def test_a_block_of_envelopes_has_the_reasons_of_its_values(schema, version, values):
    form = Debezium(schema, version=version)
    assert dict(decode(form, *values).rejects) == why_each(form, values)


@STRICT
@given(st.lists(WRAPPED.map(str.encode), min_size=2, max_size=12))
def test_a_block_of_envelopes_with_applied_truncates_has_the_reasons_of_its_values(values):
    form = Debezium("a text, b date", version="n", truncate="apply")
    assert dict(decode(form, *values).rejects) == why_each(form, values)


OF_COLUMNS = {
    "a timestamptz": ("int64", "io.debezium.time.MicroTimestamp"),
    "a timestamp": ("int64", "io.debezium.time.Timestamp"),
    "a date": ("int32", "io.debezium.time.Date"), "a time": ("int64", "io.debezium.time.MicroTime"),
    "a text": ("int64", "io.debezium.time.NanoTimestamp"), "a interval": ("int64", "io.debezium.time.NanoTime"),
    "a bigint": ("int32", "io.debezium.time.Date"),
    "a numeric(5,2)": ("bytes", "org.apache.kafka.connect.data.Decimal"),
    "a bytea": ("bytes", None), "a real": ("double", None), "a numeric": ("float", None), "a smallint": ("int32", None),
    "a varchar(5)": ("string", "io.debezium.time.ZonedTimestamp"),
}  # fmt: skip
OTHERS = st.sampled_from([
    "1.5", "true", "[]", '"x"', '"NaN"', '"MDk="', '"////////"', '"\\u0000"', '"__debezium_unavailable_value"', "1e39",
])  # fmt: skip


@STRICT
@given(
    st.sampled_from(list(OF_COLUMNS)),
    st.lists(st.tuples(EDGES.map(str) | OTHERS, OPS), min_size=2, max_size=12),
)
def test_a_block_of_events_with_a_schema_has_the_reasons_of_its_values(column, drawn):
    type_, name = OF_COLUMNS[column]
    field = {"field": "a", "type": type_, "name": name, "parameters": {"scale": "2"}, "optional": True}
    images = [{"field": image, "type": "struct", "fields": [field]} for image in ("before", "after")]
    schema = {"type": "struct", "fields": [*images, {"field": "op", "type": "string"}]}
    event = '{"schema":%s,"payload":{"before":{"a":%s},"after":{"a":%s},"op":%s}}'
    values = [(event % (json.dumps(schema), value, value, op)).encode() for value, op in drawn]
    form = Debezium(column)
    assert dict(decode(form, *values).rejects) == why_each(form, values)


@FEW
@given(EVENT_TYPES, st.lists(FLAT.map(str.encode), min_size=2, max_size=6))
def test_a_block_of_flattened_events_has_the_reasons_of_its_values(schema, values):
    form = Flattened(schema)
    assert dict(decode(form, *values).rejects) == why_each(form, values)


SPECIAL = {
    "a value was left out": (
        Flattened("a int, b int, c text"),
        [b'{"a":1.5,"c":"__debezium_unavailable_value","__op":"u"}', b'{"a":1.5}'],
    ),
    "Python reads what Arrow refuses": (
        Flattened("a text, b int"),
        [b'{"a":"__debezium_unavailable_value","b":1.5e310,"__op":"u"}', b'{"b":1.5e310}'],
    ),
    "both images are refused": (
        Debezium("a int"),
        [
            b'{"before":{"a":"x"},"after":{"a":true},"op":"u"}',
            b'{"before":{"a":1.5},"after":{"a":"x"},"op":"u"}',
        ],
    ),
    "only the row is stored": (
        Debezium("a text, b real"),
        [
            b'{"before":{"a":"\\u0000","b":1e39},"after":{"a":"x"},"op":"u"}',
            b'{"after":{"a":"\\u0000"},"op":"u"}',
        ],
    ),
    "a truncate has no row": (
        Debezium("a text", version="n", truncate="apply"),
        [b'{"op":"t","after":{"a":"\\u0000"},"source":{"n":1}}', b'{"op":"x","source":{"n":1}}'],
    ),
    "a float that is read as text next to NaN": (
        Debezium("a real, b real"),
        [b'{"before":{"a":true},"after":{"a":1,"b":"NaN"},"op":"u"}', b'{"op":"x"}'],
    ),
    "an escape in a decimal that may be base64": (
        Debezium("a numeric(8,2)"),
        [b'{"after":{"\\u0061":"1234"},"op":"c"}', b'{"after":{"a":"1234"},"op":"c"}'],
    ),
    "NaN in an array": (
        Debezium("a real[]"),
        [b'{"after":{"a":[1,"NaN"]},"op":"c"}', b'{"op":"x"}'],
    ),
    "one of two values was left out": (
        Debezium("a text"),
        [
            b'{"after":{"a":"__debezium_unavailable_value"},"op":"c"}',
            b'{"after":{"a":"x"},"op":"c"}',
            b'{"op":"x"}',
        ],
    ),
    "another element is refused": (
        Json("t text from 'a[1]', b int"),
        [b'{"a":["\\u0000","x"]}', b'{"b":"x"}', b'{"a":["x","\\u0000"]}'],
    ),
    "the whole value is kept as it is": (
        Json("d json from '$', b int"),
        [b'{"a":NaN}', b'{"b":"x"}'],
    ),
}


@pytest.mark.parametrize("case", SPECIAL)
def test_what_is_not_sure_is_left_to_arrow(case):
    form, values = SPECIAL[case]
    assert dict(decode(form, *values).rejects) == why_each(form, values)


def test_text_next_to_a_placeholder_is_not_looked_at():
    values = [b'{"after":{"a":["\\u0000","__debezium_unavailable_value"]},"op":"u"}', b'{"op":"x"}']
    decoded = find_decoder(Debezium("a text[]")).decode_with_unavailable(pa.array(values, pa.binary()))
    assert list(dict(decoded.rejects)) == [1]


def test_what_is_learned_of_one_number_is_not_said_of_another():
    """Arrow takes a number of many digits as text; it refuses exponents that no double has."""
    form = Json("a numeric, b int")
    good = [b'{"a":%s}' % number for number in (b"9" * 400, b"2e308", b"1" * 300 + b"e9", b"1.5e309")]
    values = [b'{"a":1e400}', b'{"a":0e400}', b'{"b":"x"}', *good]
    assert set(dict(decode(form, *values).rejects)) == {0, 1, 2}
    assert dict(decode(form, *values).rejects) == why_each(form, values)


def test_an_infinity_is_left_to_arrow():
    """Arrow parses Inf, Python does not: what is learned of one word must not be said of the other."""
    form = Json("a int, b text")
    values = [b'{"a":Xnf}', b'{"a":Inf}', b'{"c":Inf}', b'{"c":-Inf}', b'{"c":NaN}', b'{"a":"x"}']
    decoded = decode(form, *values)
    assert dict(decoded.rejects) == why_each(form, values)
    assert decoded.kept.to_pylist() == [2, 3, 4]


FIELDS_OF_CSV = st.sampled_from([
    "x", "1a", "+1", " 1", "1 ", "", '""', "1.5", "1e5", "99999999999999999999", "0x10", "nan", "Infinity", "true", "T",
    "yes", "1", "0", "-", "2024-13-45", "2024-01-01", "2024-01-01 ", "2024-01-01T25:00", "2024-01-01T00:00:00.1234567Z",
    "2024-01-01T00:00:00Z", "2024-01-01 00:00", "123456789.1", "1.234", '"x', 'a"b', '"a"b', "1\n2", "NULL",
    "é", "\0", ".", '"1a"', '"x""y"', '"0x1"', '"1"', '"1,2"', '"NULL"', '"a\n"', '"',
    "-NaN(a)", "tRUE", "TRUE", "0000-02-29", "2023-02-29", " 2024-01-01", "2024-01-01T10", "2024-01-01T24:00", "1e400",
    "2024-01-01 10:00+01:00", "2024-01-01T10:00:00.", "2024-01-01T1000", "1.2300", "0e50", "1e-39", "1e9", "10e-3",
    "3.4028235677973366e38", "3.4028235677973367e38", "1e309", "0" * 70 + "1", '"a"b', '"a"b"c"', '"a" "b"', "a\rb",
    "1e99999999999", "0." + "0" * 40 + "1", "a\0b", "\t1", "-0", "1 2",
])  # fmt: skip
LINES = st.tuples(
    st.lists(FIELDS_OF_CSV, min_size=1, max_size=4), st.sampled_from(["", "", "", "\n", "\r\n", "\r"])
).map(lambda drawn: (",".join(drawn[0]) + drawn[1]).encode())
TYPES_OF_CSV = TYPES.filter(lambda type_: not type_.endswith("[]") and type_ != "bytea")


@STRICT
@given(
    st.tuples(TYPES_OF_CSV, TYPES_OF_CSV),
    st.lists(LINES | st.binary(max_size=4), min_size=2, max_size=12),
    st.sampled_from(["", "NULL"]),
)
def test_a_block_of_csv_has_the_reasons_of_its_values(types, values, null):
    form = Csv(f"a {types[0]}, b {types[1]}", null=null)
    assert dict(decode(form, *values).rejects) == why_each(form, values)


def accepts(form, value):
    """True if a format takes a value, whatever it says of others."""
    try:
        form.decode_block(pa.array([value], pa.binary()))
    except ValueError:
        return False
    return True


@settings(STRICT, max_examples=400)
@given(st.tuples(TYPES_OF_CSV, TYPES_OF_CSV), LINES | st.binary(max_size=4), st.sampled_from(["", "NULL"]))
@example(("smallint", "text"), b"0" * 70 + b"1,x", "")
@example(("integer", "text"), b'"1"x,y', "")
def test_a_line_of_csv_has_a_reason_exactly_if_arrow_refuses_it(types, line, null):
    form = find_decoder(Csv(f"a {types[0]}, b {types[1]}", null=null))
    assert (form.why_refused(line) is None) == accepts(form, line)


@STRICT
@given(
    TYPES_OF_CSV,
    st.lists(FIELDS_OF_CSV.map(str.encode) | st.binary(max_size=4) | st.none(), min_size=2, max_size=12),
)
def test_a_block_of_text_has_the_reasons_of_its_values(type_, values):
    form = Text(f"a {type_}")
    assert dict(decode(form, *values).rejects) == why_each(form, values)


AVRO_SCHEMA = {"type": "record", "name": "r", "fields": [
    {"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"]},
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
]}  # fmt: skip
AVRO = Avro(json.dumps(AVRO_SCHEMA))
NOTES = st.sampled_from([None, "", "x", "a\0b", "é"])
NUMBERS = st.sampled_from([0, 1, -1, 2**62, -(2**62), 2**31])


def avro_body(number, note, price, at):
    """Encode values of AVRO_SCHEMA without its logical types: `price` are bytes, and `at` any number."""
    bare = [
        {**each, "type": "bytes" if each["name"] == "price" else each["type"]}
        for each in AVRO_SCHEMA["fields"]
    ]
    bare[3] = {"name": "at", "type": "long"}
    stream = io.BytesIO()
    fastavro.schemaless_writer(
        stream,
        fastavro.parse_schema({**AVRO_SCHEMA, "fields": bare}),
        {"id": number, "note": note, "price": price, "at": at},
    )
    return stream.getvalue()


def broken(body, at, kind):
    """Return bytes, cut, lengthened, or with another byte in one place."""
    at = min(at, len(body))
    return {
        "whole": body, "cut": body[:at], "longer": body + b"\1", "other": body[:at] + b"\xff" + body[at + 1 :],
    }[kind]  # fmt: skip


BREAKS = (st.integers(0, 20), st.sampled_from(["whole", "whole", "cut", "longer", "other"]))
BODIES = st.tuples(NUMBERS, NOTES, st.sampled_from([b"\1", b"\x7f\xff\xff", b""]), NUMBERS, *BREAKS).map(
    lambda drawn: broken(avro_body(*drawn[:4]), *drawn[4:])
)


@STRICT
@given(st.lists(BODIES | st.binary(max_size=6), min_size=2, max_size=12))
def test_a_block_of_avro_has_the_reasons_of_its_values(values):
    assert dict(decode(AVRO, *values).rejects) == why_each(AVRO, values)


ORDER = shop_class("Order")
PROTOBUF = Protobuf(
    "id smallint from 'f_int64', note text from 'f_string'",
    descriptor=shop_descriptors(),
    message="shop.Order",
)
MESSAGES = st.tuples(NUMBERS, NOTES, *BREAKS).map(
    lambda drawn: broken(ORDER(f_int64=drawn[0], f_string=drawn[1] or "").SerializeToString(), *drawn[2:])
)


@STRICT
@given(st.lists(MESSAGES | st.binary(max_size=6), min_size=2, max_size=12))
def test_a_block_of_protobuf_has_the_reasons_of_its_values(values):
    assert dict(decode(PROTOBUF, *values).rejects) == why_each(PROTOBUF, values)


def test_bodies_of_avro_are_not_decoded_one_by_one(monkeypatch):
    blocks, inner = [], Bodies.decode
    monkeypatch.setattr(
        Bodies, "decode", lambda self, bodies: blocks.append(len(bodies)) or inner(self, bodies)
    )
    values = [avro_body(number, "a\0b", b"\1", 0) for number in range(50)]
    values += [avro_body(number, "x", b"\1", 0)[:-1] for number in range(50)]
    assert len(decode(AVRO, *values).rejects) == 100
    assert len(blocks) <= 2


def test_text_is_refused_in_rows_only():
    """A message without elements gives no row, so that nothing has to store its text."""
    form = Protobuf(
        "note text from 'f_string', n int from 'r_int32[]'",
        descriptor=shop_descriptors(),
        message="shop.Order",
    )
    values = [
        ORDER(f_string=note, r_int32=numbers).SerializeToString()
        for note, numbers in (("a\0b", []), ("x", [1, 2, 4]), ("a\0b", [1]), ("y", [3]))
    ]
    decoded = decode(form, *values)
    assert dict(decoded.rejects) == why_each(form, values)
    assert list(dict(decoded.rejects)) == [2]


def numbers_below(limit, blocks):
    """Return a check that refuses numbers from a limit on, and notes how many it was given each time."""

    def check(values):
        blocks.append(len(values))
        if wrong := [value for value in values if value >= limit]:
            raise ValueError(f"{wrong[0]}")

    return check


def test_values_that_are_alike_are_checked_once():
    blocks = []
    values = dict(enumerate([1, 5, 2, 5, 5, 1, 6]))
    found = dict(refused_by([numbers_below(5, blocks)], values, lambda value: value))
    assert found == {1: "5", 3: "5", 4: "5", 6: "6"}
    assert values == {0: 1, 2: 2, 5: 1}
    assert blocks == [4, 1, 1, 1, 1]


@given(st.lists(st.integers(0, 9), max_size=60), st.integers(0, 10))
def test_a_check_finds_each_value_that_it_refuses(numbers, limit):
    values = dict(enumerate(numbers))
    found = dict(refused_by([numbers_below(limit, [])], values))
    assert found == {index: str(number) for index, number in enumerate(numbers) if number >= limit}
    assert values == {index: number for index, number in enumerate(numbers) if number < limit}


UNSTORABLE = {
    "text": (pa.string(), ["a", "b\0", None, "\0"], [1, 3]),
    "text[]": (pa.list_(pa.string()), [["a", "b\0", "\0"], None, [], [None], ["\0"]], [0, 4]),
    "timestamptz": (pa.timestamp("us", "UTC"), [0, -(2**62), None], [1]),
    "date": (pa.date32(), [0, 2**31 - 1, None, -(2**31)], [1, 3]),
    "date[]": (pa.list_(pa.date32()), [[0], [0, 2**31 - 1]], [1]),
    "bigint": (pa.int64(), [0, 2**62], []),
}


@pytest.mark.parametrize("type_", UNSTORABLE)
def test_what_postgres_cannot_store_is_found_in_every_type(type_):
    arrow_type, values, expected = UNSTORABLE[type_]
    column = Column("a", type_)
    array = pa.array(values, arrow_type)
    found = dict(find_unstorable(column, array))
    assert list(found) == expected
    for place in range(len(array)):
        assert list(find_unstorable(column, array.slice(place, 1))) == [(0, found.get(place))] * (
            place in found
        )


def test_decimals_that_postgres_cannot_store_are_named():
    large = pa.array([1, 10**5, None, -(10**6)], pa.decimal128(38, 0))
    narrow = pa.Array.from_buffers(pa.decimal128(5, 0), 4, large.buffers())
    found = dict(find_unstorable(Column("a", "numeric(5,0)"), narrow))
    assert [(place, reason.rpartition(" ")[2]) for place, reason in found.items()] == [
        (1, "100000"), (3, "-1000000"),
    ]  # fmt: skip


ROW_OF_EVENT = {**AVRO_SCHEMA, "name": "Row"}
EVENT_SCHEMA = {"type": "record", "name": "Envelope", "fields": [
    {"name": "before", "type": ["null", ROW_OF_EVENT]}, {"name": "after", "type": ["null", "Row"]},
    {"name": "source", "type": [
        "null", {"type": "record", "name": "S", "fields": [{"name": "n", "type": ["null", "long"]}]},
    ]},
    {"name": "op", "type": ["null", "string"]},
]}  # fmt: skip
ROW_COLUMNS = "id bigint, note text, price numeric(4,2), at timestamptz"
ROW_BODIES = st.tuples(
    NUMBERS, NOTES | st.just("__debezium_unavailable_value"), st.sampled_from([b"\1", b"\x7f\xff\xff", b""]), NUMBERS
).map(lambda drawn: avro_body(*drawn))  # fmt: skip
IMAGES_OF_AVRO = st.just(b"\0") | ROW_BODIES.map(lambda body: b"\2" + body)
EVENTS_OF_AVRO = st.tuples(
    IMAGES_OF_AVRO, IMAGES_OF_AVRO, st.sampled_from([b"\0", b"\2\0", b"\2\2\x0a"]),
    st.sampled_from([b"\0", b"\2\2c", b"\2\2u", b"\2\2d", b"\2\2t", b"\2\2m", b"\2\2x"]), *BREAKS,
).map(lambda drawn: b"\0\0\0\0\1" + broken(b"".join(drawn[:4]), *drawn[4:]))  # fmt: skip


@STRICT
@given(
    st.sampled_from([None, "n"]),
    st.sampled_from(["reject", "apply"]),
    st.lists(EVENTS_OF_AVRO | st.binary(max_size=8), min_size=2, max_size=12),
)
@example(None, "reject", [b"\0\0\0\0\1\0\2\0\0\2\1" + b"\x80" * 9 + b"\1\0\2\2c"] * 2)
def test_a_block_of_events_of_avro_has_the_reasons_of_its_values(version, truncate, values):
    with registry_server() as registry:
        registry.has(1, EVENT_SCHEMA)
        form = Debezium(
            ROW_COLUMNS,
            version,
            registry=registry.address,
            truncate=truncate if version else "reject",
        )
        accounted = find_decoder(form).decode(pa.array(values, pa.binary()))
        alone = [find_decoder(form).decode(pa.array([value], pa.binary())) for value in values]
        assert dict(accounted.rejects) == {
            index: each.rejects[0][1] for index, each in enumerate(alone) if each.rejects
        }
        assert accounted.tombstones == sum(each.tombstones for each in alone)
        # Not as lists of Python: it has no time as late as 2**62 microseconds after 1970.
        assert accounted.rows.equals(pa.concat_batches([each.rows for each in alone]))


@STRICT
@given(st.lists(ROW_BODIES | st.binary(max_size=8), min_size=2, max_size=12))
def test_a_block_of_flattened_events_of_avro_has_the_reasons_of_its_values(values):
    values = [b"\0\0\0\0\1" + value for value in values]
    with registry_server() as registry:
        registry.has(1, ROW_OF_EVENT)
        form = Flattened(ROW_COLUMNS, registry=registry.address)
        assert dict(decode(form, *values).rejects) == why_each(form, values)


def test_events_of_avro_are_not_decoded_one_by_one(monkeypatch):
    blocks, inner = [], Bodies.decode
    monkeypatch.setattr(
        Bodies, "decode", lambda self, bodies: blocks.append(len(bodies)) or inner(self, bodies)
    )
    row = avro_body(1, "x", b"\1", 0)
    kinds = [
        b"\0\2" + avro_body(1, "a\0b", b"\1", 0) + b"\2\2\x0a\2\2c",
        b"\0\2" + avro_body(1, "x", b"\x7f\xff\xff", 0) + b"\2\2\x0a\2\2c",
        b"\0\2" + avro_body(1, "x", b"\1", -(2**62)) + b"\2\2\x0a\2\2c",
        b"\0\2" + row + b"\0\2\2c",
        b"\0\2" + row + b"\2\2\x0a\2\2x",
        b"\0\0\2\2\x0a\2\2c",
        b"\0\2" + row,
    ]
    with registry_server() as registry:
        registry.has(1, EVENT_SCHEMA)
        form = Debezium(ROW_COLUMNS, "n", registry=registry.address)
        decoded = find_decoder(form).decode(
            pa.array([b"\0\0\0\0\1" + kind for kind in kinds * 20], pa.binary())
        )
    assert len(decoded.rejects) == 140
    assert len(blocks) <= 2


def custom_text(given):
    text = given.column("value").cast(pa.string())
    return pa.record_batch({"value_index": given.column("value_index"), "a": text}), {}


BAD = {
    "Json": (Json("id int, at timestamptz, price numeric(10,2), note text"), [
        '{"id":"%d"}', '{"id":%d.5}', '{"id":9%012d}', '{"at":"%d"}', '{"at":"2024-13-%02d"}', '{"price":"x%d"}',
        '{"price":0.00%d}', '{"price":[%d]}', '{"note":%d}', '{"note":"%d\\u0000"}', '{"note":"%d\\ud800"}', "%d",
        '{"a":%d', '{"a":%d,}', '{"a" %d}', '{"a":%d}{}', '{"id":1%d,"id":2}', '{"note":"%d\n"}', '{"note":"\\q%d"}',
        '{"price":"1e%d"}', '{"price":1e-%d}', '{"id":NaN,"note":"%d"}', '{"id":1e-9%d}', '{"id":%d' + "1" * 400 + "}",
        '{"a":' + "[" * 600 + "]" * 600 + ',"id":"%d"}',
    ]),
    "Json kept as text": (Json("ratio real, doc jsonb, n numeric, docs jsonb[], ns numeric[]"), [
        '{"ratio":-4e38,"x":%d}', '{"doc":["\\u0000%d"]}', '{"doc":{"\\u0000":%d}}', '{"doc":NaN,"x":%d}', '{"n":[%d]}',
        '{"docs":%d}', '{"docs":[1,"\\u0000%d"]}', '{"ns":[1,"x%d"]}',
    ]),
    "Json with numbers since 1970": (Json("at timestamp, day date", epoch={"at": "ms", "day": "d"}), [
        '{"at":92233720368547758%d}', '{"at":-2108668032000%d}', '{"day":21450429%d}', '{"at":%d.5}',
    ]),
    "Csv": (Csv("id int, at timestamptz, note text"), [
        "%da,,", "%d", "%d,,,", "9%012d,,x", "1,%d,", "1,2024-13-%02d,x", "1.%d,,", "x%d,,\n",
        '"%da","",', '1,"%d', "0x%d,,", "+%d,,", "1,2024-13-%02d", "1,,x\n%d", "1,,\0%d", '"1"%dx,,', 'x"%d",,',
        " %dx,,", "1,2024-01-01T00:00:00.1234567%d,", "1,2024-01-01T00:00:%02d,", "a\0%d,,",
    ]),
    "Csv with numbers": (Csv("a real, b numeric(10,2), c numeric(38,30), d numeric"), [
        "nan(%d),,,", "1e4%d,,,", "-Inf,%d,,", ",1.23%d,,", ",1e1%d,,", ",1e-%d,,", ",,1e%d,", ",,x%d,", ",,,1x%d",
        ",,,NaN%d",
    ]),
    "Protobuf": (PROTOBUF, ["1%d"]),
    "Text": (Text("id bigint"), ["%da", "\0%d", '"%d"', "0x%d", "+%d"]),
    "Text with numbers": (Text("id numeric"), ["%da", "NaN%d", "-%d-", "1e5x%d"]),
    "Json with paths": (Json("id int from 'a.id', note text from 'note'"), [
        '{"a":%d}', '{"a":{"id":"%d"}}', '{"a":{"id":%d.5}}', '{"note":%d}', "%d", '{"a":{"id":1,"id":%d}}',
    ]),
    "Json with numbers in paths": (Json("i int from 'a[0].id', n text from 'b[1]' default 'x', j jsonb from 'c.d'"), [
        '{"a":%d}', '{"a":[%d]}', '{"a":[{"id":"%d"}]}', '{"b":[1,%d]}', '{"b":[null,"%d\\u0000"]}', '{"c":%d}',
    ]),
    "Json with elements": (Json("id int, n int from 'items[].n'"), [
        '{"id":1,"items":[{"n":1},{"n":"%d"}]}', '{"id":1,"items":[{"n":%d.5}]}', '{"id":"%d","items":[]}',
        '{"items":%d}', '{"items":[%d]}', '{"items":[{"n":1.5},{"n":"%d"}]}',
    ]),
    "Debezium": (Debezium("id int, note text"), [
        '{"before":null,"after":{"id":"%d"},"op":"c"}', '{"payload":{"before":{"id":%d.5},"after":null,"op":"d"}}',
        '{"before":{"id":1},"after":{"id":1,"note":%d},"op":"u"}', '{"before":null,"after":{"id":"%d"},"op":"c"',
        '{"before":{"id":1},"after":{"id":1,"note":"%d\\u0000"},"op":"u"}',
        '{"before":null,"after":{"id":%d},"op":"x"}', '{"before":null,"after":null,"op":"c","ts_ms":%d}',
        '{"before":null,"after":{"id":1,"note":"%d\\ud800"},"op":"c"}',
        '{"before":null,"after":null,"op":"t","ts_ms":%d}', '{"before":null,"after":{"id":%d}}', '{"id":%d}',
        '{"after":{"id":%d,"note":"__debezium_unavailable_value"},"op":"c"}', '{"payload":%d}', '{"after":%d,"op":"c"}',
        '{"after":{"id":%d,"id":1},"op":"c"}', '{"after":{"id":%d},"op":1}', '{"after":{"id":%d},"op":"c","op":"c"}',
    ]),
    "Debezium with decimals": (Debezium("n numeric, p numeric(4,2)"), [
        '{"after":{"n":"12%d"},"op":"c"}', '{"after":{"p":"12%d"},"op":"c"}', '{"after":{"p":"1.5%dx"},"op":"c"}',
        '{"after":{"p":100%d},"op":"c"}',
    ]),
    "Debezium with times": (Debezium("at timestamptz, day date, b bytea", epoch={"at": "us"}, binary="base64"), [
        '{"after":{"at":-40000000000000000%d},"op":"c"}', '{"after":{"day":"2024-13-%d"},"op":"c"}',
        '{"after":{"b":"%d?"},"op":"c"}',
    ]),
    "Debezium with a version": (Debezium("id int", "n"), [
        '{"before":null,"after":{"id":%d},"op":"c"}', '{"before":null,"after":{"id":%d},"op":"c","source":{"n":null}}',
        '{"before":null,"after":{"id":%d},"op":"c","source":{"n":"x"}}', '{"after":{"id":1},"op":"c","source":%d}',
    ]),
    "Debezium with a source": (Debezium("id int", source="table"), [
        '{"after":{"id":1},"op":"c","source":{"table":%d}}', '{"after":{"id":1},"op":"c","source":{"table":[%d]}}',
        '{"after":{"id":1},"op":"c","source":{"table":"%d\\u0000"}}',
    ]),
    "Custom": (Custom(custom_text, "a text"), ["a\0%d"]),
    "Flattened": (Flattened("id int, note text"), [
        '{"id":"%d"}', '{"id":1,"note":%d,"__deleted":"false"}', '{"id":%d.5,"__op":"u"}', '{"id":%d', "%d",
        '{"other":%d}', '{"id":%d,"__op":"x"}', '{"id":%d,"__deleted":1}', '{"id":{"a":%d}}', '{"id":%d,"note":[]}',
    ]),
}  # fmt: skip


@pytest.mark.parametrize("form", BAD)
def test_bad_values_are_not_decoded_one_by_one(monkeypatch, form):
    format_, kinds = BAD[form]
    blocks = []
    decoder = type(find_decoder(format_))
    names = [
        each
        for each in ("_decode_block", "decode_block", "_decode_members", "_storable")
        if hasattr(decoder, each)
    ]
    assert names
    for name in names:
        inner = getattr(decoder, name)
        monkeypatch.setattr(
            decoder, name, lambda *given, inner=inner: blocks.append(len(given[-1])) or inner(*given)
        )
    for kind in kinds:
        values = [(kind % number).encode() for number in range(10, 100)]
        blocks.clear()
        decoded = find_decoder(format_).decode(pa.array(values, pa.binary()))
        assert len(decoded.rejects) == 90, kind
        assert len(blocks) <= 3, kind
        sample = values[::30]
        assert [why for _, why in decoded.rejects[::30]] == list(why_each(format_, sample).values())
