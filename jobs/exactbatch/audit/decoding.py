"""Decode records for an audit as a batch stages them."""

from collections.abc import Iterator

import pyarrow as pa

from exactbatch.audit.log_records import LogRecords
from exactbatch.audit.report import Offsets
from exactbatch.formats import Format, WithMessage, as_changes, epoch_starts, with_epochs
from exactbatch.formats.bounds import InParts
from exactbatch.formats.enveloped_nulls import with_nulls
from exactbatch.formats.format import Decoded, LeavesValuesOut
from exactbatch.formats.replaced_text import Messages, decode_replacing
from exactbatch.formats.schema_id_headers import VALUE_HEADER, framed
from exactbatch.offsets import TopicPartition
from exactbatch.pipeline import Pipeline


def decode_values(
    pipeline: Pipeline, value: Format | WithMessage, values: pa.BinaryArray, records: Messages | None = None
) -> Decoded:
    """Decode values with a format; `records` are needed by one that reads their keys or headers."""
    if isinstance(value, WithMessage):
        assert records is not None
        return value.decode(values, records)
    decode = value.decode
    if pipeline.sink.keeps_unchanged and isinstance(value, LeavesValuesOut):
        decode = value.decode_with_unchanged
    if records is None:  # of Json, which needs no headers
        return decode(values)
    return framed(value, VALUE_HEADER, values, records).decode(decode)


def decode_records(
    pipeline: Pipeline,
    value: Format | WithMessage,
    key: Format | None,
    records: LogRecords,
    partition: TopicPartition,
    offsets: Offsets,
) -> Iterator[tuple[slice, Decoded]]:
    """Decode records of a partition, in parts, with the formats of their values and keys: into changes, if the sink
    keeps deletes. Yield the place of each part among the records."""
    start = 0
    epochs = pipeline.sink.epochs
    starts = epoch_starts(epochs, partition) if epochs else None

    def decode(part: LogRecords) -> Decoded:
        return decode_replacing(
            lambda some: _decode(pipeline, value, key, some),
            part,
            pipeline.value,
            pipeline.key,
            pipeline.replace_unstorable,
        )

    for part, decoded in InParts().decode(records, decode):
        place = slice(start, start + len(part))
        if starts is not None:
            decoded = with_epochs(decoded, pa.array(offsets[place], pa.int64()), starts)
        yield place, decoded
        start = place.stop


def _decode(
    pipeline: Pipeline, value: Format | WithMessage, key: Format | None, records: Messages
) -> Decoded:
    values = with_nulls(pipeline.value, records.values())
    decoded = decode_values(pipeline, value, values, records)
    if not pipeline.sink.keeps_deletes:
        return decoded
    names = {column.name for column in pipeline.value.columns}
    return as_changes(
        decoded,
        values,
        records,
        key,
        tuple(name for name in pipeline.sink.key_columns if name in names),
        tombstones_delete=value.tombstone_deletes,
        keeps_unchanged=pipeline.sink.keeps_unchanged,
    )
