"""WithMessage: columns from the key and the headers of a record, next to those of its value."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final, Protocol

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError
from exactbatch.formats.format import (
    Decoded,
    Format,
    gives_several_rows,
    truncate_order,
    unordered_columns,
    without_values,
)
from exactbatch.options import check_types

if TYPE_CHECKING:
    import pyarrow as pa

UNREADABLE: Final = (
    "headers: a name is not UTF-8, so librdkafka's client cannot read the headers, and they are stored as []"
)

_headers = methodcaller("headers")


class Messages(Protocol):
    """Keys and headers of n records, each decoded on first use."""

    def keys(self) -> "pa.BinaryArray":
        """Key bytes; null for a null key."""
        ...

    def headers(self) -> Sequence[Any]:
        """Headers of each record, as read_headers() returns them."""
        ...


@dataclass(frozen=True)
class WithMessage:
    """Rows of a value format, with columns from the keys and headers of their records.

    key      the format of keys; its columns are added, null for a null key
    header   formats of headers by name, such as `{"trace-id": Text("trace_id")}`; null if a record has no such
             header, and the last one if it has several
    headers  the name of a jsonb column for all headers: a list of [name, value in base64 or null]

    A key or header that cannot be decoded makes the record a reject, as do headers that cannot be read. Keys and
    headers of tombstones are not decoded. Raises ConfigurationError for a column given twice.
    """

    value: Format
    key: Format | None = field(default=None, kw_only=True)
    header: Mapping[str, Format] = field(default_factory=dict, kw_only=True, hash=False)
    headers: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_types(self)
        for part in (self.key, *self.header.values()):
            if gives_several_rows(part):
                raise ConfigurationError(
                    f"{part!r}: a key or header gives one row, and a path with [] several. Let the value give the rows."
                )
        names = [column.name for column in self.columns]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigurationError(
                f"columns {', '.join(map(repr, repeated))} occur more than once in value, key and headers: rename them"
            )

    @property
    def columns(self) -> tuple[Column, ...]:
        """Columns of the value, the key, the named headers, and all headers, in this order."""
        formats = (self.value, *([self.key] if self.key else []), *self.header.values())
        all_headers = () if self.headers is None else (Column(self.headers, "jsonb"),)
        return (*(column for each in formats for column in each.columns), *all_headers)

    @property
    def null_is_tombstone(self) -> bool:
        """The same as for the value format."""
        return self.value.null_is_tombstone

    @property
    def gives_several_rows(self) -> bool:
        """The same as for the value format."""
        return gives_several_rows(self.value)

    @property
    def truncate_order(self) -> tuple[str, ...] | None:
        """The same as for the value format."""
        return truncate_order(self.value)

    @property
    def unordered_columns(self) -> frozenset[str]:
        """The same as for the value format."""
        return unordered_columns(self.value)

    @property
    def tombstone_deletes(self) -> bool:
        """The same as for the value format."""
        return self.value.tombstone_deletes

    def decode(self, values: "pa.BinaryArray", messages: Messages) -> Decoded:
        """Decode n records; a value, key or header that is not of its format makes its record a reject."""
        import pyarrow as pa

        decoded = self.value.decode(values)
        if self.key is not None:
            decoded = _joined(decoded, "key", self.key, messages.keys())
        if self.headers is None and not self.header:
            return decoded
        headers = messages.headers()
        decoded = _with_readable(decoded, headers)
        for name, format_ in self.header.items():
            named = pa.array([dict(pairs or ()).get(name) for pairs in headers], pa.binary())
            decoded = _joined(decoded, f"header {name!r}", format_, named)
        if self.headers is None:
            return decoded
        as_json = pa.array(list(map(headers_as_json, headers)), pa.string()).take(decoded.kept)
        return replace(decoded, rows=decoded.rows.append_column(self.headers, as_json))


class Unreadable(tuple[()]):
    """A marker for headers that the client cannot read; empty, as they are when they are stored."""


def read_headers(messages: Sequence[Any]) -> list[Any]:
    """Return the headers of each Kafka message: a list of (name, bytes or None), None, or Unreadable.

    No other code may read a message's headers. If a name is not UTF-8, which Kafka allows, confluent_kafka sets an
    exception and returns a list that contains a null pointer; the next call returns that list without the exception,
    and reading it crashes the process. The interpreter misses the exception once it has specialised the call;
    methodcaller, written in C, does not.
    """
    return list(map(_headers_of, messages))


def _headers_of(message: Any) -> Any:
    try:
        return _headers(message)
    except (SystemError, UnicodeDecodeError):
        message.set_headers(Unreadable())
        return Unreadable()


def headers_as_json(headers: Any) -> str:
    """Return headers, a list of (name, bytes or None), as a JSON list of [name, value in base64 or null].

    jsonb cannot store U+0000, so that a name has it as the text \\u0000.
    """
    return json.dumps(
        [
            [name.replace("\0", "\\u0000"), None if value is None else base64.b64encode(value).decode()]
            for name, value in headers or ()
        ]
    )


def _with_readable(decoded: Decoded, headers: Sequence[Any]) -> Decoded:
    """Return the rows without those whose headers cannot be read."""
    unreadable = {index for index, pairs in enumerate(headers) if isinstance(pairs, Unreadable)}
    if not unreadable:
        return decoded
    rows = [row for row, index in enumerate(decoded.kept.to_pylist()) if index in unreadable]
    return _without(decoded, [(row, UNREADABLE) for row in rows])


def _joined(decoded: Decoded, what: str, format_: Format, values: "pa.BinaryArray") -> Decoded:
    """Add the columns of another part of the messages, without the rows whose part is refused."""
    import numpy as np
    import pyarrow as pa

    part = format_.decode(values.take(decoded.kept))
    # For each row, the row of its part: -1 if the part is null, which is a tombstone in some formats.
    source = np.full(len(decoded.rows), -1)
    source[part.kept.to_numpy()] = np.arange(len(part.rows))
    columns = part.rows.take(pa.array(source, mask=source < 0))
    rows = decoded.rows
    for name, column in zip(part.rows.schema.names, columns.columns, strict=True):
        rows = rows.append_column(name, column)
    joined = replace(decoded, rows=rows)
    if not part.rejects:
        return joined
    return _without(joined, [(row, f"{what}: {reason}") for row, reason in part.rejects])


def _without(decoded: Decoded, refused: Sequence[tuple[int, str]]) -> Decoded:
    """Return the rows without those of records of which a row is refused: these become rejects."""
    return without_values(decoded, [(decoded.kept[row].as_py(), reason) for row, reason in refused])
