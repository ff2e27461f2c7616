"""Debezium's change events, as JSON with or without their schema."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Final

from exactbatch.columns import Column, parse_columns
from exactbatch.errors import ConfigurationError
from exactbatch.values.format import Decoded, decode_present
from exactbatch.values.json import as_stored, objects, read_objects, readable, stored_schema

if TYPE_CHECKING:
    import pyarrow as pa

# Debezium's documentation, "Change event values": create, update, delete, and read (of a snapshot).
_WRITES: Final = ("c", "u", "r")
_DELETE: Final = "d"


@dataclass(frozen=True)
class Debezium:
    """Values are Debezium's envelopes {before, after, op, source}, bare or as the payload beside their schema.

    `schema` names the columns of the row, as for Json; `version` names an integer field of `source` that orders
    the changes, such as "lsn" for Postgres or "pos" for MySQL, and becomes a column of that name. A row is
    `after`, or for a delete `before`, of which only the key need be there. The tombstone that follows a delete
    is counted, and deletes nothing more.

    Let the connector write times as ISO text and decimals as text or numbers: time.precision.mode=isostring,
    decimal.handling.mode=string or double.
    """

    null_is_tombstone: ClassVar[bool] = True
    tombstone_deletes: ClassVar[bool] = False

    schema: str
    version: str | None = None
    columns: tuple[Column, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        row = parse_columns(self.schema)
        if self.version in [column.name for column in row]:
            raise ConfigurationError(
                f"expected the version, a field of Debezium's source, beside the columns of the row, found "
                f"{self.version!r} among them: rename the column"
            )
        version = () if self.version is None else (Column(self.version, "bigint"),)
        object.__setattr__(self, "columns", (*row, *version))

    @property
    def _row_columns(self) -> Sequence[Column]:
        return self.columns if self.version is None else self.columns[:-1]

    @cached_property
    def _envelope(self) -> "pa.Schema":
        """What is read of a value; a payload has the same fields once more."""
        import pyarrow as pa

        row = pa.struct([pa.field(column.name, readable(column.arrow_type)) for column in self._row_columns])
        fields = [pa.field("before", row), pa.field("after", row), pa.field("op", pa.string())]
        if self.version is not None:
            fields.append(pa.field("source", pa.struct([pa.field(self.version, pa.int64())])))
        return pa.schema([*fields, pa.field("payload", pa.struct(fields))])

    def decode(self, values: "pa.BinaryArray") -> Decoded:
        """Decode n values, in one block when all of them are envelopes."""
        decoded = decode_present(values, self._decode_block)
        *names, deleted = decoded.rows.schema.names
        return replace(
            decoded,
            rows=decoded.rows.select(names),
            deleted=decoded.rows.column(deleted),
        )

    def _decode_block(self, values: "pa.BinaryArray") -> "pa.RecordBatch":
        """The columns of a row and, last, whether it is a delete; or ValueError."""
        import pyarrow as pa
        import pyarrow.compute as pc

        stored = stored_schema(self.columns)
        if len(values) == 0:
            return pa.RecordBatch.from_pylist([], stored.append(pa.field("deleted", pa.bool_())))
        read = read_objects(objects(values), self._envelope).combine_chunks().to_batches()[0]
        has_payload = pc.is_valid(read.column("payload"))

        def of(*path: str) -> "pa.Array":
            """A field of the envelope, wherever the envelope is."""
            bare = pc.struct_field(read.column(path[0]), path[1:]) if path[1:] else read.column(path[0])
            return pc.if_else(has_payload, pc.struct_field(read.column("payload"), path), bare)

        op = of("op")
        deleted = pc.fill_null(pc.equal(op, _DELETE), False)
        known = pc.fill_null(pc.is_in(op, pa.array([*_WRITES, _DELETE])), False)
        if not pc.all(known).as_py():
            unknown = op.filter(pc.invert(known))[0].as_py()
            raise ValueError(
                f"expected op c, u, r or d, found {'none' if unknown is None else repr(unknown)}"
            )
        for name, its in (("before", deleted), ("after", pc.invert(deleted))):
            there = pc.if_else(
                has_payload,
                pc.is_valid(pc.struct_field(read.column("payload"), [name])),
                pc.is_valid(read.column(name)),
            )
            if pc.any(pc.and_not(its, there)).as_py():
                raise ValueError(f"expected {name!r}, which holds the row of such an event, found none")
        columns = [
            pc.if_else(deleted, of("before", column.name), of("after", column.name))
            for column in self._row_columns
        ]
        if self.version is not None:
            columns.append(of("source", self.version))
            if columns[-1].null_count:
                raise ValueError(f"expected source.{self.version}, which orders the changes, found none")
        names = [column.name for column in self.columns]
        rows = as_stored(pa.Table.from_arrays(columns, names), stored).combine_chunks().to_batches()[0]
        return rows.append_column("deleted", deleted)
