"""Decode dates and times as Debezium and Kafka Connect write them: numbers of units since 1970 or midnight, and ISO
text.

Finer parts than a microsecond are cut off, which Postgres cannot hold.
"""

from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.formats.postgres_limits import EARLIEST_DATE, EARLIEST_TIMESTAMP, LATEST_DATE

_MICROSECONDS: Final = {"s": 10**6, "ms": 1000, "us": 1}
Unit = Literal["d", "ms", "us", "ns"]
_DAY: Final = {"ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_TO_MICROSECONDS: Final = {"ms": (1000, 1), "us": (1, 1), "ns": (1, 1000)}
# What Debezium's Postgres connector writes for infinity and -infinity: PGStatement's constants, in each unit, and the
# extremes of a long. A date's days overflow 32 bits (PostgresValueConverter.POSITIVE_INFINITY_LOCAL_DATE).
_INFINITY: Final = {
    "ms": {9223372036825200: "infinity", -9223372036832400: "-infinity"},
    "us": {9223372036825200000: "infinity", -9223372036832400000: "-infinity"},
    "ns": {2**63 - 1: "infinity", -(2**63): "-infinity"},
    "d": {-2147472692: "infinity", -2147472691: "-infinity"},
}
_MILLIS_OF_INFINITY: Final = {9223372036825200000: "infinity", -9223372036832400000: "-infinity"}
_ISO_INFINITY: Final = ("infinity", "-infinity")
# Years that have four digits.
_FIRST_YEAR: Final = -62_135_596_800  # seconds since 1970
_LAST_YEAR: Final = 253_402_300_800
_ZONED: Final = r"[T ].*(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)$"
_TOO_FINE: Final = r"(\.[0-9]{6})[0-9]+"


def from_epoch(numbers: pa.ChunkedArray, unit: str, type_: pa.DataType) -> pa.ChunkedArray:
    """Return numbers of units since 1970 as timestamps in microseconds, or as dates.

    Nanoseconds are rounded down to the microsecond. Raises ValueError for a number that overflows 64 bits, or a
    date's 32.
    """
    if unit == "d":
        return numbers.cast(pa.int32()).cast(type_)
    if unit == "ns":
        numbers, unit = floor_divide(numbers, 1000), "us"
    return numbers.cast(pa.timestamp(unit)).cast(pa.timestamp("us")).cast(pa.int64()).cast(type_)


def is_out_of_range(number: int, unit: str) -> bool:
    """True for a number of units since 1970 that is no timestamp, or date, which Postgres can store."""
    if unit == "d":
        return not EARLIEST_DATE <= number <= LATEST_DATE
    microseconds = number // 1000 if unit == "ns" else number * _MICROSECONDS[unit]
    return not EARLIEST_TIMESTAMP <= microseconds < 2**63


def floor_divide(numbers: pa.ChunkedArray | pa.Array, divisor: int) -> Any:
    """Return integers divided and rounded down; Arrow's own rounding of times overflows near the lowest."""
    quotient = pc.divide(numbers, divisor)
    is_above = pc.less(numbers, pc.multiply(quotient, divisor))
    return pc.subtract(quotient, is_above.cast(quotient.type))


def moments_from_numbers(
    numbers: pa.Array, unit: Unit, type_: pa.DataType, *, staged: bool, parsed: str | None = None
) -> pa.Array:
    """Return numbers of a unit since 1970 as timestamps, dates or, if `staged` as text, as ISO text.

    `parsed` is given for text that Postgres parses as a time, and follows it: an offset, or nothing. Such text is cut
    to the microsecond, to which Postgres would round.

    Raises ValueError for a number out of range, a time in a date, and for infinity, which only text can express.
    """
    special = _INFINITY[unit] | (_MILLIS_OF_INFINITY if unit == "ms" else {})
    infinite = pc.is_in(numbers, pa.array(special, numbers.type))
    if pc.any(infinite).as_py():
        if not staged:
            raise ValueError(_no_infinity(special[numbers.filter(infinite)[0].as_py()]))
        finite = pc.if_else(infinite, pa.scalar(None, numbers.type), numbers)
        texts = pa.array([special.get(number) for number in numbers.to_pylist()], pa.string())
        return pc.if_else(infinite, texts, _as_text(finite, unit, parsed=parsed))
    if staged:
        return _as_text(numbers, unit, parsed=parsed)
    if pa.types.is_date(type_) and unit != "d":
        days = pc.divide(numbers, _DAY[unit])
        if not pc.all(pc.equal(pc.multiply(days, _DAY[unit]), numbers), min_count=0).as_py():
            raise ValueError("expected a date, found a date and time: declare the column as timestamp")
        return from_epoch(days, "d", type_)
    if pa.types.is_timestamp(type_) and unit == "d":
        dates = from_epoch(numbers, "d", pa.date32())
        return dates.cast(pa.timestamp("s")).cast(pa.timestamp("us")).cast(pa.int64()).cast(type_)
    return from_epoch(numbers, unit, type_)


def _as_text(numbers: pa.Array, unit: Unit, *, parsed: str | None) -> pa.StringArray:
    """Return moments of the years 1 to 9999 as text, exactly."""
    if parsed is not None and unit == "ns":
        numbers, unit = floor_divide(numbers, 1000), "us"
    per_second = {"ms": 10**3, "us": 10**6, "ns": 10**9}
    extremes = pc.min_max(numbers).as_py()
    if extremes["min"] is not None:
        low, high = (extremes[name] * (86_400 if unit == "d" else 1) for name in ("min", "max"))
        size = per_second.get(unit, 1)
        if low < _FIRST_YEAR * size or high >= _LAST_YEAR * size:
            raise ValueError("expected a date or time of the years 1 to 9999 for text, found another year")
    if unit == "d":
        return numbers.cast(pa.int32()).cast(pa.date32()).cast(pa.string())
    text = numbers.cast(pa.timestamp(unit)).cast(pa.string())
    return pc.binary_join_element_wise(text, parsed, "") if parsed else text


def times_of_day(numbers: pa.Array, unit: Unit, *, within_a_day: bool) -> pa.StringArray:
    """Return numbers of a unit since midnight as text, such as 13:02:03.000004.

    Raises ValueError for a number out of 0 to 24 hours if it has to be `within_a_day`. MySQL's times may be longer,
    and negative.
    """
    factor, divisor = _TO_MICROSECONDS[unit]
    micros = pc.multiply_checked(numbers.cast(pa.int64()), factor)
    if divisor > 1:
        micros = floor_divide(micros, divisor)
    outside = pc.or_(pc.less(micros, 0), pc.greater(micros, _DAY["us"]))
    if within_a_day and pc.any(outside).as_py():
        found = numbers.filter(outside)[0].as_py()
        raise ValueError(
            f"expected a time from 0 to 24 hours after midnight, found {found} {unit}: declare the column as interval"
        )
    size = pc.abs_checked(micros)
    seconds = pc.divide(size, 10**6)
    parts = [
        pc.divide(seconds, 3600),
        _remainder(pc.divide(seconds, 60), 60),
        _remainder(seconds, 60),
        _remainder(size, 10**6),
    ]
    hours, minutes, rest, fraction = (
        pc.utf8_lpad(part.cast(pa.string()), width, padding="0")
        for part, width in zip(parts, (2, 2, 2, 6), strict=True)
    )
    sign = pc.if_else(pc.less(micros, 0), "-", "")
    clock = pc.binary_join_element_wise(hours, minutes, rest, ":")
    return pc.binary_join_element_wise(sign, clock, pc.binary_join_element_wise(".", fraction, ""), "")


def _remainder(numbers: pa.Array, divisor: int) -> pa.Array:
    return pc.subtract(numbers, pc.multiply(pc.divide(numbers, divisor), divisor))


def timestamps_from_iso(text: pa.StringArray, type_: pa.DataType) -> pa.Array:
    """Return ISO text with an offset as timestamps; those without time zone are in UTC.

    Raises ValueError for other text and for infinity.
    """
    _refuse_infinity(text)
    return _cut(text).cast(pa.timestamp("us", "UTC")).cast(pa.int64()).cast(type_)


def timestamps_from_text(text: pa.StringArray, type_: pa.DataType) -> pa.Array:
    """Return ISO text as timestamps; text without an offset is in UTC.

    Raises ValueError for other text and for infinity.
    """
    _refuse_infinity(text)
    cut, null = _cut(text), pa.scalar(None, pa.string())
    is_zoned = pc.match_substring_regex(cut, _ZONED)
    zoned = pc.if_else(is_zoned, cut, null).cast(pa.timestamp("us", "UTC"))
    local = pc.if_else(is_zoned, null, cut).cast(pa.timestamp("us"))
    return pc.coalesce(zoned.cast(pa.int64()), local.cast(pa.int64())).cast(type_)


def dates_from_iso(text: pa.StringArray) -> pa.Array:
    """Return ISO dates, which may end with Z; raise ValueError for other text and for infinity."""
    _refuse_infinity(text)
    return pc.replace_substring_regex(text, r"Z$", "").cast(pa.date32())


def clock_from_iso(text: pa.StringArray, *, zoned: bool) -> pa.StringArray:
    """Return ISO times for Postgres to parse: to the microsecond, and without Z unless they are zoned."""
    cut = _cut(text)
    return cut if zoned else pc.replace_substring_regex(cut, r"Z$", "")


def _cut(text: pa.StringArray) -> pa.StringArray:
    """Cut off what is finer than a microsecond."""
    if not pc.any(pc.match_substring_regex(text, _TOO_FINE), min_count=0).as_py():
        return text
    return pc.replace_substring_regex(text, _TOO_FINE, r"\1")


def _refuse_infinity(text: pa.StringArray) -> None:
    infinite = pc.is_in(text, pa.array(_ISO_INFINITY))
    if pc.any(infinite).as_py():
        raise ValueError(_no_infinity(text.filter(infinite)[0].as_py()))


def _no_infinity(found: Any) -> str:
    return (
        f"expected a finite date or time, found {found}: to store infinity, declare the column with the schema of its "
        f"type, as pg_catalog.timestamptz, pg_catalog.timestamp or pg_catalog.date"
    )
