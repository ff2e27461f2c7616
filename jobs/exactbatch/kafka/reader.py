"""Read offset ranges exactly with librdkafka, on an executor, in bounded memory.

The small ranges of one task are read together: through one consumer, with one check of the cluster. That saves half of
the time and 48% of the CPU of a batch over 200 partitions with 500 records each (docs/evidence/ablation.md).
"""

import socket
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from exactbatch.errors import (
    ConfigurationError,
    ExactbatchError,
    LogTruncated,
    OffsetsLost,
    ReadFailed,
    StoredOffsetBeyondLog,
)
from exactbatch.failpoints import failpoint
from exactbatch.kafka.client_properties import ANSWER_TIMEOUT, limit_fetches, reader_properties
from exactbatch.kafka.consumer import (
    POLL,
    Signals,
    check_ascending,
    check_in_log,
    closing_consumer,
    is_cluster,
)
from exactbatch.kafka.range_consumer import Fetched, RangeConsumer, open_consumer
from exactbatch.kafka.read_errors import check_describable, check_epoch, no_progress, read_error
from exactbatch.kafka.records import Int64s, Records
from exactbatch.offsets import OffsetRange, group_small

# The target size of one batch of records, in bytes and in records. The first one is small, so that records of 1 MB do
# not come by the thousand and a wrong schema is not met 10,000 times; the next ones grow. More records are slower: a
# batch must stay in the processor's caches while it is decoded.
_BATCH_BYTES: Final = 16 * 1024 * 1024
_BATCH_RECORDS: Final = 10_000
_FIRST_RECORDS: Final = 16
_GROWTH: Final = 16
# Bytes that a broker sends of a partition at a time where several are read: most of those ranges are short.
_FETCHED_BYTES: Final = 128 * 1024
# Records are fetched ahead up to this part of the offsets to read: what is fetched beyond their end is wasted. It is
# more than two batches of records in a piece of a large range.
_AHEAD: Final = 1 / 8
# Bytes of values that are held until their range is requested.
_HELD_BYTES: Final = 16 * 1024 * 1024


def read_range(
    range_: OffsetRange,
    properties: Mapping[str, Any],
    *,
    leader_epoch: int | None,
    timeout: float,
    cluster_id: str | None = None,
) -> Iterator[Records]:
    """Read [from_offset, until_offset) under read_committed: exactly the committed records in it.

    `leader_epoch` is the epoch up to which the log was known at from_offset: it detects a log that was truncated
    below from_offset since, and has grown again. The other arguments and the errors are those of
    read_together().
    """
    for _, records in read_together(
        {range_: leader_epoch}, properties, timeout=timeout, cluster_id=cluster_id
    ):
        yield records


def read_together(
    ranges: Mapping[OffsetRange, int | None],
    properties: Mapping[str, Any],
    *,
    timeout: float,
    cluster_id: str | None,
    keeps_records: bool = False,
) -> Generator[tuple[OffsetRange, Records]]:
    """Read ranges of different partitions through one consumer, each exactly; yield records with their range.

    `ranges` maps each range to the leader epoch up to which its log was known at from_offset. The records of a
    range come in order; those of different ranges come mixed. `timeout` is in seconds without progress; fetching
    records that are not visible, such as those of aborted transactions, is progress, and the clock stops while a
    quota throttles the client. `cluster_id` is the cluster that the batch was planned from: the consumer must be
    connected to it before the first record and after the last. With `keeps_records`, keys and headers can also be
    read after the iterator ends, which takes an object for each record.

    A range ends at its last offset, at a record past it, or at an end-of-log event at or past it: transaction
    markers and compaction leave gaps.

    Raises OffsetsLost, StoredOffsetBeyondLog and LogTruncated if a log is not the one that was planned,
    LogEndedEarly if it ends before its range until the timeout, ConfigurationError if client and broker do not
    accept each other until then or an ACL denies reading, and ReadFailed otherwise, also for a topic that the broker
    does not know: one that has just started knows none.
    """
    first, offsets = next(iter(ranges)), sum(map(len, ranges))
    signals = Signals()
    config = reader_properties(properties)
    if len(ranges) > 1:
        config = limit_fetches(config, _FETCHED_BYTES)
    config["queued.min.messages"] = min(
        int(config["queued.min.messages"]), max(1000, round(offsets * _AHEAD))
    )
    try:
        with closing_consumer(
            open_consumer(
                config, signals, offsets=offsets, partitions=len(ranges), keeps_records=keeps_records
            )
        ) as consumer:
            check_cluster = partial(is_cluster, consumer, first, first.topic, cluster_id)
            consumer.assign([_assignment(range_, epoch) for range_, epoch in ranges.items()])
            # After assign(): the lookup of the topic then also reports a missing partition.
            known_before = check_cluster()
            try:
                yield from _read(consumer, list(ranges), properties, timeout, signals)
            except (OffsetsLost, LogTruncated, StoredOffsetBeyondLog):
                check_cluster()
                raise
            if not (check_cluster() or known_before):
                raise ReadFailed(
                    f"{first}: the brokers did not report their cluster ID within {ANSWER_TIMEOUT:g} s. "
                    f"Nothing was written. Try again.",
                    **first.place,
                )
    except KafkaException as error:
        if error.args[0].code() == KafkaError._INVALID_ARG:
            raise ConfigurationError(
                f"{first}: the Kafka client properties do not work on {socket.gethostname()}: "
                f"{error.args[0].str()}. A file that an ssl.* property names must exist on every executor, "
                f"under the same path.",
                **first.place,
            ) from error
        raise ReadFailed(f"{first}: reading failed: {error.args[0]}. Try again.", **first.place) from error


@dataclass(slots=True)
class _Progress:
    """How far a range is read. `passed` is up to where records were fetched, visible or not."""

    range: OffsetRange
    position: int
    passed: int
    end_of_log: int | None = None

    @property
    def left(self) -> int:
        """Offsets that are not read yet."""
        return self.range.until_offset - self.position


def _read(
    consumer: RangeConsumer,
    ranges: Sequence[OffsetRange],
    properties: Mapping[str, Any],
    timeout: float,
    signals: Signals,
) -> Iterator[tuple[OffsetRange, Records]]:
    reading = {
        range_.topic_partition: _Progress(range_, range_.from_offset, range_.from_offset) for range_ in ranges
    }
    size = _FIRST_RECORDS
    deadline = time.monotonic() + timeout
    while reading:
        is_progress, records, bytes_ = False, 0, 0
        count = min(size, sum(progress.left for progress in reading.values()))
        for fetched in consumer.fetch(count, POLL):
            progress = _concerned(reading, fetched)
            if progress is None:
                continue  # its range is complete
            range_, reached = progress.range, progress.position
            offsets = fetched.records.offset_array
            check_ascending(offsets, range_.topic, range_.partition, reached)
            if fetched.error is not None:
                reached = int(offsets[-1]) + 1 if len(offsets) else reached
                raise read_error(consumer, range_, reached, fetched.error, timeout)
            if fetched.end_of_log is not None:
                progress.end_of_log = fetched.end_of_log
            if len(offsets):
                sizes = fetched.records.sizes()
                records, bytes_ = records + len(sizes), bytes_ + int(sizes.sum())
                reached = int(offsets[-1]) + 1
                check_in_log(consumer, range_.topic, range_.partition, int(offsets[-1]))
                inside = int(np.searchsorted(offsets, range_.until_offset))
                if inside:
                    last = inside - 1
                    check_epoch(range_, int(offsets[last]), fetched.records.leader_epoch(last))
                for start, stop in _pieces(sizes[:inside]):
                    yield range_, fetched.records.part(start, stop)
                    failpoint("read.after_records")
            reached = max(reached, progress.end_of_log or 0)
            if reached > progress.position:
                progress.position, is_progress = reached, True
            if progress.position >= range_.until_offset:
                del reading[range_.topic_partition]
                if reading:
                    consumer.pause([TopicPartition(range_.topic, range_.partition)])
        if records:
            size = _next_size(size, records, bytes_)
        if is_progress:
            # The clock starts again only now: the caller may have taken long over the last records.
            deadline = time.monotonic() + timeout
            signals.errors.last = None
        elif _has_passed_invisible_records(reading.values(), signals):
            deadline = time.monotonic() + timeout
        elif time.monotonic() > max(deadline, signals.throttling.until + timeout):
            stalled = next(iter(reading.values()))
            passed = max(stalled.position, stalled.passed)
            if stalled.end_of_log is None and signals.errors.last is None:
                check_describable(consumer, stalled.range)
            raise no_progress(
                stalled.range,
                stalled.position,
                passed,
                stalled.end_of_log,
                timeout,
                signals.errors.last,
                properties,
            )


def _concerned(reading: Mapping[tuple[str, int], _Progress], fetched: Fetched) -> _Progress | None:
    """Return the range that was fetched, or any range for what concerns the client; None if it is complete."""
    if fetched.partition is None:
        return next(iter(reading.values()), None)
    return reading.get(fetched.partition)


def _has_passed_invisible_records(reading: Iterable[_Progress], signals: Signals) -> bool:
    """True if records were fetched since the last call that are not visible."""
    has_passed = False
    for progress in reading:
        fetched = signals.fetched.of(progress.range.topic_partition)
        if fetched > max(progress.position, progress.passed):
            progress.passed, has_passed = fetched, True
    return has_passed


def _assignment(range_: OffsetRange, leader_epoch: int | None) -> TopicPartition:
    where = range_.topic, range_.partition, range_.from_offset
    return (
        TopicPartition(*where) if leader_epoch is None else TopicPartition(*where, leader_epoch=leader_epoch)
    )


def _next_size(size: int, records: int, bytes_: int) -> int:
    """Return how many records to request next, from the number and the bytes of the last ones."""
    fitting = _BATCH_BYTES * records // max(1, bytes_)
    return max(1, min(_BATCH_RECORDS, size * _GROWTH, fitting))


def _pieces(sizes: Int64s) -> Iterator[tuple[int, int]]:
    """Cut records, by the bytes of each, into pieces [start, stop) of about _BATCH_BYTES.

    Large records can follow small ones, so that more bytes arrive than expected.
    """
    if sizes.sum() <= 2 * _BATCH_BYTES:
        if len(sizes):
            yield 0, len(sizes)
        return
    start, held = 0, 0
    for index, bytes_ in enumerate(sizes.tolist()):
        if index > start and held + bytes_ > 2 * _BATCH_BYTES:
            yield start, index
            start, held = index, 0
        held += bytes_
    yield start, len(sizes)


class SharedReads:
    """Reads ranges of different partitions as read_range() does each of them, and all at the first request.

    The records of all are held, up to _HELD_BYTES, and given out once the last one is read and the cluster is
    checked: a caller may commit a range before it requests the next. Larger ones are read in smaller groups.
    """

    def __init__(
        self,
        ranges: Mapping[OffsetRange, int | None],
        properties: Mapping[str, Any],
        *,
        timeout: float,
        cluster_id: str | None,
    ) -> None:
        """The arguments are those of read_together()."""
        self._epochs, self._timeout, self._cluster_id = ranges, timeout, cluster_id
        self._properties = properties
        # The group in which each range is read, and what is known of it: its records, or its error.
        self._groups: dict[OffsetRange, Sequence[OffsetRange]] = {}
        self._group(list(ranges))
        self._read: dict[OffsetRange, list[Records] | ExactbatchError] = {}

    def read(self, range_: OffsetRange) -> Iterator[Records]:
        """Yield the records of one of the ranges. Raises what read_range() raises for it."""
        while range_ not in self._read and len(self._groups[range_]) > 1:
            self._read_group(self._groups[range_])
        outcome = self._read.pop(range_, None)
        self._groups[range_] = (range_,)  # another request reads it again
        if outcome is None:
            yield from read_range(
                range_,
                self._properties,
                leader_epoch=self._epochs[range_],
                timeout=self._timeout,
                cluster_id=self._cluster_id,
            )
        elif isinstance(outcome, ExactbatchError):
            raise outcome
        else:
            while outcome:
                yield outcome.pop(0)

    def _read_group(self, group: Sequence[OffsetRange]) -> None:
        """Read a group; or note the error of one of its ranges, or that the group is too large."""
        held: dict[OffsetRange, list[Records]] = {range_: [] for range_ in group}
        bytes_ = offsets = 0
        reading = read_together(
            {range_: self._epochs[range_] for range_ in group},
            self._properties,
            timeout=self._timeout,
            cluster_id=self._cluster_id,
        )
        try:
            with closing(reading):
                for range_, records in reading:
                    held[range_].append(records)
                    bytes_ += int(records.sizes().sum())
                    offsets += len(records)
                    if bytes_ > _HELD_BYTES:
                        self._regroup(group, fitting=_HELD_BYTES // 2 * offsets // bytes_)
                        return
        except ExactbatchError as error:
            self._note(error, group)
            return
        self._read.update(held)

    def _note(self, error: ExactbatchError, group: Sequence[OffsetRange]) -> None:
        """Note an error for the ranges that it concerns: all of them, unless it is final and names some."""
        concerned = [
            range_
            for range_ in group
            if error.topic in (None, range_.topic) and error.partition in (None, range_.partition)
        ]
        if error.retryable or not concerned:
            concerned = list(group)
        self._read.update(dict.fromkeys(concerned, error))
        self._group([range_ for range_ in group if range_ not in self._read])

    def _regroup(self, group: Sequence[OffsetRange], *, fitting: int) -> None:
        """Cut a group, which is too large, into groups of at most `fitting` offsets or single ranges."""
        for indexes in group_small(group, small=fitting, together=fitting):
            self._group([group[index] for index in indexes])

    def _group(self, ranges: Sequence[OffsetRange]) -> None:
        self._groups.update(dict.fromkeys(ranges, ranges))
