"""Decode records for an audit as a batch stages them."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from exactbatch.audit.audit_result import Offsets
from exactbatch.audit.log_records import LogRecords
from exactbatch.formats.bounds import InParts
from exactbatch.formats.decoded import Decoded
from exactbatch.formats.decoder import Decoder
from exactbatch.formats.json.enveloped_nulls import with_nulls
from exactbatch.formats.message.decoder import RecordDecoder
from exactbatch.formats.replaced_text import WholeMessages, decode_replacing
from exactbatch.formats.upsert_changes import as_changes, epoch_starts, with_epochs
from exactbatch.offsets import TopicPartition
from exactbatch.pipeline import Pipeline
from exactbatch.sinks.sink import SinkTraits


def decode_records(
    pipeline: Pipeline,
    traits: SinkTraits,
    value: RecordDecoder,
    key: Decoder[Any] | None,
    records: LogRecords,
    partition: TopicPartition,
    offsets: Offsets,
) -> Iterator[tuple[slice, Decoded]]:
    """Decode records of a partition, in parts, with the decoders of their records and keys: into changes, if the sink
    keeps deletes. Yield the place of each part among the records."""
    start = 0
    epochs = traits.epochs
    starts = epoch_starts(epochs, partition) if epochs else None

    def decode(part: LogRecords) -> Decoded:
        return decode_replacing(
            lambda some: _decode(pipeline, traits, value, key, some),
            part,
            pipeline.value,
            pipeline.message_key,
            pipeline.replace_unstorable,
        )

    for part, decoded in InParts().decode(records, decode):
        place = slice(start, start + len(part))
        if starts is not None:
            decoded = with_epochs(decoded, pa.array(offsets[place], pa.int64()), starts)
        yield place, decoded
        start = place.stop


def _decode(
    pipeline: Pipeline,
    traits: SinkTraits,
    value: RecordDecoder,
    key: Decoder[Any] | None,
    records: WholeMessages,
) -> Decoded:
    values = with_nulls(pipeline.value, records.values())
    decoded = value.decode(values, records, keeps_unchanged=traits.keeps_unchanged)
    if not traits.keeps_deletes:
        return decoded
    names = {column.name for column in pipeline.value.columns}
    return as_changes(
        decoded,
        values,
        records,
        key,
        tuple(name for name in traits.key_columns if name in names),
        tombstones_delete=pipeline.value.tombstone_deletes,
        keeps_unchanged=traits.keeps_unchanged,
    )
