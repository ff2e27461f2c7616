"""Find the change to a pipeline's schema that accepts records which it rejects."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from exactbatch.columns import Column, Field
from exactbatch.errors import ConfigurationError
from exactbatch.formats import (
    Avro,
    Csv,
    Debezium,
    Flattened,
    Format,
    Json,
    JsonSchema,
    Protobuf,
    WithKeyAndHeaders,
)
from exactbatch.sampling.column_names import quoted_if_needed
from exactbatch.sampling.draft import decode, find_column
from exactbatch.sampling.value_types import Choice, Shape, choices_for, is_double, parse_json

# Types to try, the narrowest first: those that decoding checks. Postgres alone checks others, such as time.
_TYPES: Final = (
    *("bigint", "double precision", "numeric", "boolean", "date", "timestamptz", "timestamp", "text"),
    *("bigint[]", "double precision[]", "numeric[]", "text[]", "jsonb"),
)
_DOUBLE: Final = "double precision"
_UNITS: Final = ("s", "ms", "us", "ns")
# Parts of a reason that differ from record to record.
_VARIABLE: Final = re.compile(r"\"[^\"]*\"|'[^']*'|[-+]?\d[\d.eE+:TZ-]*|found .*|parse:.*", re.DOTALL)
_NO_SCHEMA: Final = (
    "no column type accepts it: correct what sends it, or allow for such records with max_rejects"
)


@dataclass(frozen=True, slots=True)
class RejectGroup:
    """Rejects with the same reason but for their values: their indexes among all rejects, and the column, None for
    rejects that are not about one."""

    column: str | None
    reason: str
    indexes: tuple[int, ...]


def grouped(reasons: Sequence[str]) -> list[RejectGroup]:
    """Return groups of reasons, the largest first."""
    groups: dict[tuple[str | None, str], list[int]] = {}
    for index, reason in enumerate(reasons):
        column = find_column(reason)
        general = _VARIABLE.sub("…", reason if column is None else reason.partition(", ")[2])
        groups.setdefault((column, general), []).append(index)
    found = [RejectGroup(column, reasons[at[0]], tuple(at)) for (column, _), at in groups.items()]
    return sorted(found, key=lambda group: -len(group.indexes))


def suggestion(value: Format, group: RejectGroup, refused: pa.BinaryArray, accepted: pa.BinaryArray) -> str:
    """Return the change to the schema with which a format accepts the values of a group, and those that it accepts now.

    `refused` are the values of the group, and `accepted` others of the sample.
    """
    format_ = value.value if isinstance(value, WithKeyAndHeaders) else value
    columns = {column.name: column for column in format_.columns}
    if group.column is None or group.column not in columns:
        return _NO_SCHEMA
    declared = (
        _written(columns[group.column].type),
        getattr(format_, "epoch", {}).get(group.column),
    )
    for choice in _candidates(format_, group.column, refused, accepted):
        if (choice.type, choice.epoch) == declared:
            continue
        try:
            changed = with_column(format_, group.column, choice)
        except ConfigurationError:
            continue
        if (
            changed is not None
            and _accepts(changed, group.column, refused)
            and _accepts(changed, group.column, accepted)
            and not _rounds(format_, group.column, choice, refused, accepted)
        ):
            return _in_words(format_, group.column, choice)
    return _NO_SCHEMA


def with_column(format_: Format, name: str, choice: Choice) -> Format | None:
    """Return a format of this column alone, in another type; None if the format has no columns to change.

    Csv keeps its other columns, as text: a line has all of them. Raises ConfigurationError for a type that the format
    does not take.
    """
    match format_:
        case Json() | JsonSchema():
            fields = format_.fields if isinstance(format_, Json) else format_.body.fields
            (field,) = [field for field in fields if field.column.name == name]
            epoch = {} if choice.epoch is None else {name: choice.epoch}
            return replace(format_, schema=_field_text(field, choice.type), epoch=epoch)
        case Protobuf():
            (field,) = [field for field in format_.fields if field.column.name == name]
            return replace(format_, schema=_field_text(field, choice.type))
        case Csv():
            texts = [
                f'"{column.name}" {choice.type if column.name == name else "text"}'
                for column in format_.columns
            ]
            return replace(format_, schema=", ".join(texts))
        case Debezium():
            own = [field for field in format_.fields if field.column.name == name]
            if not own:  # a column of the version
                return None
            epoch = {} if choice.epoch is None else {name: choice.epoch}
            changed = replace(format_, schema=_field_text(own[0], choice.type), epoch=epoch)
            return (
                changed
                if isinstance(changed, Flattened)
                else replace(changed, version=None, truncate="reject")
            )
        case Avro():
            return replace(format_, fields=f'"{name}" {choice.type}')
    return None


def _candidates(
    format_: Format, name: str, refused: pa.BinaryArray, accepted: pa.BinaryArray
) -> Iterator[Choice]:
    """Yield types to try: what `exactbatch new` would choose, and then all others."""
    fields: Sequence[Field] = ()
    if isinstance(format_, Json) and format_.documents == "one" and not format_.encodings:
        fields = [field for field in format_.fields if field.column.name == name]
    for field in fields:
        if not field.path.arrays:
            shape = _shape_at(field, [*refused.to_pylist(), *accepted.to_pylist()])
            steps = field.path.parts[0]
            yield from choices_for(shape, str(steps[-1]) if steps else name)
    yield from map(Choice, _TYPES)
    yield from (Choice("timestamptz", unit) for unit in _UNITS)


def _shape_at(field: Field, values: Sequence[bytes | None]) -> Shape:
    shape = Shape()
    for value in values:
        try:
            member: Any = None if value is None else parse_json(value)
        except ValueError:
            continue
        for step in field.path.parts[0]:
            match member, step:
                case dict(), str():
                    member = member.get(step)
                case list(), int():
                    member = member[step] if step < len(member) else None
                case _:
                    member = None
        shape.add(member)
    return shape


def _accepts(format_: Format, name: str, values: pa.BinaryArray) -> bool:
    """True if a format rejects none of the values because of a column."""
    return not any(find_column(reason) in (name, None) for _, reason in decode(format_, values).rejects)


def _rounds(
    format_: Format, name: str, choice: Choice, refused: pa.BinaryArray, accepted: pa.BinaryArray
) -> bool:
    """True if the choice is double precision, and values have more digits than that, which numeric keeps."""
    if not choice.type.startswith(_DOUBLE):
        return False
    try:
        exact = with_column(format_, name, replace(choice, type=choice.type.replace(_DOUBLE, "numeric")))
    except ConfigurationError:
        return False
    assert exact is not None  # as with the choice itself
    found = [
        value
        for values in (refused, accepted)
        for value in decode(exact, values).rows.column(name).to_pylist()
    ]
    numbers = [number for value in found for number in (value if isinstance(value, list) else [value])]
    return not all(number is None or is_double(str(number)) for number in numbers)


def _in_words(format_: Format, name: str, choice: Choice) -> str:
    declared: Mapping[str, str] = getattr(format_, "epoch", {})
    text = f"declare {quoted_if_needed(name)} {choice.type}"
    if choice.epoch is not None:
        return f"{text}, with epoch={{{name!r}: {choice.epoch!r}}}"
    return f"{text}, without epoch" if name in declared else text


def _field_text(field: Field, type_: str) -> str:
    text = f'"{field.column.name}" {type_} from {_quoted(str(field.path))}'
    if field.default is None:
        return text
    return f"{text} default {_quoted(field.default.text) if field.default.is_quoted else field.default.text}"


def _quoted(text: str) -> str:
    return "'{}'".format(text.replace("'", "''"))


def _written(type_: str) -> str:
    """Return a type as _TYPES has it."""
    return Column("x", type_).type.replace(" with time zone", "tz").replace(" without time zone", "")
