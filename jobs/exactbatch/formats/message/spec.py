"""WithKeyAndHeaders: columns from the key and the headers of a record, next to the columns of its value."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError
from exactbatch.formats.format import Format
from exactbatch.options import check_types, names_options


@names_options
@dataclass(frozen=True)
class WithKeyAndHeaders(Format):
    """Rows of a value format, with columns from the keys and headers of their records.

    key          the format of keys; its columns are added, null for a null key
    headers      formats of headers by name, such as `{"trace-id": Text("trace_id")}`; null if a record has no such
                 header, and the last one if it has several
    all_headers  the name of a jsonb column for all headers: a list of [name, value in base64 or null]

    A key or header that cannot be decoded makes the record a reject, as do headers that cannot be read. Keys and
    headers of tombstones are not decoded. Raises ConfigurationError for a column given twice.
    """

    value: Format
    key: Format | None = field(default=None, kw_only=True)
    headers: Mapping[str, Format] = field(default_factory=dict, kw_only=True, hash=False)
    all_headers: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_types(self)
        for part in (self.value, self.key, *self.headers.values()):
            if isinstance(part, WithKeyAndHeaders):
                raise ConfigurationError(
                    f"{part!r}: expected the format of a value, key or header, found WithKeyAndHeaders. Put them all "
                    f"into one WithKeyAndHeaders."
                )
        for part in (self.key, *self.headers.values()):
            if part is not None and part.gives_several_rows:
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
        formats = (self.value, *([self.key] if self.key else []), *self.headers.values())
        all_headers = () if self.all_headers is None else (Column(self.all_headers, "jsonb"),)
        return (*(column for each in formats for column in each.columns), *all_headers)

    # What it says about values is the same as for the value format:

    @property
    def null_is_tombstone(self) -> bool:  # type: ignore[override]
        return self.value.null_is_tombstone

    @property
    def tombstone_deletes(self) -> bool:  # type: ignore[override]
        return self.value.tombstone_deletes

    @property
    def gives_several_rows(self) -> bool:
        return self.value.gives_several_rows

    @property
    def reads_payloads(self) -> bool:
        return self.value.reads_payloads

    @property
    def truncate_order(self) -> tuple[str, ...] | None:
        return self.value.truncate_order

    @property
    def position_columns(self) -> tuple[str, ...]:
        return self.value.position_columns

    @property
    def unordered_columns(self) -> frozenset[str]:
        return self.value.unordered_columns
