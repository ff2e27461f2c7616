"""Why JSON objects are refused, for many at once: the same reasons as why_refused() gives for each alone.

Decoding one object takes Arrow about a thousand times as long as one of a block. So if a block fails, Python's parser
reads its objects one by one and finds those that are surely refused; Arrow decodes the rest.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from exactbatch.columns import Column, Field, is_vector
from exactbatch.formats.decimals import has_decimals, without_wrapping
from exactbatch.formats.json_blocks import readable, reason_from_arrow, syntax_refusal
from exactbatch.formats.postgres_limits import NUL
from exactbatch.formats.raw_json_fields import NUMBER as JSON_NUMBER
from exactbatch.formats.raw_json_fields import is_kept_as_text
from exactbatch.formats.refused_text import (
    INTEGER,
    NUMBER,
    Undecided,
    is_no_day,
    is_no_integer,
    is_no_moment,
)
from exactbatch.formats.unreadable_text import half_surrogate, not_an_object, not_utf8
from exactbatch.member_paths import Path

if TYPE_CHECKING:
    import pyarrow as pa

_BLANKS: Final = " \t\r\n"
LARGE: Final = 100_000  # bytes of a value; the time that a larger one takes is that of its bytes
_MOST_LEARNED: Final = 10_000
_MOST_ELEMENTS: Final = 1_000  # of an array: the bound of rows counts those of more
_STRINGS: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_FEW_DIGITS: Final = 300  # of a number
_FAR: Final = re.compile(r"[eE][-+]?\d{3,}", re.ASCII)  # rapidjson may refuse it
# rapidjson refuses such an exponent of a number with few digits, whatever they are: GenericReader::ParseNumber.
_EXPONENT: Final = re.compile(r"-?\d+(?:\.(?P<fraction>\d+))?[eE]\+?(?P<power>\d+)", re.ASCII)
_MOST_POWER: Final = 308
_FLAT: Final = 500  # brackets: it does not nest too deeply for anything that reads it
_SURELY_REAL: Final = 3e38
# What is no half of a surrogate pair: a pair, and the escape of a backslash before a "u".
_NO_HALF: Final = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\[^u]", re.DOTALL)
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
# Why Arrow refuses JSON that cannot be parsed, by what Python says about it: Arrow has a few texts, without a place.
_learned: dict[tuple[str, ...], str | None] = {}


class _Number(str):
    """A number as it is written."""

    __slots__ = ()


class Members(list[tuple[str, Any]]):
    """The names and values of an object; a name may occur twice."""


_KINDS: Final = {_Number: "number", str: "string", bool: "boolean", Members: "object", list: "array"}
_KINDS_OF_MSGSPEC: Final = {str: "str", bool: "bool", list: "array"}
_END_OF_NUMBER: Final = re.compile(r"[-+.\deE]*\d[-+.\deE]*$", re.ASCII)
_FOUND: Final = tuple(f", found {kind}" for kind in _KINDS.values())
# Of a value that is not null: why a column refuses it; None if it does not. Raises Undecided.
_Check = Callable[[Any], str | None]


def _constant(_name: str) -> Any:
    raise Undecided  # Arrow takes it


def _number(text: str) -> _Number:
    if len(text) > _FEW_DIGITS:
        raise Undecided
    if "e" in text or "E" in text:
        exponent = _EXPONENT.fullmatch(text)
        if exponent is not None and int(exponent["power"]) > _MOST_POWER + len(exponent["fraction"] or ""):
            raise json.JSONDecodeError("found an exponent that no double has", text, 0)
        if _FAR.search(text):
            raise Undecided
    return _Number(text)


_decode: Final = json.JSONDecoder(
    object_pairs_hook=Members, parse_int=_number, parse_float=_number, parse_constant=_constant
).decode


def find_each(
    reason_of: Callable[[bytes], str | None], values: "pa.BinaryArray"
) -> Iterable[tuple[int, str]]:
    """Yield the index of each value that is surely refused, and the reason; `reason_of` raises Undecided for others."""
    for index, value in enumerate(values.to_pylist()):
        if len(value) > LARGE:
            continue
        try:
            reason = reason_of(value)
        except (Undecided, RecursionError):
            continue
        if reason is not None:
            yield index, reason


def parse_object(value: bytes) -> "Members | str":
    """Return the members of an object, or the reason why a value is none, as why_refused() gives it.

    Raises Undecided if Arrow may say anything else than Python.
    """
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return not_utf8(value)
    if not (text.startswith("{") and text.endswith("}")):
        text = text.removeprefix("\ufeff").strip(_BLANKS)
        if not (text.startswith("{") and text.endswith("}")):
            return not_an_object(text)
    try:
        parsed: Members = _decode(text)
    except json.JSONDecodeError as error:
        return _syntax(text, error)
    if _has_half(text):
        if reason := half_surrogate(text):
            return reason
        raise Undecided  # it is in a member whose name occurs twice
    if text.count("{") + text.count("[") > _FLAT:
        raise Undecided
    return parsed


def members_of(value: Any) -> dict[str, Any]:
    """Return the members of an object by their names. Raises Undecided for any other value, and for a name that occurs
    twice."""
    if type(value) is not Members or len(members := dict(value)) < len(value):
        raise Undecided
    return members


class RefusedJson:
    """Finds the objects that some columns refuse."""

    def __init__(self, fields: Sequence[Field], epoch: Mapping[str, str]) -> None:
        """`epoch` has the unit of columns whose times are numbers."""
        self._fields = [
            _Member(
                steps=_steps(each),
                of_elements=_steps_of_elements(each),
                label=_label(each),
                check=_check(each.column, epoch),
                is_plain=each.is_plain,
                is_kept_as_text=is_kept_as_text(each.column),
                is_array=each.column.element is not None,
            )
            for each in fields
        ]
        self._has_jsonb = any(each.column.type == "jsonb" for each in fields)

    def reasons(self, values: "pa.BinaryArray") -> Iterable[tuple[int, str]]:
        """Yield the index of each value that is surely refused, and the reason."""
        return find_each(self._reason, values)

    def _reason(self, value: bytes) -> str | None:
        parsed = parse_object(value)
        if isinstance(parsed, str):
            return parsed
        if self._has_jsonb and b"\\u0000" in value:
            raise Undecided
        members = dict(reversed(parsed))
        twice = _twice(parsed) if len(members) < len(parsed) else ()
        for each in self._fields:
            if each.steps is None:
                raise Undecided
            place = each.steps[0]
            found = members.get(place)
            if place in twice:
                return f"{each.label}: {each.why_twice(found)}"
            for depth, step in enumerate(each.steps[1:], start=1):
                if found is None:
                    break
                if type(found) is not Members:
                    return f"{each.label}: {each.no_object(found, depth)}"
                found, place = members_of(found).get(step), f"{place}/{step}"
            if each.of_elements:
                reason = each.why_elements(found, place)
                if reason is not None:
                    return f"{each.label}: {reason}"
            elif found is not None and (reason := each.check(found)) is not None:
                if not each.is_plain and _of_kind(reason):
                    in_array = each.is_array and type(found) is list
                    reason = f"{place}/[]: {reason}" if in_array else f"{place}: {reason}"
                return f"{each.label}: {reason}"
        return None


@dataclass(frozen=True, slots=True)
class _Member:
    """How a column takes its member.

    steps        the names that lead to it; None if the path has numbers, or the member has a default
    of_elements  if they lead to an array, the names that lead on from each of its elements
    label        of a reason
    """

    steps: tuple[str, ...] | None
    of_elements: tuple[str, ...]
    label: str
    check: _Check
    is_plain: bool
    is_kept_as_text: bool
    is_array: bool

    def why_twice(self, first: Any) -> str:
        """Return why an object is refused that has the member more than once."""
        if not self.is_plain or (self.is_kept_as_text and self.is_array):
            raise Undecided
        assert self.steps is not None
        if self.is_kept_as_text:
            return f"field {self.steps[0]!r} was specified twice"
        if first is not None and (reason := self.check(first)) is not None and _of_kind(reason):
            return reason
        return f"Column(/{self.steps[0]}) was specified twice"

    def why_elements(self, found: Any, place: str) -> str | None:
        """Return why the elements of an array at a place are refused, if all refused ones are for the same reason."""
        if found is None:
            return None
        if type(found) is not list or len(found) > _MOST_ELEMENTS or self.is_kept_as_text or self.is_array:
            raise Undecided
        reasons = set()
        for element in found:
            value = element
            for step in self.of_elements:
                if value is None:
                    break
                value = members_of(value).get(step)
            if value is not None and (reason := self.check(value)) is not None:
                of_kind = _of_kind(reason)
                reasons.add(f"{'/'.join((place, '[]', *self.of_elements))}: {reason}" if of_kind else reason)
        if len(reasons) > 1:
            raise Undecided  # which one comes first?
        return next(iter(reasons), None)

    def no_object(self, found: Any, depth: int) -> str:
        """Return why a value is refused that should be an object; `depth` steps lead to it."""
        assert self.steps is not None
        if not self.is_kept_as_text:
            return f"{'/'.join(self.steps[:depth])}: expected object, found {_KINDS[type(found)]}"
        kind = _KINDS_OF_MSGSPEC.get(type(found)) or ("int" if INTEGER.fullmatch(found) else "float")
        return f"{Path((self.steps[:depth],))}: expected object | null, found {kind}"


def _has_half(text: str) -> bool:
    return "\\u" in text and _SURROGATE.search(_NO_HALF.sub("", text)) is not None


def _twice(members: Members) -> set[str]:
    counts = Counter(name for name, _ in members)
    return {name for name, times in counts.items() if times > 1}


def _steps(field: Field) -> tuple[str, ...] | None:
    """Return the names that lead to a field's member, or to the array that it is in; None if its path has numbers or
    several arrays."""
    parts = field.path.parts
    if field.default is not None or len(parts) > 2 or not all(parts):
        return None
    if not all(isinstance(step, str) for part in parts for step in part):
        return None
    return tuple(map(str, parts[0]))


def _steps_of_elements(field: Field) -> tuple[str, ...]:
    return tuple(map(str, field.path.parts[1])) if len(field.path.parts) == 2 else ()


def _label(field: Field) -> str:
    column = field.column
    return f"column {column.name!r}, {column.type}" + ("" if field.is_plain else f", from '{field.path}'")


def _syntax(text: str, error: json.JSONDecodeError) -> str:
    """Return why text is refused that Python cannot parse, as Arrow says it."""
    import pyarrow as pa

    key = _kind_of(text, error)
    if key not in _learned:
        if len(_learned) >= _MOST_LEARNED:
            raise Undecided
        _learned[key] = syntax_refusal(pa.array([text]))
    refusal = _learned[key]
    if refusal is None:
        raise Undecided
    return refusal


def _kind_of(text: str, error: json.JSONDecodeError) -> tuple[str, ...]:
    """Return what tells whether Arrow says the same about two texts that Python cannot parse."""
    at = error.pos
    if error.msg.startswith("found "):
        if _has_half(text):
            raise Undecided  # which comes first?
        return (error.msg,)
    if _has_half(text[:at]):
        if "escape" in error.msg:
            raise Undecided
        return ("found half a surrogate pair",)
    if text[at:].lstrip("-").startswith(("I", "N")):
        raise Undecided  # Arrow takes Inf and NaN
    if error.msg == "Extra data":
        return (error.msg, *_kind_of_more(text[at:].lstrip(_BLANKS)))
    return error.msg, _opened(text[:at]), _written(text[:at]), _written(text[at : at + 1])


def _kind_of_more(text: str) -> tuple[str, ...]:
    """Return the same of text that comes after an object."""
    try:
        return (_KINDS.get(type(_decode(text)), "null"),)
    except json.JSONDecodeError as error:
        return _kind_of(text, error)


def _opened(text: str) -> str:
    """Return the bracket that is open at the end of the text of JSON, or the quote.

    Python's parser has accepted the text so far, so that each closing bracket fits the last one that is open.
    """
    rest = _STRINGS.sub("", text)
    if '"' in rest:
        return '"'
    opened = []
    for bracket in re.findall(r"[\[\]{}]", rest):
        if bracket in "[{":
            opened.append(bracket)
        elif opened:
            opened.pop()
    return opened[-1] if opened else ""


def _written(text: str) -> str:
    """Return the number at the end of the text, or else the last character, each in a form that many share."""
    if number := _END_OF_NUMBER.search(text[-_FEW_DIGITS:]):
        return re.sub(r"\d+", "0", number[0])
    return "a" if text[-1:].isalpha() and text[-1] not in "eEntfu" else text[-1:]


def _check(column: Column, epoch: Mapping[str, str]) -> _Check:
    import pyarrow as pa

    if is_kept_as_text(column):
        if column.element is not None or is_vector(column.type):
            return _undecided
        return _check_numeric if column.type.startswith("numeric") else _check_json
    if column.element is not None:
        return partial(_check_array, _check(Column(column.name, column.element), epoch))
    type_ = pa.int64() if column.name in epoch else column.arrow_type
    if pa.types.is_integer(type_):
        return partial(check_integer, type_, column.name in epoch)
    if pa.types.is_floating(type_):
        return check_float
    if pa.types.is_boolean(type_):
        return partial(check_kind, "boolean")
    if pa.types.is_date(type_):
        return _check_date
    if pa.types.is_timestamp(type_):
        return partial(_check_timestamp, type_)
    if has_decimals(pa.struct([("x", type_)])):
        return partial(_check_decimal, without_wrapping(type_))
    if readable(type_) == pa.string():
        return check_text
    return partial(check_kind, "string")


def _undecided(_value: Any) -> str | None:
    raise Undecided


def _check_json(_value: Any) -> str | None:
    return None


def check_kind(expected: str, value: Any) -> str | None:
    found = _KINDS[type(value)]
    return None if found == expected else f"expected {expected}, found {found}"


def _check_array(check: _Check, value: Any) -> str | None:
    if reason := check_kind("array", value):
        return reason
    reasons = [reason for each in value if each is not None and (reason := check(each))]
    # Arrow checks the kinds of all elements before their values.
    return next((reason for reason in reasons if _of_kind(reason)), reasons[0] if reasons else None)


def _of_kind(reason: str) -> bool:
    return reason.startswith("expected ") and reason.endswith(_FOUND)


def _check_numeric(value: Any) -> str | None:
    if type(value) is _Number or (type(value) is str and re.fullmatch(JSON_NUMBER, value, re.ASCII)):
        return None
    return "expected a number, bare or in a string"


def check_integer(type_: "pa.DataType", is_time: bool, value: Any) -> str | None:
    if reason := check_kind("number", value):
        return reason
    if is_no_integer(value, type_):
        return _unparsed(type_, value)
    if is_time:
        raise Undecided
    return None


def check_float(value: Any) -> str | None:
    if reason := check_kind("number", value):
        return reason
    if abs(float(value)) < _SURELY_REAL:
        return None
    raise Undecided


def check_text(value: Any) -> str | None:
    return check_kind("string", value) or (NUL if "\0" in value else None)


def _check_date(value: Any) -> str | None:
    if reason := check_text(value):
        return reason
    if not is_no_day(value):
        return None
    return reason_from_arrow(
        f"Failed to parse string: '{value}' as a scalar of type date32[day]", named=False
    )


def _check_timestamp(type_: "pa.DataType", value: Any) -> str | None:
    return check_kind("string", value) or (_unparsed(type_, value) if is_no_moment(value) else None)


def _check_decimal(type_: "pa.Decimal128Type", value: Any) -> str | None:
    """`type_` is the one in which Arrow reads the column."""
    if type(value) is not _Number and type(value) is not str:
        return f"expected number_or_string, found {_KINDS[type(value)]}"
    name = f"decimal{type_.bit_width}"
    if not value:
        return f"Empty string cannot be converted to {name}"
    if NUMBER.fullmatch(value) is None:
        return reason_from_arrow(f"The string '{value}' is not a valid {name} number", named=False)
    if "e" in value or "E" in value or value[0] == "+":
        raise Undecided
    whole, _, fraction = value.lstrip("-").partition(".")
    digits = len(whole.lstrip("0")) + len(fraction)
    lacking = "precision" if digits > type_.precision else "scale" if len(fraction) > type_.scale else None
    if lacking is not None:
        message = f"Failed to convert JSON to {type_}: {value} requires {lacking} {digits}"
        return reason_from_arrow(message, named=False)
    if len(whole.lstrip("0")) > type_.precision - type_.scale:
        raise Undecided
    return None


def _unparsed(type_: "pa.DataType", value: str) -> str:
    return reason_from_arrow(f"Failed to convert JSON to {type_}, couldn't parse:{value}", named=False)
