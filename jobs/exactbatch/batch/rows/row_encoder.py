"""The rows of a range as bytes of a binary COPY: by the compiled loop over JSON, or from decoded columns."""

from collections.abc import Mapping, Sequence
from typing import Final

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
from exactbatch.sinks import CheckedJson

# Of a column that ArrowRows only writes null into.
_CHECKED_TYPE: Final = pa.binary()


class RowEncoder:
    """Encodes the rows of one range.

    schema: the columns, in the order in which rows have them
    """

    def __init__(self, schema: pa.Schema, loop: JsonLoop | None, checked: Sequence[str] = ()) -> None:
        """`checked` are the columns of the schema that only the loop fills.

        Raises ValueError for a type that row_format() does not know.
        """
        self.schema = schema
        self._loop, self._checked = loop, checked
        self._rows, self._rejects = ArrowRows(schema), ArrowRows(REJECT_SCHEMA)

    def take(self, records: Records) -> TakenRows | None:
        """Encode the records that the compiled loop takes; None if it is not worth trying."""
        return None if self._loop is None else self._loop.take(records)

    def encode(self, batch: pa.RecordBatch) -> EncodedRows:
        """Encode decoded rows with their lineage."""
        for name in self._checked:
            batch = batch.append_column(name, pa.nulls(len(batch), _CHECKED_TYPE))
        return EncodedRows(self._rows.write(batch), len(batch))

    def encode_rejects(self, batch: pa.RecordBatch) -> EncodedRows:
        """Encode rejects with the columns of REJECT_SCHEMA."""
        return EncodedRows(self._rejects.write(batch), len(batch))


def row_encoder(
    task: ReadTask, schema: pa.Schema, constants: Mapping[str, int], checked: Sequence[CheckedJson] = ()
) -> RowEncoder | None:
    """Return the encoder of a range whose rows have these columns; None if a column has a type without one.

    `constants` are the values of bigint columns of the schema that are the same for all rows. `checked` are columns
    that the rows also have.
    """
    if not is_encodable(schema):
        return None
    names = copied_names(schema.names, constants)
    added = {each.column: pa.field(each.name, _CHECKED_TYPE) for each in checked}
    fields: list[pa.Field] = []
    for name in names:
        fields.append(schema.field(name))
        if name in added:
            fields.append(added[name])
    loop = json_loop(task, names, constants, added)
    return RowEncoder(pa.schema(fields), loop, [each.name for each in checked])
