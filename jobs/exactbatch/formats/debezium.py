"""The format Debezium: change events as JSON, with or without their schema."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, ClassVar, Final

from exactbatch.columns import Column, parse_columns
from exactbatch.errors import ConfigurationError
from exactbatch.formats.binary_text import BinaryText, decoded_text
from exactbatch.formats.debezium_event import event_of, other_event, table_of
from exactbatch.formats.debezium_placeholder import Placeholder, names_where
from exactbatch.formats.format import Decoded, decode_present
from exactbatch.formats.json import as_stored, objects, read_objects, readable, stored_schema, why_refused
from exactbatch.options import check_types

if TYPE_CHECKING:
    import pyarrow as pa

# Debezium's documentation, "Change event values": create, update, delete, and read (of a snapshot).
_WRITES: Final = ("c", "u", "r")
_DELETE: Final = "d"
_NO_ORDER: Final = (
    "give Debezium and the Upsert no version: all changes of a key are in one partition by default"
)
# Fields of `source` that do not order the changes, and why.
_POSITION: Final = "a position inside a binlog file, which starts again with each new file"
_CLOCK: Final = "a clock, which can repeat a time and go back"
_TRANSACTION: Final = "a transaction number, and transactions do not commit in the order of their numbers"
_TEXT: Final = "not an integer"
_NO_VERSION: Final = {
    **dict.fromkeys(("pos", "row", "file", "gtid", "server_id", "thread"), _POSITION),
    **dict.fromkeys(("ts_ms", "ts_us", "ts_ns", "ts_sec", "ts_usec"), _CLOCK),
    **dict.fromkeys(("txId", "xmin"), _TRANSACTION),
    **dict.fromkeys(("event_serial_no", "ssn", "ord"), "a position inside a transaction or second"),
    **dict.fromkeys(("change_lsn", "commit_lsn", "scn", "commit_scn", "sequence", "vgtid"), _TEXT),
}


@dataclass(frozen=True)
class Debezium:
    """Values are Debezium's envelopes {before, after, op, source}, bare or as the payload next to their schema.

    schema       the columns of the row, as for Json
    version      an integer field of `source` that orders the changes, which becomes a column of that name:
                 "lsn" for Postgres. Other connectors have no such field: omit the option
    unavailable  the connector's unavailable.value.placeholder: an event that has it in a column, because the
                 source left the value out, is a reject
    binary       how the connector encodes bytea: "base64" (binary.handling.mode=bytes, its default, and base64),
                 "base64-url-safe" or "hex"

    A row is `after`, or for a delete `before`, which needs only the key. The tombstone that follows a delete is
    counted and has no further effect. An event that is not a change of a row, such as a truncate, is a reject.

    Configure the connector to write times as ISO text and decimals as text or numbers: time.precision.mode=isostring,
    decimal.handling.mode=string or double.

    Raises ConfigurationError for a version that does not order changes, or is a column of the row.
    """

    null_is_tombstone: ClassVar[bool] = True
    tombstone_deletes: ClassVar[bool] = False

    schema: str
    version: str | None = None
    unavailable: str = field(default="__debezium_unavailable_value", kw_only=True)
    binary: BinaryText = field(default="base64", kw_only=True)
    columns: tuple[Column, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_types(self)
        row = parse_columns(self.schema)
        if self.version in [column.name for column in row]:
            raise ConfigurationError(
                f"version={self.version!r}, a field of source, is also a column of the row: rename the column"
            )
        if self.version in _NO_VERSION:
            raise ConfigurationError(
                f"version={self.version!r}: source.{self.version} is {_NO_VERSION[self.version]}, so that "
                f"newer changes could count as older ones. For Postgres use version='lsn'; otherwise {_NO_ORDER}."
            )
        if not self.unavailable:
            raise ConfigurationError(
                "unavailable='': expected the connector's unavailable.value.placeholder, which is not empty"
            )
        version = () if self.version is None else (Column(self.version, "bigint"),)
        object.__setattr__(self, "columns", (*row, *version))

    def _of_row(self, columns: Sequence[Column]) -> Sequence[Column]:
        return [column for column in columns if column.name != self.version]

    def _envelope(self, columns: Sequence[Column]) -> "pa.Schema":
        """The schema by which a value is read for some columns; a payload repeats the same fields."""
        import pyarrow as pa

        row = pa.struct([pa.field(column.name, _written_as(column)) for column in self._of_row(columns)])
        fields = [pa.field("before", row), pa.field("after", row), pa.field("op", pa.string())]
        if self.version in [column.name for column in columns]:
            fields.append(pa.field("source", pa.struct([pa.field(self.version, pa.int64())])))
        return pa.schema([*fields, pa.field("payload", pa.struct(fields))])

    @cached_property
    def _placeholder(self) -> Placeholder:
        return Placeholder(self.unavailable)

    def decode(self, values: "pa.BinaryArray") -> Decoded:
        """Decode n values, in one block if all of them are envelopes. An event that lacks a value is a reject."""
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
        )

    def decode_with_unchanged(self, values: "pa.BinaryArray") -> Decoded:
        """Decode n values, in one block if all of them are envelopes, and say which columns an event lacks."""
        decoded = decode_present(values, self._decode_block)
        *names, deleted, left_out = decoded.rows.schema.names
        unchanged = decoded.rows.column(left_out)
        return replace(
            decoded,
            rows=decoded.rows.select(names),
            deleted=decoded.rows.column(deleted),
            unchanged=unchanged if unchanged.null_count < len(unchanged) else None,
        )

    def _decode_block(self, values: "pa.BinaryArray") -> "pa.RecordBatch":
        """Return the rows as _read() does; for a single value, the ValueError says what the value is."""
        try:
            return self._read(values, self.columns)
        except ValueError:
            if len(values) > 1:
                raise
            event = event_of(values[0].as_py())
            if other := other_event(event):
                raise ValueError(other) from None
            row = event.get("before" if event.get("op") == _DELETE else "after")
            for column in self._of_row(self.columns):
                if isinstance(row, dict) and self._placeholder.is_in(row.get(column.name)):
                    raise ValueError(self._left_out(values[0], column.name)) from None
            raise ValueError(why_refused(values, self.columns, partial(self._read, values))) from None

    def _read(self, values: "pa.BinaryArray", read_columns: Sequence[Column]) -> "pa.RecordBatch":
        """Return the columns of a row, then whether it is a delete, then the columns for which a write has no value."""
        import pyarrow as pa
        import pyarrow.compute as pc

        stored = stored_schema(read_columns)
        row_columns = self._of_row(read_columns)
        marks = [pa.field("deleted", pa.bool_()), pa.field("left_out", pa.list_(pa.string()))]
        with_marks = pa.schema([*stored, *marks])
        if len(values) == 0:
            return pa.RecordBatch.from_pylist([], with_marks)
        read = read_objects(objects(values), self._envelope(read_columns)).combine_chunks().to_batches()[0]
        has_payload = pc.is_valid(read.column("payload"))

        def of(*path: str) -> "pa.Array":
            """A field of the envelope, bare or in the payload."""
            bare = pc.struct_field(read.column(path[0]), path[1:]) if path[1:] else read.column(path[0])
            return pc.if_else(has_payload, pc.struct_field(read.column("payload"), path), bare)

        deleted = _deletes(of("op"))
        for name, its in (("before", deleted), ("after", pc.invert(deleted))):
            there = pc.if_else(
                has_payload,
                pc.is_valid(pc.struct_field(read.column("payload"), [name])),
                pc.is_valid(read.column(name)),
            )
            if pc.any(pc.and_not(its, there)).as_py():
                raise ValueError(f"the event has no {name!r}, which would hold its row")
        columns = [
            pc.if_else(deleted, of("before", column.name), of("after", column.name)) for column in row_columns
        ]
        columns, left_out = self._without_placeholders(row_columns, columns, deleted)
        if self.version is not None and self.version in stored.names:
            columns.append(of("source", self.version))
            if columns[-1].null_count:
                raise ValueError(f"the event has no source.{self.version}, which orders the changes")
        table = pa.Table.from_arrays([*columns, deleted, left_out], with_marks.names)
        return as_stored(table, with_marks).combine_chunks().to_batches()[0]

    def _without_placeholders(
        self, row_columns: Sequence[Column], columns: "Sequence[pa.Array]", deleted: "pa.BooleanArray"
    ) -> "tuple[list[pa.Array], pa.ListArray]":
        """Return the columns with null for a value that was left out and bytes for bytea, and for each write the
        columns whose values were left out, null if there are none. A delete does not need them."""
        import pyarrow as pa
        import pyarrow.compute as pc

        whole = []
        left_out: dict[str, pa.BooleanArray] = {}
        for column, values in zip(row_columns, columns, strict=True):
            matches = self._placeholder.matches(column, values)
            if pc.any(matches).as_py():
                values = pc.if_else(matches, pa.scalar(None, values.type), values)
                left_out[column.name] = pc.and_not(matches, deleted)
            whole.append(self._bytes(values) if _is_bytea(column) else values)
        return whole, names_where(left_out, len(deleted))

    def _bytes(self, values: "pa.Array") -> "pa.Array":
        try:
            return decoded_text(values, self.binary)
        except ValueError as error:
            raise ValueError(
                f"{error}. Does the connector's binary.handling.mode match binary={self.binary!r}?"
            ) from None

    def _left_out(self, value: "pa.BinaryScalar", column: str) -> str:
        table = table_of(event_of(value.as_py()))
        return (
            f"column {column!r}: the source left the value out, and Debezium wrote {self.unavailable} instead. "
            f"For Postgres, run `alter table {table} replica identity full` at the source, or configure "
            f"the connector's ReselectColumnsPostProcessor to read such values"
        )


def _deletes(op: "pa.StringArray") -> "pa.BooleanArray":
    """Return true for each delete; raise ValueError for an event that is not a change of a row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    known = pc.fill_null(pc.is_in(op, pa.array([*_WRITES, _DELETE])), False)
    if not pc.all(known).as_py():
        unknown = op.filter(pc.invert(known))[0].as_py()
        raise ValueError(f"expected op c, u, r or d, found {'none' if unknown is None else repr(unknown)}")
    return pc.equal(op, _DELETE)


def _is_bytea(column: Column) -> bool:
    return (column.element or column.type) == "bytea"


def _written_as(column: Column) -> "pa.DataType":
    """Return the type in which a column's values are read; bytea is text until placeholders are removed."""
    import pyarrow as pa

    if _is_bytea(column):
        return pa.list_(pa.string()) if column.element else pa.string()
    return readable(column.arrow_type)
