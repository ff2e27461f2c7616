"""Lines of CSV become rows, and no line can stand for another."""

import csv
import io
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from exactbatch.errors import ConfigurationError
from exactbatch.formats import Csv
from exactbatch.formats.decoders import find_decoder
from support.decoding import decode, reason, rows


def test_a_line_is_a_row():
    assert rows(Csv("a int, b text"), b"1,x", b"2,", b'3,""', b'" 4 "," y "', "5,é".encode()) == [
        {"a": 1, "b": "x"},
        {"a": 2, "b": None},
        {"a": 3, "b": ""},
        {"a": 4, "b": " y "},
        {"a": 5, "b": "é"},
    ]


def test_quotes_hold_delimiters_quotes_and_line_breaks():
    assert rows(Csv("a text, b text"), b'"a,b","x ""y"""', b'"1\n2","\r\n"', b'"\n",z', b"1,2") == [
        {"a": "a,b", "b": 'x "y"'},
        {"a": "1\n2", "b": "\r\n"},
        {"a": "\n", "b": "z"},
        {"a": "1", "b": "2"},
    ]


def test_the_delimiter_and_the_null_are_chosen():
    assert rows(
        Csv("a int, b text", delimiter="\t", null="\\N"), b"1\t", b"\\N\t\\N", b'2\t"\\N"', b"3\t,"
    ) == [
        {"a": 1, "b": ""},
        {"a": None, "b": None},
        {"a": 2, "b": "\\N"},
        {"a": 3, "b": ","},
    ]


def test_a_line_end_after_the_value_is_ignored():
    assert rows(Csv("a int, b text"), b"1,x\n", b"2,y\r\n", b"3,z\r", b"4,\n") == [
        {"a": 1, "b": "x"},
        {"a": 2, "b": "y"},
        {"a": 3, "b": "z"},
        {"a": 4, "b": None},
    ]


def test_an_empty_value_is_one_empty_field():
    assert rows(Csv("a text"), b"", b"\n", b'""') == [{"a": None}, {"a": None}, {"a": ""}]
    assert reason(Csv("a text, b text"), b"") == "expected a line of 2 fields, found none"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"1", "expected a line of 2 fields, found 1"),
        (b"1,2,3", "expected a line of 2 fields, found 3"),
        (b'1,"x', "a quote is not closed"),
        (b'1,"x""', "a quote is not closed"),
        (b"1,x\n2,y", "expected one line, found 2"),
        (b"1,x\r2,y", "expected one line, found 2"),
        (b"1,x\n\n", "expected one line, found 2"),
        (b"\n1,x", "expected one line, found 2"),
        (b"\n\n", "expected one line, found 2"),
        (b"x,1", "column 'a', integer: invalid value 'x'"),
        (b'"",1', "column 'a', integer: invalid value ''"),
        (b"1.0,1", "column 'a', integer: invalid value '1.0'"),
        (b"2147483648,1", "column 'a', integer: invalid value '2147483648'"),
        (b"1,a\0b", "column 'b', text: Postgres cannot store U+0000 in text"),
        (b"1,\xff", "found byte FF at position 2, which is not UTF-8"),
        (b"\xef\xbb\xbf\xef\xbb\xbf1,x", "column 'a', integer: invalid value '\ufeff1'"),
    ],
)
def test_what_is_no_line_of_the_schema_is_refused(value, why):
    for before in ((), (b"1,x",)):
        assert decode(Csv("a int, b text"), *before, value).rejects == ((len(before), why),)


def test_lines_that_are_joined_never_make_up_for_each_other():
    for broken in (
        (b'1,"x', b'y"'),
        (b'1,"x', b'2,y"'),
        (b"1,x\n2,y", b'3,"', b'4,"'),
        (b"1,x,0\n2,y", b'3,"', b'4,"'),
        (b"1,x,0\n2,y", b'3,"z', b'4"'),
        (b"1,x\n2,y", b""),
        (b"", b"1,x\n2,y"),
    ):
        decoded = decode(Csv("a int, b text"), b"7,a", *broken, b"8,b")
        assert {"a": 7, "b": "a"} in decoded.rows.to_pylist()
        assert {"a": 8, "b": "b"} in decoded.rows.to_pylist()
        assert {"a": 2, "b": "y"} not in decoded.rows.to_pylist()


def test_types_are_read_strictly():
    for type_, written, there in (
        ("numeric(5,2)", b"1.25", Decimal("1.25")),
        ("numeric", b"123456789012345678901234567890.10", "123456789012345678901234567890.10"),
        ("numeric", b" -.5e3\t ", "-.5e3"),
        ("bool", b"true", True),
        ("float8", b"1e3", 1000.0),
        ("date", b"2024-02-29", date(2024, 2, 29)),
        ("timestamp", b"2024-02-29 10:00:00", datetime(2024, 2, 29, 10)),
        ("timestamptz", b"2024-02-29T10:00:00+02:00", datetime(2024, 2, 29, 8, tzinfo=UTC)),
        ("jsonb", b'"{""a"":1}"', '{"a":1}'),
    ):
        assert rows(Csv(f"a {type_}"), written) == [{"a": there}]
    for type_, written in (
        ("numeric(5,2)", b"1.255"),
        ("numeric(5,2)", b"1000"),
        ("numeric", b"NaN"),
        ("numeric", b"-Infinity"),
        ("numeric", b"0x10"),
        ("numeric", b"1_000"),
        ("numeric", b'"1\n"'),
        ("smallint", b"0xffff"),
        ("int", b'" 0XFFFFFFFF"'),
        ("bigint", b"0x1"),
        ("bool", b"yes"),
        ("float8", b"1e400"),
        ("float8", b"nan"),
        ("real", b"1e39"),
        ("date", b"2023-02-29"),
        ("timestamp", b"2024-02-29T10:00:00Z"),
        ("timestamptz", b"2024-02-29T10:00:00"),
    ):
        assert reason(Csv(f"a {type_}"), written).startswith("column 'a', ")


def test_a_time_finer_than_postgres_is_refused_with_the_limit():
    assert reason(Csv("a timestamptz"), b"2026-01-01T10:00:00.1234567Z") == (
        "column 'a', timestamp with time zone: expected at most six digits after the second's point, which is what "
        "Postgres holds, found 2026-01-01T10:00:00.1234567Z: let the producer write six, or declare the column as text"
    )


def test_a_hexadecimal_number_in_text_does_no_harm():
    assert rows(Csv("a text, b int"), b"0xffff,1", b'"x 0x",2') == [
        {"a": "0xffff", "b": 1},
        {"a": "x 0x", "b": 2},
    ]


@pytest.mark.parametrize(
    ("schema", "options", "expected"),
    [
        ("a int[]", {}, "Csv has no arrays"),
        ("a bytea", {}, r"column 'a', bytea: .* Declare the column as text: .* digits after \\x\."),
        ("a int", {"delimiter": ";;"}, "delimiter: expected one ASCII character"),
        ("a int", {"delimiter": "x"}, "delimiter: expected one ASCII character"),
        ("a int", {"delimiter": '"'}, "delimiter: expected text without any of"),
        ("a int", {"null": "a,b"}, "null: expected text without any of"),
    ],
)
def test_what_cannot_be_read_is_refused_at_once(schema, options, expected):
    with pytest.raises(ConfigurationError, match=expected):
        Csv(schema, **options)


@pytest.mark.parametrize(
    ("schema", "values"),
    [("a text", [b'\n"x', b'y"']), ("a text", [b'\r"', b'"']), ("a int, b text", [b'\n1,"a', b'b"'])],
)
def test_empty_line_and_quote_that_next_value_closes_are_not_two_rows(schema, values):
    """The two values together have two rows: an empty line, and a quoted text over the end of the first value."""
    format_ = Csv(schema)
    block, alone = decode(format_, *values), [decode(format_, value) for value in values]
    assert block.rows.to_pylist() == [row for each in alone for row in each.rows.to_pylist()]
    assert block.rejects == tuple((i, why) for i, each in enumerate(alone) for _, why in each.rejects)
    assert block.rejects[0][0] == 0


PIECES = st.lists(
    st.sampled_from(['"', ",", "\n", "\r", "1", "x", " ", '""', "\ufeff", "é", "\0", "a,b", '1,"'])
    | st.text(max_size=2),
    max_size=8,
)
BROKEN = PIECES.map(lambda pieces: "".join(pieces).encode("utf-8", "surrogatepass"))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(BROKEN | st.none() | st.sampled_from([b"1,x", b'1,"x\ny"', b"\xff", b"1,2,3"]), max_size=12))
def test_a_block_of_lines_decodes_as_its_lines_do_one_by_one(values):
    for format_ in (
        Csv("a int, b text"),
        Csv("a text"),
        Csv("a text, b text, c real", null="x", delimiter=" "),
    ):
        block = decode(format_, *values)
        alone = [decode(format_, value) for value in values]
        assert block.rows.to_pylist() == [row for each in alone for row in each.rows.to_pylist()]
        assert block.kept.to_pylist() == [i for i, each in enumerate(alone) if len(each.kept)]
        assert block.rejects == tuple((i, why) for i, each in enumerate(alone) for _, why in each.rejects)


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")) | st.just("\\N")


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(TEXT, min_size=2, max_size=2), max_size=8),
    st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
)
def test_what_another_program_writes_is_read_again(lines, quoting):
    values = []
    assume(not any(line[0].startswith("\ufeff") for line in lines))  # it is a byte order mark there
    for line in lines:
        csv.writer(written := io.StringIO(newline=""), quoting=quoting).writerow(line)
        values.append(written.getvalue().encode())
    found = rows(Csv("a text, b text", null="\\N"), *values)
    nulls = {"\\N"} if quoting == csv.QUOTE_MINIMAL else set()
    assert [list(row.values()) for row in found] == [
        [None if each in nulls else each for each in line] for line in lines
    ]


@pytest.mark.parametrize("number", ["9" * 38, "-" + "9" * 38, "1" + "0" * 37, "0" * 50 + "7"])
def test_a_number_with_all_digits_of_its_type_stays_beside_a_bad_line(number):
    lines = [number.encode(), b"x"]
    decoded = find_decoder(Csv("a numeric(38,0)")).decode(pa.array(lines, pa.binary()))
    assert decoded.kept.to_pylist() == [0]
    assert decoded.rows.column(0).to_pylist() == [Decimal(number)]
