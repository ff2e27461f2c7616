"""The rows of a range as bytes of a binary COPY: by the compiled loop over JSON, or from decoded columns."""

from collections.abc import Mapping

import pyarrow as pa

from exactbatch.batch.rows.binary_copy import EncodedRows
from exactbatch.batch.rows.decode import ReadTask
from exactbatch.batch.rows.json_loop import JsonLoop, json_loop
from exactbatch.batch.rows.rejects import REJECT_SCHEMA
from exactbatch.compiled.arrow_rows import ArrowRows
from exactbatch.compiled.json_kernel import TakenRows
from exactbatch.compiled.row_formats import is_encodable
from exactbatch.compiled.row_frame import copied_names
from exactbatch.kafka.records import Records


class RowEncoder:
    """Encodes the rows of one range.

    schema: the columns, in the order in which rows have them
    """

    def __init__(self, schema: pa.Schema, loop: JsonLoop | None) -> None:
        """Raises ValueError for a type that row_format() does not know."""
        self.schema = schema
        self._loop = loop
        self._rows, self._rejects = ArrowRows(schema), ArrowRows(REJECT_SCHEMA)

    def take(self, records: Records) -> TakenRows | None:
        """Encode the records that the compiled loop takes; None if it is not worth trying."""
        return None if self._loop is None else self._loop.take(records)

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
    if not is_encodable(schema):
        return None
    names = copied_names(schema.names, constants)
    return RowEncoder(pa.schema([schema.field(name) for name in names]), json_loop(task, names, constants))
