"""Whatever the compiled loop over JSON takes gives the row that Json gives; it declines all else."""

import json
import random
from itertools import islice

import pytest

from exactbatch import Json
from exactbatch.compiled.json_kernel import is_readable
from exactbatch.formats.postgres_limits import EARLIEST_DATE, EARLIEST_TIMESTAMP, LATEST_DATE
from exactbatch.local.demo.flights import flights
from support.environment import LONG
from support.fuzzed_values import COLUMNS, LABELS, Fuzzer
from support.kernel_comparison import compare, take
from support.mutated_values import mutated
from support.plausible_values import PlausibleValues

_ALL = (
    "i int, b bigint, s smallint, f float8, r real, d numeric(10,2), n numeric, t boolean, name text, v varchar(5), "
    'day date, at timestamptz, local timestamp, u uuid, m public.mood, j jsonb, "é" bytea'
)
# Each with the epoch of its columns.
SCHEMAS = {
    "all types": (_ALL, {}),
    "few columns": ("i int, name text, at timestamptz", {}),
    "numbers": ("f float8, r real, d numeric(10,2), e numeric(18,15), g numeric(18,0), h numeric(5,4)", {}),
    "epochs": (
        "a timestamptz, b timestamp, c timestamptz, d timestamptz, e date",
        {"a": "s", "b": "ms", "c": "us", "d": "ns", "e": "d"},
    ),
    "kept as text": ("j jsonb, k json, n numeric, o numeric(50,3), v public.vector, w int", {}),
    "no columns in common": ("x int, y text", {}),
}
_BLOCK = 2_000
_VALUES = 2_000_000 if LONG else 100_000
_SEED = random.SystemRandom().randrange(10**6) if LONG else 1


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_is_taken_is_what_json_gives(name):
    """Over plausible values, values of the other fuzzer, and mutations of both."""
    schema, epoch = SCHEMAS[name]
    format_ = Json(schema, epoch=epoch)
    taken = 0
    for block in range(_VALUES // len(SCHEMAS) // _BLOCK):
        seed = _SEED + block
        samples = list(PlausibleValues(format_.columns, epoch, seed).values(300))
        if block % 4 == 0:
            samples += [value for value in Fuzzer(seed).values(100, fuzzed=0.3, long=0) if value is not None]
        values = [*samples, *mutated(samples, _BLOCK - len(samples), seed)]
        random.Random(seed).shuffle(values)
        taken += compare(format_, values, by_field=block % 8 == 0).taken
    assert taken > 0.05 * (_VALUES // len(SCHEMAS) // _BLOCK) * _BLOCK


def test_flights_and_their_mutations():
    format_ = Json(
        "year int, month smallint, day int, dep_time int, dep_delay real, carrier text, flight bigint, tailnum text, "
        "origin text, dest text, air_time float8, distance int, hour numeric(4,0), minute int, time_hour timestamptz"
    )
    real = list(islice(flights(), 5_000))
    compared = compare(format_, real, by_field=True)
    assert compared.taken == compared.values
    for seed in range(_SEED, _SEED + (200 if LONG else 3)):
        compare(format_, list(mutated(real, 5_000, seed)))


@pytest.mark.parametrize("type_", ["timestamptz", "timestamp"])
@pytest.mark.parametrize(("unit", "per_second"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_the_limits_of_moments_as_numbers(type_, unit, per_second):
    """Of 64 bits, of its microseconds, of the years 1 to 9999, and of Postgres."""
    format_ = Json(f"a {type_}", epoch={"a": unit})
    limits = [-(2**63), 2**63 - 1, EARLIEST_TIMESTAMP * per_second // 10**6]
    limits += [sign * 2**63 * per_second // 10**6 for sign in (-1, 1)]
    limits += [second * per_second for second in (-62_135_596_800, 253_402_300_800)]
    # The lowest nanoseconds round down to a microsecond that 64 bits of nanoseconds cannot express.
    numbers = {limit + near for limit in limits for near in (-1001, -1000, *range(-3, 4), 807, 808, 1000)}
    compare(format_, [b'{"a":%d}' % number for number in sorted(numbers)], by_field=True)


def test_the_limits_of_dates_as_numbers():
    limits = (EARLIEST_DATE, LATEST_DATE, -(2**31), 2**31, -719_162, 2_932_897)
    numbers = [limit + near for limit in limits for near in range(-3, 4)]
    compare(Json("a date", epoch={"a": "d"}), [b'{"a":%d}' % number for number in numbers], by_field=True)


# One object each, for columns of the names of types.
_TYPES = {
    "i": "int", "b": "bigint", "s": "smallint", "f": "float8", "r": "real", "d": "numeric(10,2)", "n": "numeric",
    "t": "boolean", "x": "text", "y": "date", "z": "timestamptz", "j": "jsonb",
}  # fmt: skip
_FORMAT = Json(", ".join(f"{name} {type_}" for name, type_ in _TYPES.items()))
TAKEN = [
    "{}", ' {"i":1} \r\n', '{"i":1}', '{"i":-2147483648}', '{"b":9223372036854775807}', '{"s":-32768}',
    '{"i":null}', '{"f":1}', '{"f":-0.0}', '{"f":1e22}', '{"f":9007199254740992}', '{"r":0.1}', '{"r":3.4e21}',
    '{"d":0.05}', '{"d":-12345678.9}', '{"d":10000}', '{"d":-20000000}',
    '{"d":10000.01}', '{"n":1e99}', '{"t":true}', '{"x":"\\u00e9\\ud83d\\ude00\\n\\/"}',
    '{"x":""}', '{"y":"2024-02-29"}', '{"z":"2013-01-01T10:00:00.123456+02:00"}', '{"z":"2013-01-01"}',
    '{"j":{"a":[1,"\\n"]}}', '{"j":"text"}', '{"other":{"i":1,"i":2},"i":3}', '{"other":1,"other":2}',
    '{"other":"\\u00e9"}', '{"other":[[[]],{},{"a":{"b":null}}]}', '{"other":1.5e-30}',
]  # fmt: skip
DECLINED = [
    "", " ", "{", "}", "[]", "null", '{"i":1', '"i":1}', '{"i":1}{}', '{"i":1},', '{"i":1,}', '{,"i":1}',
    '{"i" 1}', '{i:1}', '{"i":1 "b":2}', '{"i":}', '{"i"}', '{"i"::1}', '{"i":1]', '{"i":+1}', '{"i":01}',
    '{"i":-}', '{"i":0x1}', '{"i":1.0}', '{"i":1e0}', '{"i":"1"}', '{"i":true}', '{"i":{}}', '{"i":2147483648}',
    '{"i":-2147483649}', '{"s":32768}', '{"b":9223372036854775808}', '{"b":99999999999999999999}',
    '{"i":1,"i":1}', '{"i":null,"i":1}', '{"\\u0069":1}', '{"f":1.}', '{"f":.5}', '{"f":1e}', '{"f":1e400}',
    '{"f":NaN}', '{"f":"1.5"}', '{"r":1e39}', '{"d":0.001}', '{"d":123456789}', '{"d":1e3}', '{"d":"1.5"}',
    '{"n":"1"}', '{"n":01}', '{"t":1}', '{"t":tru}', '{"t":truee}', '{"x":1}', '{"x":"\\u0000"}',
    '{"x":"\\ud800"}', '{"x":"\\udc00\\ud800"}', '{"x":"\\ud83d\\u0041"}', '{"x":"\\u12"}', '{"x":"\\x"}',
    '{"x":"\t"}', '{"x":"', '{"x":"\\"}', '{"y":"2023-02-29"}', '{"y":"2024-13-01"}', '{"y":"2024-1-1"}',
    '{"y":"0000-01-01"}', '{"y":"2024-01-01T"}', '{"z":"2013-01-01T24:00:00Z"}', '{"z":"2013-01-01T10:00:60Z"}',
    '{"z":"2013-01-01T10:00:00.1234567Z"}', '{"z":"2013-01-01T10:00:00+24:00"}',
    '{"z":"2013-01-01T10:00:00 Z"}', '{"z":"2013-01-01T10:00:00."}', '{"z":"2013-01-01T1"}', '{"z":1}',
    '{"j":"\\u00e9"}', '{"j":[1,]}', '{"j":{"a"}}', '{"other":{"a":1,}}', '{"other":[1 2]}',
    '{"other":{"a":"\\ud800"}}', '{"other":tru}', '{"other":1e999}', '{"other":' + "[" * 61 + "]" * 61 + "}",
    '{"other":[}', '{"other":{]}', '{"other":"}',
]  # fmt: skip


@pytest.mark.parametrize("written", TAKEN)
def test_taken(written):
    assert compare(_FORMAT, [written.encode()], by_field=True).taken == 1


@pytest.mark.parametrize("written", DECLINED)
def test_declined(written):
    """After an object with the same names, so that those are known, and before another one."""
    good = b'{"i":1,"x":"a"}'
    assert take(_FORMAT, [good, written.encode(), good]).declined_indexes.tolist() == [1]


@pytest.mark.parametrize(
    "bad",
    [b"\xff", b"\xc3", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\xf0\x80\x80\x80"],
)
def test_bytes_that_are_no_utf8_are_declined_wherever_they_are(bad):
    objects = [b'{"x":"%s"}', b'{"%s":1}', b'{"other":"%s"}', b'{"other":["%s"]}', b'{"other":{"%s":1}}']
    # Twice: the second time, the name is the one of the record before.
    values = [each % bad for each in objects for _ in range(2)]
    assert take(_FORMAT, values).declined_indexes.tolist() == list(range(len(values)))


def test_a_null_value_and_a_row_without_its_key_are_declined():
    values = [b'{"i":1,"x":"a"}', None, b'{"x":"a"}', b'{"i":null}', b'{"i":2}']
    taken = take(_FORMAT, values, required=["i"])
    assert (taken.rows, taken.declined_indexes.tolist()) == (2, [1, 2, 3])
    assert compare(_FORMAT, values, ["i"], by_field=True).taken == 2


def test_long_values_and_many_fields():
    long = {"x": "é" * 400_000, "other": ["y" * 300_000]}
    many = {**{f"k{number}": number for number in range(600)}, "i": 1}
    some = {**{f"k{number}": number for number in range(500)}, "i": 1}
    values = [json.dumps(each, ensure_ascii=False).encode() for each in (long, some, many, {"i": 2}, some)]
    assert take(_FORMAT, values).declined_indexes.tolist() == [2]
    assert compare(_FORMAT, values, by_field=True).taken == 4


def test_an_unreadable_type_leaves_the_schema_to_the_decoder():
    unreadable = [
        column.name
        for column in Json("a int[], b numeric(19,2), c int, d numeric(18,16)").columns
        if not is_readable(column)
    ]
    assert unreadable == ["a", "b", "d"]


def test_every_type_of_the_other_fuzzer_but_arrays_is_read():
    assert LABELS
    readable = {column.name for column in _FORMAT.columns if is_readable(column)}
    assert len(readable) == len(_TYPES)
    assert {type_ for type_ in COLUMNS.values() if not type_.endswith("[]")} - {
        "mood",
        "uuid",
        "varchar(5)",
        "timestamp",
    } <= set(_TYPES.values())


@pytest.mark.parametrize(
    ("written", "is_certain"),
    [("16777217", False), ("16777217.5", True), ("8388608.5", False), ("8388608.75", True)],
)
def test_a_number_between_two_reals_is_declined_only_in_their_middle(written, is_certain):
    """The middle itself may be what a number was rounded to."""
    assert compare(_FORMAT, [b'{"r":%s}' % written.encode()], by_field=True).taken == is_certain


def test_the_loop_takes_members_of_other_names():
    format_ = Json("id int from 'userId', name text from 'id', \"é\" text from '\"a\"\"b\"'")
    members = format_.own_members
    assert members == {"id": "userId", "name": "id", "é": 'a"b'}
    values = [
        b'{"userId": 5, "id": "x", "name": 7}',
        b'{"userId": 5, "a\\"b": "y"}',
        b'{"id": "z"}',
        b'{"userId": "7"}',
    ]
    assert compare(format_, values).taken == 2


def test_the_loop_is_not_asked_for_paths_and_defaults():
    for schema in (
        "a int from 'x.y'",
        "a int default 1",
        "a int from 'x', b int from 'x'",
        "a jsonb from '$'",
    ):
        assert Json(schema).own_members is None
