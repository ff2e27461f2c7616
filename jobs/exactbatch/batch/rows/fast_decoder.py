"""The columns of records for a transform: compiled code reads most JSON records, and packs the fields of columns that
rows keep."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa

from exactbatch.batch.rows.decode import ReadTask
from exactbatch.batch.rows.fast_path import Packing
from exactbatch.batch.rows.json_loop import JsonLoop, fields_loop
from exactbatch.compiled.arrow_rows import ArrowRows
from exactbatch.compiled.json_kernel import TakenRows
from exactbatch.compiled.packed_fields import PackedFields
from exactbatch.compiled.row_formats import PACKED
from exactbatch.compiled.rows_arrow import RowsAsArrow
from exactbatch.formats.bounds import joined
from exactbatch.formats.format import Decoded
from exactbatch.kafka.records import Records


class LoopDecoder:
    """Decodes the records that the loop takes. `schema` has the format's columns."""

    def __init__(self, loop: JsonLoop, schema: pa.Schema, packing: Packing | None) -> None:
        self._loop = loop
        self._rows = RowsAsArrow(schema, None if packing is None else packing.used)
        self._packed = (
            None
            if packing is None
            else PackedFields(len(schema), [schema.get_field_index(name) for name in packing.names])
        )

    def take(self, records: Records) -> TakenRows | None:
        """See JsonLoop."""
        return self._loop.take(records)

    def rows(self, taken: TakenRows) -> pa.RecordBatch:
        """Return the columns of the rows and, if it packs columns, PACKED."""
        rows = self._rows.read(taken.data, taken.rows)
        if self._packed is None:
            return rows
        return rows.append_column(PACKED, self._packed.of_rows(taken.data, taken.ends))


class FastDecoder:
    """Decodes the records of one range into what their format would give and, if it packs columns, PACKED."""

    def __init__(self, loop: LoopDecoder | None, packed: ArrowRows | None) -> None:
        self._loop, self._packed = loop, packed

    def decode(self, records: Records, strict: Callable[[Records], Decoded]) -> Decoded:
        """Decode records, those that the loop declines by `strict`."""
        taken = None if self._loop is None else self._loop.take(records)
        if self._loop is None or taken is None or not taken.rows:
            return self._with_packed(strict(records))
        rows = self._loop.rows(taken)
        if not len(taken.declined):
            return Decoded(rows, pa.array(np.arange(taken.rows)), taken=taken.rows)
        others = self._with_packed(strict(records.take(taken.declined.tolist())))
        by_loop = np.delete(np.arange(len(records)), taken.declined)
        kept = np.concatenate([by_loop, taken.declined[others.kept.to_numpy()]])
        order = np.argsort(kept)
        return Decoded(
            joined([rows, others.rows]).take(pa.array(order)),
            pa.array(kept[order]),
            tuple((int(taken.declined[index]), reason) for index, reason in others.rejects),
            others.tombstones,
            replaced=others.replaced,
            taken=taken.rows,
        )

    def _with_packed(self, decoded: Decoded) -> Decoded:
        if self._packed is None:
            return decoded
        packed = self._packed.packed(decoded.rows)
        return replace(decoded, rows=decoded.rows.append_column(PACKED, packed))


def fast_decoder(
    task: ReadTask, schema: pa.Schema, packing: Packing | None, *, shares_reads: bool
) -> FastDecoder | None:
    """Return the decoder of a range whose rows have the columns of `schema`; None if it has nothing to do.

    The loop reads neither changes of keys nor records that several ranges share.
    """
    packed = None
    if packing is not None:
        packed = ArrowRows(pa.schema([schema.field(name) for name in packing.names]))
    loop = None
    if task.changes is None and not shares_reads:
        loop = fields_loop(task)
    if loop is None:
        return None if packed is None else FastDecoder(None, packed)
    of_format = pa.schema([(column.name, column.arrow_type) for column in task.value.columns])
    return FastDecoder(LoopDecoder(loop, of_format, packing), packed)
