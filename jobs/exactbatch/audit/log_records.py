"""The records that the auditor has read: their parts, what they decode to, as a batch stages it, and which of them a
check of the pipeline refuses, without the code that rejects them.
"""

from collections.abc import Iterator, Mapping, Sequence
from operator import methodcaller
from typing import Any, Final

import numpy as np
import pyarrow as pa
from confluent_kafka import Message
from psycopg2 import sql

from exactbatch.audit.audit_result import Offsets
from exactbatch.columns import Column
from exactbatch.formats.bounds import InParts
from exactbatch.formats.decoded import Decoded
from exactbatch.formats.decoder import Decoder
from exactbatch.formats.json.blocks import with_nulls
from exactbatch.formats.message.decoder import RecordDecoder
from exactbatch.formats.message.record_headers import Header, last_headers, read_headers
from exactbatch.formats.postgres_limits import EARLIEST_TIMESTAMP_MS, LATEST_TIMESTAMP_MS
from exactbatch.formats.replaced_text import WholeMessages, decode_replacing
from exactbatch.formats.upsert_changes import as_changes, epoch_starts, with_epochs
from exactbatch.offsets import TopicPartition
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.types import find_modifier, is_refused
from exactbatch.sinks.sink import SinkTraits

_NO_TIMESTAMP: Final = 0  # RD_KAFKA_TIMESTAMP_NOT_AVAILABLE, the type of timestamp of a record without one

_value = methodcaller("value")
_key = methodcaller("key")
_timestamp = methodcaller("timestamp")


class LogRecords:
    """Records of one partition, in the order of their offsets."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    def part(self, start: int, stop: int) -> "LogRecords":
        """Return some of them, by their positions."""
        return LogRecords(self._messages[start:stop])

    def take(self, positions: Offsets) -> "LogRecords":
        """Return those at some positions, which ascend."""
        return LogRecords([self._messages[position] for position in positions.tolist()])

    def values(self) -> pa.BinaryArray:
        """Value bytes; null for a null value."""
        return pa.array(list(map(_value, self._messages)), pa.binary())

    def keys(self) -> pa.BinaryArray:
        """Key bytes; null for a null key."""
        return pa.array(list(map(_key, self._messages)), pa.binary())

    def headers(self) -> list[Any]:
        """Headers of each record, as read_headers() returns them."""
        return read_headers(self._messages)

    def last_headers(self, name: str) -> Mapping[int, Header]:
        """See Messages."""
        return last_headers(self.headers(), name)

    def timestamps(self) -> pa.TimestampArray:
        """Kafka's timestamps, in milliseconds UTC; null for a record without one (-1), and for a timestamp that
        Postgres cannot store in microseconds."""
        told = np.array(list(map(_timestamp, self._messages)), np.int64).reshape(-1, 2)
        kinds, milliseconds = told[:, 0], told[:, 1]
        unset = (
            (kinds == _NO_TIMESTAMP)
            | (milliseconds == -1)
            | (milliseconds < EARLIEST_TIMESTAMP_MS)
            | (milliseconds > LATEST_TIMESTAMP_MS)
        )
        return pa.array(milliseconds.astype("datetime64[ms]"), pa.timestamp("ms", "UTC"), mask=unset)


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
    decoded = value.decode(values, records, keeps_unavailable=traits.keeps_unavailable)
    if not traits.keeps_deletes:
        return decoded
    names = {column.name for column in pipeline.value.columns}
    return as_changes(
        decoded,
        values,
        records,
        key,
        # The rules of a Route look for keys that are null: a record goes to one target, and has no key of others.
        tuple(name for name in traits.key_columns if name in names and traits.route is None),
        tombstones_delete=pipeline.value.tombstone_deletes,
        keeps_unavailable=traits.keeps_unavailable,
    )


def violations(
    columns: Sequence[Column], checks: Sequence[str], *, keeps_deletes: bool
) -> Iterator[sql.Composable]:
    """Yield for each check a condition over decoded records e that it is false, or that it cannot be evaluated because
    a value is not of its column's type."""
    values = [
        sql.SQL(
            "case when {value} is null or {refused} then null else {value}::text::{type} end as {column}"
        ).format(
            value=sql.Identifier("e", column.name),
            column=sql.Identifier(column.name),
            refused=is_refused(
                sql.SQL("{}::text").format(sql.Identifier("e", column.name)),
                column.type,
                find_modifier(column.type),
            ),
            type=sql.SQL(column.type),
        )
        for column in columns
    ]
    for check in checks:
        is_false = sql.SQL("coalesce((select not ({}\n) from (select {}) c), false)").format(
            sql.SQL(check), sql.SQL(", ").join(values)
        )
        yield (
            sql.SQL("(not coalesce(e.deleted, false) and {})").format(is_false) if keeps_deletes else is_false
        )
