"""Change events of Debezium, decoded in one block for each schema that their connector gives them."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.columns import Column
from exactbatch.formats.avro.bodies import by_header, schema_after
from exactbatch.formats.bounds import TooLarge
from exactbatch.formats.connect.binary_text import decoded_text, encoded_text
from exactbatch.formats.connect.readings import Reading, convert_values
from exactbatch.formats.connect.types_of_schema import ConnectType, from_json
from exactbatch.formats.debezium.avro_events import AvroEvents, avro_images, build_events, read_as
from exactbatch.formats.debezium.commit_positions import version_columns
from exactbatch.formats.debezium.declared import declared_reading, hint_for, images_in, refuse_ambiguous
from exactbatch.formats.debezium.documents import are_documents, document_reading, with_rows
from exactbatch.formats.debezium.envelope import (
    EventGroup,
    by_schema,
    change_nothing,
    changes_nothing,
    find_table,
    is_document,
    is_envelope,
    no_envelope,
    truncated,
    unwrap_event,
)
from exactbatch.formats.debezium.images import (
    DELETE,
    SNAPSHOT,
    TRUNCATE,
    UPDATE,
    Images,
    deletes,
    json_images,
)
from exactbatch.formats.debezium.placeholder import Placeholder, names_where
from exactbatch.formats.debezium.positions import read_position, source_types
from exactbatch.formats.debezium.refused_events import PartsOf, RefusedEvents, split_envelope
from exactbatch.formats.debezium.row_readings import (
    RowTypes,
    find_images,
    find_readings,
    is_bytea,
    readings_by,
    readings_by_type,
)
from exactbatch.formats.debezium.spec import Debezium
from exactbatch.formats.decoded import Decoded
from exactbatch.formats.decoder import Decoder, decode_block_or_halves, in_order, positions, refused_by
from exactbatch.formats.json.blocks import (
    as_stored,
    objects,
    stored_schema,
    why_refused,
)
from exactbatch.formats.postgres_limits import find_unstorable
from exactbatch.formats.refused_text import without_marks
from exactbatch.formats.registry.schemas import Inquiry

NOTHING: Final = (
    "the event changes no row"  # a mark for events that are counted, and no reason that anybody sees
)


class DebeziumDecoder(Decoder[Debezium]):
    """Decodes change events."""

    def __init__(self, spec: Debezium) -> None:
        super().__init__(spec)
        self._names = frozenset(spec.field_names.values())
        self._placeholder = Placeholder(spec.unavailable)
        self._no_rows = pa.RecordBatch.from_pylist([], self._marked(spec.columns))

    # What Flattened, whose events are the rows themselves, has in another way:

    def _check_payload(self, payload: ConnectType) -> None:
        """Raise ValueError for a type of events with a schema that carry no row."""
        if not is_envelope(payload):
            raise ValueError("the event has no op, before or after")

    def _change_nothing(self, values: pa.BinaryArray, payload: ConnectType | None) -> pa.BooleanArray:
        return change_nothing(values, payload)

    def _are_documents(self, values: pa.BinaryArray, payload: ConnectType | None) -> pa.BooleanArray:
        return are_documents(values, payload)

    @property
    def _row_types(self) -> RowTypes:
        return find_images

    def _rows_in(self, event: dict[str, Any]) -> Sequence[Any]:
        return images_in(event)

    @cached_property
    def _parts_of(self) -> PartsOf:
        return split_envelope(self.spec.position, self.spec.source_columns)

    def _json_images(
        self, text: pa.StringArray, readings: Mapping[str, Reading], source: Mapping[str, pa.DataType]
    ) -> Images:
        return json_images(text, readings, source)

    def _avro_images(
        self,
        events: Sequence[Mapping[str, Any]],
        readings: Mapping[str, Reading],
        source: Mapping[str, pa.DataType],
    ) -> Images:
        return avro_images(events, readings, source)

    def _take_row(self, event: dict[str, Any]) -> Any:
        return event.get("before" if event.get("op") in (DELETE, TRUNCATE) else "after")

    def _why_no_row(self, event: dict[str, Any]) -> str | None:
        """Return the reason to reject an event, or the mark of one that changes no row; None for a change of a row."""
        if changes_nothing(event):
            return NOTHING
        if self.spec.truncate == "reject" and (reason := truncated(event)):
            return reason
        return is_document(event) or no_envelope(event, self._names)

    def _of_row(self, columns: Sequence[Column]) -> Sequence[Column]:
        of_row = {each.column.name for each in self.spec.fields}
        return [column for column in columns if column.name in of_row]

    def _find_refused(
        self, readings: Mapping[str, Reading], has_schema: bool, values: pa.BinaryArray
    ) -> Iterator[tuple[int, str]]:
        """Yield the index of each event in JSON that is surely refused, and the reason."""
        refused = RefusedEvents(
            self._of_row(self.spec.columns),
            self.spec.field_names,
            readings,
            self._parts_of,
            self._placeholder.texts,
            may_be_base64=not has_schema and self.spec.decimals is None,
        )
        written = values.to_pylist()
        found: dict[int, dict[str, Any]] = {}
        reasons: list[tuple[int, str]] = []
        for index, value in enumerate(written):
            each = refused.examine(value)
            if isinstance(each, str):
                reasons.append((index, each))
            elif each is not None:
                found[index] = each
        for index, reason in chain(reasons, self._refused_events(readings, found)):
            yield index, self._special(unwrap_event(written[index])) or self._with_hint(reason, has_schema)

    def _with_hint(self, reason: str, has_schema: bool) -> str:
        for column in self.spec.columns:
            if reason.startswith(f"column {column.name!r}, "):
                return hint_for(column, reason, has_schema=has_schema)
        return reason

    def _by_field(self, readings: Mapping[str, Reading], columns: Sequence[Column]) -> Mapping[str, Reading]:
        return {self.spec.field_names[column.name]: readings[column.name] for column in self._of_row(columns)}

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode n values, in one block for each schema that their connector gives them.

        An event that lacks a value is a reject.
        """
        decoded = self.decode_with_unavailable(values)
        if (unavailable := decoded.unavailable) is None:
            return decoded
        whole = unavailable.is_null()
        lacking = zip(decoded.kept.filter(pc.invert(whole)), unavailable.drop_null(), strict=True)
        refused = [
            (at.as_py(), self._say_unavailable(values[at.as_py()], names.as_py()[0])) for at, names in lacking
        ]
        assert decoded.deleted is not None
        return replace(
            decoded,
            rows=decoded.rows.filter(whole),
            kept=decoded.kept.filter(whole),
            rejects=tuple(sorted([*decoded.rejects, *refused])),
            deleted=decoded.deleted.filter(whole),
            unavailable=None,
            truncated=None if decoded.truncated is None else decoded.truncated.filter(whole),
        )

    def decode_with_unavailable(self, values: pa.BinaryArray) -> Decoded:
        """Decode n values, as decode() does, and list the columns of unavailable values."""
        present = positions(values).filter(values.is_valid())
        parts = [Decoded(self._no_rows, present[:0])]
        if self.spec.registry is None:
            events = without_marks(values.drop_null())
            parts += [self._decode_group(group) for group in by_schema(events, present)]
        else:
            inquiry = Inquiry()
            parts += [self._decode_avro(*group, inquiry) for group in by_header(values.drop_null(), present)]
        decoded = in_order(parts, values.null_count)
        # By their places: a column of the row may have the name of a mark.
        columns = len(self.spec.columns)
        deleted, is_truncate, unavailable = decoded.rows.columns[columns:]
        return replace(
            decoded,
            rows=decoded.rows.select(range(columns)),
            deleted=deleted,
            unavailable=unavailable if unavailable.null_count < len(unavailable) else None,
            truncated=is_truncate if is_truncate.true_count else None,
        )

    def _marked(self, columns: Sequence[Column]) -> pa.Schema:
        """The columns of a row, then whether it is a delete, whether it is a truncate, which is a delete, too, and the
        columns for which a write has no value."""
        marks = [pa.field("deleted", pa.bool_()), pa.field("truncated", pa.bool_())]
        return pa.schema([*stored_schema(columns), *marks, pa.field("unavailable", pa.list_(pa.string()))])

    def _decode_group(self, group: EventGroup) -> Decoded:
        """Decode events of one schema; count those that change nothing as tombstones."""
        try:
            payload = None if group.schema is None else from_json(group.schema)
            is_nothing = self._change_nothing(group.values, payload)
            is_event = pc.invert(is_nothing)
            values, at = group.values.filter(is_event), group.at.filter(is_event)
            is_document = self._are_documents(values, payload)
            documents, rows = values.filter(is_document), values.filter(pc.invert(is_document))
            of_documents = find_readings(self.spec.fields, document_reading) if len(documents) else {}
            of_rows = self._readings(group.schema) if len(rows) else {}
        except ValueError as error:
            refused = tuple((index, str(error)) for index in group.at.to_pylist())
            return Decoded(self._no_rows, group.at[:0], refused)
        has_schema = group.schema is not None
        parts = [
            decode_block_or_halves(
                rows,
                at.filter(pc.invert(is_document)),
                partial(self._decode_block, of_rows, has_schema),
                partial(self._find_refused, of_rows, has_schema),
            )
        ]
        if len(documents):
            parts.append(
                decode_block_or_halves(
                    with_rows(documents, self.spec.fields),
                    at.filter(is_document),
                    partial(self._decode_block, of_documents, True),
                    partial(self._find_refused, of_documents, True),
                )
            )
        decoded = _without_nothing(in_order(parts, 0))
        return replace(decoded, tombstones=decoded.tombstones + is_nothing.true_count)

    def _decode_avro(
        self, header: bytes, values: pa.BinaryArray, at: pa.Int64Array, inquiry: Inquiry
    ) -> Decoded:
        """Decode events whose values begin with the same header; count those that change nothing as tombstones."""
        try:
            schema = schema_after(header, str(self.spec.registry), self.spec.properties, inquiry)[1]
            events = build_events(schema, len(header))
            readings = readings_by_type(events, self._row_types, self.spec.fields, self.spec.binary)
        except ValueError as error:
            refused = tuple((index, str(error)) for index in at.to_pylist())
            return Decoded(self._no_rows, at[:0], refused)
        return _without_nothing(
            decode_block_or_halves(
                values,
                at,
                partial(self._decode_avro_block, events, readings),
                partial(self._find_refused_avro, events, readings),
            )
        )

    def _decode_avro_block(
        self, events: AvroEvents, readings: Mapping[str, Reading], values: pa.BinaryArray
    ) -> pa.RecordBatch:
        """Return the rows as _rows() does; for a single value, the ValueError says what the value is."""
        if len(values) == 0:
            return self._no_rows
        decoded = events.decode(values)
        try:
            self._check_payload(events.payload)
            return self._rows_of_events(readings, self.spec.columns, decoded)
        except ValueError as error:
            refused = self._refused_avro_events(events, readings, {0: decoded[0]}) if len(values) == 1 else ()
            raise ValueError(next((reason for _, reason in refused), str(error))) from None

    def _find_refused_avro(
        self, events: AvroEvents, readings: Mapping[str, Reading], values: pa.BinaryArray
    ) -> Iterator[tuple[int, str]]:
        """Yield the index of each value that is refused, and why, as _decode_avro_block() says it of it alone."""
        found: dict[int, dict[str, Any]] = {}
        for index, value in enumerate(values.to_pylist()):
            try:
                found[index] = events.decode_alone(value)
            except ValueError as error:
                yield index, str(error)
            except TooLarge:
                continue  # in halves
        yield from self._refused_avro_events(events, readings, found)

    def _refused_avro_events(
        self, events: AvroEvents, readings: Mapping[str, Reading], found: dict[int, dict[str, Any]]
    ) -> Iterator[tuple[int, str]]:
        """Yield the index of each decoded event that is refused, and why: for what it is, or for its first column."""
        each = dict(found)
        for index, reason in chain(
            refused_by([lambda _events: self._check_payload(events.payload)], found, lambda _event: None),
            self._refused_events(readings, found),
        ):
            yield index, reason if reason == NOTHING else self._special(each[index]) or reason

    def _refused_events(
        self, readings: Mapping[str, Reading], found: dict[int, dict[str, Any]]
    ) -> Iterator[tuple[int, str]]:
        """Yield the index of each event that is refused, and why. Removes them."""
        yield from refused_by([self._check_marks], found, self._marked_alike)
        # Text of JSON, which is read in another way, is no value of an event as Avro gives it.
        columns = [each for each in self._of_row(self.spec.columns) if readings[each.name].of_json is None]
        for column in columns:
            yield from refused_by([partial(self._values_of_events, readings[column.name], column)], found)
            values = self._values_of_events(readings[column.name], column, list(found.values()))
            yield from _refuse_unstorable(column, values, found)
        for name, column in self.spec.source_columns.items():
            texts = [(event.get("source") or {}).get(name) for event in found.values()]
            yield from _refuse_unstorable(column, pa.array(texts, pa.string()), found)
        if self.spec.position is not None:
            yield from refused_by([self._check_positions], found, self._placed_alike)
        # What else _rows() refuses, it rarely does.
        for column in columns:
            check = partial(self._check_events, readings, column)
            yield from refused_by([check], found, partial(self._valued_alike, column))

    def _marked_alike(self, event: Mapping[str, Any]) -> Hashable:
        return repr(event.get("op")), *(type(event.get(image)) for image in ("before", "after"))

    def _placed_alike(self, event: Mapping[str, Any]) -> Hashable:
        assert self.spec.position is not None
        source = event.get("source") or {}
        return event.get("op") == SNAPSHOT, *(repr(source.get(name)) for name in self.spec.position.fields)

    def _valued_alike(self, column: Column, event: dict[str, Any]) -> Hashable:
        row = self._take_row(event) or {}
        return self._marked_alike(event), repr(row.get(self.spec.field_names[column.name]))

    def _check_marks(self, events: Sequence[dict[str, Any]]) -> None:
        """Raise ValueError for events that change no row, or have none."""
        self._marks(self._avro_images(events, {}, {}))

    def _check_positions(self, events: Sequence[dict[str, Any]]) -> None:
        """Raise ValueError for changes without a position."""
        assert self.spec.position is not None
        images = self._avro_images(events, {}, source_types(self.spec.position))
        try:
            read_position(str(self.spec.version), images.source, pc.equal(images.op, SNAPSHOT))
        except ValueError as error:
            column = version_columns(self.spec.position)[0]
            raise ValueError(f"column {column.name!r}, {column.type}: {error}") from None

    def _values_of_events(
        self, reading: Reading, column: Column, events: Sequence[dict[str, Any]]
    ) -> pa.Array:
        """Return the values of a column, or raise ValueError that names it."""
        name = self.spec.field_names[column.name]
        rows = [self._take_row(event) or {} for event in events]
        try:
            values = self._in_declared_text(reading, read_as(reading, [row.get(name) for row in rows]))
            return convert_values(reading, self._without_placeholder(column, values)[0])
        except ValueError as error:
            raise ValueError(f"column {column.name!r}, {column.type}: {error}") from None

    def _check_events(
        self, readings: Mapping[str, Reading], column: Column, events: Sequence[dict[str, Any]]
    ) -> None:
        """Raise ValueError that names the column if the events have no value for it."""
        try:
            self._rows_of_events(readings, (column,), events)
        except ValueError as error:
            raise ValueError(f"column {column.name!r}, {column.type}: {error}") from None

    def _rows_of_events(
        self,
        readings: Mapping[str, Reading],
        columns: Sequence[Column],
        events: Sequence[dict[str, Any]],
    ) -> pa.RecordBatch:
        """Return rows of some columns, with their marks, from decoded events."""
        images = self._avro_images(events, self._by_field(readings, columns), self._find_source(columns))
        return self._rows(images, readings, columns, self._find_version(columns))

    def _special(self, event: dict[str, Any]) -> str | None:
        """Return the reason to reject an event, or the mark of one that changes no row; None for a change."""
        if reason := self._why_no_row(event):
            return reason
        row = self._take_row(event)
        for column, name in self.spec.field_names.items() if isinstance(row, dict) else ():
            if self._placeholder.is_in(row.get(name)):
                return self._describe_unavailable(event, column)
        return None

    def _find_version(self, columns: Sequence[Column]) -> Sequence[str]:
        names = [column.name for column in columns]
        return [name for name in self.spec.position_columns if name in names]

    def _find_source(self, columns: Sequence[Column]) -> Mapping[str, pa.DataType]:
        """Return the fields of the source that some of the columns are made of."""
        named = {name: pa.string() for name, column in self.spec.source_columns.items() if column in columns}
        position = (
            source_types(self.spec.position) if self.spec.position and self._find_version(columns) else {}
        )
        return {**position, **named}

    def _readings(self, schema: bytes | None) -> Mapping[str, Reading]:
        """Return how each column of the row is read from events with a schema, or without one."""
        if schema is not None:
            return readings_by(schema, self._row_types, self.spec.fields, self.spec.binary)
        return find_readings(
            self.spec.fields,
            lambda column: declared_reading(column, self.spec.epoch, self.spec.times, self.spec.decimals),
        )

    def _decode_block(
        self, readings: Mapping[str, Reading], has_schema: bool, values: pa.BinaryArray
    ) -> pa.RecordBatch:
        """Return the rows as _read() does; for a single value, the ValueError says what the value is."""
        read = partial(self._read, readings, has_schema, values)
        try:
            return read(self.spec.columns)
        except ValueError:
            if len(values) > 1:
                raise
            for _, reason in self._find_refused(readings, has_schema, values):
                raise ValueError(reason) from None
            reason = self._special(unwrap_event(values[0].as_py())) or self._with_hint(
                why_refused(values, self.spec.columns, read), has_schema
            )
            raise ValueError(reason) from None

    def _read(
        self,
        readings: Mapping[str, Reading],
        has_schema: bool,
        values: pa.BinaryArray,
        read_columns: Sequence[Column],
    ) -> pa.RecordBatch:
        """Return rows of some columns with their marks."""
        if len(values) == 0:
            return pa.RecordBatch.from_pylist([], self._marked(read_columns))
        text = objects(values)
        images = self._json_images(
            text, self._by_field(readings, read_columns), self._find_source(read_columns)
        )
        if not has_schema and self.spec.decimals is None:
            own = [each for each in self.spec.fields if each.column in read_columns]
            refuse_ambiguous(text, own, self._rows_in)
        return self._rows(images, readings, read_columns, self._find_version(read_columns))

    def _rows(
        self,
        images: Images,
        readings: Mapping[str, Reading],
        read_columns: Sequence[Column],
        version: Sequence[str],
    ) -> pa.RecordBatch:
        """Return the rows of events for some columns, with their marks."""
        row_columns = self._of_row(read_columns)
        deleted, is_truncate = self._marks(images)
        columns = [
            self._in_declared_text(
                readings[column.name], images.column(self.spec.field_names[column.name], deleted)
            )
            for column in row_columns
        ]
        columns, unavailable = self._without_placeholders(row_columns, columns, deleted)
        # An insert lacks values if an update has changed the key: they belong to another key's row.
        if pc.any(pc.and_not(unavailable.is_valid(), pc.equal(images.op, UPDATE))).as_py():
            raise ValueError("the source left out a value of a new row, which no older change of its key has")
        columns = [
            convert_values(readings[c.name], values) for c, values in zip(row_columns, columns, strict=True)
        ]
        columns += [
            images.source(name) for name, column in self.spec.source_columns.items() if column in read_columns
        ]
        if version and self.spec.position is not None:
            parts = read_position(str(self.spec.version), images.source, pc.equal(images.op, SNAPSHOT))
            columns += [
                part for name, part in zip(self.spec.position.columns, parts, strict=True) if name in version
            ]
        schema = self._marked(read_columns)
        table = pa.Table.from_arrays([*columns, deleted, is_truncate, unavailable], schema.names)
        return as_stored(table, schema, finite=False).combine_chunks().to_batches()[0]

    def _marks(self, images: Images) -> tuple[pa.BooleanArray, pa.BooleanArray]:
        """Return whether each event is a delete or truncate, and whether it is a truncate. Raises ValueError for events
        that change no row, or have none."""
        deleted = deletes(images.op, with_truncates=self.spec.truncate == "apply")
        is_truncate = pc.equal(images.op, TRUNCATE)
        for name, its in (("before", pc.and_not(deleted, is_truncate)), ("after", pc.invert(deleted))):
            if pc.any(pc.and_not(its, images.has(name))).as_py():
                raise ValueError(f"the event has no {name!r}, which would hold its row")
        return deleted, is_truncate

    def _without_placeholders(
        self, row_columns: Sequence[Column], columns: Sequence[pa.Array], deleted: pa.BooleanArray
    ) -> tuple[list[pa.Array], pa.ListArray]:
        """Return the columns with null for a value that was left out and bytes for bytea, and for each write the
        columns whose values were left out, null if there are none. A delete does not need them."""
        whole = []
        unavailable: dict[str, pa.BooleanArray] = {}
        for column, values in zip(row_columns, columns, strict=True):
            values, matches = self._without_placeholder(column, values)
            if pc.any(matches).as_py():
                unavailable[column.name] = pc.and_not(matches, deleted)
            whole.append(values)
        return whole, names_where(unavailable, len(deleted))

    def _without_placeholder(self, column: Column, values: pa.Array) -> tuple[pa.Array, pa.BooleanArray]:
        """Return a column with null for a value that was left out and bytes for bytea, and which were left out."""
        matches = self._placeholder.matches(column, values)
        if pc.any(matches).as_py():
            values = pc.if_else(matches, pa.scalar(None, values.type), values)
        return self._bytes(values) if is_bytea(column) else values, matches

    def _in_declared_text(self, reading: Reading, values: pa.Array) -> pa.Array:
        """Return bytes in the text that the pipeline declares, as _bytes() expects them."""
        if not reading.is_base64 or self.spec.binary in (None, "base64"):
            return values
        return encoded_text(decoded_text(values, "base64"), self.spec.binary)

    def _bytes(self, values: pa.Array) -> pa.Array:
        encoding = self.spec.binary or "base64"
        try:
            return decoded_text(values, encoding)
        except ValueError as error:
            raise ValueError(
                f"{error}. Does the connector's binary.handling.mode match binary={encoding!r}?"
            ) from None

    def _say_unavailable(self, value: pa.BinaryScalar, column: str) -> str:
        return self._describe_unavailable(unwrap_event(value.as_py()), column)

    def _describe_unavailable(self, event: dict[str, Any], column: str) -> str:
        table = find_table(event)
        return (
            f"column {column!r}: the source left the value out, and Debezium wrote {self.spec.unavailable} instead. "
            f"For Postgres, run `alter table {table} replica identity full` at the source, or configure "
            f"the connector's ReselectColumnsPostProcessor to read such values"
        )


def _refuse_unstorable(
    column: Column, values: pa.Array, found: dict[int, dict[str, Any]]
) -> Iterator[tuple[int, str]]:
    """Take the events out of `found` whose values of a column cannot be stored; yield the index of each, and why."""
    indexes = list(found)
    for place, reason in find_unstorable(column, values):
        yield indexes[place], reason
        found.pop(indexes[place], None)


def _without_nothing(decoded: Decoded) -> Decoded:
    """Return what was decoded; events that change no row are tombstones and no rejects."""
    rejects = tuple(reject for reject in decoded.rejects if reject[1] != NOTHING)
    return replace(decoded, rejects=rejects, tombstones=len(decoded.rejects) - len(rejects))
