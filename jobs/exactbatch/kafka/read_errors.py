"""Why a range could not be read: the error for an event, for a log that changed, and for a read that stalled."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import tenacity
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from exactbatch.errors import (
    ExactbatchError,
    LogEndedEarly,
    LogTruncated,
    OffsetsLost,
    ReadFailed,
    StoredOffsetBeyondLog,
)
from exactbatch.kafka.client_errors import (
    Event,
    acl_missing,
    connection_refused,
    event_error,
    is_out_of_range,
)
from exactbatch.kafka.consumer import ClusterClient
from exactbatch.offsets import OffsetRange

# A truncated log is reported as _AUTO_OFFSET_RESET, too; only librdkafka's text distinguishes it from a lost
# offset.
_TRUNCATION: Final = KafkaError(KafkaError._LOG_TRUNCATION).str()
# librdkafka reports these to error_cb, never as an event of consume(); they are temporary while a broker restarts.
_MISSING: Final = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
}

# Seconds. The read has waited long enough already, and a broker that is up answers at once.
_METADATA_TIMEOUT: Final = 1.0


def check_epoch(range_: OffsetRange, offset: int, epoch: int | None) -> None:
    """Raise LogTruncated for a record whose leader epoch is newer than the one that the range was planned with.

    Records that existed at planning time have the planned epoch or an older one. The stored offset would get the
    planned epoch although the records below it have a newer one, and the next batch would see a truncated log.
    """
    planned = range_.leader_epoch
    if planned is not None and planned >= 0 and epoch is not None and epoch > planned:
        raise _truncated_since_the_plan(
            range_, f"offset {offset} has the leader epoch {epoch}, and had {planned} or an older one"
        )


def read_error(
    consumer: ClusterClient, range_: OffsetRange, position: int, event: Event, timeout: float
) -> ExactbatchError:
    """Return the error for an error event that came after the records before `position`."""
    error = event.error()
    assert error is not None
    if not is_out_of_range(event):
        return event_error(range_, range_.topic, range_.partition, event)
    earliest, end = _watermarks(consumer, range_, timeout)
    if range_.from_offset < earliest:
        return OffsetsLost(
            f"{range_}: retention removed {min(earliest, range_.until_offset) - range_.from_offset} of these "
            f"offsets since the batch was planned (log starts at {earliest}). Plan again (clear the run, or "
            f"wait for the next one); with on_loss='skip' the plan records them as lost.",
            **replace(range_, until_offset=min(earliest, range_.until_offset)).place,
        )
    if range_.from_offset > end:
        return StoredOffsetBeyondLog(
            f"{range_}: the log has ended at {end}, below this range, for {timeout:g} s: it lost records that "
            f"existed when the batch was planned (an unclean leader election, or another cluster). Check "
            f"bootstrap.servers; if the log was really truncated, register a pipeline under a new name with an "
            f"explicit start.",
            **range_.place,
        )
    if _TRUNCATION in error.str() and position > range_.from_offset:
        return _truncated_since_the_plan(range_, error.str())
    if _TRUNCATION in error.str():
        return LogTruncated(
            f"{range_}: the log was truncated below {range_.from_offset}, up to which it was processed, and "
            f"has grown again ({error.str()}): other records are there now. Run `exactbatch audit` to "
            f"compare the target with the log, and register a pipeline under a new name to load the log as it "
            f"is now.",
            **range_.place,
        )
    return event_error(range_, range_.topic, range_.partition, event)


def check_describable(consumer: ClusterClient, range_: OffsetRange) -> None:
    """Raise ConfigurationError if an ACL hides the topic: librdkafka waits for its leader then, and reports nothing."""
    try:
        found = consumer.list_topics(range_.topic, timeout=_METADATA_TIMEOUT).topics.get(range_.topic)
    except KafkaException:
        return
    error = None if found is None else found.error
    if error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise acl_missing("Describe", "topic", range_.topic, "reading it")


def no_progress(
    range_: OffsetRange,
    position: int,
    passed: int,
    end_of_log: int | None,
    timeout: float,
    error: KafkaError | None,
    properties: Mapping[str, Any],
) -> ExactbatchError:
    """Return the error for a read that stalled; `error` is the last error of a connection."""
    if end_of_log is not None:
        return LogEndedEarly(
            f"{range_}: the log has ended at {end_of_log}, before the range does, for {timeout:g} s. A new "
            f"leader may be behind: try again. If the error persists, the log was truncated.",
            **range_.place,
        )
    if error is not None and error.code() in _MISSING:
        return ReadFailed(
            f"{range_}: the broker does not know this topic and partition ({error.str()}). A broker that has just "
            f"started does not, for a moment: try again. If the topic was deleted, the next launch says so.",
            **range_.place,
        )
    if (refusal := connection_refused(properties, error)) is not None:
        return type(refusal)(f"{range_}: {refusal}", **range_.place)
    cause = "" if error is None else f"; the last connection error was: {error.str()}"
    invisible = "" if passed == position else f", after only records of aborted transactions up to {passed}"
    return ReadFailed(
        f"{range_}: the broker sent nothing from offset {position} on for {timeout:g} s{invisible}{cause}. "
        f"Check that the brokers are up, and try again; read_timeout sets how long to wait.",
        **range_.place,
    )


def _truncated_since_the_plan(range_: OffsetRange, detail: str) -> LogTruncated:
    return LogTruncated(
        f"{range_}: the log was truncated since the batch was planned, and has grown again ({detail}). Nothing "
        f"was written. Plan again (clear the run, or wait for the next one).",
        **range_.place,
    )


def _watermarks(consumer: ClusterClient, range_: OffsetRange, timeout: float) -> tuple[int, int]:
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
