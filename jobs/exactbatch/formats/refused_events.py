"""Why Debezium's JSON events are refused, for many at once: the same reasons as for each event alone.

Of an event in which one field does not have the type that its column reads; all others are left to Arrow.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from exactbatch.columns import Column
from exactbatch.formats.connect_values import Reading, plain
from exactbatch.formats.debezium_event import event_of
from exactbatch.formats.debezium_images import DELETE, WRITES
from exactbatch.formats.flattened_images import DELETED, OP
from exactbatch.formats.refused_json import (
    Members,
    check_float,
    check_integer,
    check_kind,
    check_text,
    members_of,
    parse_object,
)
from exactbatch.formats.refused_text import INTEGER, Undecided

if TYPE_CHECKING:
    import pyarrow as pa

# Of a parsed object: its row, and the other image of the row, which may be empty. Raises Undecided if it has no row.
RowsOf = Callable[[Members], tuple[Mapping[str, Any], Mapping[str, Any]]]
_FEW_DIGITS: Final = 18  # of an integer that any bigint holds
_NOT_FINITE: Final = ("NaN", "Infinity", "-Infinity")


class RefusedEvents:
    """Finds the events that some columns refuse."""

    def __init__(
        self,
        columns: Sequence[Column],
        names: Mapping[str, str],
        readings: Mapping[str, Reading],
        rows_of: RowsOf,
        placeholders: Sequence[str],
        hint: Callable[[Column, str], str],
        special: Callable[[dict[str, Any]], str | None],
    ) -> None:
        """`names` has the field that each column takes. `placeholders` are the texts for a value that was left out;
        `hint` adds to the reason for which a column refuses a value, and `special` has one for an event that is no
        change, if Python can read it."""
        self._fields = [(column, names[column.name], readings[column.name]) for column in columns]
        self._rows_of, self._placeholders = rows_of, placeholders
        self._hint, self._special = hint, special

    def reason(self, value: bytes) -> str | None:
        """Return why an event is surely refused; None if its columns take it. Raises Undecided."""
        parsed = parse_object(value)
        if isinstance(parsed, str):
            return self._special(event_of(value)) or parsed
        row, other = self._rows_of(parsed)
        if any(self._may_be_left_out(row.get(name)) for _, name, _ in self._fields):
            raise Undecided
        for column, name, reading in self._fields:
            of_row = _why_refused(column, reading, row.get(name), is_row=True)
            of_other = _why_refused(column, reading, other.get(name), is_row=False)
            if of_row and of_other and of_row != of_other:
                raise Undecided  # which one comes first?
            if reason := of_row or of_other:
                return self._hint(column, f"column {column.name!r}, {column.type}: {reason}")
        return None

    def _may_be_left_out(self, value: Any) -> bool:
        return type(value) in (list, Members) or value in self._placeholders


def plain_envelope(value: bytes, numbers: Sequence[str]) -> dict[str, Any]:
    """Return what an envelope says besides its rows, of which it only says whether there are any: `numbers` are fields
    of the source that are integers. Raises Undecided for what Arrow may read in another way."""
    parsed = parse_object(value)
    if isinstance(parsed, str):
        raise Undecided
    members = _of_payload(parsed)
    op, source = members.get("op"), members.get("source")
    if op is not None and type(op) is not str:
        raise Undecided
    fields: dict[str, Any] = {} if source is None else members_of(source)
    for name in numbers:
        if (number := fields.get(name)) is not None:
            if type(number) is str or INTEGER.fullmatch(str(number)) is None or len(number) > _FEW_DIGITS:
                raise Undecided
            fields[name] = int(number)
    images = {name: members.get(name) for name in ("before", "after")}
    if not all(image is None or type(image) is Members for image in images.values()):
        raise Undecided
    return {
        "op": op,
        "source": fields,
        **{name: None if each is None else {} for name, each in images.items()},
    }


def _of_payload(event: Members) -> dict[str, Any]:
    members = members_of(event)
    if (payload := members.get("payload")) is None:
        return members
    if members.keys() & {"before", "after", "op", "source"}:
        raise Undecided
    return members_of(payload)


def rows_of_envelope(event: Members) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the row that an envelope is about, bare or as the payload, and its other image."""
    members = _of_payload(event)
    op, before, after = (members.get(name) for name in ("op", "before", "after"))
    if type(op) is not str or op not in (*WRITES, DELETE):
        raise Undecided
    row, other = (before, after) if op == DELETE else (after, before)
    return members_of(row), {} if other is None else members_of(other)


def rows_of_flattened(names: frozenset[str]) -> RowsOf:
    """Return a function that returns an event as its row, which has one of the fields."""

    def rows_of(event: Members) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        members = members_of(event)
        deleted, op = members.get(DELETED), members.get(OP)
        is_known = op is None or (type(op) is str and op in (*WRITES, DELETE))
        if not members.keys() & names or "source" in members or not is_known:
            raise Undecided
        if deleted is not None and (op is not None or deleted not in ("true", "false", True, False)):
            raise Undecided
        return members, {}

    return rows_of


def _why_refused(column: Column, reading: Reading, value: Any, *, is_row: bool) -> str | None:
    """Return why a reading refuses a value; None if it does not. Of the other image, Arrow parses the values, but
    nothing looks at them."""
    import pyarrow as pa

    if value is None:
        return None
    type_ = reading.read
    if type_ is None or (expected := _expected(type_)) is None or value in _NOT_FINITE:
        raise Undecided
    if reason := check_kind(expected, value):
        return reason
    if pa.types.is_integer(type_) and (reason := check_integer(type_, False, value)):
        return reason
    if not is_row:
        return None
    if reading != plain(column) or column.type == "bytea" or pa.types.is_date(column.arrow_type):
        raise Undecided  # what is read becomes something else
    if pa.types.is_floating(type_):
        return check_float(value)
    return check_text(value) if pa.types.is_string(type_) else None


def _expected(type_: "pa.DataType") -> str | None:
    """Return the kind of JSON's values that Arrow reads as a type; None if there are several."""
    import pyarrow as pa

    if pa.types.is_integer(type_) or pa.types.is_floating(type_):
        return "number"
    if pa.types.is_string(type_):
        return "string"
    return "boolean" if pa.types.is_boolean(type_) else None
