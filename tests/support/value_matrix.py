"""Every type that a format can give, into every kind of column: what is stored is the value, or nothing is.

The program's own staging, checks and statements run on a real Postgres; what they store is compared with what
value_oracle.py reads from the record.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import psycopg2
import pyarrow as pa
from psycopg2 import sql

from exactbatch import Aggregate, Append, Count, Max, Min, Upsert
from exactbatch.batch.rows.copy import PostgresAccess
from exactbatch.batch.staging.stage import stage_rows
from exactbatch.batch.staging.staging_tables import StagingTables, create_rejects, create_rows, identifier
from exactbatch.batch.staging.task import StagedBatch
from exactbatch.batch.staging.uncastable import note_uncastable, noted_after
from exactbatch.columns import LINEAGE, Column
from exactbatch.errors import ExactbatchError
from exactbatch.sinks.staged_rows import StagedRows
from support import value_oracle as oracle
from support.postgres_versions import TESTED
from support.writers import writer_of

SETUP = """
create extension citext; create extension hstore; create extension ltree; create extension cube;
create type mood as enum ('sad', 'glad', 'now');
create domain price as numeric(10,2);
create domain net_price as price check (value >= 0);
create domain code as varchar(3);
create domain even as integer check (value % 2 = 0);
create domain needed as integer not null;
create domain known as text check (value is not null and value <> '');
create domain day as date;
create domain second as timestamptz(0);
create domain tags as text[];
create domain prices as numeric(10,2)[];
create domain wallet as money;
create domain lower_text as citext;
create function is_picky(text) returns boolean language plpgsql immutable as
  $$ begin if $1 like '%x%' then raise 'no x, please'; end if; return true; end $$;
create domain picky as text check (is_picky(value));
create type item as (name text, price numeric(10,2));
create type pair as (n integer, t text);
create type visit as (who text, at timestamptz);
create type bill as (total money);
create type pricerange as range (subtype = numeric);
create type floatrange as range (subtype = float8);
create type shortrange as range (subtype = code);
"""


@dataclass(frozen=True)
class Kind:
    """A kind of column: how it is declared, how its text is read, and what it is over."""

    declared: str
    read: Callable[[str], Any] = oracle.text
    label: str = ""
    options: str = ""
    is_array: bool = False

    @property
    def title(self) -> str:
        return self.label or self.declared + (f" {self.options}" if self.options else "")


def _kinds() -> Iterator[Kind]:
    scalar = {
        "smallint": oracle.integer, "integer": oracle.integer, "bigint": oracle.integer,
        "numeric": oracle.number, "numeric(10,2)": oracle.number, "numeric(4,1)": oracle.number,
        "numeric(3,-2)": oracle.number, "numeric(2,4)": oracle.number, "numeric(50,2)": oracle.number,
        "numeric(38,0)": oracle.number, "real": oracle.number, "double precision": oracle.number,
        "boolean": oracle.boolean, "bytea": oracle.octets,
        "text": oracle.text, "varchar": oracle.text, "varchar(3)": oracle.text, "varchar(20)": oracle.text,
        "char": oracle.padded(1), "char(5)": oracle.padded(5), "bpchar": oracle.text,
        "name": oracle.text, '"char"': oracle.text, "citext": oracle.text,
        "date": oracle.date,
        "time": oracle.clock, "time(0)": oracle.clock, "time(3)": oracle.clock,
        "timetz": oracle.timetz, "timetz(0)": oracle.timetz,
        "timestamp": oracle.timestamp, "timestamp(0)": oracle.timestamp, "timestamp(3)": oracle.timestamp,
        "timestamptz": oracle.timestamptz, "timestamptz(0)": oracle.timestamptz,
        "timestamptz(3)": oracle.timestamptz,
        "interval": oracle.interval, "interval(0)": oracle.interval, "interval year": oracle.interval,
        "interval day": oracle.interval, "interval year to month": oracle.interval,
        "interval minute to second(2)": oracle.interval, "interval hour": oracle.interval,
        "uuid": oracle.guid, "inet": oracle.inet, "cidr": oracle.cidr, "macaddr": oracle.mac,
        "macaddr8": oracle.text, "json": oracle.text, "jsonb": oracle.jsonb, "jsonpath": oracle.text,
        "bit": oracle.text, "bit(3)": oracle.text, "varbit": oracle.text, "varbit(3)": oracle.text,
        "money": oracle.text, "xml": oracle.text, "oid": oracle.text, "xid": oracle.text, "xid8": oracle.text,
        "tid": oracle.text, "pg_lsn": oracle.text, "pg_snapshot": oracle.text, "txid_snapshot": oracle.text,
        "regclass": oracle.text, "regtype": oracle.text, "regrole": oracle.text, "aclitem": oracle.text,
        "point": oracle.text, "line": oracle.text, "lseg": oracle.text, "box": oracle.text,
        "path": oracle.text, "polygon": oracle.text, "circle": oracle.text,
        "tsvector": oracle.text, "tsquery": oracle.text, "hstore": oracle.text, "ltree": oracle.text,
        "cube": oracle.text, "int4range": oracle.text, "int8range": oracle.text, "numrange": oracle.text,
        "daterange": oracle.text, "tsrange": oracle.text, "tstzrange": oracle.text,
        "int4multirange": oracle.text, "tstzmultirange": oracle.text, "pricerange": oracle.text,
        "floatrange": oracle.text, "shortrange": oracle.text, "mood": oracle.text, "item": oracle.text,
        "pair": oracle.text, "visit": oracle.text, "bill": oracle.text, "int2vector": oracle.text,
    }  # fmt: skip
    for declared, read in scalar.items():
        yield Kind(declared, read)
    for domain, over, read in (
        ("price", "numeric(10,2)", oracle.number),
        ("net_price", "a domain over numeric(10,2)", oracle.number),
        ("code", "varchar(3)", oracle.text),
        ("even", "integer, with a check", oracle.integer),
        ("needed", "integer not null", oracle.integer),
        ("known", "text, with a check", oracle.text),
        ("day", "date", oracle.date),
        ("second", "timestamptz(0)", oracle.timestamptz),
        ("picky", "text, with a check that raises", oracle.text),
        ("wallet", "money", oracle.text),
        ("lower_text", "citext", oracle.text),
    ):
        yield Kind(domain, read, f"domain over {over}")
    for element, read in (
        ("smallint", oracle.integer), ("integer", oracle.integer), ("bigint", oracle.integer),
        ("numeric", oracle.number), ("numeric(10,2)", oracle.number), ("real", oracle.number),
        ("double precision", oracle.number), ("boolean", oracle.boolean), ("bytea", oracle.octets),
        ("text", oracle.text), ("varchar(3)", oracle.text), ("char(5)", oracle.padded(5)),
        ("citext", oracle.text), ("name", oracle.text), ("money", oracle.text), ("date", oracle.date),
        ("time(0)", oracle.clock), ("timestamp", oracle.timestamp), ("timestamptz", oracle.timestamptz),
        ("timestamptz(0)", oracle.timestamptz), ("interval", oracle.interval), ("uuid", oracle.guid),
        ("inet", oracle.inet), ("jsonb", oracle.jsonb), ("mood", oracle.text), ("price", oracle.number),
        ("needed", oracle.integer), ("picky", oracle.text), ("item", oracle.text), ("tstzrange", oracle.text),
        ("regclass", oracle.text), ("point", oracle.text),
    ):  # fmt: skip
        yield Kind(f"{element}[]", read, is_array=True)
    yield Kind("tags", oracle.text, "domain over text[]", is_array=True)
    yield Kind("prices", oracle.number, "domain over numeric(10,2)[]", is_array=True)
    yield Kind("integer", oracle.integer, options="generated always as identity")
    yield Kind("integer", oracle.integer, options="generated always as (1) stored")
    yield Kind("integer", oracle.integer, options="generated always as (1) virtual")
    yield Kind("integer", oracle.integer, options="generated by default as identity")


def _is_known(kind: Kind) -> bool:
    """True if the server of this run has such columns."""
    since = (
        18
        if kind.options.endswith("virtual")
        else 15
        if kind.declared in ("numeric(3,-2)", "numeric(2,4)")
        else 0
    )
    return not TESTED or since <= TESTED


KINDS = tuple(filter(_is_known, _kinds()))

TEXTS = (
    "", " ", "a", "ab", "abc", "abcd", "abc ", "ab   ", "abcde", " a", "äöü", "äöüß", "n" * 63, "n" * 70,
    "é" * 40, "x", "Bob@x.de", "bob@x.de", "NULL", "null", "'", '"', "\\", "\\101", "{}", "{a}", "a\nb", "0",
    "1", "-1", "+1", "01", " 1", "1 ", "2", "3", "12", "123", "1234", "12345", "123456789", "1_000", "0x1F",
    "0b101", "0o17", "32767", "32768", "-32768", "-32769", "2147483647", "2147483648", "-2147483648",
    "4294967295", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "1e2", "1E2", "1.",
    ".5", "0.5", "1.5", "1.50", "1.25", "1.239", "12.34", "999.9", "1,5", "99999999.99", "99999999.994",
    "99999999.995", "0.1", "0.30000000000000004", "0.123456789", "0.12345678901234567890", "16777217",
    "9007199254740993", "1e30", "1e-30", "1e308", "1e309", "1e-320", "1e-400", "1e400", "1e-16383", "1e-16384",
    "1e-20000", "1e131071", "1e131072", "0.00", "-0", "-0.0", "0.0001", "0.00015", "0.0123", "100", "150",
    "NaN", "nan", "Infinity", "-Infinity", "inf", "infinity", "-infinity", "1" * 50, "1" * 50 + ".25", "true",
    "TRUE", "tr", "t", "T", "yes", "y", "on", "of", "off", "no", "false", "fals", "f", "maybe", "\\x",
    "\\x00ff", "\\xFF", "\\xf", "\\x 00", "\\x0", "\\000", "\\\\", "dGV4dA==", "now", "today", "tomorrow",
    "yesterday", "allballs", "epoch", "NOW", "now()", "noon", "2024-02-29", "2023-02-29", "2024-2-9",
    "24-02-29", "02/03/2024", "20240229", "2024.02.29", "Feb 29 2024", "2024-060", "J2460370", "0001-01-01",
    "0000-01-01", "4713-01-01 BC", "0044-03-15 BC", "99999-12-31", "5874897-12-31", "5874898-01-01",
    "2024-01-01 23:59:59", "2024-01-01 00:00:00", "2024-01-01T10:00:00", "2024-01-01T10:00:00Z",
    "2024-01-01T10:00:00+05:00", "2024-01-01 10:00:00.6", "2024-01-01 10:00:00.123456",
    "2024-01-01 10:00:00.1234567", "2024-01-01 10:00:00.1234560", "2024-01-01 10:00:00.123456Z",
    "2024-01-01 10:00:00.1234567Z", "2024-01-01 10:00:00.6Z", "2024-01-01 10:00:00.123Z",
    "2024-01-01 24:00:00", "2024-01-01 24:00:00Z", "2024-12-31 23:59:60Z", "2024-12-31 23:59:59.9999999Z",
    "2024-01-01 10:00", "2024-01-01 10:00Z", "2024-01-01 10:00:00 America/New_York", "2024-01-01 10:00:00 EST",
    "2024-01-01 10:00 PM", "2024-01-01 10:00:00+0530", "2024-01-01 10:00:00+05", "2024-01-01 10:00:00-00:30",
    "1709200800", "294276-12-31 23:59:59.999999", "294276-12-31 23:59:59.999999Z", "294277-01-01 00:00:00",
    "4713-11-24 BC", "0044-03-15 10:00:00+00 BC", "0044-03-15 10:00:00 BC", "2024-03-31 02:30:00", "10:00",
    "10:00:00", "10:00:00.1234567", "10:00:00.123456", "10:00:00.1234560", "10:00:00.6", "23:59:59.5",
    "23:59:59.9999999", "23:59:60", "24:00:00", "24:00:00.1", "24:00:01", "25:00", "100000", "10:00:00+05",
    "10:00:00+05:00", "10:00:00Z", "10:00:00.6+02", "10:00:00.1234567+02", "10 PM", "04:05 AM", "10:00:00 PST",
    "24:00:00+00", "10:00:00-15:59:59", "2024-01-01 10:00:00+00", "1 day", "1 day 2 hours", "1 day 23 hours",
    "1 mon", "30 days", "1.5 months", "1.5 days", "1.5 years", "1 year 2 mons 3 days 04:05:06.5",
    "-1 day 02:03:04", "-1 days +02:03:04", "1.6 seconds", "1.6 s", "1:30", "P1DT2H", "P1Y2M3DT4H5M6.5S",
    "P1.5D", "PT0.0000001S", "P", "PT", "P2W", "P0001-02-03T04:05:06", "1-2", "5", "@ 1 day ago", "1 day ago",
    "0.0000001 seconds", "0.123456 secs", "90 minutes", "90 mins", "3 weeks", "1 century", "12 mons",
    "1 mon -30 days", "5 s", "5s", "1 fortnight", "00:00:01.239", "00:01:02", "178956970 years",
    "178956971 years", "-178956970 years", "2 hours 30 mins", "25:00:00", "1 day 1 day",
    "1000000000000 seconds", "PT10000000000.000001S", "PT999999999.000001S", "PT2386092H3392.000001S", "PT10000000000S",
    "10000000000.000001 seconds", "00000000-0000-0000-0000-000000000001", "{00000000-0000-0000-0000-000000000001}",
    "A0EEBC999C0B4EF8BB6D6BB9BD380A11", "10.0.0.1", "10.0.0.1/8", "10.0.0.0/8", "10.1", "10", "10.1/16",
    "010.0.0.1", "10.0.0.300", "::1", "fe80::/10", "::ffff:1.2.3.4", "fe80::1%eth0", "10.0.0.1/33",
    "08:00:2b:01:02:03", "08002b010203", "08002b:010203", "08:00:2b:01:02:03:04:05", '{"a": 1}',
    '{"a":1,"a":2}', '{"a":1,"\\u0061":2}', '{"b": {"c": 1, "c": 2}}', '{"n": 1.10}', '{"n": 1e400}',
    '{"n": 12345678901234567890.123456789012345678901}', '{"n": 1e-20000}', '"\\u0000"', '"\\ud800"', "[1, 2]",
    '{"n": NaN}', '{"n": -0}', '{"n": 1e131072}', '  {"a" :1}', '"x"', "[1, [2, {}]]", "101", "B101", "X1F",
    "1010", "$.a", '$."a"', "$1.24", "1.23", "-$1.00", "16/B374D848", "0/0", "(0,1)", "10:20:10,14",
    "pg_class", "integer", "postgres", "1259", "=r/postgres", "(1,2)", "(1, 2)", "1,2", "(0.1,0.2)",
    "(0.12345678901234567890,1)", "{1,2,3}", "[(1,2),(3,4)]", "(3,4),(1,2)", "(1,2),(3,4)", "((1,2),(3,4))",
    "<(0,0),1>", "<(100,100),1>", "(1e400,1)", "[(0,0),(1,1)]", "'a' 'b'", "a b", "b a", "'a':1 'b':2",
    "'a' & 'b'", '"a"=>"1"', "a=>1", 'a=>1,a=>2', "a.b.c", "a..b", "(1),(2)", "[1,4)", "[1,3]", "(0,3]",
    "empty", "[1.239,2)", "[1.5,2.50)", "[2,1)", "[2024-01-01,2024-02-01)", "[now,infinity)",
    '["2024-01-01 10:00:00+00","2024-01-01 11:00:00+00")', '["2024-01-01 10:00:00","2024-01-01 11:00:00")',
    "[today,tomorrow)", "{[1,4)}", "{[1,2),[2,4)}", "{}", "[0.1,0.30000000000000004)", "[abc,abcd)", "[a,b)",
    "sad", "glad", "angry", "(x,1.24)", "(x,1.239)", "(x,1.2)", "(1,x)", "(0x1F,x)", '(1,"a b")', "(x,now)",
    "(,)", '(x,"2024-01-01 10:00:00+00")', '(x,"2024-01-01 10:00:00.1234567+00")', "($1.24)", "1 2", "{1,2}",
    "{1.239}", "{1.24}", "{abc,abcd}", "{now}", "{NULL}", "{a,b}", "{{1,2},{3,4}}", "[0:1]={1,2}",
    "{2024-01-01}",
)  # fmt: skip


@dataclass(frozen=True)
class Source:
    """A column of a pipeline, and values as a format would stage them; ints for dates and moments."""

    written: str
    values: tuple[Any, ...]

    @property
    def column(self) -> Column:
        return Column("x", self.written)

    @property
    def element(self) -> str:
        return self.column.staged_type.removesuffix("[]")

    def arrow(self) -> pa.Array:
        def of(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
            plain = {pa.date32(): pa.int32()}.get(
                type_, pa.int64() if pa.types.is_timestamp(type_) else type_
            )
            if pa.types.is_list(type_):
                lists = pa.array(
                    values, pa.list_(pa.int64() if _is_moment(type_.value_type) else type_.value_type)
                )
                if not _is_moment(type_.value_type):
                    return lists
                elements = of(lists.values.to_pylist(), type_.value_type)
                return pa.ListArray.from_arrays(lists.offsets, elements, mask=lists.is_null())
            return pa.array(values, plain).cast(type_)

        return of(self.values, self.column.arrow_type)


def _is_moment(type_: pa.DataType) -> bool:
    return bool(pa.types.is_date(type_) or pa.types.is_timestamp(type_))


_INTEGERS = (0, 1, -1, 2, 3, 7, 100, 150, 12345, 32767, -32768)
_LARGER = (32768, -32769, 99999, 16777216, 16777217, 2147483647, -2147483648)
_LARGEST = (
    2147483648,
    2**53,
    2**53 + 1,
    2**62,
    2**63 - 1,
    2**63 - 512,
    -(2**63),
    99999999,
    100000000,
    10**18,
)
_FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    2.5,
    1e15,
    1e16,
    2.0**24,
    2.0**31,
    -(2.0**31),
    1e30,
    math.inf,
    -math.inf,
    math.nan,
)
_DOUBLES = (
    0.1,
    0.30000000000000004,
    2.0**24 + 1,
    2.0**53,
    2.0**63,
    1e300,
    1e-300,
    5e-324,
    1.7976931348623157e308,
)
_MOMENTS = (0, 1, -1, 123_456, 600_000, 123_000, 999_999, 1_709_200_800_000_000, -62_135_596_800_000_001)
_MOMENTS_FAR = (-210_866_803_200_000_000, 2**63 - 1, -62_198_755_200_000_000)


def _sources() -> Iterator[Source]:
    typed: dict[str, tuple[Any, ...]] = {
        "smallint": _INTEGERS,
        "integer": _INTEGERS + _LARGER,
        "bigint": _INTEGERS + _LARGER + _LARGEST,
        "numeric(10,2)": tuple(
            map(Decimal, ("0", "1.00", "1.50", "1.25", "0.10", "-99999999.99", "12345.00", "150"))
        ),
        "numeric(38,0)": tuple(
            map(Decimal, ("0", "9" * 38, "-" + "9" * 38, str(2**53 + 1), str(2**63), "100"))
        ),
        "numeric(38,38)": tuple(map(Decimal, ("0", "0." + "9" * 38, "0." + "0" * 37 + "1", "0.1", "0.0001"))),
        "real": tuple(map(oracle.single, (*_FLOATS, 0.1, 1e-45, 3.4028234663852886e38))),
        "double precision": _FLOATS + _DOUBLES,
        "boolean": (True, False),
        "text": TEXTS,
        "bytea": (b"", b"\0", b"abc", bytes(range(256))),
        "date": (0, 1, -1, 19_782, -719_528, -719_163, -2_440_588, 2_145_042_905, 2_932_896),
        "timestamp without time zone": _MOMENTS + _MOMENTS_FAR,
        "timestamp with time zone": _MOMENTS + _MOMENTS_FAR,
    }
    for written, values in typed.items():
        yield Source(written, (*values, None))
        yield Source(f"{written}[]", (*([value] for value in values), [], [None], [*values[:2], None], None))


SOURCES = tuple(_sources())
# Types that Postgres reads from text: staged as text, they become their own type, or in the changes of an Upsert.
AS_TEXT = tuple(
    Source(written, (*TEXTS, None))
    for written in (
        *(
            "character varying(3)",
            "character varying(20)",
            "character(5)",
            "numeric",
            "numeric(50,2)",
            "uuid",
            "json",
        ),
        *("jsonb", "time without time zone", "time with time zone", "interval", "inet", "cidr", "macaddr"),
        *("public.mood", "public.price", "public.net_price", "public.code", "public.item", "public.picky"),
        *("public.day", "public.tags", "public.citext", "public.needed"),
    )
)
AS_TEXT_ARRAYS = tuple(
    Source(f"{written}[]", (*([value] for value in TEXTS), [], [None], ["1", None], None))
    for written in ("uuid", "numeric", "time without time zone", "interval", "jsonb", "inet", "public.price")
)


class Wrong(Exception):
    """A violation: another value, a row that no count includes, or an error that names nothing."""


@dataclass
class Result:
    """The outcomes of a source's values in a kind of column."""

    refused: str | None = None
    is_checked: bool = True
    exact: int = 0
    rejected: dict[int, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    @property
    def word(self) -> str:
        if self.wrong:
            return "WRONG"
        if self.refused is not None:
            return "refused"
        if self.is_checked and not self.exact:
            return "reject"
        return "exact or reject" if self.is_checked else "exact"


class Matrix:
    """Runs pairs of a source and a kind in transactions that are rolled back."""

    def __init__(self, connection: Any, postgres: str) -> None:
        self._connection, self._postgres = connection, postgres
        self._staged: dict[tuple[str, str], tuple[StagingTables, StagedBatch]] = {}
        with connection, connection.cursor() as cursor:
            cursor.execute(SETUP)

    def kind_of(self, source: Source) -> Kind:
        """The kind of a column that a sink makes for a source by itself."""
        written = source.written.removeprefix("public.").removesuffix("[]")
        names = {"character varying": "varchar", "character": "char", " without time zone": "",
                 "time with time zone": "timetz", "timestamp with time zone": "timestamptz"}  # fmt: skip
        for name, short in names.items():
            written = written.replace(name, short)
        if (
            found := next((each for each in KINDS if each.declared == written and not each.options), None)
        ) is None:
            found = Kind(written, oracle.number)  # numeric(38,38)
        return replace(found, is_array=source.column.element is not None or found.is_array)

    def append(self, source: Source, kind: Kind) -> Result:
        lineage = ", ".join(f"{column.name} {column.type}" for column in LINEAGE)
        declared = f"create table public.t (id bigint, x {kind.declared} {kind.options}, {lineage})"
        return self._judge(source, kind, Append("public.t"), declared, "kafka_offset")

    def upsert(self, source: Source, kind: Kind) -> Result:
        declared = f"create table public.t (id bigint primary key, x {kind.declared} {kind.options})"
        return self._judge(source, kind, Upsert("public.t", key=("id",)), declared, "id")

    def own(self, source: Source, kind: Kind, sink: Append | Upsert) -> Result:
        """Into a table that the sink makes by itself."""
        return self._judge(source, kind, sink, "", "id")

    def aggregate(self, source: Source, kind: Kind) -> Result:
        """By the value, into a table that the sink makes by itself; least and greatest where there is an order."""
        measures: dict[str, Any] = {"n": Count(), "seen": Count("x"), "ids": Min("id")}
        if source.written in (
            "text",
            "numeric",
            "bigint",
            "date",
            "timestamp with time zone",
            "double precision",
        ):
            measures |= {"least": Min("x"), "most": Max("x")}
        sink = Aggregate("public.t", group_by=("x",), aggregates=measures)
        return self._judge(source, kind, sink, "", "ids")

    def judged(self, source: Source, sink: Append) -> None:
        """Judge in a transaction that commits, and drop the staging tables, as a batch does."""
        columns = (Column("id", "bigint"), source.column)
        tables, staged = self._stage(source, sink, columns)
        with self._connection, self._connection.cursor() as cursor:
            writer = writer_of(sink)
            writer.prepare(cursor, columns)
            note_uncastable(cursor, writer.reject_rules(cursor, columns, batch_id=1), tables, staged, limit=1)
            assert noted_after(cursor, tables, staged)
        with self._connection, self._connection.cursor() as cursor:
            cursor.execute(sql.SQL("drop table {}").format(identifier(tables.rows)))

    def _judge(self, source: Source, kind: Kind, sink: Any, declared: str, number: str) -> Result:
        columns = (Column("id", "bigint"), source.column)
        tables, staged = self._stage(source, sink, columns)
        result, writer = Result(), writer_of(sink)
        with self._connection.cursor() as cursor:
            try:
                if declared:
                    cursor.execute(declared)
                try:
                    writer.prepare(cursor, columns)
                    rules = writer.reject_rules(cursor, columns, batch_id=1)
                except ExactbatchError as error:
                    result.refused = str(error)
                    if "column x" not in result.refused and "column 'x'" not in result.refused:
                        raise Wrong(f"a refusal that names no column: {error}") from error
                    return result
                result.is_checked = bool(rules)
                if rules:
                    note_uncastable(cursor, rules, tables, staged, limit=10**6)
                unfit = noted_after(cursor, tables, staged)
                result.rejected = {each.offset: each.reason for each in unfit}
                cursor.execute(
                    sql.SQL("delete from {} where kafka_offset = any(%s)").format(identifier(tables.rows)),
                    (list(result.rejected),),
                )
                if "by default" in kind.options:  # which is a constraint of the table, not of the type
                    cursor.execute(sql.SQL("delete from {} where x is null").format(identifier(tables.rows)))
                cursor.execute(sql.SQL("select count(*) from {}").format(identifier(tables.rows)))
                rows = int(cursor.fetchone()[0])
                inserted = writer.insert_staged(
                    cursor, StagedRows(identifier(tables.rows), 1, {1: rows}), columns
                )
                if inserted != rows:
                    result.wrong.append(f"{inserted} rows inserted")
                text = "x::text[]" if source.column.element else "x::text"  # which drops a char's padding
                cursor.execute(f"select {number}, {text} from public.t")
                stored = dict(cursor.fetchall())
                self._compare(source, kind, result, stored, is_grouped=isinstance(sink, Aggregate))
            except ExactbatchError as error:
                if "operator does not exist" in str(error):  # no such type can be in an Upsert
                    result.refused = str(error)
                else:
                    result.wrong.append(f"{type(error).__name__}: {str(error)[:500]}")
            except (psycopg2.Error, Wrong, TypeError, KeyError) as error:
                result.wrong.append(f"{type(error).__name__}: {str(error).strip()[:500]}")
            finally:
                self._connection.rollback()
        return result

    def _stage(
        self, source: Source, sink: Any, columns: Sequence[Column]
    ) -> tuple[StagingTables, StagedBatch]:
        key = (source.written, sink.kind.name)
        if key in self._staged:
            return self._staged[key]
        tables = StagingTables(1, len(self._staged) + 1)
        staged_columns = writer_of(sink).traits.staged_columns(columns)
        with self._connection, self._connection.cursor() as cursor:
            create_rejects(cursor, tables)
            create_rows(cursor, tables, staged_columns)
        n = len(source.values)
        numbers = pa.array(range(n), pa.int64())
        batch = pa.record_batch(
            {
                "kafka_topic": pa.repeat("t", n),
                "kafka_partition": pa.repeat(pa.scalar(0, pa.int32()), n),
                "kafka_offset": numbers,
                "kafka_timestamp": pa.repeat(pa.scalar(0, pa.timestamp("us", "UTC")), n),
                "id": numbers,
                "x": source.arrow(),
                "deleted": pa.repeat(False, n),
            }
        )
        rows = stage_rows([batch], tables, PostgresAccess(self._postgres, 60, 60), staged_columns, 1)
        assert rows == n
        self._staged[key] = tables, StagedBatch((), {1: n}, {})
        return self._staged[key]

    def _compare(
        self, source: Source, kind: Kind, result: Result, stored: dict[int, Any], *, is_grouped: bool
    ) -> None:
        for at, value in enumerate(source.values):
            if at in result.rejected:
                reason = result.rejected[at]
                if not re.match(r"column 'x'(, |: )", reason):
                    result.wrong.append(f"{value!r}: a reason that names no column: {reason}")
                continue
            if at not in stored:
                if not is_grouped and not (
                    value is None and kind.options
                ):  # where the first of equal values stands for all of them
                    result.wrong.append(f"{value!r}: neither stored nor rejected")
                continue
            found = stored[at]
            if same(source, kind, value, found):
                result.exact += 1
            else:
                result.wrong.append(f"{value!r}: stored as {found!r}")


def same(source: Source, kind: Kind, value: Any, stored: Any) -> bool:
    """True if the stored text means the same as the record's text."""
    if value is None or stored is None:
        return value is None and stored is None
    if source.column.element is not None:
        return len(value) == len(stored) and all(
            _is_same(source, kind, one, other) for one, other in zip(value, stored, strict=True)
        )
    if kind.is_array:  # the text of a whole array
        return bool(value == stored)
    return _is_same(source, kind, value, stored)


def _is_same(source: Source, kind: Kind, value: Any, stored: Any) -> bool:
    if value is None or stored is None:
        return value is None and stored is None
    try:
        return bool(_said(source, kind, value) == _read(source, kind, stored))
    except (ValueError, OverflowError):
        return False


def _said(source: Source, kind: Kind, value: Any) -> Any:
    match source.element:
        case "text":
            return kind.read(value)
        case "real" | "double precision":
            return repr(value) if _is_float(kind) else Fraction(value)
        case "boolean" | "bytea" | "date":
            return value
        case _:
            return Fraction(value)


def _read(source: Source, kind: Kind, stored: str) -> Any:
    if not _is_float(kind) or source.element.startswith(("text", "numeric")):
        return kind.read(stored)
    floating = float(stored)
    if kind.declared.startswith("real"):
        floating = oracle.single(floating)
    return repr(floating) if source.element in ("real", "double precision") else Fraction(floating)


def _is_float(kind: Kind) -> bool:
    return kind.declared.removesuffix("[]") in ("real", "double precision")


def summary(results: Sequence[Result]) -> str:
    """Count pairs and values, and their outcomes."""
    pairs = Counter(each.word for each in results)
    exact = sum(each.exact for each in results)
    rejected = sum(len(each.rejected) for each in results)
    wrong = sum(len(each.wrong) for each in results)
    return (
        f"{len(results)} pairs: {', '.join(f'{n} {word}' for word, n in sorted(pairs.items()))}; "
        f"{exact + rejected + wrong} values: {exact} exact, {rejected} rejected, {wrong} wrong"
    )


_PAGE = """# Which types fit which columns

This page is generated from exactbatch's behaviour on a real Postgres, with the values at the limits of each type. [How
to write text](values.md#how-to-write-text) gives the accepted text of each type.

- *exact*: every value is stored as it is.
- *exact or reject*: each value is stored as it is, or its record is rejected with a reason that names the column.
- *refused*: the batch does not start, and the message names the column and both types.

No other outcome occurs, except [what counts as exact](values.md#exceptions), such as the nearest `real` number.

## Text

This holds for pipeline columns of type text, and for all types that are read from text: uuid, time, interval, jsonb,
numeric without a precision, and your own types.

| | target columns |
|---|---|
{text}

## Typed columns

Every other target column refuses these types.

| column of the pipeline | exact | exact or reject |
|---|---|---|
{typed}

## Arrays

The elements of an array follow the same rules as single values. The text of a whole array, such as `{{1,2}}`, fits into
an array column of the target if it is written as Postgres writes it.

| column of the pipeline | exact | exact or reject |
|---|---|---|
{elements}
"""


def rendered(results: dict[tuple[str, str], Result]) -> str:
    """The page of the documentation, of results by the names of source and kind."""
    titles = list(dict.fromkeys(title for _, title in results))
    names = list(dict.fromkeys(source for source, _ in results))
    scalars = [name for name in names if not name.endswith("[]") and name != "text"]
    arrays = [name for name in names if name.endswith("[]")]

    def targets(source: str, word: str) -> str:
        return "; ".join(title for title in titles if results[source, title].word == word)

    def table(sources: Sequence[str]) -> str:
        words = ("exact", "exact or reject")
        return "\n".join(
            f"| {source} | {' | '.join(targets(source, word) for word in words)} |" for source in sources
        )

    return _PAGE.format(
        text="\n".join(
            f"| {word} | {targets('text', word)} |" for word in ("exact", "exact or reject", "refused")
        ),
        typed=table(scalars),
        elements=table(arrays),
    )
