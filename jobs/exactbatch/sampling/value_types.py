"""Count the kinds of values of a JSON member, and choose the types of columns that hold all of them.

The best type comes first, then wider ones.
"""

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from exactbatch.formats.postgres_limits import is_too_fine
from exactbatch.sampling.column_names import split_words

_INT64: Final = 2**63
_LONGEST_INT64: Final = len(str(-_INT64))
_INTEGER: Final = re.compile(r"-?[0-9]+")
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_UUID: Final = re.compile(r"(?i)[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
_TIME: Final = re.compile(r"([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d{1,6})?)?")
_MOMENT: Final = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(?P<offset>Z|[+-]\d\d(:?\d\d)?)?"
)
# Words of a name by which a number may be a time.
_TIMES: Final = frozenset(
    {
        "at",
        "created",
        "date",
        "datetime",
        "deleted",
        "ended",
        "epoch",
        "expiration",
        "expires",
        "expiry",
        "finished",
        "modified",
        "occurred",
        "received",
        "seen",
        "sent",
        "since",
        "started",
        "time",
        "timestamp",
        "ts",
        "until",
        "updated",
        "when",
    }
)
_MONEY: Final = frozenset(
    {
        "amount",
        "balance",
        "cost",
        "discount",
        "fare",
        "fee",
        "fees",
        "gross",
        "net",
        "paid",
        "payment",
        "price",
        "refund",
        "revenue",
        "tax",
        "total",
        "vat",
    }
)
_IDENTIFIERS: Final = frozenset(
    {
        "code",
        "id",
        "ids",
        "iban",
        "isbn",
        "key",
        "msisdn",
        "no",
        "number",
        "phone",
        "pin",
        "plz",
        "postal",
        "postcode",
        "serial",
        "sku",
        "ssn",
        "tel",
        "version",
        "zip",
    }
)
# Times from 1990 to 2100 as numbers since 1970: seconds, and what to multiply them by.
_FIRST, _LAST = 631_152_000, 4_102_444_800
_UNITS: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_UNIT_NAMES: Final = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


class Number(str):
    """The text of a JSON number, as it is written."""

    __slots__ = ()


@dataclass(slots=True)
class Shape:
    """All values that one member has in a sample. `texts` and `numbers` hold them as they are written."""

    count: int = 0
    nulls: int = 0
    booleans: int = 0
    numbers: list[Number] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    arrays: int = 0
    objects: int = 0
    members: "dict[str, Shape]" = field(default_factory=dict)
    _element: "Shape | None" = None

    def add(self, value: Any) -> None:
        """Take in one value, as parse_json() returns it."""
        self.count += 1
        match value:
            case None:
                self.nulls += 1
            case bool():
                self.booleans += 1
            case Number():
                self.numbers.append(value)
            case str():
                self.texts.append(value)
            case list():
                self.arrays += 1
                for each in value:
                    self.element.add(each)
            case dict():
                self.objects += 1
                for name, member in value.items():
                    self.members.setdefault(name, Shape()).add(member)

    @property
    def element(self) -> "Shape":
        """All elements of all arrays."""
        if self._element is None:
            self._element = Shape()
        return self._element

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of values other than null: boolean, number, text, array, object."""
        counts = {
            "boolean": self.booleans,
            "number": len(self.numbers),
            "text": len(self.texts),
            "array": self.arrays,
            "object": self.objects,
        }
        return frozenset(kind for kind, count in counts.items() if count)


def parse_json(text: str | bytes) -> Any:
    """Parse JSON, with numbers as Number.

    Raises ValueError for text that is not JSON, such as NaN, for bytes that are not UTF-8 or begin with a byte order
    mark, and for more levels of nesting than Python parses.
    """
    if isinstance(text, bytes):
        text = text.decode()  # json.loads() would read UTF-16 as well, which no format does
    try:
        return json.loads(text, parse_int=Number, parse_float=Number, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("too many levels of nesting") from None


def find_shape(values: "list[Any]") -> Shape:
    """Return the shape of values that parse_json() has returned."""
    shape = Shape()
    for value in values:
        shape.add(value)
    return shape


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


@dataclass(frozen=True, slots=True)
class Choice:
    """A type for a column; `epoch` is the unit of a time that is a number, and `why` what a reader may wonder about."""

    type: str
    epoch: str | None = None
    why: str = ""


_JSONB: Final = Choice("jsonb")
NO_BIGINT: Final = "larger than bigint holds"
NO_DOUBLE: Final = "more digits or a larger exponent than double precision holds"


def choices_for(shape: Shape, name: str, *, numbers_in_texts: bool = False) -> tuple[Choice, ...]:
    """Return types for a member that is one column, the best one first.

    `name` is the member's, and `numbers_in_texts` says that other members of the object have decimals in texts.
    """
    match sorted(shape.kinds):
        case []:
            return (Choice("jsonb", why="null in the whole sample: jsonb takes whatever comes"),)
        case ["boolean"]:
            return (Choice("boolean"), _JSONB)
        case ["number"]:
            return _for_numbers(shape.numbers, name)
        case ["text"]:
            return _for_texts(shape.texts, name, numbers_in_texts)
        case ["number", "text"] if all(map(_NUMBER.fullmatch, shape.texts)):
            return (Choice("numeric", why="numbers, some of them in strings: numeric takes both"), _JSONB)
        case ["array"]:
            return _for_arrays(shape.element)
        case ["object"]:
            return (_JSONB,)
        case kinds:
            return (Choice("jsonb", why=f"{_listed(kinds)} occur: jsonb takes all of them"),)


def _for_numbers(numbers: Sequence[Number], name: str) -> tuple[Choice, ...]:
    if all(map(_INTEGER.fullmatch, numbers)):
        return _for_integers(numbers, name)
    numeric = Choice("numeric")
    if set(split_words(name)) & _MONEY:
        return (Choice("numeric", why="the name says money: numeric keeps every digit"), _JSONB)
    if not all(map(is_double, numbers)):
        return (
            Choice("numeric", why=NO_DOUBLE),
            _JSONB,
        )
    return (Choice("double precision"), numeric, _JSONB)


def _for_integers(numbers: Sequence[Number], name: str) -> tuple[Choice, ...]:
    if not all(map(is_bigint, numbers)):
        return (Choice("numeric", why=NO_BIGINT), _JSONB)
    integers = list(map(int, numbers))
    wider = (Choice("bigint"), Choice("double precision"), Choice("numeric"), _JSONB)
    if set(split_words(name)) & _TIMES and (unit := find_unit(integers)) is not None:
        why = f"its name and size say {_UNIT_NAMES[unit]} since 1970: it becomes a time in UTC"
        if 0 in integers:
            why += "; 0 becomes 1970-01-01"
        return (Choice("timestamptz", unit, why), *wider)
    return wider


def find_unit(integers: Sequence[int]) -> str | None:
    """Return the unit in which integers, 0 aside, are times from 1990 to 2100; None if there is none."""
    moments = [number for number in integers if number]
    for unit, factor in _UNITS.items():
        if moments and all(_FIRST * factor <= number < _LAST * factor for number in moments):
            return unit
    return None


def is_bigint(text: str) -> bool:
    """True if an integer, written without leading zeros, fits into 64 bits."""
    # The length comes first: int() raises ValueError for thousands of digits.
    return len(text) <= _LONGEST_INT64 and -_INT64 <= int(text) < _INT64


def is_double(text: str) -> bool:
    """True if a double returns a number to the last digit."""
    nearest = float(text)
    try:
        return math.isfinite(nearest) and Decimal(repr(nearest)) == Decimal(text)
    except InvalidOperation:  # an exponent that Decimal does not hold
        return False


def _for_texts(texts: Sequence[str], name: str, numbers_in_texts: bool) -> tuple[Choice, ...]:
    text = Choice("text")

    def all_match(pattern: re.Pattern[str]) -> bool:
        return all(map(pattern.fullmatch, texts))

    if all_match(_UUID):
        return (Choice("uuid"), text)
    if all_match(_DATE):
        return (Choice("date"), text)
    if all_match(_TIME):
        return (Choice("time"), text)
    if moments := [match for each in texts if (match := _MOMENT.fullmatch(each))]:
        offsets = sum(match["offset"] is not None for match in moments)
        if len(moments) == len(texts):
            return (_moment(offsets, len(texts)), text)
    if any(map(is_too_fine, texts)):
        return (Choice("text", why="some times have more than six digits of a second's fraction"),)
    if all_match(_NUMBER):
        return _for_numbers_in_texts(texts, name, numbers_in_texts)
    return (text,)


def _moment(offsets: int, count: int) -> Choice:
    if not offsets:
        return Choice("timestamp", why="the times have no offset. Write timestamptz if they are in UTC")
    if offsets < count:
        return Choice(
            "timestamptz", why=f"{count - offsets} of {count} times have no offset, and are read as UTC"
        )
    return Choice("timestamptz")


def _for_numbers_in_texts(texts: Sequence[str], name: str, numbers_in_texts: bool) -> tuple[Choice, ...]:
    text = Choice("text")
    if set(split_words(name)) & _IDENTIFIERS:
        return (text,)
    if has_decimals(texts):
        return (Choice("numeric", why="numbers in strings. Write text if other text may come"), text)
    if numbers_in_texts:
        return (Choice("numeric", why="numbers in strings, like others of this object"), text)
    return (Choice("text", why="digits in strings: an identifier such as 007 is no number"),)


def has_decimals(texts: Sequence[str]) -> bool:
    """True if texts are numbers, and at least one has a decimal point, a sign or an exponent."""
    return bool(texts) and all(map(_NUMBER.fullmatch, texts)) and any(not each.isdecimal() for each in texts)


def _for_arrays(element: Shape) -> tuple[Choice, ...]:
    types: dict[str, Callable[[], str | None]] = {
        "text": lambda: "text[]",
        "boolean": lambda: "boolean[]",
        "number": lambda: _type_of_numbers(element.numbers),
    }
    match sorted(element.kinds):
        case [kind] if kind in types and (type_ := types[kind]()):
            return (Choice(type_), _JSONB)
        case ["object"]:
            return (
                Choice(
                    "jsonb",
                    why="an array of objects: a path with [] makes a row of each, see `exactbatch explain json`",
                ),
            )
        case []:
            return (Choice("jsonb", why="every array is empty: jsonb takes whatever comes"),)
        case _:
            return (_JSONB,)


def _type_of_numbers(numbers: Sequence[Number]) -> str | None:
    first = _for_numbers(numbers, "")[0].type
    return None if first == "numeric" else f"{first}[]"


def _listed(kinds: Sequence[str]) -> str:
    plural = [f"{kind}s" for kind in kinds]
    return " and ".join([", ".join(plural[:-1]), plural[-1]])
