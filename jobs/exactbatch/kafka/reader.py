"""Reading exactly one offset range with librdkafka, on an executor, in bounded memory."""

import socket
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from operator import methodcaller
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import tenacity
from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

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
from exactbatch.formats.message import read_headers
from exactbatch.formats.postgres_limits import EARLIEST_TIMESTAMP_MS, LATEST_TIMESTAMP_MS
from exactbatch.kafka.client import (
    ANSWER_TIMEOUT,
    FetchPosition,
    HeldBack,
    Troubles,
    check_in_log,
    concerns_reading,
    event_error,
    is_cluster,
    reader_properties,
    refused,
)
from exactbatch.offsets import OffsetRange

# consume() waits until it has as many messages as it was asked for or this time has passed, in seconds.
_POLL: Final = 0.1
# What one batch of records aims at: bytes of values, and the most records. The first one is small, so that
# neither records of 1 MB come by the thousand nor a wrong schema is found 10,000 times, and the next grow.
# More records are slower: what a batch holds has to stay in the processor's caches while it is decoded.
_BATCH_BYTES: Final = 16 * 1024 * 1024
_BATCH_RECORDS: Final = 10_000
_FIRST_RECORDS: Final = 16
_GROWTH: Final = 16
# A log that was cut comes as _AUTO_OFFSET_RESET, too; only librdkafka's own words tell it from a lost offset.
_TRUNCATION: Final = KafkaError(KafkaError._LOG_TRUNCATION).str()
# These come to error_cb, never as an event of consume(), and may pass while a broker restarts.
_MISSING: Final = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
}

_offset = methodcaller("offset")
_error = methodcaller("error")
_key = methodcaller("key")
_value = methodcaller("value")
_timestamp = methodcaller("timestamp")


class Records:
    """Some records of one partition in the order of their offsets; columns are made when asked for."""

    def __init__(self, messages: Sequence[Message], offsets: Sequence[int]) -> None:
        self.messages = messages
        self._offsets = offsets

    def __len__(self) -> int:
        return len(self.messages)

    def offsets(self) -> pa.Int64Array:
        """Offsets, ascending."""
        return pa.array(self._offsets, pa.int64())

    def keys(self) -> pa.BinaryArray:
        """Key bytes; null for a null key."""
        return pa.array(list(map(_key, self.messages)), pa.binary())

    def values(self) -> pa.BinaryArray:
        """Value bytes; null for a null value."""
        return pa.array(list(map(_value, self.messages)), pa.binary())

    def headers(self) -> list[Any]:
        """For each record its headers, as read_headers() gives them."""
        return read_headers(self.messages)

    def timestamps(self) -> pa.TimestampArray:
        """Kafka's timestamps, in milliseconds UTC; null where the record has none (-1), or one that neither Arrow
        nor Postgres can hold in microseconds, as of a producer that sends nanoseconds."""
        # timestamp() is a pair (type, milliseconds). A record without a time has -1, or no type and 0.
        types, milliseconds = map(list, zip(*map(_timestamp, self.messages), strict=True))
        if TIMESTAMP_NOT_AVAILABLE in types:
            milliseconds = [ms if kind else None for kind, ms in zip(types, milliseconds, strict=True)]
        found = pa.array(milliseconds, pa.int64())
        least, greatest = pc.min_max(found).as_py().values()
        if least is not None and (least < 0 or greatest > LATEST_TIMESTAMP_MS):
            fits = pc.and_(
                pc.greater_equal(found, EARLIEST_TIMESTAMP_MS), pc.less_equal(found, LATEST_TIMESTAMP_MS)
            )
            found = pc.if_else(pc.and_(fits, pc.not_equal(found, -1)), found, None)
        return found.cast(pa.timestamp("ms", "UTC"))


def read_range(
    range_: OffsetRange,
    properties: Mapping[str, Any],
    *,
    leader_epoch: int | None,
    timeout: float,
    cluster_id: str | None = None,
) -> Iterator[Records]:
    """Read [from_offset, until_offset) under read_committed: exactly the committed records in it.

    `leader_epoch` is the epoch up to which the log was known at from_offset; when the log was cut below
    from_offset since and has grown again, that is noticed. `timeout` is in seconds without progress; fetching
    records that are not visible, such as those of aborted transactions, is progress, and for as long as a quota
    holds the client back the clock stands still. `cluster_id` is the cluster
    that was planned from: the reader has to be connected to it before the first record and after the last.

    The range ends at its last offset, at a record past it, or at an end-of-log event at or past it:
    transaction markers and compaction leave holes.

    Raises OffsetsLost, StoredOffsetBeyondLog, LogTruncated and TopicMissing where the log is not what was
    planned, LogEndedEarly when it ends before the range until the timeout, ConfigurationError when client and
    broker do not accept each other until then or an ACL denies reading, and ReadFailed otherwise.
    """
    troubles, fetched = Troubles(), FetchPosition(range_.topic, range_.partition)
    held_back = HeldBack()
    callbacks = {"error_cb": troubles, "stats_cb": fetched, "throttle_cb": held_back}
    config = {**reader_properties(properties), **callbacks}
    config["queued.min.messages"] = min(int(config["queued.min.messages"]), max(1000, len(range_)))
    try:
        with closing(Consumer(config)) as consumer:
            of_cluster = partial(is_cluster, consumer, range_, range_.topic, cluster_id)
            consumer.assign([_assignment(range_, leader_epoch)])
            # Only now: a partition that is not there is told when its topic is looked up.
            was_told = of_cluster()
            try:
                yield from _read(consumer, range_, timeout, troubles, fetched, held_back)
            except (OffsetsLost, LogTruncated, StoredOffsetBeyondLog):
                of_cluster()
                raise
            if not (of_cluster() or was_told):
                raise ReadFailed(
                    f"{range_}: expected the brokers to tell which cluster they are, found no answer for "
                    f"{ANSWER_TIMEOUT:g} s. Nothing was written. Try again."
                )
    except KafkaException as error:
        if error.args[0].code() == KafkaError._INVALID_ARG:
            raise ConfigurationError(
                f"{range_}: expected Kafka client properties that work on {socket.gethostname()}, found: "
                f"{error.args[0].str()}. A file that an ssl.* property names has to be on every executor, under "
                f"the same path."
            ) from error
        raise ReadFailed(f"{range_}: expected to read it, found: {error.args[0]}. Try again.") from error


def _read(
    consumer: Consumer,
    range_: OffsetRange,
    timeout: float,
    troubles: Troubles,
    fetched: FetchPosition,
    held_back: HeldBack,
) -> Iterator[Records]:
    position, size = range_.from_offset, _FIRST_RECORDS
    passed = position  # up to where records were fetched, visible or not
    end_of_log: int | None = None
    deadline = time.monotonic() + timeout
    while position < range_.until_offset:
        messages = consumer.consume(min(size, range_.until_offset - position), _POLL)
        if any(map(_error, messages)):
            messages, end_of_log = _sort_out(consumer, range_, position, messages, end_of_log, timeout)
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
            for start, end in _pieces(sizes[:inside]):
                yield Records(messages[start:end], offsets[start:end])
                failpoint("read.after_records")
        reached = max(reached, end_of_log or 0)
        if reached > position:
            # The clock starts again only now: the caller may have taken long over the last records.
            position, deadline = reached, time.monotonic() + timeout
            troubles.last = None
        elif fetched.offset > max(position, passed):
            passed, deadline = fetched.offset, time.monotonic() + timeout
        elif time.monotonic() > max(deadline, held_back.until + timeout):
            raise _no_progress(range_, position, max(position, passed), end_of_log, timeout, troubles)


def _assignment(range_: OffsetRange, leader_epoch: int | None) -> TopicPartition:
    where = range_.topic, range_.partition, range_.from_offset
    return (
        TopicPartition(*where) if leader_epoch is None else TopicPartition(*where, leader_epoch=leader_epoch)
    )


def _next_size(size: int, sizes: Sequence[int]) -> int:
    """How many records to ask for next, by the bytes of those that came last."""
    fitting = _BATCH_BYTES * len(sizes) // max(1, sum(sizes))
    return max(1, min(_BATCH_RECORDS, size * _GROWTH, fitting))


def _pieces(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Cut records, by the bytes of each, into pieces [start, end) of about _BATCH_BYTES.

    Small records can be followed by large ones, so that more bytes come than were expected.
    """
    if sum(sizes) <= 2 * _BATCH_BYTES:
        if sizes:
            yield 0, len(sizes)
        return
    start, held = 0, 0
    for index, each in enumerate(sizes):
        if index > start and held + each > 2 * _BATCH_BYTES:
            yield start, index
            start, held = index, 0
        held += each
    yield start, len(sizes)


def _sort_out(
    consumer: Consumer,
    range_: OffsetRange,
    position: int,
    messages: Sequence[Message],
    end_of_log: int | None,
    timeout: float,
) -> tuple[list[Message], int | None]:
    """Part records from events: an end of log moves the known end, and anything else that concerns the partition
    is an error."""
    records = []
    for message in messages:
        error = message.error()
        if error is None:
            records.append(message)
        elif error.code() == KafkaError._PARTITION_EOF:
            end_of_log = message.offset()
        elif concerns_reading(message):
            reached = _offset(records[-1]) + 1 if records else position
            raise _refused(consumer, range_, reached, message, timeout)
    return records, end_of_log


def _check_epoch(range_: OffsetRange, message: Message) -> None:
    """What was there when the range was planned is of the leader's epoch of then, or of an older one.

    Else the stored offset would get an epoch that is not that of the records below it, and the next batch
    would take the log for one that was cut.
    """
    planned, found = range_.leader_epoch, message.leader_epoch()
    if planned is not None and planned >= 0 and found is not None and found > planned:
        raise _cut_since_the_plan(
            range_,
            f"offset {message.offset()} is of the leader epoch {found}, and was of {planned} or before",
        )


def _cut_since_the_plan(range_: OffsetRange, found: str) -> LogTruncated:
    return LogTruncated(
        f"{range_}: expected the log as it was when the batch was planned, found that it was cut since and has "
        f"grown again ({found}). Nothing was written. Plan again (clear the run, or wait for the next one)."
    )


def _refused(
    consumer: Consumer, range_: OffsetRange, position: int, event: Message, timeout: float
) -> ExactbatchError:
    """What an error event means that came when the records before `position` were read."""
    error = event.error()
    assert error is not None
    if error.code() not in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        return event_error(range_, range_.topic, range_.partition, event)
    earliest, end = _watermarks(consumer, range_, timeout)
    if range_.from_offset < earliest:
        return OffsetsLost(
            f"{range_}: expected all of it in the log, found that the log starts at {earliest}: retention "
            f"removed {min(earliest, range_.until_offset) - range_.from_offset} offsets since the batch was "
            f"planned. Plan again (clear the run, or wait for the next one); with on_loss='record' the plan "
            f"records them as lost."
        )
    if range_.from_offset > end:
        return StoredOffsetBeyondLog(
            f"{range_}: expected the log to reach it, found its end at {end} for {timeout:g} s: records that "
            f"were there when the batch was planned are gone (an unclean leader election?). Compare the target "
            f"with the log by `exactbatch audit`."
        )
    if _TRUNCATION in error.str() and position > range_.from_offset:
        return _cut_since_the_plan(range_, error.str())
    if _TRUNCATION in error.str():
        return LogTruncated(
            f"{range_}: expected the log that was processed up to {range_.from_offset}, found that it was cut "
            f"below that offset and has grown again ({error.str()}): other records stand there now. "
            f"Compare the target with the log by `exactbatch audit`, and register a pipeline under a new "
            f"name to load the log as it is now."
        )
    return ReadFailed(f"{range_}: expected to read it, found {error.name()}: {error.str()}. Try again.")


def _watermarks(consumer: Consumer, range_: OffsetRange, timeout: float) -> tuple[int, int]:
    """The offsets at which the log starts and ends.

    A leader that has just been elected can tell an end that lies behind for a moment: one below the range is asked
    for again until `timeout` seconds have passed.
    """
    partition = TopicPartition(range_.topic, range_.partition)
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_result(lambda told: told[1] < range_.from_offset),
        wait=tenacity.wait_fixed(0.5),
        stop=tenacity.stop_after_delay(timeout),
        retry_error_callback=lambda state: state.outcome and state.outcome.result(),
    )
    found: tuple[int, int] = retrying(consumer.get_watermark_offsets, partition, timeout=10)
    return found


def _no_progress(
    range_: OffsetRange,
    position: int,
    passed: int,
    end_of_log: int | None,
    timeout: float,
    troubles: Troubles,
) -> ExactbatchError:
    if end_of_log is not None:
        return LogEndedEarly(
            f"{range_}: expected the log to reach {range_.until_offset}, found its end at {end_of_log} for "
            f"{timeout:g} s. A new leader may be behind: try again. If it stays, the log was cut."
        )
    last = troubles.last
    if last is not None and last.code() in _MISSING:
        return TopicMissing(
            f"{range_}: expected the topic and partition that were planned, found that the broker does not "
            f"know them any more ({last.str()}). Was the topic deleted?"
        )
    if last is not None and (refusal := refused("the brokers", last)) is not None:
        return ConfigurationError(f"{range_}: {refusal}")
    said = "" if last is None else f"; the last trouble was: {last.str()}"
    unseen = (
        "" if passed == position else f", after nothing but records of aborted transactions up to {passed}"
    )
    return ReadFailed(
        f"{range_}: expected records from {position}, found that the broker sent nothing for {timeout:g} s"
        f"{unseen}{said}. Check that the brokers are up, and try again; read_timeout sets how long to wait."
    )
