"""The compiled loop over the JSON records of one range, as long as it takes most of them."""

from collections.abc import Mapping, Sequence
from typing import Final

from exactbatch.batch.rows.decode import ReadTask
from exactbatch.columns import LINEAGE_NAMES, Column
from exactbatch.compiled.json_kernel import JsonKernel, TakenRows, is_readable
from exactbatch.compiled.row_frame import row_frame
from exactbatch.formats import Json
from exactbatch.kafka.records import Records

# To try the loop on a record that it declines costs about a fifth of decoding it strictly.
_MOST_DECLINED: Final = 0.2
_TRIED: Final = 2_000  # records, before that share counts
_FALSE: Final = b"\x00\x00\x00\x01\x00"  # a field with a boolean


class JsonLoop:
    """Writes the COPY rows of the records that the loop takes.

    head_size: the bytes of each row that precede the fields of the record's value
    """

    def __init__(self, kernel: JsonKernel, head_size: int) -> None:
        self._kernel, self.head_size = kernel, head_size
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
        self._declined += len(taken.declined)
        return taken


def json_loop(task: ReadTask, names: Sequence[str], constants: Mapping[str, int]) -> JsonLoop | None:
    """Return the loop for rows with these columns, in the order of copied_names(); None if it cannot read them."""
    value = task.value
    if type(value) is not Json or not all(
        is_readable(column, value.epoch.get(column.name)) for column in value.columns
    ):
        return None
    if (members := value.own_members) is None:
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
    return JsonLoop(JsonKernel(taken, value.epoch, frame, required, members), len(frame.head))
