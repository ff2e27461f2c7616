"""JSON objects, one for each record, decoded by Arrow in blocks, also after the header of a schema registry."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.columns import Column, Field
from exactbatch.formats.connect.times import from_epoch
from exactbatch.formats.declared_fields import is_kept_as_text, reads_payloads
from exactbatch.formats.decoded import Decoded
from exactbatch.formats.decoder import Decoder, decode_present, decode_several, find_reasons, positions
from exactbatch.formats.json.blocks import (
    ENVELOPED_NULL,
    as_stored,
    objects,
    read_objects,
    readable,
    stored_schema,
    why_refused,
    with_nulls,
    without_envelopes,
)
from exactbatch.formats.json.fields import Positions
from exactbatch.formats.json.member_columns import read_defaults, read_members
from exactbatch.formats.json.raw_fields import fields_as_text
from exactbatch.formats.json.refused_objects import RefusedJson
from exactbatch.formats.json.spec import Json, JsonSchema
from exactbatch.formats.json.wrapped import decode_wrapped
from exactbatch.formats.registry.schemas import (
    Inquiry,
    cut_bodies,
    cut_prefixes,
    fetch_schema_type,
    most_frequent_first,
)
from exactbatch.formats.registry.wire_format import read_schema_id, unknown

_JSON: Final = "JSON"


class JsonDecoder(Decoder[Json]):
    """Decodes JSON objects, in one block if all values are objects."""

    def __init__(self, spec: Json) -> None:
        super().__init__(spec)
        self._fields, self._columns, self._epoch = spec.fields, spec.columns, spec.epoch
        self._row_schema = stored_schema(spec.columns)
        self._defaults = read_defaults(spec.fields, spec.epoch)
        self._refused = RefusedJson(spec.fields, spec.epoch)
        # Else a column takes another member, or has a default.
        self._takes_members = all(each.is_plain for each in spec.fields)

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode n values, in one block if all of them are objects."""
        if self.spec.is_wrapped:
            return decode_wrapped(values, self.spec.encodings, self.spec.documents, self._decode_documents)
        return self._decode_objects(with_nulls(self.spec, values))

    def _decode_documents(self, documents: pa.BinaryArray) -> Decoded:
        """Decode the documents of values; an enveloped null is no tombstone, but a reject."""
        values = without_envelopes(documents) if reads_payloads(self._fields) else documents
        decoded = self._decode_objects(values)
        nulls = [(at, ENVELOPED_NULL) for at in pc.indices_nonzero(values.is_null()).to_pylist()]
        return replace(decoded, rejects=tuple(sorted([*decoded.rejects, *nulls])), tombstones=0)

    def _decode_objects(self, values: pa.BinaryArray) -> Decoded:
        if self._takes_members:
            return decode_present(values, self._decode_block, partial(find_reasons, self._refused.reason))
        return decode_several(values, self._decode_members, partial(find_reasons, self._refused.reason))

    def _decode_members(self, values: pa.BinaryArray) -> tuple[pa.RecordBatch, Positions | None]:
        """Return rows, and the value that each is of: None if each value is one row. Raises ValueError as
        _decode_block() does."""
        if len(values) == 0:
            return pa.RecordBatch.from_pylist([], self._row_schema), None
        text = objects(values)
        try:
            rows, origins = self._members(text, self._fields)
        except ValueError:
            if len(text) > 1:
                raise
            fields = {each.column: each for each in self._fields}
            reason = self._refused.reason(values[0].as_py()) or why_refused(
                text,
                self._columns,
                lambda columns: self._members(text, [fields[column] for column in columns]),
                {each.column.name: each.path for each in self._fields if not each.is_plain},
            )
            raise ValueError(reason) from None
        return rows, origins

    def _members(
        self, text: pa.StringArray, fields: Sequence[Field]
    ) -> tuple[pa.RecordBatch, Positions | None]:
        return read_members(text, fields, self._epoch, self._defaults)

    def _decode_block(self, values: pa.BinaryArray) -> pa.RecordBatch:
        """Return one row for each value, or raise ValueError, which for a single value names the column."""
        if len(values) == 0:
            return pa.RecordBatch.from_pylist([], self._row_schema)
        text = objects(values)
        try:
            rows = self._read(text, self._columns)
        except ValueError:
            if len(text) > 1:
                raise
            reason = self._refused.reason(values[0].as_py())
            raise ValueError(reason or why_refused(text, self._columns, partial(self._read, text))) from None
        return rows.combine_chunks().to_batches()[0]

    def _read(self, text: pa.StringArray, columns: Sequence[Column]) -> pa.Table:
        """Return one row for each object, or raise ValueError."""
        as_text = tuple(filter(is_kept_as_text, columns))
        parsed = [column for column in columns if column not in as_text]
        table = read_objects(text, pa.schema([self._read_as(column) for column in parsed]))
        for index, column in enumerate(parsed):
            if unit := self._epoch.get(column.name):
                moments = from_epoch(table.column(index), unit, column.arrow_type)
                table = table.set_column(index, column.name, moments)
        table = as_stored(table, stored_schema(parsed))
        if not as_text:
            return table
        arrays = dict(zip(as_text, fields_as_text(text, as_text), strict=True))
        arrays.update(zip(parsed, table.columns, strict=True))
        return pa.table({column.name: arrays[column] for column in columns})

    def _read_as(self, column: Column) -> pa.Field:
        return pa.field(
            column.name, pa.int64() if column.name in self._epoch else readable(column.arrow_type)
        )


class JsonSchemaDecoder(Decoder[JsonSchema]):
    """Decodes JSON after its header."""

    def __init__(self, spec: JsonSchema) -> None:
        super().__init__(spec)
        self._body = JsonDecoder(spec.body)

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode n values: those whose schema is right in one block."""
        present, written = positions(values).filter(values.is_valid()), values.drop_null()
        headers = cut_prefixes(written)
        inquiry = Inquiry()
        reasons = {
            header: reason
            for header in most_frequent_first(headers)
            if (reason := self._why_refused(header, inquiry))
        }
        refused = pc.is_in(headers, pa.array(list(reasons), pa.binary()))
        rejects = list(
            zip(
                present.filter(refused).to_pylist(),
                map(reasons.__getitem__, headers.filter(refused).to_pylist()),
                strict=True,
            )
        )
        taken = pc.invert(refused)
        present = present.filter(taken)
        decoded = self._body.decode(cut_bodies(written.filter(taken)))
        rejects += [(present[at].as_py(), reason) for at, reason in decoded.rejects]
        return replace(
            decoded,
            kept=present.take(decoded.kept),
            rejects=tuple(sorted(rejects)),
            tombstones=values.null_count,
        )

    def _why_refused(self, header: bytes, inquiry: Inquiry) -> str | None:
        try:
            schema_id = read_schema_id(header)
            found = fetch_schema_type(self.spec.registry, schema_id, self.spec.properties, inquiry)
        except ValueError as error:
            return str(error)
        if found is None:
            return unknown(schema_id)
        return None if found == _JSON else f"schema {schema_id} of the registry is {found}, not {_JSON}"
