"""Text that is surely no value of a type, as Arrow reads it: decided from the text alone, without Arrow.

What is not sure is left to Arrow. Arrow reports one bad value of many with an exception, so that finding a thousand of
them takes a thousand blocks.
"""

import re
from calendar import monthrange
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

NUMBER: Final = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)
INTEGER: Final = re.compile(r"-?\d+", re.ASCII)
_DAY: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
_MOMENT: Final = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d)(?:[T ](\d\d)(?::(\d\d)(?::(\d\d)(?:\.(?P<fraction>\d*))?)?)?)?"
    r"(?P<zone>Z|[+-]\d\d(?::?\d\d)?)?",
    re.ASCII,
)
_MICROSECONDS: Final = 6  # digits


class Undecided(Exception):
    """Arrow has to decide."""


def is_no_integer(text: str, type_: "pa.DataType") -> bool:
    """True for text that is no integer, or one out of the range of the type."""
    if INTEGER.fullmatch(text) is None:
        return True
    bits = type_.bit_width
    return len(text) > bits or not -(2 ** (bits - 1)) <= int(text) < 2 ** (bits - 1)


def is_no_day(text: str) -> bool:
    """True for text that is no date in ISO 8601. Raises Undecided."""
    match = _DAY.fullmatch(text)
    if match is None:
        return True
    year, month, day = map(int, match.groups())
    if year == 0:
        raise Undecided
    return not 1 <= month <= 12 or not 1 <= day <= monthrange(year, month)[1]


def is_no_moment(text: str) -> bool:
    """True for text that is no timestamp in ISO 8601 with at most microseconds. Raises Undecided."""
    match = _MOMENT.fullmatch(text)
    if match is None:
        if _DAY.match(text):
            raise Undecided
        return True
    if is_no_day(match["day"]) or len(match["fraction"] or "") > _MICROSECONDS:
        return True
    parts = [int(part or 0) for part in match.groups()[1:4]]
    return any(part >= limit for part, limit in zip(parts, (24, 60, 60), strict=True))


def has_zone(text: str) -> bool:
    """True for a timestamp with a zone offset."""
    match = _MOMENT.fullmatch(text)
    return match is not None and match["zone"] is not None
