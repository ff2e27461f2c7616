"""The columns of JSON records, for a transform: most records are read by the compiled loop."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from exactbatch.batch.rows.decode import ReadTask
from exactbatch.batch.rows.json_loop import JsonLoop, json_loop
from exactbatch.columns import LINEAGE_NAMES
from exactbatch.compiled.row_frame import copied_names
from exactbatch.compiled.rows_arrow import RowsAsArrow
from exactbatch.formats.format import Decoded
from exactbatch.kafka.records import Records


class FastDecoder:
    """Decodes the records of one range into what their format would give."""

    def __init__(self, loop: JsonLoop, schema: pa.Schema) -> None:
        """`schema` has the format's columns."""
        self._loop = loop
        self._rows = RowsAsArrow(schema, loop.head_size)

    def decode(self, records: Records, strict: Callable[[Records], Decoded]) -> tuple[Decoded, int]:
        """Decode records, those that the loop declines by `strict`; return also how many the loop took."""
        taken = self._loop.take(records)
        if taken is None or not taken.rows:
            return strict(records), 0
        rows = self._rows.read(taken.data, taken.rows)
        if not len(taken.declined):
            return Decoded(rows, pa.array(np.arange(taken.rows))), taken.rows
        others = strict(records.take(taken.declined.tolist()))
        by_loop = np.delete(np.arange(len(records)), taken.declined)
        kept = np.concatenate([by_loop, taken.declined[others.kept.to_numpy()]])
        order = np.argsort(kept)
        return (
            Decoded(
                pa.concat_batches([rows, others.rows]).take(pa.array(order)),
                pa.array(kept[order]),
                tuple((int(taken.declined[index]), reason) for index, reason in others.rejects),
                others.tombstones,
            ),
            taken.rows,
        )


def fast_decoder(task: ReadTask) -> FastDecoder | None:
    """Return the decoder of a range; None for values that the loop does not read, and for changes of keys."""
    if task.changes is not None:
        return None
    names = copied_names([*LINEAGE_NAMES, *(column.name for column in task.value.columns)], {})
    if (loop := json_loop(task, names, {})) is None:
        return None
    return FastDecoder(loop, pa.schema([(column.name, column.arrow_type) for column in task.value.columns]))
