"""One set of client properties, with librdkafka's dotted names, for both Kafka clients, and what they say.

kafka-python's admin client plans; librdkafka (confluent-kafka) reads. A property that one of them refuses is
an error that names the client.
"""

import json
import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from exactbatch.errors import ConfigurationError, ExactbatchError, KafkaUnavailable, ReadFailed
from exactbatch.formats import registry
from exactbatch.kafka.properties import FIXED, allowed

# Seconds until planning gives up on brokers that do not answer; socket.connection.setup.timeout.ms sets it.
ANSWER_TIMEOUT: Final = 5.0


def _same(value: Any) -> Any:
    return value


def _milliseconds(value: Any) -> int:
    return int(value)


def _check_hostname(value: Any) -> bool:
    return str(value).lower() != "none"


_DAMAGED: Final = (
    "Nothing was written. Try again: the network may have changed it. If it stays so, it is damaged on the disk "
    "of the broker that leads the partition: let another replica lead it."
)

# librdkafka's name (its CONFIGURATION.md) → kafka-python's name, and how the value is written there.
_ADMIN: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "bootstrap.servers": ("bootstrap_servers", lambda value: [each.strip() for each in value.split(",")]),
    "client.id": ("client_id", str),
    "security.protocol": ("security_protocol", lambda value: str(value).upper()),
    "sasl.mechanism": ("sasl_mechanism", _same),
    "sasl.mechanisms": ("sasl_mechanism", _same),
    "sasl.username": ("sasl_plain_username", str),
    "sasl.password": ("sasl_plain_password", str),
    "sasl.kerberos.service.name": ("sasl_kerberos_service_name", _same),
    "ssl.ca.location": ("ssl_cafile", _same),
    "ssl.certificate.location": ("ssl_certfile", _same),
    "ssl.key.location": ("ssl_keyfile", _same),
    "ssl.key.password": ("ssl_password", str),
    "ssl.crl.location": ("ssl_crlfile", _same),
    "ssl.endpoint.identification.algorithm": ("ssl_check_hostname", _check_hostname),
    "socket.connection.setup.timeout.ms": ("bootstrap_timeout_ms", _milliseconds),
    "reconnect.backoff.max.ms": ("reconnect_backoff_max_ms", _milliseconds),
}
# Seconds that librdkafka gets to say why brokers cannot be reached, after kafka-python has failed to.
_DIAGNOSIS: Final = 3.0


def check_properties(properties: Mapping[str, Any]) -> None:
    """Raise ConfigurationError unless both clients accept the properties. Connects to nothing."""
    from confluent_kafka import Consumer, KafkaException

    admin_properties(properties)
    registry.registry_properties(properties)
    try:
        # Without brokers, librdkafka checks all the rest, reads the files of ssl.* and connects to nothing.
        Consumer({**reader_properties(properties), "bootstrap.servers": "", "log_level": 0}).close()
    except KafkaException as error:
        raise ConfigurationError(
            f"expected Kafka client properties that librdkafka, which reads, accepts; it says: "
            f"{error.args[0].str()}. Correct the Kafka connection."
        ) from None


def admin_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The properties as kafka-python's admin client takes them; those that only concern reading are left out.

    Raises ConfigurationError for a missing bootstrap.servers, and for a property that a connection may not have.
    """
    if not properties.get("bootstrap.servers"):
        raise ConfigurationError(
            f"expected the Kafka property bootstrap.servers, found {', '.join(sorted(properties)) or 'none'}. "
            f'Set it in EXACTBATCH_KAFKA, as {{"bootstrap.servers": "host:9092"}}, or in the extra of '
            f"Airflow's kafka_default."
        )
    admin: dict[str, Any] = {"bootstrap_timeout_ms": round(ANSWER_TIMEOUT * 1000)}
    for name, value in _of_clients(properties).items():
        if name in _ADMIN:
            key, convert = _ADMIN[name]
            try:
                admin[key] = convert(value)
            except (AttributeError, TypeError, ValueError):
                raise ConfigurationError(
                    f"expected the Kafka property {name} as librdkafka writes it, found {value!r}. Correct "
                    f"the Kafka connection."
                ) from None
    return admin


def reader_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The properties as librdkafka takes them, with those that make a read exact and fast.

    Raises ConfigurationError for a property that a connection may not have.
    """
    return {
        # librdkafka asks for a group, but offsets are assigned and never committed: nobody joins it.
        "group.id": "exactbatch",
        # The default, one second, stalls a fast reader each time its queue is full.
        "fetch.queue.backoff.ms": 5,
        # The end-of-log event comes after this; half a second is a long time for a short range.
        "fetch.wait.max.ms": 50,
        "queued.min.messages": 1_000_000,
        "queued.max.messages.kbytes": 64 * 1024,
        "reconnect.backoff.max.ms": 1000,
        # For this long nothing is said of a topic that the broker does not know, since it may be a new one.
        "topic.metadata.propagation.max.ms": 1000,
        # With the other strategy, a broker that is down is tried, and complained about, 20 times a second.
        "metadata.recovery.strategy": "none",
        **_of_clients(properties),
        **{name: fixed.value for name, fixed in FIXED.items()},
    }


def _of_clients(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are not for value formats, as the properties of a schema registry are."""
    return allowed(
        {name: value for name, value in properties.items() if not name.startswith(registry.PREFIX)}
    )


@contextmanager
def admin_client(properties: Mapping[str, Any]) -> Iterator[Any]:
    """A kafka-python admin client, closed at the end.

    Raises KafkaUnavailable where the broker cannot be reached or does not answer in time, and ConfigurationError
    for properties that a client refuses, a broker that is too old, and what its ACLs deny.
    """
    from kafka import KafkaAdminClient
    from kafka.errors import (
        AuthorizationError,
        KafkaConfigurationError,
        KafkaError,
        UnsupportedVersionError,
    )

    check_properties(properties)
    logging.getLogger("kafka").setLevel(logging.ERROR)  # at INFO it tells of every connection
    servers = properties.get("bootstrap.servers")
    try:
        client = KafkaAdminClient(**admin_properties(properties))
    except (KafkaConfigurationError, AssertionError, ValueError) as error:
        raise ConfigurationError(
            f"expected Kafka client properties that kafka-python, which plans, accepts; it says: {error}. "
            f"Correct the Kafka connection."
        ) from None
    except KafkaError as error:
        # It only says that it could not bootstrap: librdkafka, with the same properties, says why.
        cause = _diagnose(properties)
        if cause is not None and (refusal := refused(servers, cause)) is not None:
            raise refusal from None
        raise _unavailable(servers, error, "" if cause is None else f" ({cause.str()})") from error
    try:
        yield client
    except UnsupportedVersionError as error:
        raise ConfigurationError(
            f"Kafka at {servers} does not know a request that exactbatch needs: {error}. Use Kafka 2.8 or newer."
        ) from error
    except AuthorizationError as error:
        raise ConfigurationError(
            f"Kafka at {servers} denies this client what exactbatch asks of it: {error}. docs/security.md lists "
            f"the ACLs that a pipeline needs."
        ) from error
    except KafkaError as error:
        raise _unavailable(servers, error) from error
    finally:
        client.close()


def denied(operation: str, resource: str, name: str, why: str) -> ConfigurationError:
    """The error for an ACL that is missing: an operation on the resource "topic" or "group" of this name."""
    return ConfigurationError(
        f"Kafka's ACLs deny this client the operation {operation} on {resource} {name!r}, which {why} needs. "
        f"Grant it (kafka-acls --add --allow-principal … --operation {operation} --{resource} {name}); "
        f"docs/security.md lists all that a pipeline needs."
    )


class Troubles:
    """What librdkafka says of its connections, given to it as error_cb; `last` is the last that has a cause."""

    def __init__(self) -> None:
        self.last: Any = None

    def __call__(self, error: Any) -> None:
        # That all brokers are down follows each failure of the only one, and would hide why.
        if self.last is None or error.name() != "_ALL_BROKERS_DOWN":
            self.last = error


class HeldBack:
    """Until when a quota holds the client back, given to librdkafka as throttle_cb: a monotonic time."""

    def __init__(self) -> None:
        self.until = 0.0

    def __call__(self, event: Any) -> None:
        # The last one of several tells of no time at all.
        self.until = max(self.until, time.monotonic() + event.throttle_time)


class FetchPosition:
    """Up to which offset librdkafka has fetched a partition, given to it as stats_cb; -1 before it has any.

    It moves on where consume() gives nothing: past records of aborted transactions, transaction markers and holes
    that compaction made. (`next_offset` of a partition in librdkafka's STATISTICS.md.)
    """

    def __init__(self, topic: str, partition: int) -> None:
        self._topic, self._partition = topic, str(partition)
        self.offset = -1

    def __call__(self, statistics: str) -> None:
        topic = json.loads(statistics).get("topics", {}).get(self._topic, {})
        found = topic.get("partitions", {}).get(self._partition, {})
        self.offset = max(self.offset, found.get("next_offset", -1))


def concerns_reading(event: Any) -> bool:
    """Whether an error event of consume() is about the partition that is read, or ends the client.

    Others are of the consumer group's coordinator, which librdkafka looks for, and which assigned offsets do
    without: neither its ACL nor its being there matters.
    """
    return event.topic() is not None or event.error().fatal()


def is_cluster(consumer: Any, where: Any, topic: str, cluster_id: str | None) -> bool:
    """Whether a consumer is connected to the cluster that was planned from; False where no broker answers soon, as
    one does not that a quota holds back.

    Raises ConfigurationError where it is connected to another one: both have a topic of this name, and nothing in
    the records tells them apart.
    """
    from confluent_kafka import KafkaException

    if cluster_id is None:
        return True
    try:
        found = consumer.list_topics(topic, timeout=ANSWER_TIMEOUT).cluster_id
    except KafkaException:
        return False
    if found not in (None, cluster_id):
        raise ConfigurationError(
            f"{where}: it was planned from the Kafka cluster {cluster_id}, and {socket.gethostname()} reads from "
            f"the cluster {found}. Nothing was written. Do the names in bootstrap.servers belong to two clusters, "
            f"or does this host resolve them to other brokers? Let them name one cluster, everywhere."
        )
    return True


def check_in_log(consumer: Any, topic: str, partition: int, offset: int) -> None:
    """Raise ReadFailed for a record at an offset that the log has not reached.

    No checksum covers the offset of a batch: where a bit of it is damaged, its records seem to stand elsewhere,
    and the log seems to have a hole where they are.
    """
    from confluent_kafka import TopicPartition

    where = TopicPartition(topic, partition)
    _, end = consumer.get_watermark_offsets(where, cached=True)  # of the last answer, which may be an error
    if end <= offset:
        _, end = consumer.get_watermark_offsets(where, timeout=ANSWER_TIMEOUT)
    if end <= offset:
        raise ReadFailed(
            f"{topic}[{partition}] offset {offset}: a record claims this offset, and the log ends at {end}: the "
            f"offset of its batch is damaged. {_DAMAGED}"
        )


def event_error(where: Any, topic: str, partition: int, event: Any) -> ExactbatchError:
    """The error for an error event of consume() that concerns reading; `where` is the range that is read."""
    from confluent_kafka import KafkaError

    error = event.error()
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return denied("Read", "topic", topic, "reading it")
    if error.code() in (KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION):
        return ReadFailed(
            f"{topic}[{partition}] offset {event.offset()}: the batch of records that begins there is damaged "
            f"({error.str()}). {_DAMAGED}"
        )
    return ReadFailed(f"{where}: expected to read it, found {error.name()}: {error.str()}. Try again.")


def refused(servers: Any, trouble: Any) -> ConfigurationError | None:
    """The error for a client or a broker that the other one does not accept; None for any other trouble."""
    if trouble.name() == "_AUTHENTICATION":
        wrong = "sasl.mechanism, sasl.username and sasl.password"
    elif trouble.name() == "_SSL" or "certificate verify failed" in trouble.str():
        wrong = (
            "ssl.ca.location, which has to hold the authority that has issued the broker's certificate, and the "
            "host in bootstrap.servers (and in the broker's advertised.listeners), which that certificate has to "
            "name"
        )
    else:
        return None
    return ConfigurationError(
        f"expected Kafka at {servers} and this client to accept each other, found: {trouble.str()}. Check, in "
        f"the Kafka connection, {wrong}."
    )


def _diagnose(properties: Mapping[str, Any]) -> Any:
    """The trouble that librdkafka has with the brokers; None where it has none."""
    from confluent_kafka import Consumer, KafkaException

    troubles = Troubles()
    consumer = Consumer({**reader_properties(properties), "error_cb": troubles, "log_level": 0})
    found = None
    try:
        consumer.list_topics(timeout=_DIAGNOSIS)
    except KafkaException as error:
        found = error.args[0]
    consumer.close()  # calls back with what it has to say
    return found and (troubles.last or found)


def _unavailable(servers: Any, error: Exception, cause: str = "") -> KafkaUnavailable:
    return KafkaUnavailable(
        f"expected Kafka at {servers} to answer, found: {type(error).__name__}: {error}{cause}. Check "
        f"bootstrap.servers and the security properties of the Kafka connection, and that the broker is up."
    )
