"""Value bytes become rows, rejects or tombstones, and a block decodes as its values do one by one."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings

from exactbatch.errors import ConfigurationError
from exactbatch.formats import Json, Raw, Text
from exactbatch.formats.json.decoder import JsonDecoder
from support.decoding import decode, reason, rows, value_of
from support.json_values import VALUES


def test_no_value_gives_no_row():
    for format_ in (Json("a int"), Text(), Raw()):
        assert rows(format_) == []


def test_json_takes_the_named_fields_and_ignores_others():
    json = Json('a int, "Ä b" text')
    assert rows(json, '{"x": [{"a": 5}], "Ä b": "é", "a": 1}'.encode()) == [{"a": 1, "Ä b": "é"}]


def test_a_missing_or_null_json_field_is_null():
    assert rows(Json("a int, b text"), b'{"a":1}', b'{"a":null,"b":null}', b"{}") == [
        {"a": 1, "b": None},
        {"a": None, "b": None},
        {"a": None, "b": None},
    ]


def test_block_without_any_value_for_column_is_as_good_as_another():
    types = (
        "smallint",
        "bigint",
        "real",
        "float8",
        "bool",
        "text",
        "bytea",
        "date",
        "timestamp",
        "numeric(5,2)",
    )
    for type_ in types:
        assert rows(Json(f"a {type_}"), b"{}") == [{"a": None}]
        assert rows(Json(f"a {type_}"), b"{}", b'{"a":null}') == [{"a": None}, {"a": None}]


def test_a_null_value_is_a_tombstone_for_json():
    decoded = decode(Json("a int"), None, b'{"a":1}', None, b"x", b'{"a":2}')
    assert decoded.tombstones == 2
    assert decoded.kept.to_pylist() == [1, 4]
    assert [index for index, _ in decoded.rejects] == [3]


def test_only_null_values_are_only_tombstones():
    assert decode(Json("a int"), None, None).tombstones == 2


def test_json_may_be_pretty_printed_and_surrounded_by_white_space():
    values = b'{\n  "a": 1\n}', b'{\r\n\t"a" :\n2 }\r\n', b' {"a":3}\n', b'\t{"a":4} '
    assert rows(Json("a int"), *values) == [{"a": 1}, {"a": 2}, {"a": 3}, {"a": 4}]


def test_white_space_around_a_value_does_not_leave_the_fast_path(monkeypatch):
    blocks: list[int] = []
    decode_block = JsonDecoder._decode_block
    monkeypatch.setattr(
        JsonDecoder,
        "_decode_block",
        lambda self, values: blocks.append(len(values)) or decode_block(self, values),
    )
    rows(Json("a int"), *[b'{"a":%d}\n' % number for number in range(1000)])
    assert blocks == [1000]


@pytest.mark.parametrize(
    "value",
    [b"", b" ", b"null", b"1", b'"x"', b"[1]", b'[{"a":1}]', b"{", b"}", b'{"a":1'],
)
def test_json_that_is_no_object_is_refused(value):
    assert reason(Json("a int"), value) == "expected a JSON object: { … }"


@pytest.mark.parametrize("value", [b'{"a":1}{"a":2}', b'{"a":1}\n{"a":2}', b'{"a":1} {"b":2}', b"{}{}"])
def test_two_json_objects_in_one_value_are_refused(value):
    assert reason(Json("a int"), value) == "expected one JSON object: found 2 objects in 1 values"


# fmt: off
@pytest.mark.parametrize("value", [
    b'{"a":1,}', b"{'a':1}", b"{a:1}", b'{"a":01}', b'{"a":+1}', b'{"a":0x1}', b'{"a":1/**/}', b'{"a":TRUE}',
    b'{"x":"a\nb"}', b'{"a":1}}', b'{"a":1}\0}', b'{"a":1},{"a":2}', b'{"a":1}x{"a":2}', b'{"x":1e400}',
    b'{"x":[{}}',
])
def test_what_only_looks_like_json_is_refused(value):
    assert reason(Json("a int"), value).startswith("expected one JSON object: ")


def test_objects_that_are_joined_never_make_up_for_each_other():
    """As many objects as values, but not one in each: nothing of one value may stand for another."""
    json = Json("a int")
    for pair in (
        (b'{"a":1}{"a":2}', b'{"x":[{}'),
        (b'{"a":1}{"a":2}\0}', b'{"a":9'),
        (b'{"x":[{}', b'{}],"a":1}'),
        (b'{"x":"{}', b'{}","a":1}'),
        (b'{"x":{}', b"{}}"),
    ):
        assert decode(json, *pair, b'{"a":7}').rows.to_pylist() == [{"a": 7}]
    assert decode(json, b'{"a":1}{"a":2}\0}', b'{"a":9}').rows.to_pylist() == [{"a": 9}]
    assert decode(json, b'{"a":1}{"a":2}}', b'{"a":9}').rows.to_pylist() == [{"a": 9}]


def test_invalid_utf_8_is_refused_wherever_it_stands():
    for value, field, byte in (
        (b'{"a":"\xff"}', "a", "FF at position 6"),
        (b'{"other":[{"x.y":"\xff"}]}', 'other[0]."x.y"', "FF at position 18"),
        (b'{"a":"\xed\xa0\x80"}', "a", "ED at position 6"),
        (b'{"a\xc3":1}', "a\ufffd", "C3 at position 3"),
    ):
        assert reason(Json("a text"), value) == f"field {field}: found byte {byte}, which is not UTF-8"
    assert reason(Json("a text"), b'{"a":\xff}') == "found byte FF at position 5, which is not UTF-8"
    assert "UTF-16" in reason(Json("a text"), '{"a":"x"}'.encode("utf-16"))


def test_a_byte_order_mark_is_ignored_and_other_characters_that_nobody_sees_are_named():
    marked = b'\xef\xbb\xbf{"a":1}', b'\xef\xbb\xbf \n{"a":2} '
    assert decode(Json("a int"), *marked).rows.to_pylist() == [{"a": 1}, {"a": 2}]
    for text, name in (
        ("\u200b{}", "U+200B (ZERO WIDTH SPACE)"),
        ("\0{}", "U+0000 (a control character)"),
        ("\ufeff\ufeff{}", "U+FEFF (ZERO WIDTH NO-BREAK SPACE)"),
        ("\xa0{}", "U+00A0 (NO-BREAK SPACE)"),
    ):
        assert reason(Json("a int"), text.encode()) == f"expected a JSON object: {{ … }}, found {name} at the start"


@pytest.mark.parametrize("escape", [r"\ud800", r"\udc00", r"\udc00\ud800", r"\ud800x"])
def test_half_a_surrogate_pair_is_refused(escape):
    assert reason(Json("a text"), b'{"a":"%s"}' % escape.encode()) == (
        "field a: found half a surrogate pair"
    )


def test_json_escapes_are_resolved():
    assert value_of("text", r'"\u00e9\n\ud83d\ude00\\u0000"') == "é\n😀\\u0000"


def test_u0000_is_refused_in_text_and_nowhere_else():
    assert reason(Json("n int, a text"), rb'{"a":"x\u0000"}') == (
        "column 'a', text: Postgres cannot store U+0000 in text"
    )
    assert rows(Json("a text"), rb'{"other":"\u0000","a":"x"}') == [{"a": "x"}]
    assert value_of("bytea", r'"\u0000"') == b"\0"


@pytest.mark.parametrize(
    ("type_", "lowest", "highest"),
    [("smallint", -(2**15), 2**15 - 1), ("int", -(2**31), 2**31 - 1), ("bigint", -(2**63), 2**63 - 1)],
)
def test_an_integer_out_of_range_is_refused(type_, lowest, highest):
    assert value_of(type_, str(lowest)) == lowest
    assert value_of(type_, str(highest)) == highest
    for outside in (lowest - 1, highest + 1):
        why = reason(Json(f"x text, a {type_}, y text"), b'{"x":"","a":%d}' % outside)
        assert why.startswith("column 'a', ")
        assert str(outside) in why


@pytest.mark.parametrize("written", ["1.5", "1.0", "1e2", '"1"', "true", "[1]", '{"b":1}', "NaN"])
def test_what_is_no_integer_is_refused_for_an_integer(written):
    assert reason(Json("a int"), b'{"a":%s}' % written.encode()).startswith("column 'a', integer: ")


def test_floats_that_are_out_of_range_or_no_number_are_refused():
    assert value_of("float8", "1e308") == 1e308
    assert value_of("real", "1.5") == 1.5
    assert value_of("real", "3") == 3.0
    for type_, written in (("real", "1e39"), ("real", "-1e39"), ("float8", "NaN"), ("float8", "Infinity")):
        assert "expected a number in the range of the type, found NaN or infinity" in reason(
            Json(f"a {type_}"), b'{"a":%s}' % written.encode()
        )
    assert "Number too big" in reason(Json("a float8"), b'{"a":1e309}')
    assert reason(Json("a real"), b'{"a":"1"}') == "column 'a', real: expected number, found string"


def test_decimals_are_exact_and_may_stand_in_strings():
    for written in ("1.25", '"1.25"'):
        assert value_of("numeric(5,2)", written) == Decimal("1.25")
    assert value_of("numeric(5,2)", "-999.99") == Decimal("-999.99")
    assert value_of("numeric(38,0)", "9" * 38) == Decimal("9" * 38)


@pytest.mark.parametrize(
    "written", ['"1.255"', "1000", '"1234.5"', "-1000", '"x"', '""', '" 1"', "1e-3", "true"]
)
def test_decimal_that_would_be_rounded_or_does_not_fit_is_refused(written):
    assert reason(Json("a numeric(5,2)"), b'{"a":%s}' % written.encode()).startswith(
        "column 'a', numeric(5,2): "
    )


def test_booleans_are_true_and_false_only():
    assert value_of("bool", "true") is True
    for written in ("1", '"true"'):
        assert "column 'a', boolean: expected boolean, found" in reason(
            Json("a bool"), b'{"a":%s}' % written.encode()
        )


def test_text_is_a_string_only():
    assert value_of("text", '""') == ""
    for written, found in (("1", "number"), ("true", "boolean"), ("{}", "object"), ("[]", "array")):
        assert reason(Json("a text"), b'{"a":%s}' % written.encode()) == (
            f"column 'a', text: expected string, found {found}"
        )


def test_dates_are_iso_dates_that_exist():
    assert value_of("date", '"2024-02-29"') == date(2024, 2, 29)
    for written in ('"2023-02-29"', '"2024-2-9"', '"2024-02-29T00:00:00"', '""', '"20240229"', "19782"):
        assert reason(Json("a date"), b'{"a":%s}' % written.encode()).startswith("column 'a', date: ")


@pytest.mark.parametrize(
    ("written", "moment"),
    [
        ("2024-02-29T10:00:00Z", datetime(2024, 2, 29, 10, tzinfo=UTC)),
        ("2024-02-29T10:00:00+02:00", datetime(2024, 2, 29, 8, tzinfo=UTC)),
        ("2024-02-29 10:00:00", datetime(2024, 2, 29, 10, tzinfo=UTC)),
        ("2024-02-29", datetime(2024, 2, 29, tzinfo=UTC)),
        ("2024-02-29T10:00:00.123456Z", datetime(2024, 2, 29, 10, 0, 0, 123456, UTC)),
        ("9999-12-31T23:59:59Z", datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ],
)
def test_timestamps_are_moments_in_utc(written, moment):
    assert value_of("timestamptz", f'"{written}"') == moment
    assert value_of("timestamp", f'"{written}"') == moment.replace(tzinfo=None)


@pytest.mark.parametrize(
    "written",
    ['"2024-02-30T00:00:00Z"', '"2024-02-29T25:00:00Z"', '"2024-02-29T10:00:00.123456789Z"', '""', "17"],
)
def test_what_is_no_timestamp_in_microseconds_is_refused(written):
    assert reason(Json("a timestamptz"), b'{"a":%s}' % written.encode()).startswith(
        "column 'a', timestamp with time zone: "
    )


def test_a_named_field_given_twice_is_refused():
    assert reason(Json("b int, a int"), b'{"a":1,"b":1,"a":2}') == (
        "column 'a', integer: Column(/a) was specified twice"
    )
    assert rows(Json("a int"), b'{"b":1,"a":2,"b":3}') == [{"a": 2}]


def test_deep_nesting_neither_crashes_nor_counts():
    depth = 100_000
    assert rows(Json("a int"), b'{"x":' + b"[" * depth + b"]" * depth + b',"a":1}') == [{"a": 1}]
    nested = b'{"a":' * depth + b"1" + b"}" * depth
    assert reason(Json("a int"), nested) == "column 'a', integer: expected number, found object"


def test_a_reason_stays_short_when_the_value_is_long():
    assert len(reason(Json("a timestamptz"), b'{"a":"%s"}' % (b"x" * 1_000_000))) < 600


def test_the_reason_names_the_first_column_to_blame():
    json = Json("a int, b int, c int, d int, e int")
    for blamed in "abcde":
        value = '{"a":1,"b":2,"c":3,"d":4,"e":5}'.replace(f'"{blamed}":', f'"{blamed}":9999999999')
        assert reason(json, value.encode()).startswith(f"column {blamed!r}, integer: ")


def test_text_keeps_valid_utf_8_as_it_is():
    decoded = decode(Text("line"), b" a\n", None, b"", b"\xff", "é\\u0000".encode(), b"a\0b", b"\xed\xa0\x80")
    assert decoded.rows.to_pylist() == [
        {"line": " a\n"},
        {"line": None},
        {"line": ""},
        {"line": "é\\u0000"},
    ]
    assert decoded.kept.to_pylist() == [0, 1, 2, 4]
    assert decoded.rejects == (
        (3, "found byte FF at position 0, which is not UTF-8"),
        (5, "Postgres cannot store U+0000 in text"),
        (6, "found byte ED at position 0, which is not UTF-8"),
    )


def test_raw_keeps_every_value():
    assert rows(Raw("bytes"), b"a", None, b"", b"\xff\0") == [
        {"bytes": b"a"},
        {"bytes": None},
        {"bytes": b""},
        {"bytes": b"\xff\0"},
    ]


def test_a_column_name_that_postgres_cannot_have_is_refused():
    for make in (lambda: Text(""), lambda: Raw("x" * 64)):
        with pytest.raises(ConfigurationError, match="expected a column name of 1 to 63 bytes"):
            make()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(VALUES)
def test_a_block_decodes_as_its_values_do_one_by_one(values):
    schema = "a int, b text, c real, d numeric(5,2), e timestamptz"
    for format_ in (Json(schema), Json("c float8, e date"), Text(), Raw()):
        block = decode(format_, *values)
        alone = [decode(format_, value) for value in values]
        assert block.rows.to_pylist() == [row for each in alone for row in each.rows.to_pylist()]
        assert block.kept.to_pylist() == [i for i, each in enumerate(alone) if len(each.kept)]
        assert block.rejects == tuple((i, why) for i, each in enumerate(alone) for _, why in each.rejects)
        assert block.tombstones == sum(each.tombstones for each in alone)
