"""Find the reasons why JSON objects are refused, for many at once.

Decoding one object takes Arrow about a thousand times as long as one of a block. So if a block fails, Python's parser
reads its objects one by one and finds those that are surely refused; Arrow decodes the rest.
"""

import json
import re
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Any, Final

import msgspec
import pyarrow as pa

from exactbatch.columns import Column, Field
from exactbatch.formats.connect.times import is_out_of_range
from exactbatch.formats.decimals import has_decimals
from exactbatch.formats.declared_fields import is_kept_as_text
from exactbatch.formats.json.blocks import readable
from exactbatch.formats.json.raw_fields import NUMBER as JSON_NUMBER
from exactbatch.formats.postgres_limits import NUL, OUT_OF_RANGE, OUT_OF_TIME, is_too_fine, too_fine
from exactbatch.formats.refused_text import (
    INTEGER,
    half_surrogate,
    is_infinite,
    is_no_day,
    is_no_integer,
    is_no_moment,
    not_an_object,
    not_utf8,
    why_no_decimal,
)
from exactbatch.member_paths import Step

_BLANKS: Final = " \t\r\n"
_LARGE: Final = 100_000  # bytes of a value; the time that a larger one takes grows with its bytes
_MOST_ELEMENTS: Final = 1_000  # of an array: the bound of rows counts those of more
_FEW_DIGITS: Final = 300  # of a number
# rapidjson refuses such an exponent of a number with few digits, whatever they are: GenericReader::ParseNumber.
_EXPONENT: Final = re.compile(r"-?\d+(?:\.(?P<fraction>\d+))?[eE]\+?(?P<power>\d+)", re.ASCII)
_MOST_POWER: Final = 308
_CONSTANT: Final = re.compile(rb"NaN|Infinity")
_SHOWN: Final = 500  # characters of a value in a reason
# What is no half of a surrogate pair: a pair, and the escape of a backslash before a "u".
_NO_HALF: Final = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\[^u]", re.DOTALL)
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
# What Arrow says of JSON that cannot be parsed, by what Python says.
_SYNTAX: Final = {"Expecting value": "Invalid value."}


class _Number(str):
    """A number as it is written."""

    __slots__ = ()


class ObjectMembers(dict[str, Any]):
    """The members of an object, and the names that occur in it more than once."""

    __slots__ = ("twice",)

    def __init__(self, pairs: Sequence[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        counts = Counter(name for name, _ in pairs) if len(self) < len(pairs) else {}
        self.twice = {name for name, times in counts.items() if times > 1}


_KINDS: Final = {_Number: "number", str: "string", bool: "boolean", ObjectMembers: "object", list: "array"}
_FOUND: Final = tuple(f", found {kind}" for kind in _KINDS.values())
# Of a value that is not null: why a column surely refuses it; None for any other.
_Check = Callable[[Any], str | None]


def _number(text: str) -> _Number:
    exponent = _EXPONENT.fullmatch(text) if len(text) <= _FEW_DIGITS else None
    if exponent and int(exponent["power"]) > _MOST_POWER + len(exponent["fraction"] or ""):
        raise json.JSONDecodeError("Number too big to be stored in double.", text, 0)
    return _Number(text)


_decode: Final = json.JSONDecoder(
    object_pairs_hook=ObjectMembers, parse_int=_number, parse_float=_number, parse_constant=_Number
).decode


def parse_object(value: bytes) -> ObjectMembers | str | None:
    """Return the members of an object, or the reason why a value is none, as why_refused() gives it; None if Arrow may
    say anything else than Python."""
    if len(value) > _LARGE:
        return None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return not_utf8(value)
    if not (text.startswith("{") and text.endswith("}")):
        text = text.removeprefix("\ufeff").strip(_BLANKS)
        if not (text.startswith("{") and text.endswith("}")):
            return not_an_object(text)
    try:
        parsed: ObjectMembers = _decode(text)
    except json.JSONDecodeError as error:
        return _why_no_json(text, error)
    except RecursionError:
        return None
    # Without a field, half a pair is in a member whose name occurs twice.
    return half_surrogate(text) if _has_half(text) else parsed


class RefusedJson:
    """Finds the objects that some columns refuse."""

    def __init__(self, fields: Sequence[Field], epoch: Mapping[str, str]) -> None:
        """`epoch` has the unit of columns whose times are numbers."""
        self._fields = [
            _Member(
                _steps(each),
                _label(each),
                find_check(each.column, epoch),
                is_plain=each.is_plain,
                is_kept_as_text=is_kept_as_text(each.column),
            )
            for each in fields
        ]
        self._as_text = [
            _label(each) for each in fields if is_kept_as_text(each.column) and each.path.parts != ((),)
        ]

    def reason(self, value: bytes) -> str | None:
        """Return why a value is surely refused; None for any other."""
        parsed = parse_object(value)
        if not isinstance(parsed, ObjectMembers):
            return parsed
        for each in self._fields:
            if (reason := each.why_refused(parsed)) is not None:
                return f"{each.label}: {reason}"
        if self._as_text and _CONSTANT.search(value) and (reason := _why_malformed(value)):
            return f"{self._as_text[0]}: {reason}"
        return None


@dataclass(frozen=True, slots=True)
class _Member:
    """How a column takes its member.

    steps  that lead to it; None stands for each element of an array
    label  of a reason
    """

    steps: tuple[Step | None, ...]
    label: str
    check: _Check
    is_plain: bool
    is_kept_as_text: bool

    def why_refused(self, parsed: ObjectMembers) -> str | None:
        """Return why the column surely refuses its member of an object; None if it may take it."""
        try:
            found = self._find(parsed, 0)
        except ValueError as error:
            return str(error)
        for value in found:
            if (reason := self.check(value)) is not None:
                if self.is_plain or not (reason.startswith("expected ") and reason.endswith(_FOUND)):
                    return reason
                is_element = type(value) is list and not reason.startswith("expected array")
                return f"{_place(self.steps)}{'/[]' if is_element else ''}: {reason}"
        return None

    def _find(self, value: Any, begin: int) -> Sequence[Any]:
        """Return the values to which the steps from `begin` on lead, without nulls.

        Raises ValueError for a value on the way that is of another kind, and for a name that occurs twice.
        """
        for number in range(begin, len(self.steps)):
            if value is None:
                return ()
            step = self.steps[number]
            kind = "object" if isinstance(step, str) else "array"
            if reason := check_kind(kind, value):
                if self.is_kept_as_text:
                    reason = f"expected {kind} | null, found {_name_kind(value)}"
                raise ValueError(f"{_place(self.steps[:number])}: {reason}")
            if isinstance(step, str):
                if step in value.twice:
                    path = f"Column(/{_place(self.steps[: number + 1])})"
                    raise ValueError(
                        f"{f'field {step!r}' if self.is_kept_as_text else path} was specified twice"
                    )
                value = value.get(step)
            elif step is None:
                return [found for each in value[:_MOST_ELEMENTS] for found in self._find(each, number + 1)]
            else:
                value = value[step] if step < len(value) else None
        return () if value is None else (value,)


def _name_kind(value: Any) -> str:
    """Return the kind of a value as msgspec calls it."""
    if type(value) is _Number:
        return "int" if INTEGER.fullmatch(value) else "float"
    return {str: "str", bool: "bool"}.get(type(value), _KINDS[type(value)])


def _place(steps: Iterable[Step | None]) -> str:
    return "/".join(step if isinstance(step, str) else "[]" for step in steps)


def _why_malformed(value: bytes) -> str | None:
    """Return why msgspec, which reads columns that are kept as text, refuses an object that Arrow takes."""
    try:
        msgspec.json.decode(value.removeprefix(BOM_UTF8), type=msgspec.Raw)
    except msgspec.DecodeError as error:
        return str(error)
    except RecursionError:
        pass
    return None


def _steps(field: Field) -> tuple[Step | None, ...]:
    first, *rest = field.path.parts
    return first + tuple(step for part in rest for step in (None, *part))


def _has_half(text: str) -> bool:
    return "\\u" in text and _SURROGATE.search(_NO_HALF.sub("", text)) is not None


def _label(field: Field) -> str:
    column = field.column
    return f"column {column.name!r}, {column.type}" + ("" if field.is_plain else f", from '{field.path}'")


def _why_no_json(text: str, error: json.JSONDecodeError) -> str | None:
    """Return why text is refused that Python cannot parse; None if Arrow may parse it."""
    rest = text[error.pos :]
    if "\0" in text or rest.lstrip("-").startswith(("I", "N")):
        return None  # Arrow takes Inf, and a NUL may end its text
    what = _SYNTAX.get(error.msg, error.msg)
    if error.msg == "Extra data" and _is_object(rest.lstrip(_BLANKS)):
        what = "found 2 objects in 1 values"
    return f"expected one JSON object: {what}"


def _is_object(text: str) -> bool:
    try:
        return type(_decode(text)) is ObjectMembers
    except (json.JSONDecodeError, RecursionError):
        return False


def find_check(column: Column, epoch: Mapping[str, str]) -> _Check:
    """Return what tells why a column surely refuses a value that is not null."""
    if column.element is not None:
        return partial(_check_array, find_check(Column(column.name, column.element), epoch))
    if is_kept_as_text(column):
        if column.type == "jsonb":
            return _check_jsonb
        return _check_numeric if column.type.startswith("numeric") else _check_any
    type_ = column.arrow_type
    if column.name in epoch:
        return partial(_check_epoch, epoch[column.name])
    if pa.types.is_integer(type_):
        return partial(check_integer, type_)
    if pa.types.is_floating(type_):
        return partial(check_float, type_.bit_width)
    if pa.types.is_boolean(type_):
        return partial(check_kind, "boolean")
    if pa.types.is_date(type_):
        return _check_date
    if pa.types.is_timestamp(type_):
        return partial(_check_timestamp, type_)
    if has_decimals(pa.struct([("x", type_)])):
        return partial(_check_decimal, type_)
    if readable(type_) == pa.string():
        return _check_text
    return partial(check_kind, "string")


def _check_any(_value: Any) -> str | None:
    return None


def _check_jsonb(value: Any) -> str | None:
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            if "\0" in each:
                return NUL
        elif isinstance(each, list):
            waiting += each
        elif isinstance(each, ObjectMembers):
            waiting += [*each, *each.values()]
    return None


def check_kind(expected: str, value: Any) -> str | None:
    """Return why a value that is not of a kind is refused, such as "number"; None if it is."""
    found = _KINDS[type(value)]
    return None if found == expected else f"expected {expected}, found {found}"


def _check_array(check: _Check, value: Any) -> str | None:
    if reason := check_kind("array", value):
        return reason
    return next((reason for each in value if each is not None and (reason := check(each))), None)


def _check_numeric(value: Any) -> str | None:
    if type(value) is _Number or (type(value) is str and re.fullmatch(JSON_NUMBER, value, re.ASCII)):
        return None
    return "expected a number, bare or in a string"


def check_integer(type_: pa.DataType, value: Any) -> str | None:
    """Return why a value that is no number, or out of the range of an integer type, is refused."""
    if reason := check_kind("number", value):
        return reason
    return _unparsed(type_, value) if is_no_integer(value, type_) else None


def _check_epoch(unit: str, value: Any) -> str | None:
    if reason := check_integer(pa.int64(), value):
        return reason
    return OUT_OF_TIME if is_out_of_range(int(value), unit) else None


def check_float(bits: int, value: Any) -> str | None:
    """Return why a value that is no number, or out of the range of a float of some bits, is refused."""
    if reason := check_kind("number", value):
        return reason
    return OUT_OF_RANGE if not isfinite(float(value)) or is_infinite(value, bits) else None


def _check_text(value: Any) -> str | None:
    return check_kind("string", value) or (NUL if "\0" in value else None)


def _check_date(value: Any) -> str | None:
    if reason := _check_text(value):
        return reason
    if not is_no_day(value):
        return None
    return f"Failed to parse string: '{value[:_SHOWN]}' as a scalar of type date32[day]"


def _check_timestamp(type_: pa.DataType, value: Any) -> str | None:
    if reason := check_kind("string", value):
        return reason
    if is_too_fine(value[:_SHOWN]):
        return too_fine(value[:_SHOWN])
    return _unparsed(type_, value) if is_no_moment(value) else None


def _check_decimal(type_: pa.Decimal128Type, value: Any) -> str | None:
    if type(value) is _Number or type(value) is str:
        return why_no_decimal(value, type_, is_wide=False)
    return f"expected number_or_string, found {_KINDS[type(value)]}"


def _unparsed(type_: pa.DataType, value: str) -> str:
    return f"Failed to convert JSON to {type_}, couldn't parse:{value[:_SHOWN]}"
