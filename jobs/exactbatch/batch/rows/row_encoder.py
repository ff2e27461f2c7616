"""The rows of a range as bytes of a binary COPY: by the compiled loop over JSON, or from decoded columns."""

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from exactbatch.batch.rows.binary_copy import EncodedRows
from exactbatch.batch.rows.decode import ReadTask
from exactbatch.batch.rows.rejects import REJECT_SCHEMA
from exactbatch.columns import LINEAGE_NAMES, Column
from exactbatch.compiled.arrow_rows import ArrowRows, row_format
from exactbatch.compiled.json_kernel import JsonKernel, TakenRows, is_readable
from exactbatch.compiled.row_frame import copied_names, row_frame
from exactbatch.formats import Json
from exactbatch.kafka.records import Records

# To try the loop on a record that it declines costs about a fifth of decoding it strictly.
_MOST_DECLINED: Final = 0.2
_TRIED: Final = 2_000  # records, before that share counts
_FALSE: Final = b"\x00\x00\x00\x01\x00"  # a field with a boolean


class RowEncoder:
    """Encodes the rows of one range.

    schema: the columns, in the order in which rows have them
    """

    def __init__(self, schema: pa.Schema, kernel: JsonKernel | None) -> None:
        self.schema = schema
        self._kernel = kernel
        self._rows, self._rejects = ArrowRows(schema), ArrowRows(REJECT_SCHEMA)
        self._tried = self._declined = 0

    def take(self, records: Records) -> TakenRows | None:
        """Encode the records that the compiled loop takes; None if it is not worth trying."""
        if self._kernel is None:
            return None
        if self._tried >= _TRIED and self._declined > _MOST_DECLINED * self._tried:
            return None
        block = records.block()
        taken = self._kernel.take(
            block.data, block.starts, block.ends, block.present, block.offsets, block.timestamps_ms
        )
        self._tried += len(records)
        self._declined += len(taken.declined)
        return taken

    def encode(self, batch: pa.RecordBatch) -> EncodedRows:
        """Encode decoded rows with their lineage."""
        return EncodedRows(self._rows.write(batch), len(batch))

    def encode_rejects(self, batch: pa.RecordBatch) -> EncodedRows:
        """Encode rejects with the columns of REJECT_SCHEMA."""
        return EncodedRows(self._rejects.write(batch), len(batch))


def row_encoder(task: ReadTask, schema: pa.Schema, constants: Mapping[str, int]) -> RowEncoder | None:
    """Return the encoder of a range whose rows have these columns; None if a column has a type without one.

    `constants` are the values of bigint columns of the schema that are the same for all rows.
    """
    if any(row_format(field.type) is None for field in schema):
        return None
    names = copied_names(schema.names, constants)
    ordered = pa.schema([schema.field(name) for name in names])
    return RowEncoder(ordered, _json_kernel(task, names, constants))


def _json_kernel(task: ReadTask, names: list[str], constants: Mapping[str, int]) -> JsonKernel | None:
    value = task.value
    if type(value) is not Json or not all(
        is_readable(column, value.epoch.get(column.name)) for column in value.columns
    ):
        return None
    columns = {column.name: column for column in value.columns}
    own = names[len(constants) + len(LINEAGE_NAMES) :]
    # The rows of an Upsert end with `deleted`, which is false for every record with a value.
    has_deleted = task.changes is not None
    taken: list[Column] = [columns[name] for name in (own[:-1] if has_deleted else own)]
    frame = row_frame(
        len(names),
        task.range.topic,
        task.range.partition,
        constants,
        tail=_FALSE if has_deleted else b"",
    )
    required = task.changes.key_columns if task.changes is not None else ()
    return JsonKernel(taken, value.epoch, frame, required)
