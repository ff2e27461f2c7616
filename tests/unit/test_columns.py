"""Columns are written as Postgres writes them, and what is not a column is refused with the reason."""

import pyarrow as pa
import pytest

from exactbatch.columns import Column, parse_columns
from exactbatch.errors import ConfigurationError


def refusal(text: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        parse_columns(text)
    return str(refused.value)


def test_columns_keep_their_order():
    assert parse_columns("year int, carrier text,time_hour timestamptz") == (
        Column("year", "integer"),
        Column("carrier", "text"),
        Column("time_hour", "timestamp with time zone"),
    )


@pytest.mark.parametrize(
    ("written", "stored", "arrow"),
    [
        ("int2", "smallint", pa.int16()),
        ("smallint", "smallint", pa.int16()),
        ("int", "integer", pa.int32()),
        ("INTEGER", "integer", pa.int32()),
        ("int8", "bigint", pa.int64()),
        ("float4", "real", pa.float32()),
        ("float", "double precision", pa.float64()),
        ("double   precision", "double precision", pa.float64()),
        ("bool", "boolean", pa.bool_()),
        ("varchar", "text", pa.string()),
        ("character varying", "text", pa.string()),
        ("bytea", "bytea", pa.binary()),
        ("date", "date", pa.date32()),
        ("timestamp", "timestamp without time zone", pa.timestamp("us")),
        ("timestamp without time zone", "timestamp without time zone", pa.timestamp("us")),
        ("timestamptz", "timestamp with time zone", pa.timestamp("us", "UTC")),
        ("timestamp with time zone", "timestamp with time zone", pa.timestamp("us", "UTC")),
        ("numeric(10,2)", "numeric(10,2)", pa.decimal128(10, 2)),
        ("decimal ( 10 , 2 )", "numeric(10,2)", pa.decimal128(10, 2)),
        ("numeric(38)", "numeric(38,0)", pa.decimal128(38, 0)),
        ("numeric", "numeric", pa.string()),
        ("numeric(39,2)", "numeric(39,2)", pa.string()),
        ("varchar(10)", "character varying(10)", pa.string()),
        ("char", "character(1)", pa.string()),
        ("uuid", "uuid", pa.string()),
        ("jsonb", "jsonb", pa.string()),
        ("time", "time without time zone", pa.string()),
        ("int[]", "integer[]", pa.list_(pa.int32())),
        ("numeric(10,2)[]", "numeric(10,2)[]", pa.list_(pa.decimal128(10, 2))),
        ("uuid []", "uuid[]", pa.list_(pa.string())),
        ("shop.mood", "shop.mood", pa.string()),
        ('"Shop"."Mood"', '"Shop"."Mood"', pa.string()),
    ],
)
def test_types_are_stored_as_format_type_prints_them(written, stored, arrow):
    [column] = parse_columns(f"a {written}")
    assert column == Column("a", stored)
    assert column.arrow_type == arrow


def test_every_stored_type_is_parsed_as_itself():
    types = ["smallint", "real", "numeric(5,2)", "timestamp with time zone", "character varying(9)", "uuid[]"]
    assert [each.type for each in parse_columns(", ".join(f"c{i} {t}" for i, t in enumerate(types)))] == types


def test_a_quoted_name_may_hold_anything():
    text = '"tailNum" text, "a b" int, "a,b" int, "f(x)" int, "g)" numeric(5,2), "é" int'
    assert [each.name for each in parse_columns(text)] == ["tailNum", "a b", "a,b", "f(x)", "g)", "é"]


def test_a_name_with_capitals_must_be_quoted():
    assert refusal("tailNum text") == (
        "expected a column as 'name type', found 'tailNum text'. Names are lower-case, or in double quotes: "
        "'\"tailNum\" text'."
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [("", ""), ("a", "a"), ("a int,", ""), ("a int,,b int", ""), ("1a int", "1a int"), ('"" int', '"" int')],
)
def test_what_is_not_a_name_and_a_type_is_refused(text, found):
    assert refusal(text).startswith(f"expected a column as 'name type', found {found!r}.")


@pytest.mark.parametrize("type_", ["mood", "varchar(10,2)", "uuid(3)", "timestamp(3)", "text not null"])
def test_an_unknown_type_is_refused_with_those_that_are_known(type_):
    message = refusal(f"a int, b {type_}")
    assert message.startswith(
        "expected one of the types bigint, boolean, bytea, character, character varying, cidr, date,"
    )
    assert f"found {type_!r} in the column 'b {type_}'" in message


@pytest.mark.parametrize("type_", ["numeric(0)", "numeric(1001,2)", "numeric(5,7)"])
def test_numeric_has_a_precision_and_a_scale_that_postgres_takes(type_):
    assert refusal(f"a {type_}") == (
        f"expected numeric(precision, scale) with a precision of 1 to 1000 and a scale not above it, found "
        f"{type_!r} in the column 'a {type_}'. Write it as numeric(10,2)."
    )


def test_a_name_given_twice_is_refused():
    assert refusal('b int, a int, "b" text') == (
        "columns 'b' occur more than once in 'b int, a int, \"b\" text'. Remove or rename them."
    )


def test_a_name_that_postgres_would_cut_is_refused():
    assert parse_columns(f"{'a' * 63} int")[0].name == "a" * 63
    assert refusal(f'"{"é" * 32}" int') == (
        f"expected a column name of 1 to 63 bytes, the limit of Postgres, found {'é' * 32!r}, 64 bytes. "
        f"Choose a shorter name."
    )


@pytest.mark.parametrize("name", ["ctid", "xmin", "tableoid"])
def test_a_column_that_every_table_has_is_refused(name):
    with pytest.raises(ConfigurationError, match="every Postgres table has a system column of this name"):
        parse_columns(f"id int, {name} text")
