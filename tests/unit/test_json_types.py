"""JSON fields for arrays, for types that Postgres reads from text, and for moments as numbers."""

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exactbatch.errors import ConfigurationError
from exactbatch.formats import Json
from exactbatch.formats.postgres_limits import EARLIEST_DATE, EARLIEST_TIMESTAMP, LATEST_DATE
from support.decoding import decode, reason, rows, value_of
from support.json_values import OBJECTS, VALUES


def why_not(type_: str, written: str) -> str:
    """Why a field is refused for a column of a type."""
    why = reason(Json(f"b int, a {type_}, c text"), b'{"a":%s}' % written.encode())
    assert why.startswith("column 'a', ")
    return why


def epoch(type_: str, unit: str, *numbers: int) -> list[Any]:
    values = [b'{"a":%d}' % number for number in numbers]
    return [row["a"] for row in rows(Json(f"a {type_}", epoch={"a": unit}), *values)]


@pytest.mark.parametrize("type_", ["uuid", "varchar(3)", "time", "interval", "inet", "public.mood"])
def test_types_that_postgres_reads_take_a_string_as_it_is(type_):
    assert value_of(type_, r'"\u00e9 x"') == "é x"
    assert "expected string, found number" in why_not(type_, "1")
    assert "Postgres cannot store U+0000 in text" in why_not(type_, r'"\u0000"')


@pytest.mark.parametrize(
    "written",
    [
        "1",
        "1.10",
        "-0",
        "1e2",
        "123456789012345678901234567890",
        '""',
        '"null"',
        r'"\u00e9\"é"',
        "true",
        "[]",
        "{}",
        '{"b": [1.10, null, {"a":  1}], "b":2}',
        "[ 1 ,\t2 ]",
        r'"\\u0000"',
        r'"\\\\u0000"',
        '"\U0001f600"',
    ],
)
def test_jsonb_is_the_text_of_the_field(written):
    for type_ in ("json", "jsonb"):
        assert value_of(type_, written) == written
        assert value_of(type_, f" {written}\n ") == written


def test_missing_field_and_json_null_are_null_for_jsonb_and_numeric():
    assert (
        rows(Json("a jsonb, n numeric, l jsonb[]"), b"{}", b'{"a":null,"n":null,"l":null}')
        == [{"a": None, "n": None, "l": None}] * 2
    )


def test_an_escaped_u0000_is_refused_for_jsonb():
    for written in (r'"\u0000"', r'{"\u0000":1}', r'["a\\\u0000"]', r'"\\\\\u0000"', r'"é\u0000"'):
        assert "Postgres cannot store U+0000 in text" in why_not("jsonb", written)
        assert "Postgres cannot store U+0000 in text" in why_not("jsonb[]", f"[{written}]")


@pytest.mark.parametrize(
    "written", ["[1,]", "tru", "01", "{1:2}", '"\n"', r'"\ud800"', "NaN", "[NaN]", "'a'"]
)
def test_what_is_no_json_is_refused_for_jsonb(written):
    assert reason(Json("a jsonb"), b'{"a":%s}' % written.encode()).startswith(
        ("expected one JSON object: ", "column 'a', jsonb: ", "field a: found half a surrogate pair")
    )


def test_deep_nesting_is_refused_where_jsonb_is_asked_for():
    fine, deep = (b'{"a":%s%s}' % (b"[" * depth, b"]" * depth) for depth in (500, 100_000))
    why = reason(Json("a jsonb"), deep)
    assert why == "column 'a', jsonb: expected fewer than 900 levels of nesting, found more"
    assert decode(Json("a jsonb"), fine, deep, fine).kept.to_pylist() == [0, 2]


@pytest.mark.parametrize(
    "written",
    [
        "0",
        "-0",
        "123456789012345678901234567890",
        "1.10",
        "-0.000000000000000000000000000000000000000000001",
        "1e-3",
        "1.5E+20",
        "9" * 60,
    ],
)
def test_numeric_without_precision_is_number_as_it_is_written(written):
    for type_ in ("numeric", "numeric(60,10)"):
        assert value_of(type_, written) == written
        assert value_of(type_, f'"{written}"') == written


@pytest.mark.parametrize(
    "written",
    [
        '""',
        '"NaN"',
        '"Infinity"',
        '" 1"',
        '"1 "',
        '"+1"',
        '"01"',
        '"1."',
        '".5"',
        '"0x1"',
        '"1_000"',
        '"1\\n"',
        "true",
        "[1]",
        '{"a":1}',
        '"null"',
        '"١"',
    ],
)
def test_what_is_no_number_is_refused_for_numeric(written):
    assert why_not("numeric", written).endswith("expected a number, bare or in a string")


def test_column_kept_as_text_may_have_any_name_and_place():
    json_ = Json('"class" jsonb, b int, "é /.x" numeric')
    assert rows(json_, rb'{"b":1,"\u00e9 \/.x":2.50,"cl\u0061ss":{"b":2}}') == [
        {"class": '{"b":2}', "b": 1, "é /.x": "2.50"}
    ]


def test_a_name_that_cannot_be_looked_for_is_refused_at_once():
    with pytest.raises(
        ConfigurationError, match="a name with backslashes, double quotes or control characters"
    ):
        Json('"a\\b" numeric')
    assert rows(Json('"a\\b" int'), rb'{"a\\b":1}') == [{"a\\b": 1}]


@pytest.mark.parametrize(
    "value",
    [
        r'{"a":1,"a":2}',
        r'{"a":1,"b":{},"a":null}',
        r'{"a":1,"\u0061":2}',
        r'{"\u0061":1,"\u0061":2}',
        r'{"x":"\"","\u0061" :1, "a":"\\"}',
    ],
)
def test_a_field_kept_as_text_given_twice_is_refused(value):
    assert reason(Json("b text, a jsonb"), value.encode().replace(b'"b":{}', b'"b":""')) == (
        "column 'a', jsonb: field 'a' was specified twice"
    )


def test_name_that_stands_twice_in_value_is_no_field_given_twice():
    for value in (
        r'{"a":{"a":1,"a":2}}',
        r'{"b":"a","a":3}',
        r'{"a":"\"a\": \"a\":"}',
        r'{"x":{"\u0061":1},"a":1}',
    ):
        assert decode(Json("a jsonb"), value.encode()).rejects == ()


def test_number_of_many_digits_is_one_beside_escaped_name_too():
    """Names with escapes are looked at by Python, which makes no integer of more than 4,300 digits."""
    number = "1" + "0" * 131_071
    value = rb'{"n":%s,"other":{"\u20ac":%s}}' % (number.encode(), number.encode())
    assert rows(Json("n numeric"), value) == [{"n": number}]


def test_arrays_keep_order_nulls_and_emptiness():
    for type_, written, there in (
        ("int[]", "[3,null,-1]", [3, None, -1]),
        ("text[]", r'["","null",null,"\u00e9,{}\""]', ["", "null", None, 'é,{}"']),
        ("bool[]", "[true,false]", [True, False]),
        ("float8[]", "[1.5,2]", [1.5, 2.0]),
        ("numeric(10,2)[]", '[1.25,"3",null]', [Decimal("1.25"), Decimal("3.00"), None]),
        ("date[]", '["2024-02-29",null]', [date(2024, 2, 29), None]),
        ("timestamptz[]", '["2024-02-29T10:00:00+02:00"]', [datetime(2024, 2, 29, 8, tzinfo=UTC)]),
        ("uuid[]", '["x",null]', ["x", None]),
        ("jsonb[]", '[1.10,null,"x",{"a":[1]}]', ["1.10", None, '"x"', '{"a":[1]}']),
        ("numeric[]", f'[1.10,null,"{"9" * 40}"]', ["1.10", None, "9" * 40]),
    ):
        assert value_of(type_, written) == there
        assert value_of(type_, "[]") == []
        assert value_of(type_, "null") is None
        assert rows(Json(f"a {type_}"), b"{}", b'{"a":%s}' % written.encode(), b'{"a":[]}') == [
            {"a": None},
            {"a": there},
            {"a": []},
        ]


def test_an_array_takes_what_its_elements_take():
    for type_, written in (
        ("int[]", "1"),
        ("int[]", "[[1]]"),
        ("int[]", '["1"]'),
        ("smallint[]", "[1,32768]"),
        ("text[]", r'["a\u0000"]'),
        ("numeric(5,2)[]", "[1000]"),
        ("real[]", "[1e39]"),
        ("date[]", '["2023-02-29"]'),
        ("jsonb[]", "{}"),
        ("numeric[]", '["x"]'),
        ("numeric[]", "[[1]]"),
    ):
        assert why_not(type_, written)


def test_moments_may_be_numbers_of_a_unit_since_1970():
    moment = datetime(2024, 2, 29, 10, tzinfo=UTC)
    seconds = int(moment.timestamp())
    for unit, factor in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)):
        assert epoch("timestamptz", unit, seconds * factor, -1 * factor) == [
            moment,
            datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
        ]
        assert epoch("timestamp", unit, seconds * factor) == [moment.replace(tzinfo=None)]
    assert epoch("date", "d", 19782, -1) == [date(2024, 2, 29), date(1969, 12, 31)]


def test_nanoseconds_are_cut_down_to_the_microsecond_before():
    assert [each.microsecond for each in epoch("timestamp", "ns", 1_999, 2_000, -1)] == [1, 2, 999_999]
    lowest = datetime(1677, 9, 21, 0, 12, 43, 145224)
    assert epoch("timestamp", "ns", -(2**63), -(2**63) + 807, -(2**63) + 808) == [
        lowest,
        lowest,
        lowest + timedelta(microseconds=1),
    ]


@pytest.mark.parametrize("form", ['"%s"', '["%s"]'])
@pytest.mark.parametrize(
    "moment",
    ["2026-01-01T10:00:00.1234567Z", "2026-01-01 10:00:00.123456789", "2026-01-01T10:00:00.1234560+02:00"],
)
def test_a_time_finer_than_postgres_is_refused_with_the_limit(form, moment):
    for type_ in ("timestamp", "timestamptz"):
        why = why_not(type_ + "[]" * form.startswith("["), form % moment)
        assert (
            f"expected at most six digits after the second's point, which is what Postgres holds, found {moment}: let"
            in why
        )
        assert why.endswith("or declare the column as text")


def test_a_moment_that_postgres_cannot_store_is_refused():
    for type_, unit, outside, inside in (
        ("timestamptz", "us", EARLIEST_TIMESTAMP - 1, EARLIEST_TIMESTAMP),
        ("timestamptz", "s", EARLIEST_TIMESTAMP // 10**6 - 1, EARLIEST_TIMESTAMP // 10**6),
        ("timestamp", "s", 2**63 // 10**6 + 1, 2**63 // 10**6 - 1),
        ("timestamp", "ms", 2**63 - 1, 2**63 // 10**3 - 1),
        ("date", "d", EARLIEST_DATE - 1, EARLIEST_DATE),
        ("date", "d", LATEST_DATE + 1, LATEST_DATE),
        ("date", "d", 2**31, 0),
        ("timestamp", "ns", 2**63, 2**63 - 1),
    ):
        json_ = Json(f"a {type_}", epoch={"a": unit})
        assert reason(json_, b'{"a":%d}' % outside).startswith("column 'a', ")
        assert decode(json_, b'{"a":%d}' % inside).rejects == ()


def test_a_moment_as_a_number_is_an_integer_only():
    for written in ("1.5", '"1"', '"2024-02-29"', "true"):
        assert reason(Json("a date", epoch={"a": "d"}), b'{"a":%s}' % written.encode()).startswith(
            "column 'a', "
        )
    assert rows(Json("a date, b date", epoch={"a": "d"}), b'{"a":null,"b":"1970-01-01"}') == [
        {"a": None, "b": date(1970, 1, 1)}
    ]


@pytest.mark.parametrize("wrong", [{"a": "h"}, {"a": "d"}, {"b": "s"}, {"c": "ms"}, {"d": "s"}])
def test_an_epoch_that_is_none_of_the_columns_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="epoch: expected one of the units s, ms, us and ns"):
        Json("a timestamptz, b date, d timestamp[]", epoch=wrong)


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcde"), inner, max_size=3),
    max_leaves=8,
)
TREE_OBJECTS = st.dictionaries(st.sampled_from("abcde"), TREES, max_size=4).flatmap(
    lambda tree: st.sampled_from([True, False]).map(
        lambda ascii_: json.dumps(tree, ensure_ascii=ascii_).encode()
    )
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(VALUES | st.lists(TREE_OBJECTS | OBJECTS, max_size=12))
def test_block_of_any_types_decodes_as_its_values_do_one_by_one(values):
    for format_ in (
        Json("a jsonb, b int[], c numeric, d text[], e date", epoch={"e": "d"}),
        Json("a numeric[], b jsonb[], c jsonb, d timestamptz, e timestamp[]", epoch={"d": "ns"}),
    ):
        block = decode(format_, *values)
        alone = [decode(format_, value) for value in values]
        assert block.rows.to_pylist() == [row for each in alone for row in each.rows.to_pylist()]
        assert block.kept.to_pylist() == [i for i, each in enumerate(alone) if len(each.kept)]
        assert block.rejects == tuple((i, why) for i, each in enumerate(alone) for _, why in each.rejects)


@settings(max_examples=100, deadline=None)
@given(TREES)
def test_jsonb_means_what_was_written(tree):
    decoded = decode(Json("a jsonb"), json.dumps({"a": tree}).encode())
    for row in decoded.rows.to_pylist():
        assert row["a"] is None if tree is None else json.loads(row["a"]) == tree
    assert all("U+0000" in why for _, why in decoded.rejects) or "\\ud" in json.dumps(tree)
