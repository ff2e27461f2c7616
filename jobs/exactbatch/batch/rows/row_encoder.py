"""The rows of a range as bytes of a binary COPY: by the compiled loop over JSON if that pays and works, or from columns
that pyarrow has decoded.

Compiled code saves 20% of the time of loads of flat JSON, 30% with `layout="by_batch"`, and nothing of nested JSON
(docs/evidence/ablation.md).
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from exactbatch.batch.rows.copy import ArrowEncoder, EncodedRows
from exactbatch.batch.rows.decode import ReadTask
from exactbatch.columns import LINEAGE_NAMES
from exactbatch.compiled.availability import is_available, is_worth_compiling
from exactbatch.compiled.row_frame import copied_names
from exactbatch.kafka.records import Int64s, Records
from exactbatch.sinks.staged_rows import CheckedJson

if TYPE_CHECKING:
    from exactbatch.batch.rows.json_loop import FastDecoder, JsonLoop
    from exactbatch.compiled.json_kernel import TakenRows


def decoder_for(task: ReadTask, *, shares_reads: bool) -> "FastDecoder | None":
    """Return the decoder of a range for a transform; None if pyarrow decodes it. `shares_reads` is True if the range
    shares reads with others."""
    if shares_reads or not reads_fast(task):
        return None
    from exactbatch.batch.rows.json_loop import fast_decoder  # needs the extra `fast`

    return fast_decoder(task)


def reads_fast(task: ReadTask) -> bool:
    """True if compiled code pays for a range, and works."""
    # A worker loads the code once, and reads several ranges one after the other.
    return is_worth_compiling(max(len(task.range), task.slot_offsets)) and is_available()


class RowEncoder:
    """Encodes the rows of a range, or of several. `names` are the columns, in the order in which rows have them."""

    def __init__(
        self, schema: pa.Schema, loop: "JsonLoop | None" = None, checked: Sequence[str] = ()
    ) -> None:
        """`checked` are the columns of the schema that only the loop fills."""
        self.names: list[str] = schema.names
        self._loop, self._checked = loop, {name: schema.field(name).type for name in checked}
        self._arrow = ArrowEncoder(schema)

    def take(self, records: Records) -> "TakenRows | None":
        """Encode the records that the compiled loop takes; None if it is not worth trying."""
        return None if self._loop is None else self._loop.take(records)

    def encode(self, batch: pa.RecordBatch, offsets: Int64s) -> EncodedRows:
        """Encode decoded rows with their lineage; `offsets` are the offsets of their records."""
        for name, type_ in self._checked.items():
            batch = batch.append_column(name, pa.nulls(len(batch), type_))
        return self._arrow.encode(batch, offsets)


def row_encoder(
    task: ReadTask,
    schema: pa.Schema,
    constants: Mapping[str, int],
    checked: Sequence[CheckedJson] = (),
    *,
    shares_reads: bool = False,
) -> RowEncoder:
    """Return the encoder of a range whose rows have the columns of `schema`.

    `constants` are the values of bigint columns of the schema that are the same for all rows. `checked` are columns
    that the rows may also have: the compiled loop fills them. `shares_reads` is True if the range shares reads with
    others, which the loop cannot take; the encoder then takes all of them.
    """
    if shares_reads or not reads_fast(task) or not set(LINEAGE_NAMES).issubset(schema.names):
        return RowEncoder(schema)
    from exactbatch.batch.rows.json_loop import json_loop  # needs the extra `fast`

    names = copied_names(schema.names, constants)
    added = {each.column: pa.field(each.name, pa.binary()) for each in checked}
    if (loop := json_loop(task, names, constants, added)) is None:
        return RowEncoder(schema)
    fields: list[pa.Field] = []
    for name in names:
        fields.append(schema.field(name))
        if name in added:
            fields.append(added[name])
    return RowEncoder(pa.schema(fields), loop, [each.name for each in checked])
