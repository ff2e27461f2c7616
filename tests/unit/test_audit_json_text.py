"""What the auditor takes for the text of a row is decoded to this row, bit by bit; for anything else, it decodes."""

import json
import struct
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from exactbatch import Json
from exactbatch.audit.json_text import JsonText
from exactbatch.audit.undecoded import printed_columns

SCHEMA = (
    "s smallint, i int, b bigint, r real, f float8, t boolean, name text, other text, day date, at timestamptz, "
    "local timestamp"
)
JSON = Json(SCHEMA)
TYPES = {column.name: column.type for column in JSON.columns}
ARROW = {column.name: column.arrow_type for column in JSON.columns}
EPOCH = datetime(1970, 1, 1)
NASTY = st.text(st.sampled_from("ab\",:{}[]\\/'\n\r\t\0\x1f\x7f \u2028é😀n1"), max_size=12)
NAMES = st.sampled_from(
    ["", "null", '"', "\\", '","i":2,"x":"', '"}', '"},{"', "\\u0000", "\ufeff", "a\nb", '\\"', "NaN"]
)


def number(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def moments(first: int, last: int, *steps: int) -> st.SearchStrategy[int]:
    """Microseconds since 1970, some of them whole seconds or milliseconds."""
    return st.one_of(
        st.integers(first // step, last // step).map(lambda n, step=step: n * step) for step in steps
    )


# All that Postgres and Arrow can hold: years before Christ and after 9999, too.
MOMENTS = moments(-210_866_803_200_000_000, 2**63 - 1, 1) | moments(
    -63_000_000_000_000_000, 255_000_000_000_000_000, 1, 1000, 1_000_000, 86_400_000_000
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "s": number(16),
    "i": number(32),
    "b": number(64),
    "r": st.floats(width=32),
    "f": st.floats(),
    "t": st.booleans(),
    "name": NASTY | NAMES,
    "other": NASTY | NAMES,
    "day": st.integers(-2_440_588, 2_145_042_905) | st.integers(-720_000, 2_940_000),
    "at": MOMENTS,
    "local": MOMENTS,
}
ROWS = st.fixed_dictionaries({name: st.none() | each for name, each in VALUES.items()})
STYLES = st.tuples(
    st.sampled_from("T "), st.sampled_from([0, 3, 6]), st.sampled_from(["Z", "", "+00:00", "+00", "+0000"])
)


def written(name: str, value: Any, style: tuple[str, int, str]) -> str:
    """A value as a careless producer writes it: without escapes, cut off, and NaN."""
    if value is None:
        return "null"
    if name == "r":
        return str(pa.scalar(value, pa.float32()).cast(pa.string()))
    if name in ("name", "other"):
        return f'"{value}"'
    if name == "day":
        return f'"{pa.scalar(value, pa.date32()).cast(pa.string())}"'
    if name in ("at", "local"):
        separator, digits, zone = style
        try:
            text = (EPOCH + timedelta(microseconds=value)).isoformat(separator, "microseconds")
        except OverflowError:
            text = str(pa.scalar(value, pa.timestamp("us")).cast(pa.string())).replace(" ", separator)
        return f'"{text[:-7] + text[-7:][: digits and digits + 1]}{zone}"'
    return "true" if value is True else "false" if value is False else repr(value)


def record(
    row: dict[str, Any], order: Sequence[str], style: tuple[str, int, str], spaces: Sequence[str]
) -> bytes:
    colon, comma, brace = spaces
    fields = comma.join(f'"{name}"{colon}{written(name, row[name], style)}' for name in order)
    return f"{{{brace}{fields}{brace}}}".encode()


def columns_of(rows: Sequence[dict[str, Any]], *, printed: bool = False) -> dict[str, pa.Array]:
    """Rows as columns; integers as text, if Postgres has printed them."""
    columns = {}
    for name, type_ in ARROW.items():
        raw = {pa.timestamp("us", "UTC"): pa.int64(), pa.timestamp("us"): pa.int64(), pa.date32(): pa.int32()}
        column = pa.array([row[name] for row in rows], raw.get(type_, type_)).cast(type_)
        columns[name] = column.cast(pa.string()) if printed and pa.types.is_integer(type_) else column
    return columns


def bits(value: Any) -> Any:
    return struct.pack("<d", value) if isinstance(value, float) else value


def decoded(value: bytes) -> list[Any] | None:
    """The row to which a record is decoded; None for a reject."""
    found = JSON.decode(pa.array([value], pa.binary()))
    return [bits(raw(column)[0]) for column in found.rows.columns] if len(found.rows) else None


def raw(column: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    elif pa.types.is_date(column.type):
        column = column.cast(pa.int32())
    values: list[Any] = column.to_pylist()
    return values


def check(
    text: JsonText | None, values: list[bytes], rows: list[dict[str, Any]], *, printed: bool = False
) -> list[bool]:
    if text is None:
        return []
    columns = columns_of(rows, printed=printed)
    found: list[bool] = text.is_text_of(pa.array(values, pa.binary()), columns).tolist()
    typed = columns_of(rows)
    for index, (value, is_text) in enumerate(zip(values, found, strict=True)):
        if is_text:
            assert decoded(value) == [bits(raw(column)[index]) for column in typed.values()], value
    return found


@given(
    st.lists(ROWS, min_size=1, max_size=8),
    st.permutations(list(TYPES)),
    st.integers(0, 3),
    STYLES,
    st.tuples(st.sampled_from([":", ": ", " : "]), st.sampled_from([",", ", "]), st.sampled_from(["", " "])),
    st.booleans(),
)
@example(
    [{**dict.fromkeys(TYPES), "name": 'a","other":"b', "other": None}],
    ["name", "i"],
    0,
    ("T", 0, "Z"),
    (":", ",", ""),
    True,
)
def test_the_text_of_a_row_is_decoded_to_the_row(rows, order, left_out, style, spaces, printed):
    order = order[left_out:] if len(order) > left_out else order
    # The sample is a record like the others, of plain values.
    plain = {
        "s": 1, "i": 1, "b": 1, "r": 1.5, "f": 1.5, "t": True, "name": "a", "other": "b", "day": 1,
        "at": 1_000_001, "local": 1_000_001,
    }  # fmt: skip
    text = JsonText.learned(record(plain, order, style, spaces), TYPES)
    assert text is not None
    check(text, [record(row, order, style, spaces) for row in rows], rows, printed=printed)


@pytest.mark.parametrize("digits", [0, 3, 6])
def test_plain_records_are_the_text_of_their_rows(digits):
    """Otherwise the other tests would compare nothing."""
    rows = [
        {
            "s": -1, "i": 2**31 - 1, "b": -(2**63), "r": 1.5, "f": 0.1, "t": True, "name": "Müller 😀", "other": "",
            "day": 20_000, "at": 1_767_225_600_000_000, "local": -1_000_000_000_000,
        },
        dict.fromkeys(TYPES),
        {**dict.fromkeys(TYPES), "name": "null", "t": False, "f": -0.25, "day": -719_162},
    ]  # fmt: skip
    style = ("T", digits, "Z")
    values = [record(row, list(TYPES), style, (":", ",", "")) for row in rows]
    assert json.loads(values[0])["name"] == "Müller 😀"
    text = JsonText.learned(values[0], TYPES)
    for printed in (False, True):
        assert check(text, values, rows, printed=printed) == [True] * 3
    # Each row alone, too: null in all columns, or in none.
    for value, row in zip(values, rows, strict=True):
        assert check(text, [value], [row]) == [True]


@pytest.mark.parametrize(
    ("name", "value", "token"),
    [
        ("i", 1, "1.0"),
        ("i", 1000, "1e3"),
        ("i", 0, "-0"),
        ("i", 1, '"1"'),
        ("i", 1, "01"),
        ("i", 1, "1 "),
        ("i", 0, "null"),
        ("i", None, "0"),
        ("f", float("nan"), "NaN"),
        ("f", float("nan"), "nan"),
        ("f", float("inf"), "inf"),
        ("f", float("inf"), "1e999"),
        ("f", -0.0, "0.0"),
        ("f", 0.0, "-0.0"),
        ("t", True, "1"),
        ("t", True, '"true"'),
        ("t", True, "t"),
        ("name", "1", "1"),
        ("name", "null", "null"),
        ("name", "a\nb", '"a\nb"'),
        ("name", "a\tb", '"a\tb"'),
        ("name", 'a"b', '"a"b"'),
        ("name", "a\\nb", '"a\\nb"'),
        ("name", 'a","name":"b', '"a","name":"b"'),
        ("name", 'a","unknown":"b', '"a","unknown":"b"'),
        ("name", 'a"} {"name":"b', '"a"} {"name":"b"'),
        ("at", 1_767_225_600_500_000, '"2026-01-01T00:00:00Z"'),
        ("at", 1_767_225_600_000_000, '"2026-01-01T00:00:00"'),
        ("at", 1_767_225_600_000_000, '"2026-01-01T02:00:00+02:00"'),
        ("at", 253_402_300_800_000_000, '"10000-01-01T00:00:00Z"'),
        ("at", -62_198_755_200_000_000, '"-0001-01-01T00:00:00Z"'),
        ("local", 253_402_300_800_000_000, '"10000-01-01 00:00:00"'),
        ("local", -62_198_755_200_000_000, '"-0001-01-01 00:00:00"'),
        ("day", 2_932_897, '"10000-01-01"'),
        ("day", 1, '"1970-01-02T00:00:00"'),
    ],
)
def test_what_may_mean_something_else_is_decoded(name, value, token):
    sample = b'{"i":1,"f":1.5,"t":true,"name":"a","at":"2026-01-01T00:00:00Z",'
    sample += b'"local":"2026-01-01 00:00:00","day":"2026-01-01"}'
    text = JsonText.learned(sample, TYPES)
    assert text is not None
    row: dict[str, Any] = {**dict.fromkeys(TYPES), name: value}
    names = ("i", "f", "t", "name", "at", "local", "day")
    fields = [f'"{each}":{token if each == name else "null"}' for each in names]
    assert check(text, [("{" + ",".join(fields) + "}").encode()], [row]) == [False]


@pytest.mark.parametrize(
    "sample",
    [
        b"", b"{", b"{}", b"[]", b"null", b'{"i":1', b'{"i":1}}', b'{"i":1} ', b' {"i":1}', b'{"i":1,}',
        b'{"i":1,"i":1}', b'{"x":1}', b'{"\\u0069":1}', b'{"i":{}}', b'{"i":[1]}', b'{"name":"\\u0041"}',
        b'{"name":"a\nb"}',
        b'{"i":1}{"i":1}', b'{"i":1;"b":1}', b'{"\xff":1}', b'{"i":\n1}', b'\xef\xbb\xbf{"i":1}', b'{"i":1,"b":2}\n',
        b'{"i" 1}', b'{"i":1//\n}', b'{"i":1/**/}',
    ],
)  # fmt: skip
def test_nothing_is_learned_from_other_records(sample):
    assert JsonText.learned(sample, TYPES) is None


def test_a_tombstone_is_the_text_of_no_row():
    text = JsonText.learned(b'{"i":1}', TYPES)
    assert text is not None
    values = pa.array([None, b'{"i":null}'], pa.binary())
    assert text.is_text_of(values, columns_of([dict.fromkeys(TYPES)] * 2)).tolist() == [False, True]


def test_a_name_with_an_escape_is_not_learned():
    assert JsonText.learned(b'{"\\u0069":1}', {"\\u0069": "integer"}) is None


def test_a_field_that_the_producer_leaves_out_is_null():
    text = JsonText.learned(b'{"i":1}', TYPES)
    rows = [{**dict.fromkeys(TYPES), "i": 1}, {**dict.fromkeys(TYPES), "i": 1, "name": "x"}]
    assert check(text, [b'{"i":1}'] * 2, rows) == [True, False]


TOKENS = [
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\n", b"\r", b"\t", b"\0", b" ", b"\x0b", b"\xc2\xa0", b"\xff",
    b"\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xef\xbb\xbf", b"null", b"true", b"NaN", b"-", b"+", b"0", b"9",
    b".", b".0", b"e0",
    b"\\u0000", b"\\ud800", b"//", b"/**/", b'"i":1,', b',"i":1', b"}{", b"}\n{", b',"x":1', b'"x":{},', b"'",
    b"\\u0061",
]  # fmt: skip
PLACES = st.integers(0, 400)
MUTATIONS = st.one_of(
    st.tuples(st.just("insert"), PLACES, st.sampled_from(TOKENS)),
    st.tuples(st.just("replace"), PLACES, st.sampled_from(TOKENS)),
    st.tuples(st.just("cut"), PLACES, st.integers(1, 9)),
    st.tuples(st.just("flip"), PLACES, st.integers(0, 7)),
    st.tuples(st.just("repeat"), PLACES, st.integers(1, 40)),
)


def mutated(value: bytes, kind: str, place: int, what: Any) -> bytes:
    at = place % len(value)
    match kind:
        case "insert":
            return value[:at] + bytes(what) + value[at:]
        case "replace":
            return value[:at] + bytes(what) + value[at + len(what) :]
        case "cut":
            return value[:at] + value[at + what :]
        case "flip":
            return value[:at] + bytes([value[at] ^ (1 << what)]) + value[at + 1 :]
    return value[: at + what] + value[at:]


@given(
    st.lists(ROWS, min_size=1, max_size=4), st.lists(MUTATIONS, min_size=1, max_size=3), STYLES, st.booleans()
)
def test_a_mutated_record_is_the_text_of_no_row_that_it_is_not_decoded_to(
    rows, mutations, style, from_mutated
):
    """How the producer writes may be learned from a mutated record, too; rows are those of records before and after."""
    values = [record(row, list(TYPES), style, (":", ",", "")) for row in rows]
    others = values
    for mutation in mutations:
        others = [mutated(value, *mutation) or b"{" for value in others]
    kept = [(other, row) for other, row in zip(others, rows, strict=True)]
    after = JSON.decode(pa.array(others, pa.binary()))
    names = after.rows.schema.names
    for at, position in enumerate(after.kept.to_pylist()):
        kept.append((others[position], {name: raw(after.rows[name])[at] for name in names}))
    for sample in others if from_mutated else values:
        check(JsonText.learned(sample, TYPES), *map(list, zip(*kept, strict=True)))


@given(
    st.lists(
        st.tuples(st.none() | st.integers(), st.none() | NASTY | NAMES, st.none() | NASTY | NAMES), min_size=1
    )
)
@example([(1, "a\nb" * 100, None)] * 9)
def test_printed_rows_are_read(rows):
    """As Postgres's documentation, "Composite Type Input and Output Syntax", says that they are printed."""

    def shown(value: int | str | None) -> str:
        if value is None:
            return ""
        text = str(value)
        if text and not any(each in '"\\(),' or each.isspace() for each in text):
            return text
        return '"' + text.replace("\\", "\\\\").replace('"', '""') + '"'

    texts = pa.array([f"({','.join(map(shown, (1, *row, 1)))})" for row in rows])
    found = printed_columns(texts, ["a", "b", "c"])
    assert found is not None
    for index, column in enumerate(found.values()):
        expected = [
            row[index] if row[index] is None else str(row[index]).replace("\\", "\\\\") for row in rows
        ]
        assert column.to_pylist() == expected
