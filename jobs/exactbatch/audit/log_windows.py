"""Read the log for the auditor, in blocks of records, with separate consumers: one for each partition, or one for small
slices of many partitions, because to open one for each of those takes far longer.

An audit of 200 partitions with 500 records each takes 86% less time and 69% less CPU (docs/evidence/ablation.md).

A window is the part of a partition whose records are compared with rows together.
"""

import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, groupby
from operator import methodcaller
from typing import Any, Final

import numpy as np
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from psycopg2 import sql

from exactbatch.audit.audit_result import Offsets
from exactbatch.audit.log_records import LogRecords
from exactbatch.audit.units import Slice
from exactbatch.errors import ReadFailed
from exactbatch.kafka.client_errors import (
    Event,
    concerns_reading,
    connection_refused,
    event_error,
    is_out_of_range,
)
from exactbatch.kafka.client_properties import ANSWER_TIMEOUT, limit_fetches, reader_properties
from exactbatch.kafka.consumer import (
    ClusterClient,
    Signals,
    check_ascending,
    check_in_log,
    close_consumer,
    is_cluster,
)
from exactbatch.model import LogPartition

# How many records to request at a time: few at first, because they may be large, then as many as fit into these bytes.
_RECORDS: Final = 10_000
_FIRST_RECORDS: Final = 100
_BLOCK_BYTES: Final = 32 * 1024 * 1024
_WAIT: Final = 0.1  # seconds to wait for a full block
_TIMEOUT: Final = 60.0  # seconds without progress
# Offsets: slices of up to _SMALL are read together, up to _TOGETHER, because their records are held meanwhile.
_SMALL: Final = 10_000
_TOGETHER: Final = 50_000
_HELD_BYTES: Final = 32 * 1024 * 1024
_FETCHED_BYTES: Final = 128 * 1024  # of a partition at a time, where several are read

_offset, _partition = methodcaller("offset"), methodcaller("partition")


@dataclass(frozen=True, slots=True)
class Block:
    """Some records of a partition: offsets, ascending; the offsets of null values; and the records."""

    offsets: Offsets
    nulls: Offsets
    records: LogRecords

    @classmethod
    def of(cls, messages: Sequence[Message]) -> "Block":
        """Return the block of these messages; none is an event."""
        nulls = [message.offset() for message in messages if not len(message) and message.value() is None]
        offsets = np.array(list(map(_offset, messages)), np.int64)
        return cls(offsets, np.array(nulls, np.int64), LogRecords(messages))

    def cut(self, end: int) -> tuple["Block", "Block"]:
        """Return the records below `end` and those from it on."""
        at, null_at = (bisect_left(offsets, end) for offsets in (self.offsets, self.nulls))
        records, count = self.records, len(self.offsets)
        return (
            Block(self.offsets[:at], self.nulls[:null_at], records.part(0, at)),
            Block(self.offsets[at:], self.nulls[null_at:], records.part(at, count)),
        )


@dataclass(slots=True)
class LogPosition:
    """How far a partition is read, and up to which end for now.

    `earliest` is where its log starts; it moves if retention has removed what comes next.
    """

    partition: LogPartition
    offset: int
    end: int
    earliest: int

    @classmethod
    def at(cls, partition: LogPartition, begin: int, end: int) -> "LogPosition":
        """Return the place from which [begin, end) is read."""
        return cls(partition, max(begin, partition.earliest), end, partition.earliest)

    @property
    def is_read(self) -> bool:
        """True if there is nothing left to read."""
        return self.offset >= self.end


class _Reader:
    """Reads partitions of one topic through one consumer; `config` is made of the properties."""

    def __init__(
        self,
        properties: Mapping[str, Any],
        config: Mapping[str, Any],
        places: Sequence[LogPosition],
        cluster_id: str | None,
    ) -> None:
        self._properties = properties
        self._places = {each.partition.topic_partition: each for each in places}
        self._cluster_id = cluster_id
        self._signals = Signals()
        self._request = _FIRST_RECORDS
        self.bytes = 0  # of all records so far
        self._client = Consumer({**config, **self._signals.callbacks()})
        self._client.assign([TopicPartition(*key, each.offset) for key, each in self._places.items()])

    def read(self) -> Iterator[tuple[LogPosition, Block]]:
        """Yield the records that arrive until each partition is read up to its end; the last may be beyond it.

        Unlike the batch path's reader, it also takes the records that come after an error, and goes on where retention
        has removed records. Raises ReadFailed if a record is damaged, or if nothing arrives for a while, and what
        connection_refused() returns.
        """
        reading = {key: place for key, place in self._places.items() if not place.is_read}
        passed = {key: self._signals.fetched.of(key) for key in reading}
        deadline = time.monotonic() + _TIMEOUT
        while reading:
            records, events = self._consume()
            is_progress = False
            for topic_partition, block in records:
                if (place := reading.get(topic_partition)) is None:
                    continue  # it is read
                check_ascending(block.offsets, *topic_partition, place.offset)
                check_in_log(self._client, *topic_partition, int(block.offsets[-1]))
                place.offset = int(block.offsets[-1]) + 1
                yield place, block
                is_progress = True
            for event in events:  # after the records that came before them
                is_progress |= self._take_in(event, reading)
            for key in [key for key, place in reading.items() if place.is_read]:
                del reading[key]
                if reading:
                    self._client.incremental_unassign([TopicPartition(*key)])
            for key in reading:  # records that are not visible are progress, too
                if (fetched := self._signals.fetched.of(key)) > passed[key]:
                    passed[key], is_progress = fetched, True
            if is_progress:
                deadline = time.monotonic() + _TIMEOUT
                self._signals.errors.last = None
            elif time.monotonic() > max(deadline, self._signals.throttling.until + _TIMEOUT):
                stalled = next(iter(reading.values()))
                if (refusal := connection_refused(self._properties, self._signals.errors.last)) is not None:
                    raise type(refusal)(f"{stalled.partition}: {refusal}")
                raise ReadFailed(
                    f"{stalled.partition}: nothing could be read from offset {stalled.offset} to {stalled.end} for "
                    f"{_TIMEOUT:g} s. Check that the broker is up."
                )

    def _consume(self) -> tuple[list[tuple[tuple[str, int], Block]], list[Message]]:
        """Return records, block by block, and events."""
        read = self._client.consume(self._request, _WAIT)
        self._signals.receive()
        messages = [message for message in read if message.error() is None]
        if messages:
            bytes_ = sum(map(len, messages))
            self.bytes += bytes_
            fitting = _BLOCK_BYTES * len(messages) // max(1, bytes_)
            self._request = max(1, min(_RECORDS, self._request * 10, fitting))
        topic = next(iter(self._places))[0]
        blocks = [((topic, number), Block.of(list(group))) for number, group in groupby(messages, _partition)]
        return blocks, [message for message in read if message.error() is not None]

    def _take_in(self, event: Message, reading: Mapping[tuple[str, int], LogPosition]) -> bool:
        """Take in the end of a log or a start that has moved, and return True. Raises errors that concern reading."""
        error, number = event.error(), event.partition()
        place = reading.get((event.topic() or "", -1 if number is None else number))
        if error is not None and error.code() == KafkaError._PARTITION_EOF:
            if place is not None:
                place.offset = max(place.offset, event.offset() or 0)
            return place is not None
        if not concerns_reading(event) or (place is None and is_out_of_range(event)):
            return False
        place = place or next(iter(reading.values()))
        key = place.partition.topic_partition
        place.offset = place.earliest = _start_after(self._client, place, event)
        self._client.incremental_unassign([TopicPartition(*key)])
        self._client.incremental_assign([TopicPartition(*key, place.offset)])
        return True

    def check_cluster(self) -> None:
        """Raise ConfigurationError if the consumer reads another cluster than the plan."""
        partition = next(iter(self._places.values())).partition
        is_cluster(self._client, partition, partition.topic, self._cluster_id)

    def close(self) -> None:
        """Close the consumer."""
        close_consumer(self._client)


def _start_after(client: ClusterClient, place: LogPosition, event: Event) -> int:
    """Return where the log starts now, if retention has removed what comes next since the audit began.

    Raises the error of the event otherwise.
    """
    topic_partition = place.partition.topic_partition
    if is_out_of_range(event):
        start, _ = client.get_watermark_offsets(TopicPartition(*topic_partition), timeout=ANSWER_TIMEOUT)
        if start > place.offset:
            return start
    raise event_error(f"{place.partition} from {place.offset}", *topic_partition, event)


class LogWindows:
    """The records of one partition, in windows of offsets: read one after the other, or held already."""

    def __init__(self, place: LogPosition, reader: _Reader | None, held: Iterable[Block] = ()) -> None:
        self._place, self._reader, self._ahead = place, reader, list(held)

    @classmethod
    def open(
        cls,
        properties: Mapping[str, Any],
        partition: LogPartition,
        begin: int,
        head: int,
        cluster_id: str | None = None,
    ) -> "LogWindows":
        """Read the partition from `begin` to `head`, with a consumer of its own."""
        place = LogPosition.at(partition, begin, head)
        reader = (
            None if place.is_read else _Reader(properties, reader_properties(properties), [place], cluster_id)
        )
        log = cls(place, reader)
        log.check_cluster()
        return log

    @property
    def earliest(self) -> int:
        """Where the log starts, as far as is known."""
        return self._place.earliest

    def window(self, end: int) -> Iterator[Block]:
        """Yield the records below `end` that no earlier window has returned.

        Raises ReadFailed if a record is damaged, or if nothing arrives for a while.
        """
        self._place.end = end
        held, self._ahead = self._ahead, []
        read = () if self._reader is None else self._reader.read()
        for block in chain(held, (block for _, block in read)):
            inside, beyond = block.cut(end)
            if len(beyond.offsets):
                self._ahead.append(beyond)
            if len(inside.offsets):
                yield inside

    @property
    def next_offset(self) -> int:
        """The first record at or past the window's end; if none was read yet, the position in the log."""
        return int(self._ahead[0].offsets[0]) if self._ahead else self._place.offset

    def check_cluster(self) -> None:
        """Raise ConfigurationError if the consumer reads another cluster than the plan."""
        if self._reader is not None:
            self._reader.check_cluster()

    def close(self) -> None:
        """Close the consumer."""
        if self._reader is not None:
            self._reader.close()


class SmallLogs:
    """Reads small slices of partitions of one topic in groups, each at the first request for one of its slices."""

    def __init__(
        self,
        properties: Mapping[str, Any],
        partitions: Mapping[Slice, LogPartition],
        cluster_id: str | None,
    ) -> None:
        self._properties, self._partitions, self._cluster_id = properties, partitions, cluster_id
        self._groups: dict[Slice, list[Slice]] = {}
        self._held: dict[Slice, LogWindows] = {}
        group: list[Slice] = []
        for slice_ in partitions:
            if len(slice_) > _SMALL:
                continue
            if sum(map(len, group)) + len(slice_) > _TOGETHER:
                group = []
            group.append(slice_)
            self._groups[slice_] = group

    def log(self, slice_: Slice) -> LogWindows | None:
        """Return the records of a slice; None if it is not small, or its group's records are too large to be held.

        Raises what LogWindows.window() raises.
        """
        group = self._groups.get(slice_, [])
        if slice_ not in self._held and len(group) > 1:
            self._held = self._read(group)
            for each in group:
                del self._groups[each]
        return self._held.pop(slice_, None)

    def _read(self, group: Sequence[Slice]) -> dict[Slice, LogWindows]:
        """Read slices; those that are not read when the records in memory become too large are left out."""
        places = {each: LogPosition.at(self._partitions[each], each.start, each.end) for each in group}
        held: dict[int, list[Block]] = defaultdict(list)
        if unread := [place for place in places.values() if not place.is_read]:
            config = limit_fetches(reader_properties(self._properties), _FETCHED_BYTES)
            with closing(_Reader(self._properties, config, unread, self._cluster_id)) as reader:
                reader.check_cluster()
                for place, block in reader.read():
                    held[place.partition.partition].append(block)
                    if reader.bytes > _HELD_BYTES:
                        break
                reader.check_cluster()
        return {
            slice_: LogWindows(place, None, held[slice_.partition])
            for slice_, place in places.items()
            if place.is_read
        }


@dataclass(frozen=True, slots=True)
class OffsetWindow:
    """Records of one partition, from the first to the last offset."""

    topic: str
    partition: int
    first: int
    last: int

    def has(self, row: str) -> sql.Composable:
        """Return a condition for rows of the lineage table in this window."""
        return sql.SQL(
            "{row}.kafka_topic = {topic} and {row}.kafka_partition = {partition} "
            "and {row}.kafka_offset between {first} and {last}"
        ).format(
            row=sql.Identifier(row),
            topic=sql.Literal(self.topic),
            partition=sql.Literal(self.partition),
            first=sql.Literal(self.first),
            last=sql.Literal(self.last),
        )
