"""`exactbatch try` groups rejects, and finds the change to a schema that accepts them."""

import pyarrow as pa
import pytest

from exactbatch import Avro, Csv, Debezium, Json, JsonSchema, Protobuf, Text, WithKeyAndHeaders
from exactbatch.sampling.draft import decode
from exactbatch.sampling.suggestions import grouped, suggestion
from support.protobuf_schema import shop_class, shop_descriptors
from support.registry import registry_server


def suggested(format_, *values):
    """The groups of the values that a format rejects: how many, and the change that accepts them."""
    values = pa.array(values, pa.binary())
    inner = format_.value if isinstance(format_, WithKeyAndHeaders) else format_
    rejects = decode(inner, values).rejects
    refused = {index for index, _ in rejects}
    accepted = values.filter(pa.array([index not in refused for index in range(len(values))]))
    found = {}
    for group in grouped([reason for _, reason in rejects]):
        of_group = values.take(pa.array([rejects[index][0] for index in group.indexes], pa.int64()))
        found[group.column] = (len(group.indexes), suggestion(format_, group, of_group, accepted))
    return found


@pytest.mark.parametrize(
    ("format_", "values", "expected"),
    [
        (
            Json("wind_dir int"),
            [b'{"wind_dir": 270.0}', b'{"wind_dir": 12.5}', b'{"wind_dir": 3}'],
            {"wind_dir": (2, "declare wind_dir double precision")},
        ),
        (Json("n int"), [b'{"n": 3000000000}'], {"n": (1, "declare n bigint")}),
        (
            Json("n bigint"),
            [b'{"n": %s}' % (b"9" * 5000), b'{"n": 1}'],
            {"n": (1, "declare n numeric")},
        ),
        (Json("n bigint"), [b'{"n": "1.5"}', b'{"n": 1}'], {"n": (1, "declare n numeric")}),
        (Json("n bigint"), [b'{"n": "x"}', b'{"n": 1}'], {"n": (1, "declare n jsonb")}),
        (Json("n bigint"), [b'{"n": "x"}'], {"n": (1, "declare n text")}),
        (
            Json("at timestamptz"),
            [b'{"at": 1767225600123}'],
            {"at": (1, "declare at timestamptz, with epoch={'at': 'ms'}")},
        ),
        (
            Json("at timestamptz", epoch={"at": "ms"}),
            [b'{"at": "2026-01-01T10:00:00Z"}'],
            {"at": (1, "declare at timestamptz, without epoch")},
        ),
        (
            Json("user_id int from 'user.id' default 0"),
            [b'{"user": {"id": 1.5}}'],
            {"user_id": (1, "declare user_id double precision")},
        ),
        (
            Json("sku int from 'items[].sku'"),
            [b'{"items": [{"sku": "a"}]}'],
            {"sku": (1, "declare sku text")},
        ),
        (
            Json('"Odd" int, other text'),
            [b'{"Odd": 0.5, "other": "x"}'],
            {"Odd": (1, 'declare "Odd" double precision')},
        ),
        (Csv("a int, b int"), [b"1,2.5", b"1,2"], {"b": (1, "declare b double precision")}),
        (
            Debezium("id int"),
            [b'{"before": null, "after": {"id": 3000000000}, "op": "c", "source": {}}'],
            {"id": (1, "declare id bigint")},
        ),
        (Avro('"int"', fields="value smallint"), [b"\x80\x80\x08"], {"value": (1, "declare value bigint")}),
        (
            WithKeyAndHeaders(Json("n int"), key=Text("key")),
            [b'{"n": 0.5}'],
            {"n": (1, "declare n double precision")},
        ),
    ],
)
def test_the_change_that_accepts_what_is_rejected(format_, values, expected):
    assert suggested(format_, *values) == expected


LARGE = b"9007199254740993"  # 2^53 + 1, which a double rounds


@pytest.mark.parametrize(
    ("format_", "before", "after"),
    [
        (Csv("n bigint, x text"), b"", b",x"),
        (Json("n bigint"), b'{"n": ', b"}"),
        (Json("n bigint", documents="lines"), b'{"n": ', b"}"),
        (Json("n bigint from 'items[].a'"), b'{"items": [{"a": ', b"}]}"),
        (Debezium("n bigint"), b'{"before": null, "op": "c", "source": {}, "after": {"n": ', b"}}"),
    ],
)
@pytest.mark.parametrize(
    ("refused", "accepted", "type_"),
    [
        (b"12345678901234567891", b"1", "numeric"),
        (b"2.5", LARGE, "numeric"),
        (b"0.12345678901234567891", b"1", "numeric"),
        (b"2.5", b"1", "double precision"),
    ],
)
def test_no_type_is_suggested_that_rounds(format_, before, after, refused, accepted, type_):
    found = suggested(format_, before + refused + after, before + accepted + after)
    assert found == {"n": (1, f"declare n {type_}")}


@pytest.mark.parametrize(("number", "type_"), [(LARGE, "numeric"), (b"1", "double precision")])
def test_no_type_of_elements_is_suggested_that_rounds(number, type_):
    lines = Json("n bigint[]", documents="lines")
    found = suggested(lines, b'{"n": [2.5, null]}', b'{"n": [%s]}' % number)
    assert found == {"n": (1, f"declare n {type_}[]")}


def test_no_type_is_suggested_that_rounds_numbers_with_a_schema():
    of_protobuf = Protobuf("n bigint from 'f_uint64'", descriptor=shop_descriptors(), message="shop.Order")
    messages = [shop_class("Order")(f_uint64=number).SerializeToString() for number in (2**64 - 1, 1)]
    assert suggested(of_protobuf, *messages) == {"n": (1, "declare n numeric")}
    with registry_server() as registry:
        registry.has(1, {"type": "object"}, schemaType="JSON")
        of_json = JsonSchema("n bigint", registry=registry.address)
        for number, type_ in ((LARGE, "numeric"), (b"1", "double precision")):
            values = [b'\0\0\0\0\1{"n": %s}' % each for each in (b"2.5", number)]
            assert suggested(of_json, *values) == {"n": (1, f"declare n {type_}")}


@pytest.mark.parametrize(
    ("format_", "value"),
    [
        (Json("id int"), b"oops"),
        (Json("name text"), b'{"name": "\\u0000"}'),
        (Csv("a int"), b"1,2"),
        (Text(), b"\xff"),
    ],
)
def test_no_change_accepts_what_is_broken(format_, value):
    ((count, change),) = suggested(format_, value).values()
    assert (count, "max_rejects" in change) == (1, True)


def test_a_change_that_rejects_other_records_is_not_suggested():
    # All digits are an integer for bigint, and no boolean.
    found = suggested(Json("x int"), b'{"x": true}', b'{"x": 1}')
    assert found == {"x": (1, "declare x jsonb")}
    of_elements = Json("x text from 'items[].x'")
    found = suggested(of_elements, b'{"items": [{"x": 1}]}', b'{"items": [{"x": "a"}]}')
    assert found == {"x": (1, "declare x jsonb")}


def test_reasons_are_grouped_without_their_values():
    reasons = [
        "column 'n', integer: expected a number, found 270.0",
        "column 'n', integer: expected a number, found 180.5",
        "column 'm', integer: expected a number, found 1",
        "expected one JSON object: Invalid value at 17",
        "expected one JSON object: Invalid value at 3",
    ]
    assert [(group.column, group.indexes) for group in grouped(reasons)] == [
        ("n", (0, 1)),
        (None, (3, 4)),
        ("m", (2,)),
    ]
