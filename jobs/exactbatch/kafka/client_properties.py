"""Translate one set of client properties, with librdkafka's dotted names, for both Kafka clients.

kafka-python's admin client plans; librdkafka (confluent-kafka) reads. A property that one of them rejects is an
error that names the client.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException

from exactbatch.errors import ConfigurationError
from exactbatch.formats.registry.registry_properties import PREFIX, registry_properties
from exactbatch.kafka.properties import FIXED, OVERRIDDEN, PRODUCING, SHARED, allowed
from exactbatch.kafka.token_source import TokenSource, find_token_source

logger = logging.getLogger(__name__)

# Seconds until planning gives up on brokers that do not answer; socket.connection.setup.timeout.ms changes it.
ANSWER_TIMEOUT: Final = 5.0


def _same(value: Any) -> Any:
    return value


def _check_hostname(value: Any) -> bool:
    return str(value).lower() != "none"


# librdkafka's name (its CONFIGURATION.md) → kafka-python's name, and how the value is written there.
_ADMIN: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "bootstrap.servers": ("bootstrap_servers", lambda value: [server.strip() for server in value.split(",")]),
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
    "socket.connection.setup.timeout.ms": ("bootstrap_timeout_ms", int),
    "reconnect.backoff.max.ms": ("reconnect_backoff_max_ms", int),
}


def check_properties(properties: Mapping[str, Any]) -> None:
    """Raise ConfigurationError unless both clients accept the properties. Opens no connection to Kafka.

    Requests a token if they log in with one: raises TokenUnavailable if there is none. Logs which of them only
    other consumers use.
    """
    admin_properties(properties)
    registry_properties(properties)
    if ignored := sorted(OVERRIDDEN & properties.keys()):
        logger.info(
            "the Kafka connection has %s, which batches ignore: the ledger has their offsets, and a missing record is "
            "an error",
            ", ".join(f"{name}={properties[name]}" for name in ignored),
        )
    try:
        # Without brokers, librdkafka checks all other properties, reads the files of ssl.* and opens no
        # connection. With a source of tokens, confluent-kafka would sleep for a second.
        checked = {**reader_properties(properties), "bootstrap.servers": "", "log_level": 0}
        checked.pop("oauth_cb", None)
        Consumer(checked).close()
    except KafkaException as error:
        if "No provider for SASL mechanism GSSAPI" in error.args[0].str():
            raise ConfigurationError(
                "the Kafka property sasl.mechanism is GSSAPI (Kerberos), which this librdkafka lacks, as do all in "
                "PyPI's packages of confluent-kafka. Use SCRAM or a client certificate, or build confluent-kafka "
                "with Kerberos: `exactbatch explain security`."
            ) from None
        raise ConfigurationError(
            f"librdkafka, which reads, rejects the Kafka client properties: {error.args[0].str()}. Correct the "
            f"Kafka connection."
        ) from None


def admin_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties for kafka-python's admin client, without those that only affect reading.

    Raises ConfigurationError for a missing bootstrap.servers, and for a property that a connection may not have, and
    TokenUnavailable.
    """
    if not properties.get("bootstrap.servers"):
        raise ConfigurationError(
            f"the Kafka property bootstrap.servers is missing (properties: "
            f"{', '.join(sorted(properties)) or 'none'}). "
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
                    f"the Kafka property {name} is {value!r}, which librdkafka does not accept. Correct the Kafka "
                    f"connection."
                ) from None
    if (source := find_token_source(properties)) is not None:
        admin["sasl_oauth_token_provider"] = source
    return admin


def reader_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties for librdkafka, with those that make a read exact and fast.

    Raises ConfigurationError for a property that a connection may not have, and TokenUnavailable.
    """
    return {
        # librdkafka requires a group; offsets are assigned and never committed, so no consumer joins it.
        "group.id": "exactbatch",
        # The default, one second, stalls a fast reader whenever its queue is full.
        "fetch.queue.backoff.ms": 5,
        # The end-of-log event arrives after this time; the default, half a second, is long for a short range.
        "fetch.wait.max.ms": 50,
        "queued.min.messages": 1_000_000,
        # What is fetched beyond the end of a range is wasted: with 64 MiB, a twentieth of a large batch's CPU time.
        "queued.max.messages.kbytes": 16 * 1024,
        "reconnect.backoff.max.ms": 1000,
        # For this time librdkafka does not report a topic that the broker does not know: it may be a new one.
        "topic.metadata.propagation.max.ms": 1000,
        # With the other strategy, librdkafka tries, and reports, a broker that is down 20 times a second.
        "metadata.recovery.strategy": "none",
        **_of_clients(properties),
        **{name: fixed.value for name, fixed in FIXED.items()},
        **_token_callback(properties),
    }


def producer_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties for librdkafka as a producer, with those that keep messages exact and in order.

    Raises ConfigurationError for a property that a connection may not have, and TokenUnavailable.
    """
    common = {
        name: value for name, value in _of_clients(properties).items() if name in SHARED or name in PRODUCING
    }
    return {
        "reconnect.backoff.max.ms": 1000,
        "metadata.recovery.strategy": "none",
        "log_level": 0,  # errors are raised, and say what to do
        **common,
        # Without duplicates and in order, also after retries.
        "enable.idempotence": True,
        "acks": "all",
        # The partition of a key is that of Java's producers.
        "partitioner": "murmur2_random",
        "linger.ms": 5,
        **_token_callback(properties),
    }


def limit_fetches(properties: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Return properties for librdkafka with which it fetches at most `most` bytes of a partition at a time, or one
    batch of records."""
    default = {} if "max.partition.fetch.bytes" in properties else {"fetch.message.max.bytes": most}
    limited = {**default, **properties}
    for name in ("fetch.message.max.bytes", "max.partition.fetch.bytes"):  # two names of one property
        if name in limited:
            limited[name] = min(int(limited[name]), most)
    return limited


def _token_callback(properties: Mapping[str, Any]) -> dict[str, TokenSource]:
    source = find_token_source(properties)
    return {} if source is None else {"oauth_cb": source}


def _of_clients(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties that clients use, without the schema registry's."""
    return allowed({name: value for name, value in properties.items() if not name.startswith(PREFIX)})
