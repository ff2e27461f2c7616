"""What a librdkafka consumer returns instead of records, the end of a log and errors, and the errors of brokers and
clients as errors that say what to do.
"""

from collections.abc import Mapping, Sequence
from operator import methodcaller
from typing import Any, Final, Protocol

from confluent_kafka import KafkaError, Message

from exactbatch.errors import (
    ConfigurationError,
    ExactbatchError,
    KafkaUnavailable,
    ReadFailed,
    TokenUnavailable,
)
from exactbatch.kafka.properties import TOKEN_METHOD, uses_tokens
from exactbatch.kafka.token_source import find_token_failure
from exactbatch.tokens.providers import forget_token

_error = methodcaller("error")
DAMAGED: Final = (
    "Nothing was written. Try again: the network may have changed it. If the error persists, it is damaged on the "
    "disk of the broker that leads the partition: let another replica lead it."
)


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


def acl_missing(operation: str, resource: str, name: str, purpose: str) -> ConfigurationError:
    """Return the error for a missing ACL: for an operation on the resource "topic" or "group" of this name."""
    return ConfigurationError(
        f"Kafka's ACLs deny this client the operation {operation} on {resource} {name!r}, which {purpose} needs. "
        f"Grant it (kafka-acls --add --allow-principal … --operation {operation} --{resource} {name}); "
        f"`exactbatch explain security` lists all that a pipeline needs.",
        topic=name if resource == "topic" else None,
    )


def connection_refused(
    properties: Mapping[str, Any], error: KafkaError | None
) -> ConfigurationError | TokenUnavailable | None:
    """Return the error if client and broker do not accept each other, or if there is no token with which to log in;
    None for any other cause, and without an error.

    The next login of this process with a token that was refused requests a new one.
    """
    if error is None:
        return None
    if (failure := find_token_failure(properties)) is not None:
        return failure
    servers = properties.get("bootstrap.servers")
    if error.name() == "_AUTHENTICATION" and uses_tokens(properties):
        forget_token(properties[TOKEN_METHOD], properties)
        return TokenUnavailable(
            f"Kafka at {servers} does not accept the token of the provider {properties[TOKEN_METHOD]!r}, or the "
            f"provider could not renew it: {error.str()}. Check the provider's properties in the Kafka connection, "
            f"what the brokers require of a token (issuer, audience, scope, lifetime), and the clocks of all machines."
        )
    if error.name() == "_AUTHENTICATION":
        check = "sasl.mechanism, sasl.username and sasl.password"
    elif error.name() == "_SSL" or "certificate verify failed" in error.str():
        check = (
            "ssl.ca.location, which must contain the authority that issued the broker's certificate, and the "
            "host in bootstrap.servers (and in the broker's advertised.listeners), which that certificate must "
            "name; and that it has not expired"
        )
    else:
        return None
    return ConfigurationError(
        f"Kafka at {servers} and this client do not accept each other: {error.str()}. Check, in the Kafka "
        f"connection, {check}."
    )


def unavailable(servers: Any, error: Exception, cause: str = "") -> KafkaUnavailable:
    """Return the error for brokers that do not answer."""
    return KafkaUnavailable(
        f"Kafka at {servers} does not answer: {type(error).__name__}: {error}{cause}. Check bootstrap.servers "
        f"and the security properties of the Kafka connection, and that the broker is up."
    )


def event_error(where: Any, topic: str, partition: int, event: Event) -> ExactbatchError:
    """Return the error for an error event of consume() that concerns reading; `where` is the range to read."""
    error, offset = event.error(), event.offset()
    assert error is not None
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return acl_missing("Read", "topic", topic, "reading it")
    if error.code() in (KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION):
        return ReadFailed(
            f"{topic}[{partition}] offset {offset}: the batch of records that begins there is damaged "
            f"({error.str()}). {DAMAGED}",
            topic=topic,
            partition=partition,
            from_offset=offset,
        )
    return ReadFailed(
        f"{where}: reading failed with {error.name()}: {error.str()}. Try again.",
        topic=topic,
        partition=partition,
    )
