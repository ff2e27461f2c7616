"""Values of every type of Debezium's documentation, in every mode: how the connector writes them, and what the source
had.

The mappings are those of the pages for the Postgres, MySQL, SQL Server and Oracle connectors, "Data type mappings".
"""

import base64
import struct
from dataclasses import dataclass
from typing import Any

Schema = dict[str, Any]


@dataclass(frozen=True)
class Value:
    """A value of a type of the source: the column that takes it, its schema in the event and how JSON writes it, and
    what the source had, as Postgres prints it."""

    source: str
    column: str
    schema: Schema
    written: Any
    printed: str


def typed(kind: str, name: str = "", **parameters: Any) -> Schema:
    """A schema of Kafka Connect."""
    named = {"name": name, "version": 1} if name else {}
    given = {"parameters": {key: str(value) for key, value in parameters.items()}} if parameters else {}
    return {"type": kind, "optional": True, **named, **given}


def time(kind: str, name: str) -> Schema:
    return typed(kind, f"io.debezium.time.{name}")


def connect(kind: str, name: str, **parameters: Any) -> Schema:
    return typed(kind, f"org.apache.kafka.connect.data.{name}", **parameters)


def data(kind: str, name: str, **parameters: Any) -> Schema:
    return typed(kind, f"io.debezium.data.{name}", **parameters)


def encoded(written: bytes) -> str:
    return base64.b64encode(written).decode()


def unscaled(number: int) -> str:
    """A decimal's digits as Java's BigInteger.toByteArray() writes them, in base64."""
    return encoded(number.to_bytes((number + (number < 0)).bit_length() // 8 + 1, "big", signed=True))


def record(name: str, **fields: Schema) -> Schema:
    return {**typed("struct", name), "fields": [{**schema, "field": each} for each, schema in fields.items()]}


def decimal(scale: int) -> Schema:
    return connect("bytes", "Decimal", scale=scale, **{"connect.decimal.precision": 20})


def array(items: Schema) -> Schema:
    return {**typed("array"), "items": items}


VARIABLE = record("io.debezium.data.VariableScaleDecimal", scale=typed("int32"), value=typed("bytes"))
POINT = record(
    "io.debezium.data.geometry.Point",
    x=typed("double"),
    y=typed("double"),
    wkb=typed("bytes"),
    srid=typed("int32"),
)
WKB = struct.pack("<BIdd", 1, 1, 1.5, -2.0)
A_POINT = {"x": 1.5, "y": -2.0, "wkb": encoded(WKB), "srid": None}
GEOMETRY = record("io.debezium.data.geometry.Geometry", wkb=typed("bytes"), srid=typed("int32"))

STAMP, ZONED = "timestamp", "timestamptz"
AT = "2018-06-20 15:13:16.945104"
AT_MS, AT_US = 1529507596945, 1529507596945104

DAY = 17702
CLOCK_MS, CLOCK_US = 54796945, 54796945104


def in_each_mode(date: str = "", time_of_day: str = "", moment: str = "") -> list[Value]:
    """A date, a time and a timestamp of these types of the source, in the modes of time.precision.mode whose form does
    not depend on the precision."""
    values = []
    if date:
        values += [
            Value(f"{date}, microseconds", "date", time("int32", "Date"), DAY, "2018-06-20"),
            Value(f"{date}, nanoseconds", "date", time("int32", "Date"), DAY, "2018-06-20"),
            Value(f"{date}, connect", "date", connect("int32", "Date"), DAY, "2018-06-20"),
            Value(f"{date}, isostring", "date", time("string", "IsoDate"), "2018-06-20Z", "2018-06-20"),
        ]
    if time_of_day:
        values += [
            Value(
                f"{time_of_day}, microseconds",
                "time",
                time("int64", "MicroTime"),
                CLOCK_US,
                "15:13:16.945104",
            ),
            Value(
                f"{time_of_day}, nanoseconds",
                "time",
                time("int64", "NanoTime"),
                CLOCK_US * 1000,
                "15:13:16.945104",
            ),
            Value(f"{time_of_day}, connect", "time", connect("int32", "Time"), CLOCK_MS, "15:13:16.945"),
            Value(
                f"{time_of_day}, isostring",
                "time",
                time("string", "IsoTime"),
                "15:13:16.945104Z",
                "15:13:16.945104",
            ),
        ]
    if moment:
        values += [
            Value(f"{moment}, microseconds", STAMP, time("int64", "MicroTimestamp"), AT_US, AT),
            Value(f"{moment}, nanoseconds", STAMP, time("int64", "NanoTimestamp"), AT_US * 1000, AT),
            Value(f"{moment}, connect", STAMP, connect("int64", "Timestamp"), AT_MS, AT[:-3]),
            Value(
                f"{moment}, isostring",
                STAMP,
                time("string", "IsoTimestamp"),
                "2018-06-20T15:13:16.945104Z",
                AT,
            ),
        ]
    return values


# Types whose form depends on no mode, or on one of its own.
POSTGRES = [
    Value("boolean", "boolean", typed("boolean"), True, "true"),
    Value("bit(1)", "boolean", typed("boolean"), False, "false"),
    Value("bit(12)", "int", data("bytes", "Bits", length=12), encoded(b"\x05\x08"), "2053"),
    Value("varbit(12)", "bytea", data("bytes", "Bits", length=12), encoded(b"\x05"), "\\x05"),
    Value("smallint", "smallint", typed("int16"), -32768, "-32768"),
    Value("integer", "int", typed("int32"), 2**31 - 1, "2147483647"),
    Value("bigint", "bigint", typed("int64"), -(2**63), "-9223372036854775808"),
    Value("oid", "bigint", typed("int64"), 4294967295, "4294967295"),
    Value("bigint, as numeric", "numeric", typed("int64"), 2**63 - 1, "9223372036854775807"),
    Value("real", "real", typed("float"), 1.5, "1.5"),
    Value("double precision", "float8", typed("double"), 0.1, "0.1"),
    Value("real NaN", "real", typed("float"), "NaN", "NaN"),
    Value("double precision infinity", "float8", typed("double"), "Infinity", "Infinity"),
    Value("double precision -infinity, as real", "real", typed("double"), "-Infinity", "-Infinity"),
    Value("double precision NaN, as numeric", "numeric", typed("double"), "NaN", "NaN"),
    Value("real -infinity, as numeric", "numeric", typed("float"), "-Infinity", "-Infinity"),
    Value("real NaN, as numeric(50,3)", "numeric(50,3)", typed("float"), "NaN", "NaN"),
    Value("float8[] with NaN", "float8[]", array(typed("double")), [0.1, None, "NaN"], "{0.1,NULL,NaN}"),
    Value("float4[], as numeric[]", "numeric[]", array(typed("float")), ["Infinity", 1.5], "{Infinity,1.5}"),
    Value("double precision, as real", "real", typed("double"), 1.5, "1.5"),
    Value("char(3)", "char(3)", typed("string"), "a  ", "a"),
    Value("text", "text", typed("string"), "ä€😀\n", "ä€😀\n"),
    Value(
        "timestamptz",
        ZONED,
        time("string", "ZonedTimestamp"),
        "2018-06-20T15:13:16.945104Z",
        "2018-06-20 15:13:16.945104+00",
    ),
    Value(
        "timestamptz infinity",
        "pg_catalog.timestamptz",
        time("string", "ZonedTimestamp"),
        "infinity",
        "infinity",
    ),
    Value("timetz", "timetz", time("string", "ZonedTime"), "15:13:16.945104Z", "15:13:16.945104+00"),
    Value("interval, numeric", "bigint", time("int64", "MicroDuration"), 2629800000000, "2629800000000"),
    Value(
        "interval, string",
        "interval",
        time("string", "Interval"),
        "P1Y2M3DT4H5M6.78S",
        "1 year 2 mons 3 days 04:05:06.78",
    ),
    Value("bytea, bytes", "bytea", typed("bytes"), encoded(b"\x00\xff\x10"), "\\x00ff10"),
    Value("jsonb", "jsonb", data("string", "Json"), '{"a": [1, 2.50]}', '{"a": [1, 2.50]}'),
    Value("json scalar", "json", data("string", "Json"), '"x"', '"x"'),
    Value("xml", "text", data("string", "Xml"), "<a>1</a>", "<a>1</a>"),
    Value(
        "uuid",
        "uuid",
        data("string", "Uuid"),
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    ),
    Value("point", "pg_catalog.point", POINT, A_POINT, "(1.5,-2)"),
    Value(
        "circle",
        "pg_catalog.circle",
        record("io.debezium.data.geometry.Circle", center=POINT, radius=typed("double")),
        {"center": A_POINT, "radius": 3.25},
        "<(1.5,-2),3.25>",
    ),
    Value(
        "line",
        "pg_catalog.line",
        record("io.debezium.data.geometry.Line", a=typed("double"), b=typed("double"), c=typed("double")),
        {"a": 1.0, "b": -1.0, "c": 0.5},
        "{1,-1,0.5}",
    ),
    Value("ltree", "text", data("string", "Ltree"), "a.b.c", "a.b.c"),
    Value("citext", "text", typed("string"), "Bob", "Bob"),
    Value("inet", "inet", typed("string"), "10.0.0.1/24", "10.0.0.1/24"),
    Value("cidr", "cidr", typed("string"), "10.0.0.0/24", "10.0.0.0/24"),
    Value("macaddr", "macaddr", typed("string"), "08:00:2b:01:02:03", "08:00:2b:01:02:03"),
    Value("int4range", "pg_catalog.int4range", typed("string"), "[1,5)", "[1,5)"),
    Value("numrange", "pg_catalog.numrange", typed("string"), "[1.50,5)", "[1.50,5)"),
    Value("daterange", "pg_catalog.daterange", typed("string"), "[2020-01-01,)", "[2020-01-01,)"),
    Value("tsvector", "pg_catalog.tsvector", data("string", "Tsvector"), "'a':1 'b':2", "'a':1 'b':2"),
    Value("enum", "text", data("string", "Enum", allowed="sad,ok"), "ok", "ok"),
    Value("hstore, json", "jsonb", data("string", "Json"), '{"a": "1"}', '{"a": "1"}'),
    Value(
        "hstore, map",
        "jsonb",
        {**typed("map"), "keys": typed("string"), "values": typed("string")},
        {"a": "1", "b": None},
        '{"a": "1", "b": null}',
    ),
    Value("int4[]", "int[]", array(typed("int32")), [1, None, 3], "{1,NULL,3}"),
    Value("text[]", "text[]", array(typed("string")), ["a", None], "{a,NULL}"),
    Value("date[]", "date[]", array(time("int32", "Date")), [0, 18262], "{1970-01-01,2020-01-01}"),
    Value("numeric(9,2)[]", "numeric(9,2)[]", array(decimal(2)), [unscaled(-150), None], "{-1.50,NULL}"),
    Value("bytea[]", "bytea[]", array(typed("bytes")), [encoded(b"\xfe")], '{"\\\\xfe"}'),
    Value("vector", "float8[]", array(typed("double")), [0.5, 1.0], "{0.5,1}"),
    Value("numeric(12,3)", "numeric(12,3)", decimal(3), unscaled(-123456789012), "-123456789.012"),
    Value("numeric(12,3), wider", "numeric(20,5)", decimal(3), unscaled(1001), "1.00100"),
    Value("numeric(12,3), no precision", "numeric", decimal(3), unscaled(-5), "-0.005"),
    Value("numeric(60,10)", "numeric", decimal(10), unscaled(10**55 + 7), f"1{'0' * 45}.0000000007"),
    Value("numeric(18,0)", "bigint", decimal(0), unscaled(-(10**17)), "-100000000000000000"),
    Value(
        "numeric", "numeric", VARIABLE, {"scale": 20, "value": unscaled(-12345)}, "-0.00000000000000012345"
    ),
    Value("numeric(10,2), variable", "numeric(10,2)", VARIABLE, {"scale": 1, "value": unscaled(15)}, "1.50"),
    Value("numeric, string", "numeric(12,3)", typed("string"), "-1.125", "-1.125"),
    Value("numeric NaN, string", "numeric", typed("string"), "NAN", "NaN"),
    Value("numeric infinity, string", "numeric", typed("string"), "NEGATIVE_INFINITY", "-Infinity"),
    Value("numeric, double", "numeric(12,3)", typed("double"), 1.125, "1.125"),
    Value("numeric, double, no precision", "numeric", typed("double"), 1.1, "1.1"),
    Value("money", "numeric(19,2)", decimal(2), unscaled(-199), "-1.99"),
    Value("money, string", "numeric(19,2)", typed("string"), "-1.99", "-1.99"),
    Value("money, double", "numeric(19,2)", typed("double"), -1.99, "-1.99"),
    Value("varchar(5)", "varchar(5)", typed("string"), "é€", "é€"),
    Value(
        "macaddr8",
        "pg_catalog.macaddr8",
        typed("string"),
        "08:00:2b:01:02:03:04:05",
        "08:00:2b:01:02:03:04:05",
    ),
    Value("int8range", "pg_catalog.int8range", typed("string"), "[1,5)", "[1,5)"),
    Value(
        "tsrange",
        "pg_catalog.tsrange",
        typed("string"),
        '["2020-01-01 00:00:00",)',
        '["2020-01-01 00:00:00",)',
    ),
    Value(
        "tstzrange",
        "pg_catalog.tstzrange",
        typed("string"),
        '["2020-01-01 00:00:00+00",)',
        '["2020-01-01 00:00:00+00",)',
    ),
    Value("halfvec", "real[]", array(typed("float")), [0.5, 1.0], "{0.5,1}"),
    Value("geometry", "jsonb", GEOMETRY, {"wkb": "AQ==", "srid": 4326}, '{"wkb": "AQ==", "srid": 4326}'),
]

# The same moments in each time.precision.mode.
TIMES = [
    Value("date", "date", time("int32", "Date"), 17702, "2018-06-20"),
    Value("earliest date", "date", time("int32", "Date"), -2440588, "4714-11-24 BC"),
    Value("date infinity", "pg_catalog.date", time("int32", "Date"), -2147472692, "infinity"),
    Value("date, connect", "date", connect("int32", "Date"), -1, "1969-12-31"),
    Value("date, isostring", "date", time("string", "IsoDate"), "2017-09-15Z", "2017-09-15"),
    Value("time(3), adaptive", "time", time("int32", "Time"), 54796945, "15:13:16.945"),
    Value("time(6), adaptive", "time", time("int64", "MicroTime"), 54796945104, "15:13:16.945104"),
    Value("time 24:00", "time", time("int64", "MicroTime"), 86400000000, "24:00:00"),
    Value("time, nanoseconds", "time", time("int64", "NanoTime"), 54796945104999, "15:13:16.945104"),
    Value("time, connect", "time", connect("int32", "Time"), 54796945, "15:13:16.945"),
    Value("time, isostring", "time", time("string", "IsoTime"), "04:05:11.789Z", "04:05:11.789"),
    Value("timestamp(3), adaptive", STAMP, time("int64", "Timestamp"), AT_MS, "2018-06-20 15:13:16.945"),
    Value("timestamp(6), adaptive", STAMP, time("int64", "MicroTimestamp"), AT_US, AT),
    Value("timestamp before 1970", STAMP, time("int64", "MicroTimestamp"), -1, "1969-12-31 23:59:59.999999"),
    Value("timestamp, nanoseconds", STAMP, time("int64", "NanoTimestamp"), AT_US * 1000 + 999, AT),
    Value(
        "timestamp, lowest nanoseconds",
        STAMP,
        time("int64", "NanoTimestamp"),
        1 - 2**63,
        "1677-09-21 00:12:43.145224",
    ),
    Value("timestamp, connect", STAMP, connect("int64", "Timestamp"), AT_MS, "2018-06-20 15:13:16.945"),
    Value(
        "timestamp, isostring",
        STAMP,
        time("string", "IsoTimestamp"),
        "2019-07-09T02:28:57.123456Z",
        "2019-07-09 02:28:57.123456",
    ),
    Value("timestamp, as timestamptz", ZONED, time("int64", "MicroTimestamp"), AT_US, f"{AT}+00"),
    Value("timestamp, as text", "text", time("int64", "NanoTimestamp"), AT_US * 1000 + 7, f"{AT}007"),
    Value("timestamp, as bigint", "bigint", time("int64", "MicroTimestamp"), AT_US, str(AT_US)),
    Value(
        "timestamp infinity",
        "pg_catalog.timestamp",
        time("int64", "MicroTimestamp"),
        9223372036825200000,
        "infinity",
    ),
    Value(
        "timestamp -infinity, nanoseconds",
        "pg_catalog.timestamp",
        time("int64", "NanoTimestamp"),
        -(2**63),
        "-infinity",
    ),
    Value(
        "timestamp, own timestamptz",
        "pg_catalog.timestamptz",
        time("int64", "Timestamp"),
        AT_MS,
        "2018-06-20 15:13:16.945+00",
    ),
    Value(
        "timestamp, isostring, own",
        "pg_catalog.timestamp",
        time("string", "IsoTimestamp"),
        "2019-07-09T02:28:57.5Z",
        "2019-07-09 02:28:57.5",
    ),
    Value(
        "timestamp beside infinity",
        "pg_catalog.timestamp",
        time("int64", "NanoTimestamp"),
        AT_US * 1000 + 999,
        AT,
    ),
]

MYSQL = [
    Value("bool", "boolean", typed("boolean"), True, "true"),
    Value("bit(1)", "boolean", typed("boolean"), True, "true"),
    Value("bit(16)", "int", data("bytes", "Bits", length=16), encoded(b"\x01\x80"), "32769"),
    Value("tinyint", "smallint", typed("int8"), -128, "-128"),
    Value("tinyint unsigned", "smallint", typed("int16"), 255, "255"),
    Value("mediumint", "int", typed("int32"), 8388607, "8388607"),
    Value("int unsigned", "bigint", typed("int64"), 4294967295, "4294967295"),
    Value("bigint unsigned, precise", "numeric(20,0)", decimal(0), unscaled(2**64 - 1), str(2**64 - 1)),
    Value("float", "real", typed("float"), -0.25, "-0.25"),
    Value("double", "float8", typed("double"), 1e300, "1e+300"),
    Value("varchar", "varchar(5)", typed("string"), "héllo", "héllo"),
    Value("varbinary", "bytea", typed("bytes"), encoded(b"\x00\x01"), "\\x0001"),
    Value("json", "jsonb", data("string", "Json"), '{"a":null}', '{"a": null}'),
    Value("enum", "text", data("string", "Enum", allowed="a,b"), "b", "b"),
    Value("set", "text", data("string", "EnumSet", allowed="a,b,c"), "a,c", "a,c"),
    Value("year", "int", time("int32", "Year"), 2155, "2155"),
    Value(
        "timestamp", ZONED, time("string", "ZonedTimestamp"), "2018-06-20T13:37:03Z", "2018-06-20 13:37:03+00"
    ),
    Value("date", "date", time("int32", "Date"), 17702, "2018-06-20"),
    Value("time, adaptive_time_microseconds", "time", time("int64", "MicroTime"), 1, "00:00:00.000001"),
    Value(
        "time of 838 hours",
        "interval",
        time("int64", "MicroTime"),
        3020399000000,
        "838:59:59",
    ),
    Value("negative time", "interval", time("int64", "MicroTime"), -3600000001, "-01:00:00.000001"),
    Value("time, connect", "time", connect("int32", "Time"), 86399999, "23:59:59.999"),
    Value("datetime", STAMP, time("int64", "Timestamp"), AT_MS, "2018-06-20 15:13:16.945"),
    Value("datetime(6)", STAMP, time("int64", "MicroTimestamp"), AT_US, AT),
    Value("datetime, connect", STAMP, connect("int64", "Timestamp"), AT_MS, "2018-06-20 15:13:16.945"),
    Value("decimal(5,2)", "numeric(5,2)", decimal(2), unscaled(99999), "999.99"),
    Value("decimal, string", "numeric(5,2)", typed("string"), "-999.99", "-999.99"),
    Value("decimal, double", "numeric(5,2)", typed("double"), 999.99, "999.99"),
    Value("geometry", "jsonb", GEOMETRY, {"wkb": "AQ==", "srid": 7}, '{"wkb": "AQ==", "srid": 7}'),
    Value("vector", "real[]", array(typed("float")), [0.5, -1.0], "{0.5,-1}"),
    Value("smallint", "smallint", typed("int16"), -32768, "-32768"),
    Value("int", "int", typed("int32"), -(2**31), "-2147483648"),
    Value("bigint", "bigint", typed("int64"), 2**63 - 1, "9223372036854775807"),
    Value("bigint unsigned, long", "bigint", typed("int64"), 2**63 - 1, "9223372036854775807"),
    Value("char(3)", "char(3)", typed("string"), "ab", "ab"),
    Value("longtext", "text", typed("string"), "日本\n", "日本\n"),
    Value("longblob", "bytea", typed("bytes"), encoded(b"\xff\x00"), "\\xff00"),
    Value("point", "pg_catalog.point", POINT, A_POINT, "(1.5,-2)"),
    Value(
        "time(6), adaptive_time_microseconds", "time", time("int64", "MicroTime"), CLOCK_US, "15:13:16.945104"
    ),
    *in_each_mode("date", "time", "datetime(6)"),
]

SQL_SERVER = [
    Value("bit", "boolean", typed("boolean"), False, "false"),
    Value("tinyint", "smallint", typed("int16"), 255, "255"),
    Value("int", "int", typed("int32"), -1, "-1"),
    Value("bigint", "bigint", typed("int64"), 2**62, str(2**62)),
    Value("real", "real", typed("float"), 0.5, "0.5"),
    Value("float", "float8", typed("double"), -1e-7, "-1e-07"),
    Value("nvarchar", "text", typed("string"), "日本", "日本"),
    Value("xml", "text", data("string", "Xml"), "<a/>", "<a/>"),
    Value("varbinary", "bytea", typed("bytes"), "", "\\x"),
    Value(
        "datetimeoffset(7)",
        ZONED,
        time("string", "ZonedTimestamp"),
        "2018-06-20T15:13:16.1234567+01:00",
        "2018-06-20 14:13:16.123456+00",
    ),
    Value("date", "date", time("int32", "Date"), 0, "1970-01-01"),
    Value("time(3)", "time", time("int32", "Time"), 0, "00:00:00"),
    Value("time(7)", "time", time("int64", "NanoTime"), 86399999999900, "23:59:59.999999"),
    Value("datetime", STAMP, time("int64", "Timestamp"), AT_MS, "2018-06-20 15:13:16.945"),
    Value("datetime2(7)", STAMP, time("int64", "NanoTimestamp"), AT_US * 1000 + 700, AT),
    Value("datetime2, connect", STAMP, connect("int64", "Timestamp"), AT_MS, "2018-06-20 15:13:16.945"),
    Value(
        "datetime2(7), isostring",
        STAMP,
        time("string", "IsoTimestamp"),
        "2018-06-20T15:13:16.9451047Z",
        AT,
    ),
    Value("decimal(18,4)", "numeric(18,4)", decimal(4), unscaled(-1), "-0.0001"),
    Value("money", "numeric(19,4)", decimal(4), unscaled(9223372036854775807), "922337203685477.5807"),
    Value("decimal, string", "numeric(18,4)", typed("string"), "3.1400", "3.1400"),
    Value("decimal, double", "numeric(18,4)", typed("double"), 3.14, "3.1400"),
    Value("smallmoney", "numeric(10,4)", decimal(4), unscaled(-2147483648), "-214748.3648"),
    Value("money, string", "numeric(19,4)", typed("string"), "-0.0001", "-0.0001"),
    Value("smallint", "smallint", typed("int16"), 32767, "32767"),
    Value("char(3)", "char(3)", typed("string"), "ab ", "ab"),
    Value("ntext", "text", typed("string"), "ä€😀", "ä€😀"),
    Value(
        "uniqueidentifier",
        "uuid",
        typed("string"),
        "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    ),
    Value("rowversion", "bytea", typed("bytes"), encoded(b"\0\0\0\0\0\0\7\xd0"), "\\x00000000000007d0"),
    Value("smalldatetime", STAMP, time("int64", "Timestamp"), 1529507580000, "2018-06-20 15:13:00"),
    Value("time(5)", "time", time("int64", "MicroTime"), CLOCK_US, "15:13:16.945104"),
    Value("datetime2(3)", STAMP, time("int64", "Timestamp"), AT_MS, AT[:-3]),
    Value("datetime2(5)", STAMP, time("int64", "MicroTimestamp"), AT_US, AT),
    *in_each_mode("date", "time(6)", "datetime2(6)"),
]

ORACLE = [
    Value("varchar2", "text", typed("string"), "x", "x"),
    Value("raw", "bytea", typed("bytes"), encoded(b"\x01"), "\\x01"),
    Value("binary_float", "real", typed("float"), 2.5, "2.5"),
    Value("binary_double", "float8", typed("double"), 2.5, "2.5"),
    Value("number(1)", "smallint", typed("int8"), 1, "1"),
    Value("number(18)", "bigint", typed("int64"), 10**17, str(10**17)),
    Value("number(38)", "numeric(38,0)", decimal(0), unscaled(10**38 - 1), "9" * 38),
    Value("number(30,-2)", "numeric", decimal(-2), unscaled(12345), "1234500"),
    Value("number(10,2)", "numeric(10,2)", decimal(2), unscaled(-1), "-0.01"),
    Value("number", "numeric", VARIABLE, {"scale": 2, "value": unscaled(12345)}, "123.45"),
    Value("number, tens", "numeric", VARIABLE, {"scale": -3, "value": unscaled(12)}, "12000"),
    Value("integer", "bigint", decimal(0), unscaled(-7), "-7"),
    Value("number, string", "numeric", typed("string"), "0.000001", "0.000001"),
    Value("number, double", "float8", typed("double"), 0.3, "0.3"),
    Value("date", STAMP, time("int64", "Timestamp"), 1529507596000, "2018-06-20 15:13:16"),
    Value("date, as date", "date", time("int64", "Timestamp"), 1529452800000, "2018-06-20"),
    Value("interval, numeric", "float8", time("double", "MicroDuration"), 1.5, "1.5"),
    Value(
        "interval, string", "interval", time("string", "Interval"), "P0Y0M1DT0H0M-6.5S", "1 day -00:00:06.5"
    ),
    Value("timestamp", STAMP, time("int64", "MicroTimestamp"), AT_US, AT),
    Value("timestamp(9)", STAMP, time("int64", "NanoTimestamp"), AT_US * 1000 + 1, AT),
    Value(
        "timestamp(9), isostring",
        STAMP,
        time("string", "IsoTimestamp"),
        "2018-06-20T15:13:16.945104789Z",
        AT,
    ),
    Value(
        "timestamp with time zone",
        ZONED,
        time("string", "ZonedTimestamp"),
        "2018-06-20T15:13:16.945104-07:00",
        "2018-06-20 22:13:16.945104+00",
    ),
    Value(
        "timestamp with local time zone",
        ZONED,
        time("string", "ZonedTimestamp"),
        "2018-06-20T22:13:16.945104Z",
        "2018-06-20 22:13:16.945104+00",
    ),
    Value("timestamp(3)", STAMP, time("int64", "Timestamp"), AT_MS, AT[:-3]),
    *in_each_mode(moment="timestamp(6)"),
    Value(
        "date, isostring",
        STAMP,
        time("string", "IsoTimestamp"),
        "2018-06-20T15:13:16Z",
        "2018-06-20 15:13:16",
    ),
    Value("char(3)", "char(3)", typed("string"), "ab ", "ab"),
    Value("nvarchar2", "text", typed("string"), "日本", "日本"),
    Value("clob", "text", typed("string"), "long", "long"),
    Value("blob", "bytea", typed("bytes"), encoded(b"\0\xff"), "\\x00ff"),
    Value("xmltype", "text", data("string", "Xml"), "<a/>", "<a/>"),
    Value("rowid", "text", typed("string"), "AAAR3sAAEAAAACXAAA", "AAAR3sAAEAAAACXAAA"),
    Value("number(3)", "smallint", typed("int16"), -999, "-999"),
    Value("number(9)", "int", typed("int32"), 999999999, "999999999"),
    Value("number(5,-2)", "int", typed("int32"), 1234500, "1234500"),
    Value("float(126)", "numeric", VARIABLE, {"scale": 40, "value": unscaled(1)}, f"0.{'0' * 39}1"),
]

CONNECTORS = {
    "postgres": [*POSTGRES, *TIMES],
    "mysql": MYSQL,
    "sqlserver": SQL_SERVER,
    "oracle": ORACLE,
}


def envelope(columns: dict[str, Schema], source: dict[str, Schema]) -> Schema:
    """The schema of the events of a table."""
    row = {
        "type": "struct",
        "fields": [{**schema, "field": name} for name, schema in columns.items()],
        "optional": True,
        "name": "shop.public.t.Value",
    }
    fields = [{**schema, "field": name} for name, schema in source.items()]
    return {
        "type": "struct",
        "fields": [
            {**row, "field": "before"},
            {**row, "field": "after"},
            {"type": "struct", "fields": fields, "optional": False, "name": "shop.Source", "field": "source"},
            {"type": "string", "optional": False, "field": "op"},
            {"type": "int64", "optional": True, "field": "ts_ms"},
        ],
        "optional": False,
        "name": "shop.public.t.Envelope",
    }
