"""Read exactly one offset range with librdkafka, on an executor, in bounded memory."""

import socket
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from operator import methodcaller
from typing import Any, Final

import tenacity
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from exactbatch.errors import (
    ConfigurationError,
    ExactbatchError,
    LogEndedEarly,
    LogTruncated,
    OffsetsLost,
    ReadFailed,
    StoredOffsetBeyondLog,
    TopicMissing,
)
from exactbatch.failpoints import failpoint
from exactbatch.kafka.client_properties import ANSWER_TIMEOUT, reader_properties
from exactbatch.kafka.consumer import (
    POLL,
    ConnectionErrors,
    FetchPosition,
    Throttling,
    check_in_log,
    is_cluster,
    split_events,
)
from exactbatch.kafka.errors import connection_refused, event_error
from exactbatch.kafka.records import Records
from exactbatch.offsets import OffsetRange

# The target size of one batch of records, in bytes of values and in records. The first one is small, so that
# records of 1 MB do not come by the thousand and a wrong schema is not met 10,000 times; the next ones grow.
# More records are slower: a batch must stay in the processor's caches while it is decoded.
_BATCH_BYTES: Final = 16 * 1024 * 1024
_BATCH_RECORDS: Final = 10_000
_FIRST_RECORDS: Final = 16
_GROWTH: Final = 16
# A truncated log is reported as _AUTO_OFFSET_RESET, too; only librdkafka's text distinguishes it from a lost
# offset.
_TRUNCATION: Final = KafkaError(KafkaError._LOG_TRUNCATION).str()
# librdkafka reports these to error_cb, never as an event of consume(); they are temporary while a broker restarts.
_MISSING: Final = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
}

_offset = methodcaller("offset")


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
    below from_offset since, and has grown again. `timeout` is in seconds without progress; fetching records that
    are not visible, such as those of aborted transactions, is progress, and the clock stops while a quota
    throttles the client. `cluster_id` is the cluster that the batch was planned from: the reader must be
    connected to it before the first record and after the last.

    The range ends at its last offset, at a record past it, or at an end-of-log event at or past it: transaction
    markers and compaction leave gaps.

    Raises OffsetsLost, StoredOffsetBeyondLog, LogTruncated and TopicMissing if the log is not the one that was
    planned, LogEndedEarly if it ends before the range until the timeout, ConfigurationError if client and broker
    do not accept each other until then or an ACL denies reading, and ReadFailed otherwise.
    """
    errors, fetched = ConnectionErrors(), FetchPosition(range_.topic, range_.partition)
    throttling = Throttling()
    callbacks = {"error_cb": errors, "stats_cb": fetched, "throttle_cb": throttling}
    config = {**reader_properties(properties), **callbacks}
    config["queued.min.messages"] = min(int(config["queued.min.messages"]), max(1000, len(range_)))
    try:
        with closing(Consumer(config)) as consumer:
            check_cluster = partial(is_cluster, consumer, range_, range_.topic, cluster_id)
            consumer.assign([_assignment(range_, leader_epoch)])
            # After assign(): the lookup of the topic then also reports a missing partition.
            known_before = check_cluster()
            try:
                yield from _read(consumer, range_, timeout, errors, fetched, throttling)
            except (OffsetsLost, LogTruncated, StoredOffsetBeyondLog):
                check_cluster()
                raise
            if not (check_cluster() or known_before):
                raise ReadFailed(
                    f"{range_}: the brokers did not report their cluster ID within {ANSWER_TIMEOUT:g} s. "
                    f"Nothing was written. Try again.",
                    **range_.place,
                )
    except KafkaException as error:
        if error.args[0].code() == KafkaError._INVALID_ARG:
            raise ConfigurationError(
                f"{range_}: the Kafka client properties do not work on {socket.gethostname()}: "
                f"{error.args[0].str()}. A file that an ssl.* property names must exist on every executor, "
                f"under the same path.",
                **range_.place,
            ) from error
        raise ReadFailed(f"{range_}: reading failed: {error.args[0]}. Try again.", **range_.place) from error


def _read(
    consumer: Consumer,
    range_: OffsetRange,
    timeout: float,
    errors: ConnectionErrors,
    fetched: FetchPosition,
    throttling: Throttling,
) -> Iterator[Records]:
    position, size = range_.from_offset, _FIRST_RECORDS
    passed = position  # up to where records were fetched, visible or not
    end_of_log: int | None = None
    deadline = time.monotonic() + timeout
    while position < range_.until_offset:
        messages, end, error = split_events(consumer.consume(min(size, range_.until_offset - position), POLL))
        if error is not None:
            reached = _offset(messages[-1]) + 1 if messages else position
            raise _read_error(consumer, range_, reached, error, timeout)
        end_of_log = end_of_log if end is None else end
        reached = position
        if messages:
            offsets = list(map(_offset, messages))
            sizes = list(map(len, messages))
            size = _next_size(size, sizes)
            reached = offsets[-1] + 1
            check_in_log(consumer, range_.topic, range_.partition, offsets[-1])
            inside = bisect_left(offsets, range_.until_offset)
            if inside:
                _check_epoch(range_, messages[inside - 1])
            for start, stop in _pieces(sizes[:inside]):
                yield Records(messages[start:stop], offsets[start:stop])
                failpoint("read.after_records")
        reached = max(reached, end_of_log or 0)
        if reached > position:
            # The clock starts again only now: the caller may have taken long over the last records.
            position, deadline = reached, time.monotonic() + timeout
            errors.last = None
        elif fetched.offset > max(position, passed):
            passed, deadline = fetched.offset, time.monotonic() + timeout
        elif time.monotonic() > max(deadline, throttling.until + timeout):
            raise _no_progress(range_, position, max(position, passed), end_of_log, timeout, errors.last)


def _assignment(range_: OffsetRange, leader_epoch: int | None) -> TopicPartition:
    where = range_.topic, range_.partition, range_.from_offset
    return (
        TopicPartition(*where) if leader_epoch is None else TopicPartition(*where, leader_epoch=leader_epoch)
    )


def _next_size(size: int, sizes: Sequence[int]) -> int:
    """Return how many records to request next, from the bytes of the last ones."""
    fitting = _BATCH_BYTES * len(sizes) // max(1, sum(sizes))
    return max(1, min(_BATCH_RECORDS, size * _GROWTH, fitting))


def _pieces(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Cut records, by the bytes of each, into pieces [start, stop) of about _BATCH_BYTES.

    Large records can follow small ones, so that more bytes arrive than expected.
    """
    if sum(sizes) <= 2 * _BATCH_BYTES:
        if sizes:
            yield 0, len(sizes)
        return
    start, held = 0, 0
    for index, bytes_ in enumerate(sizes):
        if index > start and held + bytes_ > 2 * _BATCH_BYTES:
            yield start, index
            start, held = index, 0
        held += bytes_
    yield start, len(sizes)


def _check_epoch(range_: OffsetRange, message: Message) -> None:
    """Raise LogTruncated for a record whose leader epoch is newer than the one that the range was planned with.

    Records that existed at planning time have the planned epoch or an older one. The stored offset would get the
    planned epoch although the records below it have a newer one, and the next batch would see a truncated log.
    """
    planned, epoch = range_.leader_epoch, message.leader_epoch()
    if planned is not None and planned >= 0 and epoch is not None and epoch > planned:
        raise _truncated_since_the_plan(
            range_,
            f"offset {message.offset()} has the leader epoch {epoch}, and had {planned} or an older one",
        )


def _truncated_since_the_plan(range_: OffsetRange, detail: str) -> LogTruncated:
    return LogTruncated(
        f"{range_}: the log was truncated since the batch was planned, and has grown again ({detail}). Nothing "
        f"was written. Plan again (clear the run, or wait for the next one).",
        **range_.place,
    )


def _read_error(
    consumer: Consumer, range_: OffsetRange, position: int, event: Message, timeout: float
) -> ExactbatchError:
    """Return the error for an error event that came after the records before `position`."""
    error = event.error()
    assert error is not None
    if error.code() not in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        return event_error(range_, range_.topic, range_.partition, event)
    earliest, end = _watermarks(consumer, range_, timeout)
    if range_.from_offset < earliest:
        return OffsetsLost(
            f"{range_}: retention removed {min(earliest, range_.until_offset) - range_.from_offset} of these "
            f"offsets since the batch was planned (log starts at {earliest}). Plan again (clear the run, or "
            f"wait for the next one); with on_loss='record' the plan records them as lost.",
            **replace(range_, until_offset=min(earliest, range_.until_offset)).place,
        )
    if range_.from_offset > end:
        return StoredOffsetBeyondLog(
            f"{range_}: the log has ended at {end}, below this range, for {timeout:g} s: it lost records that "
            f"existed when the batch was planned (an unclean leader election?). Compare the target with the "
            f"log by `exactbatch audit`.",
            **range_.place,
        )
    if _TRUNCATION in error.str() and position > range_.from_offset:
        return _truncated_since_the_plan(range_, error.str())
    if _TRUNCATION in error.str():
        return LogTruncated(
            f"{range_}: the log was truncated below {range_.from_offset}, up to which it was processed, and "
            f"has grown again ({error.str()}): other records are there now. Compare the target with the log by "
            f"`exactbatch audit`, and register a pipeline under a new name to load the log as it is now.",
            **range_.place,
        )
    return event_error(range_, range_.topic, range_.partition, event)


def _watermarks(consumer: Consumer, range_: OffsetRange, timeout: float) -> tuple[int, int]:
    """Return the offsets at which the log starts and ends.

    A leader that was just elected can report an end that is behind for a moment: an end below the range is queried
    again until `timeout` seconds have passed.
    """
    partition = TopicPartition(range_.topic, range_.partition)
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_result(lambda watermarks: watermarks[1] < range_.from_offset),
        wait=tenacity.wait_fixed(0.5),
        stop=tenacity.stop_after_delay(timeout),
        retry_error_callback=lambda state: state.outcome and state.outcome.result(),
    )
    watermarks: tuple[int, int] = retrying(consumer.get_watermark_offsets, partition, timeout=10)
    return watermarks


def _no_progress(
    range_: OffsetRange,
    position: int,
    passed: int,
    end_of_log: int | None,
    timeout: float,
    error: KafkaError | None,
) -> ExactbatchError:
    """Return the error for a read that stalled; `error` is the last error of a connection."""
    if end_of_log is not None:
        return LogEndedEarly(
            f"{range_}: the log has ended at {end_of_log}, before the range does, for {timeout:g} s. A new "
            f"leader may be behind: try again. If the error persists, the log was truncated.",
            **range_.place,
        )
    if error is not None and error.code() in _MISSING:
        return TopicMissing(
            f"{range_}: the broker no longer knows this topic and partition ({error.str()}). Was the topic "
            f"deleted?",
            **range_.place,
        )
    if error is not None and (refusal := connection_refused("the brokers", error)) is not None:
        return ConfigurationError(f"{range_}: {refusal}", **range_.place)
    cause = "" if error is None else f"; the last connection error was: {error.str()}"
    invisible = "" if passed == position else f", after only records of aborted transactions up to {passed}"
    return ReadFailed(
        f"{range_}: the broker sent nothing from offset {position} on for {timeout:g} s{invisible}{cause}. "
        f"Check that the brokers are up, and try again; read_timeout sets how long to wait.",
        **range_.place,
    )
