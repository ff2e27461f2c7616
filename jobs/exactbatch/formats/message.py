"""WithMessage: columns from the key and the headers of a record, next to those of its value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError
from exactbatch.formats.bounds import check_size, size_of
from exactbatch.formats.format import (
    Decoded,
    Format,
    gives_several_rows,
    position_columns,
    truncate_order,
    unordered_columns,
    without_values,
)
from exactbatch.formats.record_headers import UNREADABLE, Messages, Unreadable, headers_as_json
from exactbatch.formats.schema_id_headers import KEY_HEADER, VALUE_HEADER, Framed, framed
from exactbatch.options import check_types

if TYPE_CHECKING:
    import pyarrow as pa


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
    def position_columns(self) -> tuple[str, ...]:
        """The same as for the value format."""
        return position_columns(self.value)

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

        decoded = framed(self.value, VALUE_HEADER, values, messages).decode(self.value.decode)
        if self.key is not None:
            keys = framed(self.key, KEY_HEADER, messages.keys(), messages)
            decoded = _joined(decoded, "key", self.key, keys)
        if self.headers is None and not self.header:
            return decoded
        headers = messages.headers()
        decoded = _with_readable(decoded, headers)
        for name, format_ in self.header.items():
            named = pa.array([dict(pairs or ()).get(name) for pairs in headers], pa.binary())
            decoded = _joined(decoded, f"header {name!r}", format_, Framed(named))
        if self.headers is None:
            return decoded
        as_json = pa.array(list(map(headers_as_json, headers)), pa.string())
        check_size(len(decoded.kept), size_of(as_json, decoded.kept.to_numpy()))
        as_json = as_json.take(decoded.kept)
        return replace(decoded, rows=decoded.rows.append_column(self.headers, as_json))


def _with_readable(decoded: Decoded, headers: Sequence[Any]) -> Decoded:
    """Return the rows without those whose headers cannot be read."""
    unreadable = {index for index, pairs in enumerate(headers) if isinstance(pairs, Unreadable)}
    if not unreadable:
        return decoded
    rows = [row for row, index in enumerate(decoded.kept.to_pylist()) if index in unreadable]
    return _without(decoded, [(row, UNREADABLE) for row in rows])


def _joined(decoded: Decoded, what: str, format_: Format, values: Framed) -> Decoded:
    """Add the columns of another part of the messages, without the rows whose part is refused."""
    import numpy as np
    import pyarrow as pa

    # The rows of one record repeat its key and headers.
    check_size(len(decoded.kept), size_of(values.values, decoded.kept.to_numpy()))
    part = values.take(decoded.kept).decode(format_.decode)
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
    """Return the rows without those of records that have a refused row: these records become rejects."""
    return without_values(decoded, [(decoded.kept[row].as_py(), reason) for row, reason in refused])
