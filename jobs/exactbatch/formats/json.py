"""JSON objects, one for each record, decoded by Arrow in blocks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, ClassVar

from exactbatch.columns import Column, Field, parse_fields
from exactbatch.formats.enveloped_nulls import ENVELOPED_NULL, reads_payloads, with_nulls, without_envelopes
from exactbatch.formats.epoch import check_epoch, from_epoch
from exactbatch.formats.format import Decoded, decode_present, decode_several
from exactbatch.formats.json_blocks import (
    as_stored,
    objects,
    read_objects,
    readable,
    stored_schema,
    why_refused,
)
from exactbatch.formats.json_fields import check_arrays, check_whole, gives_rows_of_elements
from exactbatch.formats.json_members import default_of, read_members
from exactbatch.formats.raw_json_fields import check_names, fields_as_text, is_kept_as_text
from exactbatch.formats.refused_json import RefusedJson
from exactbatch.formats.wrapped import Documents, Encoding, decode_wrapped
from exactbatch.options import check_types

if TYPE_CHECKING:
    import pyarrow as pa

    from exactbatch.formats.json_fields import Positions


@dataclass(frozen=True)
class Json:
    """Values are JSON objects; `schema` names the fields to take, such as `"year int, carrier text"`.

    A column takes another member with `from`, such as `"user_id bigint from 'user.id', sku text from 'items[0].sku'"`,
    and `default` gives what a missing member counts as. Elements of an array become rows with `[]`, as in
    `"id int, sku text from 'items[].sku'"`; one bad element makes the whole record a reject.

    encoding   how the value is compressed or encoded: "gzip", "zstd", "base64", or several, the outermost first
    documents  "one" object in each value; "lines" or "concatenated" objects, or an "array" of them. Each gives rows

    Decoding is strict: a number for a text column, a fraction for an integer, a number out of range, or a field
    given twice makes the record a reject. A missing field is null; fields that are not named are ignored. Only a
    numeric column takes a number from a string. json and jsonb keep the text of any field. Types that Postgres reads
    from text, such as uuid, take a string; arrays take an array of what their element type takes.

    Timestamps and dates are ISO 8601 strings; a timestamptz without an offset is in UTC, and a timestamp with an
    offset is converted to UTC. If they are numbers since 1970, `epoch` names the unit, as in `{"created": "ms"}`:
    s, ms, us or ns for a timestamp, d for a date. Nanoseconds are truncated to microseconds.

    A null value is a tombstone: it is counted and gives no row. If a column takes a member of `payload`, so is the
    envelope of a null, {"schema":null,"payload":null}. Raises ConfigurationError for an invalid schema.
    """

    null_is_tombstone: ClassVar[bool] = True
    tombstone_deletes: ClassVar[bool] = True

    schema: str
    epoch: Mapping[str, str] = field(default_factory=dict, kw_only=True, hash=False)
    encoding: Encoding | tuple[Encoding, ...] = field(default=(), kw_only=True)
    documents: Documents = field(default="one", kw_only=True)
    columns: tuple[Column, ...] = field(init=False, repr=False)
    fields: tuple[Field, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_types(self)
        object.__setattr__(self, "fields", parse_fields(self.schema))
        object.__setattr__(self, "columns", tuple(each.column for each in self.fields))
        check_epoch(self.epoch, self.columns)
        check_names(self.fields)
        check_arrays(self.fields)
        check_whole(self.fields)
        _ = self._defaults

    @property
    def is_plain(self) -> bool:
        """True if a value is one object, and each column takes the member of its own name."""
        return not self._is_wrapped and all(each.is_plain for each in self.fields)

    @property
    def encodings(self) -> tuple[Encoding, ...]:
        """The encodings of a value, the outermost first."""
        return (self.encoding,) if isinstance(self.encoding, str) else tuple(self.encoding)

    @property
    def _is_wrapped(self) -> bool:
        return bool(self.encodings) or self.documents != "one"

    @property
    def own_members(self) -> Mapping[str, str] | None:
        """The name of the member that each column takes, by column; None unless a value is one object, and all take
        different members of it itself, and null for a missing one."""
        if self._is_wrapped:
            return None
        members: dict[str, str] = {}
        for each in self.fields:
            if (name := each.own_member) is not None:
                members[each.column.name] = name
        is_own = len(members) == len(self.fields) == len(set(members.values()))
        return members if is_own else None

    @property
    def gives_several_rows(self) -> bool:
        """True if a value gives any number of rows."""
        return self.documents != "one" or gives_rows_of_elements(self.fields)

    @cached_property
    def reads_payloads(self) -> bool:
        """True if a value is one object, and a column takes a member of its `payload`, as in the envelope of Kafka
        Connect's JSON converter."""
        return not self._is_wrapped and reads_payloads(self.fields)

    @cached_property
    def _row_schema(self) -> "pa.Schema":
        return stored_schema(self.columns)

    @cached_property
    def _defaults(self) -> "Mapping[str, pa.Scalar]":
        """The values of the defaults, by column: each is decoded as the member that it stands for."""
        return {
            each.column.name: default_of(each, self.epoch) for each in self.fields if each.default is not None
        }

    @cached_property
    def _refused(self) -> RefusedJson:
        return RefusedJson(self.fields, self.epoch)

    def decode(self, values: "pa.BinaryArray") -> Decoded:
        """Decode n values, in one block if all of them are objects."""
        if self._is_wrapped:
            return decode_wrapped(values, self.encodings, self.documents, self._decode_documents)
        return self._decode_objects(with_nulls(self, values))

    def _decode_documents(self, documents: "pa.BinaryArray") -> Decoded:
        """Decode the documents of values; an enveloped null is no tombstone, but a reject."""
        import pyarrow.compute as pc

        values = without_envelopes(documents) if reads_payloads(self.fields) else documents
        decoded = self._decode_objects(values)
        nulls = [(at, ENVELOPED_NULL) for at in pc.indices_nonzero(values.is_null()).to_pylist()]
        return replace(decoded, rejects=tuple(sorted([*decoded.rejects, *nulls])), tombstones=0)

    def _decode_objects(self, values: "pa.BinaryArray") -> Decoded:
        if all(each.is_plain for each in self.fields):
            return decode_present(values, self._decode_block, self._refused.reasons)
        return decode_several(values, self._decode_members, self._refused.reasons)

    def _decode_members(self, values: "pa.BinaryArray") -> "tuple[pa.RecordBatch, Positions | None]":
        """Return rows, and the value that each is of: None if each value is one row. Raises ValueError as
        _decode_block() does."""
        import pyarrow as pa

        if len(values) == 0:
            return pa.RecordBatch.from_pylist([], self._row_schema), None
        text = objects(values)
        try:
            rows, origins = self._members(text, self.fields)
        except ValueError:
            if len(text) > 1:
                raise
            fields = {each.column: each for each in self.fields}
            reason = why_refused(
                text,
                self.columns,
                lambda columns: self._members(text, [fields[column] for column in columns]),
                {each.column.name: each.path for each in self.fields if not each.is_plain},
            )
            raise ValueError(reason) from None
        return rows, origins

    def _members(
        self, text: "pa.StringArray", fields: Sequence[Field]
    ) -> "tuple[pa.RecordBatch, Positions | None]":
        return read_members(text, fields, self.epoch, self._defaults)

    def _decode_block(self, values: "pa.BinaryArray") -> "pa.RecordBatch":
        """Return one row for each value, or raise ValueError, which for a single value names the column."""
        import pyarrow as pa

        if len(values) == 0:
            return pa.RecordBatch.from_pylist([], self._row_schema)
        text = objects(values)
        try:
            rows = self._read(text, self.columns)
        except ValueError:
            if len(text) > 1:
                raise
            raise ValueError(why_refused(text, self.columns, partial(self._read, text))) from None
        return rows.combine_chunks().to_batches()[0]

    def _read(self, text: "pa.StringArray", columns: Sequence[Column]) -> "pa.Table":
        """Return one row for each object, or raise ValueError."""
        import pyarrow as pa

        as_text = tuple(filter(is_kept_as_text, columns))
        parsed = [column for column in columns if column not in as_text]
        table = read_objects(text, pa.schema([self._read_as(column) for column in parsed]))
        for index, column in enumerate(parsed):
            if unit := self.epoch.get(column.name):
                moments = from_epoch(table.column(index), unit, column.arrow_type)
                table = table.set_column(index, column.name, moments)
        table = as_stored(table, stored_schema(parsed))
        if not as_text:
            return table
        arrays = dict(zip(as_text, fields_as_text(text, as_text), strict=True))
        arrays.update(zip(parsed, table.columns, strict=True))
        return pa.table({column.name: arrays[column] for column in columns})

    def _read_as(self, column: Column) -> "pa.Field":
        import pyarrow as pa

        return pa.field(column.name, pa.int64() if column.name in self.epoch else readable(column.arrow_type))
