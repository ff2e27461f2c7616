"""Open kafka-python's admin client, and explain why it cannot reach or use a broker."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException
from kafka import KafkaAdminClient
from kafka.errors import AuthorizationError, KafkaConfigurationError, UnsupportedVersionError
from kafka.errors import KafkaError as AdminError

from exactbatch.errors import ConfigurationError
from exactbatch.kafka.client_errors import acl_missing, connection_refused, unavailable
from exactbatch.kafka.client_properties import admin_properties, check_properties, reader_properties
from exactbatch.kafka.consumer import Signals, close_consumer

# Seconds that librdkafka gets to say why brokers cannot be reached, after kafka-python has failed to reach them.
_DIAGNOSIS: Final = 3.0


@contextmanager
def admin_client(properties: Mapping[str, Any]) -> Iterator[Any]:
    """Yield a kafka-python admin client, which has no types, and close it at the end.

    Raises KafkaUnavailable if the broker cannot be reached or does not answer in time, and ConfigurationError for
    properties that a client rejects, a broker that is too old, and requests that its ACLs deny.
    """
    check_properties(properties)
    logging.getLogger("kafka").setLevel(logging.ERROR)  # at INFO it logs every connection
    servers = properties.get("bootstrap.servers")
    try:
        client = KafkaAdminClient(**admin_properties(properties))
    except (KafkaConfigurationError, AssertionError, ValueError) as error:
        raise ConfigurationError(
            f"kafka-python, which plans, rejects the Kafka client properties: {error}. Correct the Kafka "
            f"connection."
        ) from None
    except AdminError as error:
        # It only says that it could not bootstrap: librdkafka, with the same properties, says why.
        cause = _diagnose(properties)
        if (refusal := connection_refused(properties, cause)) is not None:
            raise refusal from None
        raise unavailable(servers, error, "" if cause is None else f" ({cause.str()})") from error
    try:
        yield client
    except UnsupportedVersionError as error:
        raise ConfigurationError(
            f"Kafka at {servers} does not support a request that exactbatch needs: {error}. Use Kafka 2.8 or "
            f"newer."
        ) from error
    except AuthorizationError as error:
        raise ConfigurationError(
            f"Kafka at {servers} denies this client a request that exactbatch needs: {error}. `exactbatch "
            f"explain security` lists the ACLs that a pipeline needs."
        ) from error
    except AdminError as error:
        raise unavailable(servers, error) from error
    finally:
        client.close()


@dataclass(frozen=True, slots=True)
class Cluster:
    """What brokers say of their cluster: its ID, None if it has none, and how many brokers are up."""

    cluster_id: str | None
    brokers: int


def describe_cluster(client: Any) -> Cluster:
    """Ask for the cluster by a Metadata request without topics, which every broker answers.

    kafka-python's own describe_cluster() fails with brokers before 3.7: it expects the field `endpoint_type`, which
    only version 1 of DescribeCluster has (KIP-919).

    Raises what kafka-python raises.
    """
    metadata = client._manager.run(client._get_cluster_metadata, [])
    return Cluster(metadata["cluster_id"], len(metadata["brokers"]))


@contextmanager
def needs_acl(operation: str, resource: str, name: str, purpose: str) -> Iterator[None]:
    """Raise ConfigurationError if an ACL denies this operation on a topic or group."""
    try:
        yield
    except AuthorizationError as error:
        raise acl_missing(operation, resource, name, purpose) from error


def _diagnose(properties: Mapping[str, Any]) -> KafkaError | None:
    """Return the error that librdkafka has with the brokers; None if it reaches them."""
    signals = Signals()
    consumer = Consumer({**reader_properties(properties), **signals.callbacks(), "log_level": 0})
    timeout: KafkaError | None = None
    try:
        consumer.list_topics(timeout=_DIAGNOSIS)
    except KafkaException as error:
        timeout = error.args[0]
    close_consumer(consumer)  # delivers the callbacks that are due
    signals.receive()
    return timeout and (signals.errors.last or timeout)
