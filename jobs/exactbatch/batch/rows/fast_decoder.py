"""The columns of records for a transform: compiled code reads most JSON records."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from exactbatch.batch.rows.decode import ReadTask
from exactbatch.batch.rows.json_loop import JsonLoop, fields_loop
from exactbatch.compiled.rows_arrow import RowsAsArrow
from exactbatch.formats.bounds import joined
from exactbatch.formats.decoded import Decoded
from exactbatch.kafka.records import Records


class FastDecoder:
    """Decodes the records of one range into what their format would give. `schema` has the format's columns."""

    def __init__(self, loop: JsonLoop, schema: pa.Schema) -> None:
        self._loop, self._rows = loop, RowsAsArrow(schema)

    def decode(self, records: Records, strict: Callable[[Records], Decoded]) -> Decoded:
        """Decode records, those that the loop declines by `strict`."""
        taken = self._loop.take(records)
        if taken is None or not taken.rows:
            return strict(records)
        rows = self._rows.read(taken.data, taken.rows)
        if not len(taken.declined):
            return Decoded(rows, pa.array(np.arange(taken.rows)), taken=taken.rows)
        others = strict(records.take(taken.declined.tolist()))
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


def fast_decoder(task: ReadTask) -> FastDecoder | None:
    """Return the decoder of a range; None if the loop cannot read its records, or gives no changes of keys."""
    if task.changes is not None or (loop := fields_loop(task)) is None:
        return None
    return FastDecoder(loop, pa.schema([(column.name, column.arrow_type) for column in task.value.columns]))
