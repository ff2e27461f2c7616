"""The compiled loop over the JSON records of one range, as long as it takes most of them: as COPY rows, or as the
columns for a transform.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from exactbatch.batch.rows.decode import ReadTask
from exactbatch.columns import LINEAGE_NAMES, Column
from exactbatch.compiled.json_kernel import JsonKernel, TakenRows, is_readable
from exactbatch.compiled.row_frame import NO_FRAME, Frame, row_frame
from exactbatch.compiled.rows_arrow import RowsAsArrow
from exactbatch.formats import Json
from exactbatch.formats.bounds import join_batches
from exactbatch.formats.decoded import Decoded
from exactbatch.kafka.records import Records

# To try the loop on a record that it declines costs about a fifth of decoding it with the decoder of the format.
_MOST_DECLINED: Final = 0.2
_TRIED: Final = 2_000  # records, before that share counts
_FALSE: Final = b"\x00\x00\x00\x01\x00"  # a field with a boolean


class JsonLoop:
    """Writes the records that the loop takes as COPY rows, or as the fields of such rows."""

    def __init__(self, kernel: JsonKernel) -> None:
        self._kernel = kernel
        self._tried = self._declined = 0

    def take(self, records: Records) -> TakenRows | None:
        """Return the rows of the records that the loop takes; None if it has declined too many to be worth trying."""
        if self._tried >= _TRIED and self._declined > _MOST_DECLINED * self._tried:
            return None
        block = records.block()
        taken = self._kernel.take(
            block.data, block.starts, block.ends, block.present, block.offsets, block.timestamps_ms
        )
        self._tried += len(records)
        self._declined += len(taken.declined_indexes)
        return taken


def json_loop(
    task: ReadTask, names: Sequence[str], constants: Mapping[str, int], checked: Collection[str] = ()
) -> JsonLoop | None:
    """Return the loop for rows with these columns, in the order of copied_names(); None if it cannot read them.

    Each of the columns `checked` is followed by one more, of type jsonb, that `names` lacks.
    """
    own = names[len(constants) + len(LINEAGE_NAMES) :]
    # The rows of an Upsert end with `deleted`, which is false for every record with a value.
    has_deleted = task.changes is not None
    frame = row_frame(
        len(names) + len(checked),
        task.range.topic,
        task.range.partition,
        constants,
        tail=_FALSE if has_deleted else b"",
    )
    required = task.changes.key_columns if task.changes is not None else ()
    return _loop(task, own[:-1] if has_deleted else own, frame, required, checked)


def fields_loop(task: ReadTask) -> JsonLoop | None:
    """Return the loop that writes the fields of the format's columns alone; None if it cannot read them."""
    return _loop(task, [column.name for column in task.value.columns], NO_FRAME)


def _loop(
    task: ReadTask,
    names: Sequence[str],
    frame: Frame,
    required: Collection[str] = (),
    checked: Collection[str] = (),
) -> JsonLoop | None:
    value = task.value
    if type(value) is not Json or not all(
        is_readable(column, value.epoch.get(column.name)) for column in value.columns
    ):
        return None
    if (members := value.own_members) is None:
        return None
    columns = {column.name: column for column in value.columns}
    taken: list[Column] = [columns[name] for name in names]
    return JsonLoop(JsonKernel(taken, value.epoch, frame, required, members, checked))


class FastDecoder:
    """Decodes the records of one range into what their format would give. `schema` has the format's columns."""

    def __init__(self, loop: JsonLoop, schema: pa.Schema) -> None:
        self._loop, self._rows = loop, RowsAsArrow(schema)

    def decode(self, records: Records, decode_by_format: Callable[[Records], Decoded]) -> Decoded:
        """Decode records, and by `decode_by_format` the records that the loop declines."""
        taken = self._loop.take(records)
        if taken is None or not taken.rows:
            return decode_by_format(records)
        rows = self._rows.read(taken.data, taken.rows)
        if not len(taken.declined_indexes):
            return Decoded(rows, pa.array(np.arange(taken.rows)), fast_count=taken.rows)
        others = decode_by_format(records.take(taken.declined_indexes.tolist()))
        by_loop = np.delete(np.arange(len(records)), taken.declined_indexes)
        kept = np.concatenate([by_loop, taken.declined_indexes[others.kept.to_numpy()]])
        order = np.argsort(kept)
        return Decoded(
            join_batches([rows, others.rows]).take(pa.array(order)),
            pa.array(kept[order]),
            tuple((int(taken.declined_indexes[index]), reason) for index, reason in others.rejects),
            others.tombstones,
            replaced=others.replaced,
            fast_count=taken.rows,
        )


def fast_decoder(task: ReadTask) -> FastDecoder | None:
    """Return the decoder of a range; None if the loop cannot read its records, or gives no changes of keys."""
    if task.changes is not None or (loop := fields_loop(task)) is None:
        return None
    return FastDecoder(loop, pa.schema([(column.name, column.arrow_type) for column in task.value.columns]))
