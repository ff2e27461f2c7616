"""What a librdkafka consumer returns instead of records: the end of a log, and errors."""

from collections.abc import Sequence
from operator import methodcaller
from typing import Protocol

from confluent_kafka import KafkaError, Message

_error = methodcaller("error")


class Event(Protocol):
    """What a consumer returns instead of a record; confluent_kafka's Message is one."""

    def error(self) -> KafkaError | None:
        """The error; the end of a log is one, too."""
        ...

    def topic(self) -> str | None:
        """The topic; None for an event that concerns the client."""
        ...

    def offset(self) -> int | None:
        """The offset that the event concerns, if there is one."""
        ...


def split_events(messages: Sequence[Message]) -> tuple[Sequence[Message], int | None, Message | None]:
    """Split the messages of one consume() into records, the end of the log, and an error.

    The end is the offset of the last end-of-log event, None without one. The error is the first error event that
    concerns reading, None without one; messages after it are dropped.
    """
    if not any(map(_error, messages)):
        return messages, None, None
    records = []
    end_of_log = None
    for message in messages:
        error = message.error()
        if error is None:
            records.append(message)
        elif error.code() == KafkaError._PARTITION_EOF:
            end_of_log = message.offset()
        elif concerns_reading(message):
            return records, end_of_log, message
    return records, end_of_log, None


def concerns_reading(event: Event) -> bool:
    """True if an error event of consume() is about the partition that is read, or ends the client.

    Other events are about the coordinator of the consumer group, which librdkafka looks for although reads of
    assigned offsets do not need it: neither its ACL nor its availability matters.
    """
    error = event.error()
    return event.topic() is not None or (error is not None and error.fatal())


def is_out_of_range(event: Event) -> bool:
    """True for an error event about a position below the start of the log or past its end."""
    error = event.error()
    return error is not None and error.code() in (
        KafkaError._AUTO_OFFSET_RESET,
        KafkaError.OFFSET_OUT_OF_RANGE,
    )
