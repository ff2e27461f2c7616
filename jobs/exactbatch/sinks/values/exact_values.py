"""Find out which values of one Postgres type another type holds exactly, as conditions over staged values.

For each pair of types exactly one of these is true: the target holds every value as it is, a condition finds the
values that it would change, or there is no exact conversion, and the pair is refused.

The text formats from which Postgres reads exactly the value that is written, type by type.

Postgres accepts more: `now` and `today` as a time, 0x1F and 1_000 as integers, 2024-01-01 23:59:59 as a date. It
also drops digits and offsets that a type has no room for. Text in these formats avoids all of that, and its
meaning depends neither on a setting nor on the current time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from psycopg2 import sql

from exactbatch.columns import is_vector
from exactbatch.postgres.types import PgType, repeats_a_field

_TIME_OF_DAY: Final = r"(([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{1,6}0*)?)?"
_TIME: Final = _TIME_OF_DAY + r"|24:00(:00(\.0+)?)?)"  # the end of a day: only time types hold it
_OFFSET: Final = r"([Zz]|[+-][0-9]{2}(:?[0-9]{2}(:[0-9]{2})?)?)"
_DATE: Final = r"[0-9]{4,7}-[0-9]{2}-[0-9]{2}"
_NUMBER: Final = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
_NOT_FINITE: Final = r"NaN|-?Infinity"
_SECONDS: Final = r"[0-9]+(\.[0-9]{1,6}0*)?"
_UNITS: Final = r"years?|mons?|months?|weeks?|days?|hours?|minutes?|mins?"
_PARTS: Final = rf"[+-]?([0-9]+ ?({_UNITS})|{_SECONDS} ?(seconds?|secs?))"
_CLOCK: Final = r"[+-]?[0-9]+:[0-5][0-9](:[0-5][0-9](\.[0-9]{1,6}0*)?)?"
# With IntervalStyle sql_standard, a minus before the first of several parts without signs applies to all of them.
_MINUS_OF_ALL: Final = r"(?!-[^+-]*[0-9][^+-]* [^+-]*[0-9][^+-]*$)"
# Postgres reads each number of this form as a double, which holds no microseconds from 2^33 s on.
_ISO: Final = (
    r"P(?=.)([+-]?[0-9]+Y)?([+-]?[0-9]+M)?([+-]?[0-9]+W)?([+-]?[0-9]+D)?"
    r"(T(?=.)([+-]?[0-9]+H)?([+-]?[0-9]+M)?([+-]?([0-9]+|[0-9]{1,9}\.[0-9]{1,6}0*)S)?)?"
)
_OCTET: Final = r"(0|[1-9][0-9]{0,2})"
_ADDRESS: Final = rf"({_OCTET}(\.{_OCTET}){{3}}|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*)(/(0|[1-9][0-9]{{0,2}}))?"
# Types that hold every value of another type as it is.
_WIDER: Final = {
    "int2": {"int4", "int8", "numeric", "float4", "float8"},
    "int4": {"int8", "numeric", "float8"},
    "int8": {"numeric"},
    "float4": {"float8"},
    "numeric": {"numeric"},
    "text": {"varchar"},
}
INTEGERS: Final = {"int2", "int4", "int8"}
_FLOATS: Final = {"float4", "float8"}
# Into which other types values are converted one by one. Not from a float to numeric: Postgres keeps 15 digits.
_CHECKED: Final = {
    "int2": {"int2", "int4", "int8", "numeric", "float4", "float8"},
    "int4": {"int2", "int4", "int8", "numeric", "float4", "float8"},
    "int8": {"int2", "int4", "int8", "numeric", "float4", "float8"},
    "numeric": {"int2", "int4", "int8", "numeric", "float4", "float8"},
    "float4": {"int2", "int4", "int8", "float4", "float8"},
    "float8": {"int2", "int4", "int8", "float4", "float8"},
}
# Types that return any text they accept unchanged, or in another notation for the same value.
_KEEP_TEXT: Final = {"text", "varchar", "uuid", "json"}
# Types that read text by settings, but return the same text only for input that no setting changes.
_READ_BY_SETTINGS: Final = {"xml"}
_JSON_NUMBER: Final = r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?"
_LENGTH_HEADER: Final = 4  # the modifier of varchar(n) is n + 4
_TOPIC_CHARACTERS: Final = 249
_MILLISECONDS: Final = 3  # the modifier of a timestamp is its number of decimal places


@dataclass(frozen=True, slots=True)
class TextFormat:
    """A Postgres regular expression that matches the whole text, and a description for the reasons of rejects."""

    pattern: str
    description: str


def _format(pattern: str, description: str) -> TextFormat:
    return TextFormat(f"^({pattern})$", description)


_INTEGER: Final = _format(r"[+-]?[0-9]+", "an integer in decimal digits")
_FLOAT: Final = _format(rf"{_NUMBER}|{_NOT_FINITE}", "a number that the type holds to the last digit")
TEXT_FORMATS: Final[Mapping[str, TextFormat]] = {
    "int2": _INTEGER,
    "int4": _INTEGER,
    "int8": _INTEGER,
    "numeric": _format(
        rf"{_NUMBER}|{_NOT_FINITE}", "a number in decimal digits that it can hold without loss"
    ),
    "float4": _FLOAT,
    "float8": _FLOAT,
    "bool": _format(
        "([tT]([rR][uU][eE])?|[fF]([aA][lL][sS][eE])?|[yY]([eE][sS])?|[nN][oO]?|[oO][nN]|[oO][fF][fF]|0|1)",
        "true or false, yes or no, on or off, their first letters, 1 or 0",
    ),
    "bytea": _format(r"\\x([0-9a-fA-F]{2})*", r"bytes in hexadecimal digits after \x"),
    "inet": _format(_ADDRESS, "a whole address"),
    "cidr": _format(_ADDRESS, "a whole address"),
    "macaddr": _format(
        "([0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2}|([0-9a-fA-F]{4}[.-]){2}[0-9a-fA-F]{4}"
        "|[0-9a-fA-F]{6}[:-]?[0-9a-fA-F]{6}",
        "an address of 12 hexadecimal digits",
    ),
    "date": _format(rf"{_DATE}( BC)?|-?infinity", "a date as 2024-02-29, without a time"),
    "time": _format(_TIME, "a time as 10:00:00.123456, without a date or an offset"),
    "timetz": _format(rf"{_TIME}{_OFFSET}", "a time with its offset, as 10:00:00.123456+02:00"),
    "timestamp": _format(
        rf"{_DATE}([T ]{_TIME_OF_DAY}))?( BC)?|-?infinity",
        "a timestamp as 2024-02-29T10:00:00.123456, without an offset",
    ),
    "timestamptz": _format(
        rf"{_DATE}[T ]{_TIME_OF_DAY}){_OFFSET}( BC)?|-?infinity",
        "a timestamp with its offset, as 2024-02-29T10:00:00.123456+02:00",
    ),
    "interval": _format(
        rf"(?=.){_MINUS_OF_ALL}({_PARTS}( +{_PARTS})*( +{_CLOCK})?|{_CLOCK}|{_ISO}|-?infinity)",
        "an interval as '1 day 02:00:00.5' or P1DT2H, of whole units but for seconds",
    ),
}


def holds_all(staged: str, target: PgType) -> bool:
    """True if a target without a modifier or domain holds every value of a scalar staged type without a cast."""
    return target.kind == "base" and target.modifier == -1 and target.name in _WIDER.get(staged, ())


def holds_lineage(staged: str, target: PgType) -> bool:
    """True if a type holds each topic, integer or timestamp of Kafka exactly, or refuses it with an error.

    `staged` is the base type of a column of lineage. A topic has at most 249 characters
    (org.apache.kafka.common.internals.Topic), and a timestamp is in milliseconds.
    """
    leaf = target.leaf
    if leaf.kind != "base":
        return False
    match staged:
        case "text":
            return leaf.name in ("text", "varchar") and (
                leaf.modifier == -1 or leaf.modifier - _LENGTH_HEADER >= _TOPIC_CHARACTERS
            )
        case "timestamptz":
            return leaf.name == staged and (leaf.modifier == -1 or leaf.modifier >= _MILLISECONDS)
        case _:
            return leaf.name in INTEGERS or (leaf.name == "numeric" and leaf.modifier == -1)


def is_convertible(staged: str, leaf: PgType) -> bool:
    """True if some values of a staged type can be converted exactly into a type without domains around it."""
    if staged == "text":
        return _reads_text(leaf)
    return leaf.kind == "base" and (leaf.name == staged or leaf.name in _CHECKED.get(staged, ()))


def keeps_text(leaf: PgType) -> bool:
    """True if the type returns any text that it accepts, or another notation for the same value."""
    return leaf.kind == "enum" or leaf.name in _KEEP_TEXT


def changed(staged: str, target: PgType, value: sql.Composable) -> sql.Composable | None:
    """Return the condition of valid values for which another value would be stored; None if there are none."""
    if staged == "text":
        return _misread(target, value)
    leaf = target.leaf
    parts = {
        "value": value,
        "type": sql.SQL(target.sql_name),
        "base": sql.Identifier(leaf.schema, leaf.name),
        "staged": sql.Identifier("pg_catalog", staged),
    }
    if leaf.modifier == -1 and (leaf.name == staged or leaf.name in _WIDER.get(staged, ())):
        return None
    if staged in INTEGERS and leaf.name in _FLOATS:
        # Beyond 2^53, or 2^24, not every integer is a float; 2^63 is a float, and not a bigint.
        return sql.SQL(
            "case when {value}::{base}::float8 >= 9223372036854775808 then true "
            "else {value}::{base}::int8 <> {value} end"
        ).format(**parts)
    if leaf.name in _FLOATS and staged == "numeric":
        return sql.SQL("{value}::{base}::text::numeric <> {value}").format(**parts)
    if leaf.name == "numeric":
        return sql.SQL("{value}::{type}::numeric <> {value}::numeric").format(**parts)
    return sql.SQL("{value}::{type}::{base}::{staged} <> {value}").format(**parts)


def _altered_vector(parts: Mapping[str, sql.Composable]) -> sql.Composable:
    """Return the condition of text of a vector that is neither as pgvector writes it nor of exactly its numbers, with
    all their digits, as formats/json/raw_fields.py writes them."""
    return sql.SQL(
        '{value}::{type}::text <> {value} collate "C" and ({value} !~ {pattern} or '
        "{value}::{type}::real[]::float8[] is distinct from translate({value}, '[]', {braces})::float8[])"
    ).format(
        **parts,
        pattern=sql.Literal(rf"^\[{_JSON_NUMBER}(,{_JSON_NUMBER})*\]$"),
        braces=sql.Literal("{}"),
    )


def _reads_text(leaf: PgType) -> bool:
    """True if text can become a value of the type without the help of a setting."""
    if leaf.kind in ("array", "composite", "range", "multirange"):
        return all(_reads_text(part.leaf) for part in leaf.parts)
    if leaf.kind == "enum":
        return True
    return leaf.kind == "base" and (
        leaf.is_immutable or leaf.name in TEXT_FORMATS or leaf.name in _READ_BY_SETTINGS
    )


def _misread(target: PgType, value: sql.Composable) -> sql.Composable | None:
    """Return the condition of valid text from which Postgres reads another value than the one that is written."""
    leaf = target.leaf
    parts = {
        "value": value,
        "type": sql.SQL(target.sql_name),
        "base": sql.Identifier(leaf.schema, leaf.name),
        "length": sql.Literal(leaf.modifier - _LENGTH_HEADER),
    }
    if text_format := TEXT_FORMATS.get(leaf.name):
        wrong = sql.SQL("{} !~ {}").format(value, sql.Literal(text_format.pattern))
        if leaf.name in _FLOATS:
            lost = sql.SQL("{value}::{base}::text::numeric <> {value}::numeric").format(**parts)
        elif leaf.modifier == -1:
            return wrong
        elif leaf.name == "interval":  # for which a month and 30 days are equal
            lost = sql.SQL("{value}::{type}::text <> {value}::{base}::text").format(**parts)
        else:
            lost = sql.SQL("{value}::{type} <> {value}::{base}").format(**parts)
        return sql.SQL("case when {} then true else {} end").format(wrong, lost)
    if leaf.name == "jsonb":
        return repeats_a_field(value)
    if leaf.name == "varchar" and leaf.modifier != -1:
        # Postgres would cut off blanks beyond the length.
        return sql.SQL("char_length({value}) > {length}").format(**parts)
    if leaf.name == "bpchar":
        if leaf.modifier == -1:
            return sql.SQL("{value} like '% '").format(**parts)
        # Postgres pads with blanks up to the length, and ignores other blanks at the end.
        return sql.SQL(
            "char_length({value}) > {length} or (char_length({value}) < {length} and {value} like '% ')"
        ).format(**parts)
    if keeps_text(leaf):
        return None
    if is_vector(leaf.name):
        return _altered_vector(parts)
    return sql.SQL('{value}::{type}::text <> {value} collate "C"').format(**parts)
