"""Decode records for an audit as a batch stages them."""

import pyarrow as pa

from exactbatch.audit.log_records import LogRecords
from exactbatch.audit.report import Offsets
from exactbatch.formats import Format, WithMessage, as_changes, epoch_starts, with_epochs
from exactbatch.formats.format import Decoded, LeavesValuesOut
from exactbatch.offsets import TopicPartition
from exactbatch.pipeline import Pipeline


def decode_values(
    pipeline: Pipeline, value: Format | WithMessage, values: pa.BinaryArray, records: LogRecords | None = None
) -> Decoded:
    """Decode values with a format; `records` are needed by one that reads their keys or headers."""
    if isinstance(value, WithMessage):
        assert records is not None
        return value.decode(values, records)
    if pipeline.sink.keeps_unchanged and isinstance(value, LeavesValuesOut):
        return value.decode_with_unchanged(values)
    return value.decode(values)


def decode_records(
    pipeline: Pipeline,
    value: Format | WithMessage,
    key: Format | None,
    values: pa.BinaryArray,
    records: LogRecords,
    partition: TopicPartition,
    offsets: Offsets,
) -> Decoded:
    """Decode records of a partition with the formats of their values and keys: into changes, if the sink keeps
    deletes."""
    decoded = decode_values(pipeline, value, values, records)
    if not pipeline.sink.keeps_deletes:
        return decoded
    names = {column.name for column in pipeline.value.columns}
    changes = as_changes(
        decoded,
        values,
        records.keys(),
        key,
        tuple(name for name in pipeline.sink.key_columns if name in names),
        tombstones_delete=value.tombstone_deletes,
        keeps_unchanged=pipeline.sink.keeps_unchanged,
    )
    if not (epochs := pipeline.sink.epochs):
        return changes
    return with_epochs(changes, pa.array(offsets, pa.int64()), epoch_starts(epochs, partition))
