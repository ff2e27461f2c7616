"""The format Debezium: change events as JSON, with or without their schema, or as Avro with a registry.

It is one class, because every option of the format meets each of these three encodings.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from exactbatch.columns import Column, Field, parse_fields
from exactbatch.errors import ConfigurationError
from exactbatch.formats.avro_bodies import by_header, schema_after
from exactbatch.formats.binary_text import BinaryText, decoded_text, encoded_text
from exactbatch.formats.bounds import TooLarge
from exactbatch.formats.connect_schema import ConnectType, from_json
from exactbatch.formats.connect_values import Reading, converted
from exactbatch.formats.debezium_avro import AvroEvents, avro_images, events_of, read_as
from exactbatch.formats.debezium_declared import (
    Decimals,
    Times,
    check_epoch,
    check_fields,
    declared_reading,
    hint_for,
    images_in,
    refuse_ambiguous,
)
from exactbatch.formats.debezium_documents import are_documents, document_reading, with_rows
from exactbatch.formats.debezium_event import (
    change_nothing,
    changes_nothing,
    event_of,
    is_document,
    is_envelope,
    no_envelope,
    table_of,
    truncated,
)
from exactbatch.formats.debezium_groups import Group, by_schema
from exactbatch.formats.debezium_images import (
    DELETE,
    SNAPSHOT,
    TRUNCATE,
    UPDATE,
    Images,
    deletes,
    json_images,
)
from exactbatch.formats.debezium_placeholder import Placeholder, names_where
from exactbatch.formats.debezium_readings import (
    RowTypes,
    images_of,
    is_bytea,
    readings_by,
    readings_by_type,
    readings_of,
)
from exactbatch.formats.debezium_versions import Position, position_of, source_types, version_columns
from exactbatch.formats.format import Decoded, decode_block_or_halves, in_order, positions, refused_by
from exactbatch.formats.json_blocks import (
    as_stored,
    objects,
    reason_from_arrow,
    stored_schema,
    why_refused,
)
from exactbatch.formats.postgres_limits import find_unstorable
from exactbatch.formats.refused_events import RefusedEvents, RowsOf, plain_envelope, rows_of_envelope
from exactbatch.formats.refused_json import LARGE
from exactbatch.formats.refused_text import Undecided
from exactbatch.formats.schema_registry import Inquiry
from exactbatch.formats.unreadable_text import without_marks
from exactbatch.formats.wire_format import check_address
from exactbatch.options import check_types

if TYPE_CHECKING:
    import pyarrow as pa

NOTHING: Final = (
    "the event changes no row"  # a mark for events that are counted, and no reason that anybody sees
)


@dataclass(frozen=True)
class Debezium:
    """Values are Debezium's envelopes {before, after, op, source}: JSON, bare or as the payload next to their schema,
    or Avro.

    schema       the columns of the row, as for Json. A column takes a field of another name with `from`, such as
                 `"is_deleted boolean from 'deleted'"`, but no path and no default
    version      the position of a change's commit, which becomes columns: a connector's name (postgres, mysql,
                 mariadb, sqlserver, oracle), or another integer field of `source`
    unavailable  the connector's unavailable.value.placeholder: the source left the value of a column out. An
                 Upsert with a history keeps the value that the row had; any other pipeline rejects the event
    binary       how the connector writes bytes into text (binary.handling.mode): "base64", "base64-url-safe" or "hex".
                 Bytes of its default setting, bytes, need no declaration
    registry     the address of a Confluent schema registry, such as "http://host:8081": values then are Avro bodies
                 that begin with byte 0 and the ID of their schema, or a header of the record has it
    truncate     what a truncate of the table becomes: "reject", or with "apply" the deletion of all rows of an Upsert
                 whose latest change is older; this needs a version

    The following are for events without a schema; a schema says it itself:

    epoch        what numbers count since 1970 or midnight, as in `{"created": "us"}`: ms, us or ns, or d for a date
    times        the connector's time.precision.mode
    decimals     the connector's decimal.handling.mode; with "precise", a numeric column has the scale of its source

    A row is `after`, or for a delete `before`, which needs only the key. The tombstone that follows a delete is
    counted and has no further effect, and so are events that carry no row: logical decoding messages, heartbeats,
    transaction metadata and schema changes.

    Raises ConfigurationError for a version that does not order changes, or is a column of the row, and for
    declarations that do not suit their columns; decode() raises RegistryUnavailable if the registry cannot be reached.
    """

    null_is_tombstone: ClassVar[bool] = True
    tombstone_deletes: ClassVar[bool] = False

    schema: str
    version: str | None = None
    unavailable: str = field(default="__debezium_unavailable_value", kw_only=True)
    binary: BinaryText | None = field(default=None, kw_only=True)
    epoch: Mapping[str, str] = field(default_factory=dict, kw_only=True, hash=False)
    times: Times | None = field(default=None, kw_only=True)
    decimals: Decimals | None = field(default=None, kw_only=True)
    registry: str | None = field(default=None, kw_only=True)
    truncate: Literal["reject", "apply"] = field(default="reject", kw_only=True)
    properties: Mapping[str, Any] = field(default_factory=dict, kw_only=True, repr=False, compare=False)
    columns: tuple[Column, ...] = field(init=False, repr=False)
    fields: tuple[Field, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_types(self)
        fields = parse_fields(self.schema)
        check_fields(fields)
        row = tuple(each.column for each in fields)
        versions = version_columns(position_of(self.version))
        for column in versions:
            if column.name in [of_row.name for of_row in row]:
                raise ConfigurationError(
                    f"version={self.version!r}: {column.name!r}, a part of the position, is also a column of the row: "
                    f"rename the column, as in \"row_{column.name} bigint from '{column.name}'\""
                )
        if not self.unavailable:
            raise ConfigurationError(
                "unavailable='': expected the connector's unavailable.value.placeholder, which is not empty"
            )
        check_epoch(self.epoch, self.times, row)
        check_address(self.registry)
        if self.registry is not None and (self.epoch or self.times or self.decimals):
            raise ConfigurationError(
                f"{type(self).__name__} with a registry: the schemas say what epoch, times and decimals would declare. "
                f"Remove them."
            )
        object.__setattr__(self, "columns", (*row, *versions))
        object.__setattr__(self, "fields", fields)

    @property
    def truncate_order(self) -> tuple[str, ...] | None:
        """The columns of the version, which order truncates that are applied; None if a truncate is a reject."""
        return self.position_columns if self.truncate == "apply" else None

    @property
    def position_columns(self) -> tuple[str, ...]:
        """The columns of the version; () if there is none."""
        return tuple(self._position.columns) if self._position else ()

    @cached_property
    def _position(self) -> Position | None:
        return position_of(self.version)

    # What Flattened, whose events are the rows themselves, has in another way:

    def _check_payload(self, payload: ConnectType) -> None:
        """Raise ValueError for a type of events with a schema that carry no row."""
        if not is_envelope(payload):
            raise ValueError("the event has no op, before or after")

    def _change_nothing(self, values: "pa.BinaryArray", payload: ConnectType | None) -> "pa.BooleanArray":
        return change_nothing(values, payload)

    def _are_documents(self, values: "pa.BinaryArray", payload: ConnectType | None) -> "pa.BooleanArray":
        return are_documents(values, payload)

    @property
    def _row_types(self) -> RowTypes:
        return images_of

    def _rows_in(self, event: dict[str, Any]) -> Sequence[Any]:
        return images_in(event)

    @property
    def _rows_of(self) -> RowsOf:
        return rows_of_envelope

    def _json_images(
        self, text: "pa.StringArray", readings: Mapping[str, Reading], source: "Mapping[str, pa.DataType]"
    ) -> Images:
        return json_images(text, readings, source)

    def _avro_images(
        self,
        events: Sequence[Mapping[str, Any]],
        readings: Mapping[str, Reading],
        source: "Mapping[str, pa.DataType]",
    ) -> Images:
        return avro_images(events, readings, source)

    def _row_of(self, event: dict[str, Any]) -> Any:
        return event.get("before" if event.get("op") == DELETE else "after")

    def _why_no_row(self, event: dict[str, Any]) -> str | None:
        """Return the reason to reject an event, or the mark of one that changes no row; None for a change of a row."""
        if changes_nothing(event):
            return NOTHING
        if self.truncate == "reject" and (reason := truncated(event)):
            return reason
        names = {self.field_names[column.name] for column in self._of_row(self.columns)}
        return is_document(event) or no_envelope(event, names)

    def _of_row(self, columns: Sequence[Column]) -> Sequence[Column]:
        return [column for column in columns if column.name not in self.position_columns]

    @cached_property
    def field_names(self) -> Mapping[str, str]:
        """The name of the field of the source's row that each column takes, by column."""
        return {each.column.name: str(each.own_member) for each in self.fields}

    def _refused(self, readings: Mapping[str, Reading], has_schema: bool) -> RefusedEvents:
        return RefusedEvents(
            self._of_row(self.columns),
            self.field_names,
            readings,
            self._rows_of,
            self._placeholder.texts,
            partial(hint_for, has_schema=has_schema),
            self._special,
        )

    def _find_refused(
        self, readings: Mapping[str, Reading], has_schema: bool, values: "pa.BinaryArray"
    ) -> Iterator[tuple[int, str]]:
        """Yield the index of each event in JSON that is surely refused, and the reason."""
        refused = self._refused(readings, has_schema)
        numbers = self._position.numbers if self._position else ()
        written = values.to_pylist()
        unsure: dict[int, dict[str, Any]] = {}
        found: dict[int, dict[str, Any]] = {}
        for index, value in enumerate(written):
            if len(value) > LARGE:
                continue
            events = found
            try:
                if (reason := refused.reason(value)) is not None:
                    yield index, reason
                    continue
            except (Undecided, RecursionError):
                events = unsure
            with suppress(Undecided, RecursionError):
                events[index] = plain_envelope(value, numbers)
        each = found | unsure
        for index, reason in chain(
            refused_by([self._check_marks], each, self._marked_alike),
            self._without_position({index: each[index] for index in found if index in each}),
        ):
            yield index, self._special(event_of(written[index])) or reason_from_arrow(reason, named=True)

    def _by_field(self, readings: Mapping[str, Reading], columns: Sequence[Column]) -> Mapping[str, Reading]:
        return {self.field_names[column.name]: readings[column.name] for column in self._of_row(columns)}

    @cached_property
    def _placeholder(self) -> Placeholder:
        return Placeholder(self.unavailable)

    @property
    def reads_schema_ids(self) -> bool:
        """True if a registry has the schemas of the values."""
        return self.registry is not None

    def decode(self, values: "pa.BinaryArray") -> Decoded:
        """Decode n values, in one block for each schema that their connector gives them.

        An event that lacks a value is a reject.
        """
        import pyarrow.compute as pc

        decoded = self.decode_with_unchanged(values)
        if (unchanged := decoded.unchanged) is None:
            return decoded
        whole = unchanged.is_null()
        lacking = zip(decoded.kept.filter(pc.invert(whole)), unchanged.drop_null(), strict=True)
        refused = [
            (at.as_py(), self._left_out(values[at.as_py()], names.as_py()[0])) for at, names in lacking
        ]
        assert decoded.deleted is not None
        return replace(
            decoded,
            rows=decoded.rows.filter(whole),
            kept=decoded.kept.filter(whole),
            rejects=tuple(sorted([*decoded.rejects, *refused])),
            deleted=decoded.deleted.filter(whole),
            unchanged=None,
            truncated=None if decoded.truncated is None else decoded.truncated.filter(whole),
        )

    def decode_with_unchanged(self, values: "pa.BinaryArray") -> Decoded:
        """Decode n values, as decode() does, and say which columns an event lacks."""
        present = positions(values).filter(values.is_valid())
        parts = [Decoded(self._no_rows, present[:0])]
        if self.registry is None:
            events = without_marks(values.drop_null())
            parts += [self._decode_group(group) for group in by_schema(events, present)]
        else:
            inquiry = Inquiry()
            parts += [self._decode_avro(*group, inquiry) for group in by_header(values.drop_null(), present)]
        decoded = in_order(parts, values.null_count)
        # By their places: a column of the row may have the name of a mark.
        columns = len(self.columns)
        deleted, is_truncate, unchanged = decoded.rows.columns[columns:]
        return replace(
            decoded,
            rows=decoded.rows.select(range(columns)),
            deleted=deleted,
            unchanged=unchanged if unchanged.null_count < len(unchanged) else None,
            truncated=is_truncate if is_truncate.true_count else None,
        )

    @cached_property
    def _no_rows(self) -> "pa.RecordBatch":
        import pyarrow as pa

        return pa.RecordBatch.from_pylist([], self._marked(self.columns))

    def _marked(self, columns: Sequence[Column]) -> "pa.Schema":
        """The columns of a row, then whether it is a delete, whether it is a truncate, which is a delete, too, and the
        columns for which a write has no value."""
        import pyarrow as pa

        marks = [pa.field("deleted", pa.bool_()), pa.field("truncated", pa.bool_())]
        return pa.schema([*stored_schema(columns), *marks, pa.field("left_out", pa.list_(pa.string()))])

    def _decode_group(self, group: Group) -> Decoded:
        """Decode events of one schema; count those that change nothing as tombstones."""
        import pyarrow.compute as pc

        try:
            payload = None if group.schema is None else from_json(group.schema)
            is_nothing = self._change_nothing(group.values, payload)
            is_event = pc.invert(is_nothing)
            values, at = group.values.filter(is_event), group.at.filter(is_event)
            is_document = self._are_documents(values, payload)
            documents, rows = values.filter(is_document), values.filter(pc.invert(is_document))
            of_documents = readings_of(self.fields, document_reading) if len(documents) else {}
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
                partial(self._find_refused, of_rows, has_schema) if len(rows) else None,
            )
        ]
        if len(documents):
            parts.append(
                decode_block_or_halves(
                    with_rows(documents, self.fields),
                    at.filter(is_document),
                    partial(self._decode_block, of_documents, True),
                    partial(self._find_refused, of_documents, True),
                )
            )
        decoded = _without_nothing(in_order(parts, 0))
        return replace(decoded, tombstones=decoded.tombstones + is_nothing.true_count)

    def _decode_avro(
        self, header: bytes, values: "pa.BinaryArray", at: "pa.Int64Array", inquiry: Inquiry
    ) -> Decoded:
        """Decode events whose values begin with the same header; count those that change nothing as tombstones."""
        try:
            schema = schema_after(header, str(self.registry), self.properties, inquiry)[1]
            events = events_of(schema, len(header))
            readings = readings_by_type(events, self._row_types, self.fields, self.binary)
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
        self, events: AvroEvents, readings: Mapping[str, Reading], values: "pa.BinaryArray"
    ) -> "pa.RecordBatch":
        """Return the rows as _rows() does; for a single value, the ValueError says what the value is."""
        if len(values) == 0:
            return self._no_rows
        decoded = events.decode(values)
        try:
            self._check_payload(events.payload)
            return self._rows_of_events(readings, self.columns, decoded)
        except ValueError as error:
            refused = self._refused_events(events, readings, {0: decoded[0]}) if len(values) == 1 else ()
            raise ValueError(next((reason for _, reason in refused), str(error))) from None

    def _find_refused_avro(
        self, events: AvroEvents, readings: Mapping[str, Reading], values: "pa.BinaryArray"
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
        yield from self._refused_events(events, readings, found)

    def _refused_events(
        self, events: AvroEvents, readings: Mapping[str, Reading], found: dict[int, dict[str, Any]]
    ) -> Iterator[tuple[int, str]]:
        """Yield the index of each decoded event that is refused, and why: for what it is, or for its first column."""

        def why(index: int, reason: str) -> tuple[int, str]:
            return index, reason if reason == NOTHING else self._special(each[index]) or reason

        each = dict(found)
        columns = self._of_row(self.columns)
        checks = [partial(self._values_of_events, readings[own.name], own) for own in columns]
        for refused in chain(
            refused_by([lambda _events: self._check_payload(events.payload)], found, lambda _event: None),
            refused_by([self._check_marks], found, self._marked_alike),
            refused_by(checks, found),
            self._without_position(found),
        ):
            yield why(*refused)
        indexes = list(found)
        for column in self._of_row(self.columns):
            values = self._values_of_events(readings[column.name], column, list(found.values()))
            for place, reason in find_unstorable(column, values):
                yield why(indexes[place], reason)
                found.pop(indexes[place], None)
            indexes = list(found)
        # What else _rows() refuses, it rarely does.
        for refused in refused_by(
            [partial(self._check_events, readings, own) for own in self.columns], found
        ):
            yield why(*refused)

    def _without_position(self, found: dict[int, dict[str, Any]]) -> Iterator[tuple[int, str]]:
        """Yield the index of each change that has no position, and why. Removes them."""
        if self._position is not None:
            yield from refused_by([self._check_positions], found, self._placed_alike)

    def _marked_alike(self, event: Mapping[str, Any]) -> Hashable:
        return repr(event.get("op")), *(type(event.get(image)) for image in ("before", "after"))

    def _placed_alike(self, event: Mapping[str, Any]) -> Hashable:
        assert self._position is not None
        source = event.get("source") or {}
        return event.get("op") == SNAPSHOT, *(repr(source.get(name)) for name in self._position.fields)

    def _check_marks(self, events: Sequence[dict[str, Any]]) -> None:
        """Raise ValueError for events that change no row, or have none."""
        self._marks(self._avro_images(events, {}, {}))

    def _check_positions(self, events: Sequence[dict[str, Any]]) -> None:
        """Raise ValueError for changes without a position."""
        import pyarrow.compute as pc

        assert self._position is not None
        images = self._avro_images(events, {}, source_types(self._position))
        try:
            self._position.read(images.source, pc.equal(images.op, SNAPSHOT))
        except ValueError as error:
            column = version_columns(self._position)[0]
            raise ValueError(f"column {column.name!r}, {column.type}: {error}") from None

    def _values_of_events(
        self, reading: Reading, column: Column, events: Sequence[dict[str, Any]]
    ) -> "pa.Array":
        """Return the values of a column, or raise ValueError that names it."""
        name = self.field_names[column.name]
        rows = [self._row_of(event) or {} for event in events]
        try:
            values = self._in_declared_text(reading, read_as(reading, [row.get(name) for row in rows]))
            return converted(reading, self._without_placeholder(column, values)[0])
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
    ) -> "pa.RecordBatch":
        """Return rows of some columns, with their marks, from decoded events."""
        images = self._avro_images(events, self._by_field(readings, columns), self._source_of(columns))
        return self._rows(images, readings, columns, self._version_of(columns))

    def _special(self, event: dict[str, Any]) -> str | None:
        """Return the reason to reject an event, or the mark of one that changes no row; None for a change."""
        if reason := self._why_no_row(event):
            return reason
        row = self._row_of(event)
        for column in self._of_row(self.columns):
            if isinstance(row, dict) and self._placeholder.is_in(row.get(self.field_names[column.name])):
                return self._left_out_of(event, column.name)
        return None

    def _version_of(self, columns: Sequence[Column]) -> Sequence[str]:
        names = [column.name for column in columns]
        return [name for name in self.position_columns if name in names]

    def _source_of(self, columns: Sequence[Column]) -> "Mapping[str, pa.DataType]":
        """Return the fields of the source that the versions among some columns are made of."""
        return source_types(self._position) if self._position and self._version_of(columns) else {}

    def _readings(self, schema: bytes | None) -> Mapping[str, Reading]:
        """Return how each column of the row is read from events with a schema, or without one."""
        if schema is not None:
            return readings_by(schema, self._row_types, self.fields, self.binary)
        return readings_of(
            self.fields, lambda column: declared_reading(column, self.epoch, self.times, self.decimals)
        )

    def _decode_block(
        self, readings: Mapping[str, Reading], has_schema: bool, values: "pa.BinaryArray"
    ) -> "pa.RecordBatch":
        """Return the rows as _read() does; for a single value, the ValueError says what the value is."""
        read = partial(self._read, readings, has_schema, values)
        try:
            return read(self.columns)
        except ValueError:
            if len(values) > 1:
                raise
            if reason := self._special(event_of(values[0].as_py())):
                raise ValueError(reason) from None
            reason = why_refused(values, self.columns, read)
            for column in self.columns:
                if reason.startswith(f"column {column.name!r}, "):
                    reason = hint_for(column, reason, has_schema=has_schema)
            raise ValueError(reason) from None

    def _read(
        self,
        readings: Mapping[str, Reading],
        has_schema: bool,
        values: "pa.BinaryArray",
        read_columns: Sequence[Column],
    ) -> "pa.RecordBatch":
        """Return rows of some columns with their marks."""
        import pyarrow as pa

        if len(values) == 0:
            return pa.RecordBatch.from_pylist([], self._marked(read_columns))
        text = objects(values)
        images = self._json_images(
            text, self._by_field(readings, read_columns), self._source_of(read_columns)
        )
        if not has_schema and self.decimals is None:
            own = [each for each in self.fields if each.column in read_columns]
            refuse_ambiguous(text, own, self._rows_in)
        return self._rows(images, readings, read_columns, self._version_of(read_columns))

    def _rows(
        self,
        images: Images,
        readings: Mapping[str, Reading],
        read_columns: Sequence[Column],
        version: Sequence[str],
    ) -> "pa.RecordBatch":
        """Return the rows of events for some columns, with their marks."""
        import pyarrow as pa
        import pyarrow.compute as pc

        row_columns = self._of_row(read_columns)
        deleted, is_truncate = self._marks(images)
        columns = [
            self._in_declared_text(
                readings[column.name], images.column(self.field_names[column.name], deleted)
            )
            for column in row_columns
        ]
        columns, left_out = self._without_placeholders(row_columns, columns, deleted)
        # An insert lacks values if an update has changed the key: they are those of another key's row.
        if pc.any(pc.and_not(left_out.is_valid(), pc.equal(images.op, UPDATE))).as_py():
            raise ValueError("the source left out a value of a new row, which no older change of its key has")
        columns = [
            converted(readings[c.name], values) for c, values in zip(row_columns, columns, strict=True)
        ]
        if version and self._position is not None:
            parts = self._position.read(images.source, pc.equal(images.op, SNAPSHOT))
            columns += [
                part for name, part in zip(self._position.columns, parts, strict=True) if name in version
            ]
        schema = self._marked(read_columns)
        table = pa.Table.from_arrays([*columns, deleted, is_truncate, left_out], schema.names)
        return as_stored(table, schema, finite=False).combine_chunks().to_batches()[0]

    def _marks(self, images: Images) -> "tuple[pa.BooleanArray, pa.BooleanArray]":
        """Return whether each event is a delete or truncate, and whether it is a truncate. Raises ValueError for events
        that change no row, or have none."""
        import pyarrow.compute as pc

        deleted = deletes(images.op, with_truncates=self.truncate == "apply")
        is_truncate = pc.equal(images.op, TRUNCATE)
        for name, its in (("before", pc.and_not(deleted, is_truncate)), ("after", pc.invert(deleted))):
            if pc.any(pc.and_not(its, images.has(name))).as_py():
                raise ValueError(f"the event has no {name!r}, which would hold its row")
        return deleted, is_truncate

    def _without_placeholders(
        self, row_columns: Sequence[Column], columns: "Sequence[pa.Array]", deleted: "pa.BooleanArray"
    ) -> "tuple[list[pa.Array], pa.ListArray]":
        """Return the columns with null for a value that was left out and bytes for bytea, and for each write the
        columns whose values were left out, null if there are none. A delete does not need them."""
        import pyarrow.compute as pc

        whole = []
        left_out: dict[str, pa.BooleanArray] = {}
        for column, values in zip(row_columns, columns, strict=True):
            values, matches = self._without_placeholder(column, values)
            if pc.any(matches).as_py():
                left_out[column.name] = pc.and_not(matches, deleted)
            whole.append(values)
        return whole, names_where(left_out, len(deleted))

    def _without_placeholder(self, column: Column, values: "pa.Array") -> "tuple[pa.Array, pa.BooleanArray]":
        """Return a column with null for a value that was left out and bytes for bytea, and which were left out."""
        import pyarrow as pa
        import pyarrow.compute as pc

        matches = self._placeholder.matches(column, values)
        if pc.any(matches).as_py():
            values = pc.if_else(matches, pa.scalar(None, values.type), values)
        return self._bytes(values) if is_bytea(column) else values, matches

    def _in_declared_text(self, reading: Reading, values: "pa.Array") -> "pa.Array":
        """Return bytes in the text that the pipeline declares, as _bytes() expects them."""
        if not reading.is_base64 or self.binary in (None, "base64"):
            return values
        return encoded_text(decoded_text(values, "base64"), self.binary)

    def _bytes(self, values: "pa.Array") -> "pa.Array":
        encoding = self.binary or "base64"
        try:
            return decoded_text(values, encoding)
        except ValueError as error:
            raise ValueError(
                f"{error}. Does the connector's binary.handling.mode match binary={encoding!r}?"
            ) from None

    def _left_out(self, value: "pa.BinaryScalar", column: str) -> str:
        return self._left_out_of(event_of(value.as_py()), column)

    def _left_out_of(self, event: dict[str, Any], column: str) -> str:
        table = table_of(event)
        return (
            f"column {column!r}: the source left the value out, and Debezium wrote {self.unavailable} instead. "
            f"For Postgres, run `alter table {table} replica identity full` at the source, or configure "
            f"the connector's ReselectColumnsPostProcessor to read such values"
        )


def _without_nothing(decoded: Decoded) -> Decoded:
    """Return what was decoded; events that change no row are tombstones and no rejects."""
    rejects = tuple(reject for reject in decoded.rejects if reject[1] != NOTHING)
    return replace(decoded, rejects=rejects, tombstones=len(decoded.rejects) - len(rejects))
