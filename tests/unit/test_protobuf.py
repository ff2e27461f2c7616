"""Protobuf messages become rows: each type exactly, presence, paths, the wire format of a registry."""

import base64
import json
import pickle
from datetime import UTC, datetime
from decimal import Decimal
from math import isnan

import pytest
from google.protobuf import descriptor_pb2, json_format, struct_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from exactbatch.errors import ConfigurationError
from exactbatch.formats import JsonSchema, Protobuf
from exactbatch.formats.registry.registry_properties import with_registry
from support.decoding import decode, reason, rows
from support.protobuf_schema import SCALARS, shop_class, shop_descriptors, shop_file
from support.registry import registry_with

Order = shop_class("Order")
DESCRIPTORS = shop_descriptors()


def protobuf(schema, **more):
    return Protobuf(schema, **{"descriptor": DESCRIPTORS, "message": "shop.Order", **more})


def written(**fields):
    return Order(**fields).SerializeToString()


def value_of(type_, path, **fields):
    [row] = rows(protobuf(f"x {type_} from '{path}'"), written(**fields))
    return row["x"]


EXTREMES = {
    "double": ("double precision", [0.0, -0.0, 1.5, 5e-324, 1.7976931348623157e308, float("inf")]),
    "float": ("real", [0.0, 1.5, 3.4028234663852886e38, float("-inf")]),
    "int64": ("bigint", [-(2**63), 2**63 - 1]),
    "uint64": ("numeric", [0, 2**63, 2**64 - 1]),
    "int32": ("integer", [-(2**31), 2**31 - 1]),
    "fixed64": ("numeric(20,0)", [0, 2**64 - 1]),
    "fixed32": ("bigint", [0, 2**32 - 1]),
    "bool": ("boolean", [True, False]),
    "string": ("text", ["", "é\n"]),
    "bytes": ("bytea", [b"", b"\0\xff"]),
    "uint32": ("bigint", [0, 2**32 - 1]),
    "sfixed32": ("integer", [-(2**31), 2**31 - 1]),
    "sfixed64": ("bigint", [-(2**63), 2**63 - 1]),
    "sint32": ("integer", [-(2**31), 2**31 - 1]),
    "sint64": ("bigint", [-(2**63), 2**63 - 1]),
}


@pytest.mark.parametrize("name", SCALARS)
def test_each_scalar_arrives_exactly(name):
    type_, values = EXTREMES[name]
    for value in values:
        expected = {"numeric": str, "numeric(20,0)": Decimal}.get(type_, lambda same: same)(value)
        assert repr(value_of(type_, f"f_{name}", **{f"f_{name}": value})) == repr(expected)
        assert repr(value_of(type_, f"r_{name}[1]", **{f"r_{name}": [value, value]})) == repr(expected)
        assert value_of(f"{type_}[]", f"r_{name}", **{f"r_{name}": [value]}) == [expected]
        assert value_of(type_, f"o_{name}", **{f"o_{name}": value}) == expected
    assert value_of(type_, f"o_{name}") is None
    assert value_of(type_, f"r_{name}[0]") is None
    assert value_of(f"{type_}[]", f"r_{name}") == []
    assert value_of(type_, f"f_{name}") is not None


def test_nan_and_float_are_what_they_are():
    assert isnan(value_of("double precision", "f_double", f_double=float("nan")))
    assert value_of("double precision", "f_float", f_float=0.1) == 0.10000000149011612


@pytest.mark.parametrize(
    ("type_", "path", "fields", "why"),
    [
        (
            "bigint",
            "f_uint64",
            {"f_uint64": 2**63},
            "expected an integer of its range, found 9223372036854775808",
        ),
        ("smallint", "f_int32", {"f_int32": 40_000}, "expected an integer of its range, found 40000"),
        ("numeric(3,0)", "f_int32", {"f_int32": 1234}, "precision"),
        ("text", "mood", {"mood": 7}, "the enum has no name for 7"),
        ("text", "f_string", {"f_string": "a\0b"}, "Postgres cannot store U+0000 in text"),
        ("jsonb", "f_string", {"f_string": "a\0b"}, "Postgres cannot store U+0000 in text"),
        ("timestamptz", "at", {"at": {"seconds": 2**62}}, "the Timestamp has 4611686018427387904 seconds"),
        ("timestamptz", "at", {"at": {"seconds": -62_135_596_801}}, "the Timestamp has -62135596801 seconds"),
        ("timestamp", "at", {"at": {"seconds": 253_402_300_800}}, "the Timestamp has 253402300800 seconds"),
        ("timestamptz", "at", {"at": {"nanos": 10**9}}, "the Timestamp has 1000000000 nanos"),
        ("interval", "took", {"took": {"nanos": 1}}, "expected whole microseconds, found 1 nanos"),
        ("numeric", "took", {"took": {"seconds": 1, "nanos": -1}}, "the Duration has 1 s and -1 nanos"),
        ("interval", "took", {"took": {"seconds": 315_576_000_001}}, "the Duration has 315576000001 s"),
    ],
)
def test_a_value_that_does_not_fit_is_a_reject(type_, path, fields, why):
    message = reason(protobuf(f"x {type_} from '{path}'"), written(**fields))
    assert message.startswith("column 'x', ")
    assert why in message


@pytest.mark.parametrize(
    ("seconds", "nanos", "text"),
    [
        (2**33 - 1, 1_000, "PT8589934591.000001S"),
        (2**33, 1_000, "PT2386092H3392.000001000S"),
        (-(2**33), -1_000, "PT-2386092H-3392.000001000S"),
    ],
)
def test_a_long_duration_keeps_its_microseconds(seconds, nanos, text):
    assert value_of("interval", "took", took={"seconds": seconds, "nanos": nanos}) == text


def test_enums_times_wrappers_and_oneofs():
    schema = (
        "mood text, n int from 'mood', at timestamptz, local timestamp from 'at', took interval, "
        "s numeric from 'took', wrapped numeric, cash bigint, card text, j jsonb from 'counts', anything jsonb, "
        "first jsonb, l jsonb from 'items', w jsonb from 'wrapped', z jsonb from 'f_int64', t json from 'at'"
    )
    value = written(
        mood=1,
        at={"seconds": 1709200800, "nanos": 123456789},
        took={"seconds": -1, "nanos": -500_000_000},
        wrapped={"value": 2**64 - 1},
        card="",
        counts={"a": 2**40},
        anything={"x": [1, None]},
        first={"sku": "é", "quantity": 0},
        items=[{}],
        f_int64=7,
    )
    full, empty = rows(protobuf(schema), value, b"")
    at = datetime(2024, 2, 29, 10, 0, 0, 123456, UTC)
    assert full == {
        "mood": "GOOD",
        "n": 1,
        "at": at,
        "local": at.replace(tzinfo=None),
        "took": "PT-1.5S",
        "s": "-1.5",
        "wrapped": "18446744073709551615",
        "cash": None,
        "card": "",
        "j": '{"a": "1099511627776"}',
        "anything": '{"x": [1.0, null]}',
        "first": '{"sku": "é", "quantity": 0}',
        "l": "[{}]",
        "w": '"18446744073709551615"',
        "z": '"7"',
        "t": '"2024-02-29T10:00:00.123456789Z"',
    }
    assert empty == {**dict.fromkeys(full), "mood": "UNKNOWN", "n": 0, "j": "{}", "l": "[]", "z": '"0"'}


def test_paths_defaults_and_elements_as_rows():
    schema = (
        "id bigint from 'f_int64', sku text from 'items[].sku', quantity int from 'items[].quantity' default 1, "
        "tag text from 'items[].tags[1]', first text from 'first.sku' default 'none', whole jsonb from '$'"
    )
    items = [{"sku": "a", "quantity": 3, "tags": ["x", "y"]}, {"sku": "b"}]
    decoded = decode(protobuf(schema), written(f_int64=5, items=items), written(f_int64=6), None)
    assert decoded.kept.to_pylist() == [0, 0]
    assert [list(row.values())[:5] for row in decoded.rows.to_pylist()] == [
        [5, "a", 3, "y", "none"],
        [5, "b", 1, None, "none"],
    ]
    assert json.loads(decoded.rows.column("whole")[0].as_py())["f_int64"] == "5"


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("x bigint", "shop.Order has no field 'x'"),
        ("x bigint from 'first.y'", "shop.Order.Item has no field 'y'"),
        ("x int from 'f_double'", "expected a field whose values fit, found 'f_double', double"),
        ("x real from 'f_double'", "expected a field whose values fit"),
        ("x text from 'f_int32'", "expected a field whose values fit"),
        ("x text from 'first'", "found 'first', shop.Order.Item"),
        ("x text from 'r_string'", "found 'r_string', repeated string"),
        ("x text from 'items.sku'", "'sku' is not in a single message"),
        ("x text from 'f_string[0]'", "[] and [n] need a repeated field"),
        ("x text from 'counts[0].key'", "[] and [n] need a repeated field"),
        ("x text[] from 'f_string'", "expected a field whose values fit"),
    ],
)
def test_columns_that_do_not_fit_the_descriptor_are_refused(schema, why):
    with pytest.raises(ConfigurationError) as refused:
        protobuf(schema)
    assert why in str(refused.value)


def test_what_does_not_name_a_message_type_is_refused(tmp_path):
    for options in (
        {"descriptor": DESCRIPTORS},
        {"message": "shop.Order"},
        {},
        {"registry": "http://x", "descriptor": DESCRIPTORS, "message": "shop.Order"},
        {"registry": "http://me:secret@x"},
        {"descriptor": DESCRIPTORS, "message": "shop.Nothing"},
        {"descriptor": b"\xff", "message": "shop.Order"},
        {"descriptor": tmp_path / "missing", "message": "shop.Order"},
    ):
        with pytest.raises(ConfigurationError):
            Protobuf("x bigint from 'f_int64'", **options)
    file = tmp_path / "shop.desc"
    file.write_bytes(shop_descriptors(with_imports=False))
    assert rows(Protobuf("f_int64 bigint", descriptor=file, message="shop.Order"), written(f_int64=5)) == [
        {"f_int64": 5}
    ]


def test_bytes_that_are_not_a_message_are_a_reject():
    assert reason(protobuf("f_int64 bigint"), b"\xff") == "the value is not a message of the type shop.Order"
    assert (
        reason(protobuf("f_string text"), b"\x4a\x01\xff")
        == "the value is not a message of the type shop.Order"
    )


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=6))
def test_no_bytes_make_decoding_fail(values):
    schema = "f_int64 bigint, r jsonb from '$', sku text from 'items[].sku', at timestamptz, mood text"
    decode(protobuf(schema), *values)


def test_it_travels_to_executors():
    value = pickle.loads(pickle.dumps(protobuf("f_int64 bigint default 5")))
    assert rows(value, written(f_int64=7)) == [{"f_int64": 7}]


# Closed enums, those of proto2.


def closed_enums():
    """A message of proto2 with an enum of A and B: single, repeated, in a map, and in an inner message."""
    file = descriptor_pb2.FileDescriptorProto(name="old.proto", package="old", syntax="proto2")
    file.enum_type.add(name="E").value.extend(
        [
            descriptor_pb2.EnumValueDescriptorProto(name=name, number=number)
            for number, name in enumerate("AB")
        ]
    )
    message = file.message_type.add(name="M")
    entry = message.nested_type.add(name="NamedEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=14, label=1, type_name=".old.E")
    message.field.add(name="one", number=1, type=14, label=1, type_name=".old.E")
    message.field.add(name="many", number=2, type=14, label=3, type_name=".old.E")
    message.field.add(name="named", number=3, type=11, label=3, type_name=".old.M.NamedEntry")
    message.field.add(name="inner", number=4, type=11, label=1, type_name=".old.M")
    message.field.add(name="other", number=5, type=5, label=1)
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ("x text from 'one'", b"\x08\x01", b"\x08\x05"),
        ("x text from 'one' default 'A'", b"\x08\x01", b"\x08\x05"),
        ("x int from 'one'", b"\x08\x01", b"\x08\x05"),
        ("x text[] from 'many'", b"\x10\x00\x10\x01", b"\x10\x00\x10\x07"),
        ("x text[] from 'many'", b"\x12\x02\x00\x01", b"\x12\x02\x00\x07"),  # packed
        ("x jsonb from 'named'", b"\x1a\x05\x0a\x01k\x10\x01", b"\x1a\x05\x0a\x01k\x10\x07"),
        ("x text from 'inner.one'", b"\x22\x02\x08\x01", b"\x22\x02\x08\x05"),
        ("x jsonb from '$'", b"\x22\x02\x08\x01", b"\x22\x02\x08\x05"),
        ("x jsonb from 'inner'", b"\x22\x02\x08\x01", b"\x22\x02\x08\x05"),
        ("x int from 'other'", b"\x28\x01\x08\x05", None),  # no column has the enum
    ],
)
def test_a_number_without_a_name_in_a_closed_enum_is_a_reject(schema, good, bad):
    """Protobuf's parser moves it to the unknown fields, so that the field looks unset."""
    value = Protobuf(schema, descriptor=closed_enums(), message="old.M")
    decoded = decode(value, *filter(None, (good, bad, good)))
    assert len(decoded.rows) == 2
    if bad is not None:
        [(index, why)] = decoded.rejects
        assert (index, "the enum has no name for" in why) == (1, True)


# A producer that changes the type of a field before the descriptor is replaced.

DOUBLE, INT64, INT32, FIXED32, BOOL, STRING, MESSAGE, UINT32, ENUM, SINT32, SINT64 = (
    1, 3, 5, 7, 8, 9, 11, 13, 14, 17, 18,
)  # fmt: skip


def of_type(type_, *, syntax="proto3", key_type=INT32):
    """A file descriptor set with a message M of one field x, also as o with presence, r repeated and m, a map."""
    file = descriptor_pb2.FileDescriptorProto(name="p.proto", package="p", syntax=syntax)
    names = [
        descriptor_pb2.EnumValueDescriptorProto(name=name, number=number) for number, name in enumerate("XYZ")
    ]
    file.enum_type.add(name="E").value.extend(names)
    message = file.message_type.add(name="M")
    entry = message.nested_type.add(name="MEntry")
    entry.options.map_entry = True
    enum = {"type_name": ".p.E"}
    entry.field.add(name="key", number=1, type=key_type, label=1)
    entry.field.add(name="value", number=2, type=type_, label=1, **(enum if type_ == ENUM else {}))
    for number, (name, label) in enumerate({"x": 1, "o": 1, "r": 3}.items(), 1):
        field = message.field.add(
            name=name, number=number, type=type_, label=label, **(enum if type_ == ENUM else {})
        )
        if name == "o" and syntax == "proto3":
            message.oneof_decl.add(name="_o")
            field.oneof_index, field.proto3_optional = 0, True
    message.field.add(name="m", number=4, type=MESSAGE, label=3, type_name=".p.M.MEntry")
    message.field.add(name="inner", number=5, type=MESSAGE, label=1, type_name=".p.M")
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def message_of(descriptors, **fields):
    pool = DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
        pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("p.M"))(**fields).SerializeToString()


CHANGED = [
    # what the descriptor has, what the producer writes, a value that fits, and one that does not
    (INT32, INT64, 2**31 - 1, 2**32 + 5),
    (INT32, INT64, -(2**31), -(2**31) - 1),
    (INT32, UINT32, 7, 2**32 - 1),
    (UINT32, INT64, 2**32 - 1, 2**32),
    (UINT32, INT32, 7, -1),
    (SINT32, SINT64, -(2**31), 2**32 + 2),
    (ENUM, INT64, 1, 2**32 + 1),
    (BOOL, INT64, 1, 2**32),
    (BOOL, INT32, 0, 2),
]
COLUMNS = {ENUM: "text", BOOL: "boolean"}


@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
@pytest.mark.parametrize(("declared", "written_as", "fits", "does_not"), CHANGED)
def test_a_number_that_the_descriptors_type_does_not_have_is_a_reject(
    declared, written_as, fits, does_not, syntax
):
    """Protobuf's parser cuts it to 32 bits, or takes it for true."""
    type_ = COLUMNS.get(declared, "bigint")
    known = {"descriptor": of_type(declared, syntax=syntax), "message": "p.M"}
    writer = of_type(written_as)
    places = {
        f"v {type_} from 'x'": lambda value: {"x": value},
        f"v {type_} from 'o'": lambda value: {"o": value},
        f"v {type_}[] from 'r'": lambda value: {"r": [fits, value]},
        f"v {type_} from 'r[1]'": lambda value: {"r": [fits, value]},
        f"v {type_} from 'inner.x'": lambda value: {"inner": {"x": value}},
        "v jsonb from 'x'": lambda value: {"x": value},
        "v jsonb from 'r'": lambda value: {"r": [value]},
        "v jsonb from 'm'": lambda value: {"m": {1: value}},
        "v jsonb from 'inner'": lambda value: {"inner": {"inner": {"m": {1: value}}}},
        "v jsonb from '$'": lambda value: {"r": [value]},
    }
    for schema, fields in places.items():
        good, bad = message_of(writer, **fields(fits)), message_of(writer, **fields(does_not))
        decoded = decode(Protobuf(schema, **known), good, bad, good)
        assert len(decoded.rows) == 2, schema
        [(index, why)] = decoded.rejects
        assert (index, why.startswith("column 'v', ")) == (1, True), (schema, why)
    # Where no column takes the field, it does not matter.
    bad = message_of(writer, x=does_not, r=[fits])
    assert not decode(Protobuf(f"v {type_}[] from 'r'", **known), bad).rejects
    key = message_of(of_type(INT32, key_type=INT64), m={2**32 + 1: 1})
    for schema in ("v jsonb from 'm'", "v jsonb from '$'"):
        assert decode(Protobuf(schema, descriptor=of_type(INT32), message="p.M"), key).rejects


@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
@pytest.mark.parametrize(
    ("declared", "written_as", "value"),
    [
        (INT32, FIXED32, 5),
        (INT32, STRING, "5"),
        (INT32, DOUBLE, 5.0),
        (ENUM, STRING, "Y"),
        (STRING, INT64, 5),
    ],
)
def test_a_field_with_another_wire_type_is_a_reject(declared, written_as, value, syntax):
    """The parser moves it to the unknown fields, so that the field looks unset."""
    type_, zero = ("text", "'0'") if declared in (ENUM, STRING) else ("bigint", "0")
    known = {"descriptor": of_type(declared, syntax=syntax), "message": "p.M"}
    writer = of_type(written_as)
    for schema, fields in {
        f"v {type_} from 'x'": {"x": value},
        f"v {type_} from 'o' default {zero}": {"o": value},
        f"v {type_} from 'inner.x'": {"inner": {"x": value}},
        "v jsonb from '$'": {"inner": {"x": value}},
    }.items():
        message = message_of(writer, **fields)
        assert "which is not that of the descriptor's type" in reason(Protobuf(schema, **known), message)
    # Where no column takes the field, it does not matter.
    assert not decode(Protobuf(f"v {type_}[] from 'r'", **known), message_of(writer, x=value)).rejects


def test_a_wrapper_or_time_with_another_wire_type_is_a_reject():
    text = b"\x0a\x015"  # field 1, "5"
    for number, column in (
        (73, "x timestamptz from 'at'"),
        (74, "x interval from 'took'"),
        (75, "x numeric from 'wrapped'"),
    ):
        tag = bytes([(number << 3 | 2) & 0x7F | 0x80, (number << 3 | 2) >> 7])
        assert "descriptor's type" in reason(protobuf(column), tag + bytes([len(text)]) + text)


def proto2(*fields):
    """A file descriptor set of proto2 with a message M of such fields, each (name, type, label), and an enum."""
    file = descriptor_pb2.FileDescriptorProto(name="p.proto", package="p", syntax="proto2")
    enum = file.enum_type.add(name="E")
    enum.options.allow_alias = True
    for name, number in (("A", 0), ("ALIAS", 0), ("C", 1), ("NEW", 1)):
        enum.value.add(name=name, number=number)
    message = file.message_type.add(name="M")
    for number, (name, type_, label) in enumerate(fields, 1):
        more = {ENUM: {"type_name": ".p.E"}, MESSAGE: {"type_name": ".p.M"}}.get(type_, {})
        message.field.add(name=name, number=number, type=type_, label=label, **more)
    return {
        "descriptor": descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString(),
        "message": "p.M",
    }


def test_a_required_field_may_be_missing():
    known = proto2(("a", INT32, 2), ("n", MESSAGE, 1))
    decoded = decode(Protobuf("a int, n jsonb, w jsonb from '$'", **known), b"\x12\x00", b"")
    assert decoded.rows.to_pylist() == [
        {"a": None, "n": "{}", "w": '{"n": {}}'},
        {"a": None, "n": None, "w": "{}"},
    ]


def test_a_string_that_is_not_utf8_is_a_reject_in_json_too():
    known = proto2(("s", STRING, 1), ("r", STRING, 3), ("n", MESSAGE, 1))
    for column, value in {
        "x text from 's'": b"\x0a\x01\xff",
        "x jsonb from 's'": b"\x0a\x01\xff",
        "x jsonb from '$'": b"\x0a\x01\xff",
        "w jsonb from '$'": b"\x12\x01a\x12\x01\xff",
        "x jsonb from 'n'": b"\x1a\x03\x0a\x01\xff",
    }.items():
        assert decode(Protobuf(column, **known), value).rejects, column


def test_of_two_names_of_a_number_the_first_counts():
    value = Protobuf("x text from 'e', j jsonb from 'e', w jsonb from '$'", **proto2(("e", ENUM, 1)))
    assert rows(value, b"\x08\x01", b"\x08\x00") == [
        {"x": "C", "j": '"C"', "w": '{"e": "C"}'},
        {"x": "A", "j": '"A"', "w": '{"e": "A"}'},
    ]


_MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        **{
            f"{prefix}{name}": values if prefix != "r_" else st.lists(values, max_size=3)
            for prefix in ("f_", "o_", "r_")
            for name, values in {
                "int32": st.integers(-(2**31), 2**31 - 1),
                "sint32": st.integers(-(2**31), 2**31 - 1),
                "sfixed32": st.integers(-(2**31), 2**31 - 1),
                "uint32": st.integers(0, 2**32 - 1),
                "int64": st.integers(-(2**63), 2**63 - 1),
                "uint64": st.integers(0, 2**64 - 1),
                "bool": st.booleans(),
                "double": st.floats(allow_nan=False, allow_infinity=False),
                "string": st.text("ab\u00e9", max_size=3),
                "bytes": st.binary(max_size=3),
            }.items()
        },
        "mood": st.integers(0, 1),
        "items": st.lists(st.fixed_dictionaries({}, optional={"quantity": st.integers(-5, 5)}), max_size=2),
        "first": st.fixed_dictionaries({"tags": st.lists(st.text("ab", max_size=2), max_size=2)}),
        "counts": st.dictionaries(st.text("ab", max_size=2), st.integers(0, 9), max_size=2),
        "at": st.fixed_dictionaries({"seconds": st.integers(0, 10**9), "nanos": st.integers(0, 999)}),
    },
)


@settings(max_examples=200, deadline=None)
@given(_MESSAGES)
def test_json_is_that_of_protobufs_own_mapping(fields):
    message = Order(**fields)
    expected = json_format.MessageToDict(message, preserving_proto_field_name=True)
    value = message.SerializeToString()
    [row] = rows(protobuf("x jsonb from '$'"), value)
    assert json.loads(row["x"]) == expected
    for name in set(expected) & {
        "items",
        "counts",
        "r_bool",
        "r_int32",
        "r_uint64",
        "mood",
        "o_bool",
        "first",
        "at",
    }:
        [row] = rows(protobuf(f"x jsonb from '{name}'"), value)
        assert json.loads(row["x"]) == expected[name]


# With a registry.


def schema_of(file, *references):
    text = base64.b64encode(file.SerializeToString()).decode()
    return 200, {"schema": text, "schemaType": "PROTOBUF", "references": list(references)}


def file_of(name, imports, **fields):
    """A file with one message of the same name; fields are (number, type), a type being a number or a message."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{name}.proto", syntax="proto3", dependency=imports)
    message = file.message_type.add(name=name)
    for field, (number, type_) in fields.items():
        more = {"type": type_} if isinstance(type_, int) else {"type": 11, "type_name": f".{type_}"}
        message.field.add(name=field, number=number, label=1, **more)
    return file


def two_versions():
    """A (ID 20) imports B and C, and C imports another version of B, in which the fields are swapped."""
    string = 9
    versions = {
        1: file_of("B", [], first=(1, string), second=(2, string)),
        2: file_of("B", [], first=(2, string), second=(1, string)),
    }
    b = {version: {"name": "B.proto", "subject": "b", "version": version} for version in versions}
    c = {"name": "C.proto", "subject": "c", "version": 1}
    answers = {
        f"/subjects/b/versions/{version}?deleted=true&format=serialized": schema_of(file)
        for version, file in versions.items()
    }
    answers["/subjects/c/versions/1?deleted=true&format=serialized"] = schema_of(
        file_of("C", ["B.proto"], b=(1, "B")), b[2]
    )
    whole = file_of("A", ["B.proto", "C.proto"], b=(1, "B"), c=(2, "C"))
    answers["/schemas/ids/20?format=serialized"] = schema_of(whole, b[1], c)
    answers["/schemas/ids/21?format=serialized"] = schema_of(whole, c, b[1])
    for path, (_, answer) in answers.items():
        if path.startswith("/subjects"):
            answer |= {"subject": "s", "version": 1, "id": 5}
    return answers


@pytest.mark.parametrize(("schema_id", "first"), [(20, "x"), (21, "y")])
def test_of_two_versions_of_an_imported_file_the_first_counts_as_for_the_serializer(
    registry, schema_id, first
):
    body = b"\x0a\x06\x0a\x01x\x12\x01y"  # b is {1: "x", 2: "y"}
    value = Protobuf("first text from 'b.first'", registry=registry)
    assert rows(value, framed(schema_id, b"\0" + body)) == [{"first": first}]


@pytest.fixture
def registry():
    outer = descriptor_pb2.FileDescriptorProto(name="anything", package="outer", syntax="proto3")
    outer.dependency.append("shop.proto")
    box = outer.message_type.add(name="Box")
    box.field.add(name="order", number=1, type=11, label=1, type_name=".shop.Order")
    reference = {"name": "shop.proto", "subject": "shop", "version": 3}
    text = base64.b64encode(shop_file().SerializeToString()).decode()
    answers = {
        "/schemas/ids/7?format=serialized": schema_of(shop_file()),
        "/schemas/ids/8?format=serialized": schema_of(outer, reference),
        "/subjects/shop/versions/3?deleted=true&format=serialized": (
            200,
            {"subject": "shop", "version": 3, "id": 7, "schema": text, "schemaType": "PROTOBUF"},
        ),
        **two_versions(),
        "/schemas/ids/9": (200, {"schema": "{}", "schemaType": "JSON"}),
        "/schemas/ids/9?format=serialized": (200, {"schema": "{}", "schemaType": "JSON"}),
        "/schemas/ids/10": (200, {"schema": '"int"'}),
    }
    with registry_with(answers) as address:
        yield address


def framed(schema_id, rest):
    return b"\0" + schema_id.to_bytes(4, "big") + rest


def test_the_place_of_a_message_type_is_in_the_value(registry):
    value = Protobuf("f_int64 bigint, sku text", registry=registry)
    item = shop_class("Order.Item")(sku="s").SerializeToString()
    good = (
        framed(7, b"\x02\x02" + written(f_int64=5)),
        framed(7, b"\x04\x02\x00" + item),
        framed(7, b"\x00" + shop_class("Other")(id=5).SerializeToString()),
    )
    assert rows(value, *good) == [
        {"f_int64": 5, "sku": None},
        {"f_int64": None, "sku": "s"},
        {"f_int64": None, "sku": None},
    ]


def test_the_name_of_the_message_type_is_a_column(registry):
    value = Protobuf("f_int64 bigint", registry=registry, schema_name="kind")
    item = shop_class("Order.Item")(sku="s").SerializeToString()
    good = (framed(7, b"\x02\x02" + written(f_int64=5)), framed(7, b"\x04\x02\x00" + item))
    assert rows(value, good[0], None, good[1]) == [
        {"f_int64": 5, "kind": "shop.Order"},
        {"f_int64": None, "kind": "shop.Order.Item"},
    ]
    elements = Protobuf("sku text from 'items[].sku'", registry=registry, schema_name="kind")
    order = framed(7, b"\x02\x02" + written(items=[{"sku": "a"}, {"sku": "b"}]))
    assert rows(elements, good[1], order) == [{"sku": sku, "kind": "shop.Order"} for sku in ("a", "b")]
    with pytest.raises(ConfigurationError, match="all values have the same schema without a registry"):
        Protobuf("a int", descriptor=DESCRIPTORS, message="shop.Order", schema_name="kind")


def test_elements_whose_type_lacks_a_field_are_rows(registry):
    value = Protobuf(
        "id bigint from 'f_int64', sku text from 'items[].sku', c text from 'items[].color' default 'red', "
        "s text from 'items[].size.name', t text from 'items[].first[0].name'",
        registry=registry,
    )
    order = written(f_int64=5, items=[{"sku": "a"}, {}])
    missing = {"c": "red", "s": None, "t": None}
    assert rows(value, framed(7, b"\x02\x02" + order)) == [
        {"id": 5, "sku": "a", **missing},
        {"id": 5, "sku": "", **missing},
    ]


def test_an_array_that_the_type_lacks_gives_no_rows(registry):
    value = Protobuf("id bigint from 'f_int64', c text from 'boxes[].items[].color'", registry=registry)
    decoded = decode(value, framed(7, b"\x02\x02" + written(f_int64=5)))
    assert (len(decoded.rows), decoded.rejects) == (0, ())


def test_a_default_is_for_what_is_not_set():
    form = protobuf("a jsonb from 'anything.fields' default '5', n numeric from 'wrapped' default 7")
    assert rows(form, written()) == [{"a": "5", "n": "7"}]
    null = Protobuf("v jsonb default '5'", descriptor=_values(), message="v.Holder")
    assert rows(null, b"\x0a\x02\x08\x00", b"") == [{"v": None}, {"v": "5"}]


def _values():
    """message Holder { google.protobuf.Value v = 1; }"""
    files = descriptor_pb2.FileDescriptorSet()
    files.file.add().ParseFromString(struct_pb2.DESCRIPTOR.serialized_pb)
    file = files.file.add(name="v.proto", package="v", syntax="proto3")
    file.dependency.append(struct_pb2.DESCRIPTOR.name)
    file.message_type.add(name="Holder").field.add(
        name="v", number=1, type=11, label=1, type_name=".google.protobuf.Value"
    )
    return files.SerializeToString()


def test_a_schema_may_import_others(registry):
    value = Protobuf("id bigint from 'order.f_int64', at timestamptz from 'order.at'", registry=registry)
    box = b"\x0a" + bytes([len(written(f_int64=5))]) + written(f_int64=5)
    assert rows(value, framed(8, b"\x00" + box)) == [{"id": 5, "at": None}]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "expected byte 0 and the 4 bytes of a schema ID, found nothing"),
        (b"\x01\0\0\0\x07\0", "expected byte 0 and the 4 bytes of a schema ID, found 01 00 00 00 07"),
        (
            framed(7, b""),
            "the value ends within the indexes of its message type, or one of them is too large",
        ),
        (
            framed(7, b"\x02"),
            "the value ends within the indexes of its message type, or one of them is too large",
        ),
        (
            framed(7, b"\x80" * 9),
            "the value ends within the indexes of its message type, or one of them is too large",
        ),
        (framed(7, b"\x01"), "expected up to 32 indexes of a message type, found -1"),
        (framed(7, b"\x02\x01"), "expected indexes of a message type from 0, found -1"),
        (framed(7, b"\x02\x0e"), "the schema has no message type at [7]"),
        (framed(11, b"\0"), "the registry has no Protobuf schema with the ID 11"),
        (framed(9, b"\0"), "the registry has no Protobuf schema with the ID 9"),
        (framed(7, b"\x02\x02\xff"), "the value is not a message of the type shop.Order"),
    ],
)
def test_a_value_without_its_schema_is_a_reject(registry, value, why):
    assert reason(Protobuf("f_int64 bigint", registry=registry), value) == why


def test_json_after_the_header_of_a_registry(registry):
    value = with_registry(JsonSchema("id bigint from 'user.id', c text default 'DE'", registry=registry), {})
    decoded = decode(
        value,
        framed(9, b'{"user": {"id": 5}}'),
        framed(10, b"{}"),
        None,
        framed(11, b"{}"),
        b'{"user": {"id": 6}}',
        framed(9, b'{"user": 7}'),
        framed(9, b""),
        framed(9, b'{"user": {"id": 8}, "c": "x"}'),
    )
    assert decoded.rows.to_pylist() == [{"id": 5, "c": "DE"}, {"id": 8, "c": "x"}]
    assert decoded.kept.to_pylist() == [0, 7]
    assert decoded.rejects == (
        (1, "schema 10 of the registry is AVRO, not JSON"),
        (3, "the registry has no schema with the ID 11"),
        (4, "expected byte 0 and the 4 bytes of a schema ID, found 7b 22 75 73 65"),
        (5, "column 'id', bigint, from 'user.id': user: expected object, found number"),
        (6, "expected a JSON object: { … }"),
    )
