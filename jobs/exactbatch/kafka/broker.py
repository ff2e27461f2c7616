"""What the broker says of the log: topics and their ids, earliest, last stable and latest offsets."""

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, TypeVar
from uuid import UUID

import tenacity

from exactbatch.errors import ConfigurationError, KafkaUnavailable, StoredOffsetBeyondLog, TopicMissing
from exactbatch.kafka.client import (
    FetchPosition,
    admin_client,
    concerns_reading,
    denied,
    event_error,
    reader_properties,
)
from exactbatch.kafka.identity import check_same_logs
from exactbatch.model import FoundRecord, LogPartition, Start, StoredOffset
from exactbatch.offsets import TopicPartition

_SETTLE: Final = 15.0  # seconds
_NO_TOPIC_ID: Final = UUID(int=0)
_SAMPLE: Final = 2000  # records that are looked at behind one that may hide others
_SAMPLE_TIMEOUT: Final = 20.0  # seconds

Answer = TypeVar("Answer")


class KafkaBroker:
    """Asks a broker through kafka-python's admin client, which joins no group and creates no topic.

    Each call opens a client and closes it. All raise KafkaUnavailable when the broker does not answer, and
    ConfigurationError for client properties that are not allowed and for an ACL that is missing, which it names.

    `settle`, in seconds, is how long an answer that contradicts what was processed is asked for again.
    """

    def __init__(self, properties: Mapping[str, Any], *, settle: float = _SETTLE) -> None:
        self._properties = properties
        self._settle = settle

    def partitions(self, topics: Sequence[str], processed: Collection[str] = ()) -> tuple[LogPartition, ...]:
        """What every partition of the topics holds now; some of them may have been `processed` before.

        The offsets are read in three requests, earliest first, so that earliest <= last_stable <=
        high_watermark holds of what is returned although the log moves meanwhile.

        Raises TopicMissing.
        """
        from kafka import TopicPartition as KafkaPartition
        from kafka.protocol.consumer import IsolationLevel, OffsetSpec

        with admin_client(self._properties) as client:
            described = _describe(client, topics, processed)
            partitions = [
                KafkaPartition(t["name"], p["partition_index"])
                for t in described.values()
                for p in t["partitions"]
            ]
            earliest = client.list_partition_offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST))
            latest = dict.fromkeys(partitions, OffsetSpec.LATEST)
            stable = client.list_partition_offsets(latest, isolation_level=IsolationLevel.READ_COMMITTED)
            high = client.list_partition_offsets(latest)
        return tuple(
            LogPartition(
                topic=each.topic,
                partition=each.partition,
                topic_id=_topic_id(described[each.topic]),
                leader_epoch=stable[each].leader_epoch,
                earliest=earliest[each].offset,
                last_stable=stable[each].offset,
                high_watermark=high[each].offset,
            )
            for each in sorted(partitions)
        )

    def known_partitions(self, topics: Sequence[str]) -> tuple[LogPartition, ...]:
        """As partitions(), of topics that were there: a broker that has just come up is asked again for them.

        Raises TopicMissing.
        """
        return self._settled(lambda: self.partitions(topics, topics))

    def processed_partitions(
        self, topics: Sequence[str], stored: Sequence[StoredOffset]
    ) -> tuple[LogPartition, ...]:
        """As partitions(), of a log that is the one that was processed up to the stored offsets of these topics.

        A topic that is none of them, because it was taken out of the pipeline, is left alone.

        A broker that has just come up does not know its topics for a moment, and a new leader can tell an end
        that lies behind: it is asked again before that is believed.

        Raises TopicMissing, and what check_same_logs() raises.
        """
        processed = [each for each in stored if each.topic in topics]

        def ask() -> tuple[LogPartition, ...]:
            partitions = self.partitions(topics, {each.topic for each in processed})
            check_same_logs(processed, partitions)
            return partitions

        return self._settled(ask) if processed else ask()

    def offsets_at(self, partitions: Sequence[LogPartition], at: datetime) -> dict[TopicPartition, int]:
        """As records_at(), the offsets alone."""
        return {key: found.offset for key, found in self.records_at(partitions, at).items()}

    def records_at(
        self, partitions: Sequence[LogPartition], at: datetime
    ) -> dict[TopicPartition, FoundRecord]:
        """The first committed record at or after a time, by its timestamp: the first in the log, not in time.

        A partition without such a record is left out. (Kafka's ListOffsets by timestamp, in milliseconds.)
        """
        from kafka import TopicPartition as KafkaPartition
        from kafka.protocol.consumer import IsolationLevel

        # No timestamp lies before 1970; to the protocol, such numbers are earliest, latest and the like.
        milliseconds = max(0, math.ceil(at.timestamp() * 1000))
        asked = {KafkaPartition(each.topic, each.partition): milliseconds for each in partitions}
        with admin_client(self._properties) as client:
            found = client.list_partition_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED)
        return {
            (each.topic, each.partition): FoundRecord(told.offset, told.timestamp)
            for each, told in found.items()
            if told.offset >= 0
        }

    def first_before(
        self, partition: LogPartition, from_offset: int, until_offset: int, at: datetime
    ) -> FoundRecord | None:
        """The first committed record in [from_offset, until_offset) whose time is before `at`.

        Looks at the first _SAMPLE records alone; None where none of them is.
        """
        from confluent_kafka import Consumer, KafkaError
        from confluent_kafka import TopicPartition as KafkaPartition

        milliseconds = math.ceil(at.timestamp() * 1000)
        few = {"queued.min.messages": _SAMPLE, "queued.max.messages.kbytes": 8 * 1024, "log_level": 0}
        fetched = FetchPosition(partition.topic, partition.partition)
        consumer = Consumer({**reader_properties(self._properties), **few, "stats_cb": fetched})
        try:
            consumer.assign([KafkaPartition(partition.topic, partition.partition, from_offset)])
            seen, passed, deadline = 0, from_offset, time.monotonic() + _SAMPLE_TIMEOUT
            while seen < _SAMPLE:
                for message in consumer.consume(_SAMPLE - seen, 0.1):
                    error = message.error()
                    if error is None:
                        record = FoundRecord(message.offset() or 0, message.timestamp()[1])
                        if record.offset >= until_offset:
                            return None
                        if 0 <= record.timestamp < milliseconds:
                            return record
                        seen += 1
                    elif error.code() == KafkaError._PARTITION_EOF:
                        return None
                    elif concerns_reading(message):
                        raise event_error(partition, partition.topic, partition.partition, message)
                if fetched.offset > passed:
                    passed, deadline = fetched.offset, time.monotonic() + _SAMPLE_TIMEOUT
                if time.monotonic() > deadline:
                    raise KafkaUnavailable(
                        f"{partition}: the broker gave no record from offset {from_offset} on within "
                        f"{_SAMPLE_TIMEOUT:.0f} s. Check that the brokers are up; then try again."
                    )
            return None
        finally:
            consumer.close()

    def topic_ids(self, topics: Sequence[str]) -> dict[str, UUID]:
        """The ids, now, of topics that were there. Raises TopicMissing."""

        def ask() -> dict[str, UUID]:
            with admin_client(self._properties) as client:
                return {name: _topic_id(topic) for name, topic in _describe(client, topics, topics).items()}

        return self._settled(ask)

    def cluster(self, topics: Sequence[str]) -> tuple[dict[str, UUID], str | None]:
        """As topic_ids(), and the id of the cluster that has told them, where it has one."""

        def ask() -> tuple[dict[str, UUID], str | None]:
            with admin_client(self._properties) as client:
                described = _describe(client, topics, topics)
                ids = {name: _topic_id(topic) for name, topic in described.items()}
                return ids, client.describe_cluster()["cluster_id"]

        return self._settled(ask)

    def group_offsets(self, group: str, topics: Sequence[str]) -> dict[TopicPartition, int]:
        """What a consumer group has committed for the topics.

        Raises ConfigurationError for a topic for which it has committed nothing at all.
        """
        with (
            admin_client(self._properties) as client,
            _needs("Describe", "group", group, f"start='group:{group}'"),
        ):
            committed = client.list_group_offsets(group)[group]
        offsets = {
            (each.topic, each.partition): value.offset
            for each, value in committed.items()
            if each.topic in topics and value.offset >= 0
        }
        if missing := sorted(set(topics) - {topic for topic, _ in offsets}):
            there = sorted({each.topic for each, value in committed.items() if value.offset >= 0})
            raise ConfigurationError(
                f"start='group:{group}': the consumer group {group!r} has committed no offset for "
                f"{', '.join(missing)}; it has for {', '.join(there) or 'no topic at all'}. Check the names "
                f"of group and topics. For a topic that the group never read, change start: it only concerns "
                f"topics that the pipeline has not processed yet."
            )
        return offsets

    def open_transactions(self, partition: LogPartition) -> list[tuple[int, int]]:
        """The transactions that hold back a partition's last stable offset: (producer id, first offset)."""
        from kafka import TopicPartition as KafkaPartition

        asked = KafkaPartition(partition.topic, partition.partition)
        with (
            admin_client(self._properties) as client,
            _needs("Read", "topic", partition.topic, "naming the producers of open transactions"),
        ):
            producers = client.describe_producers([asked])[asked].active_producers
        return sorted(
            (each.producer_id, each.current_transaction_start_offset)
            for each in producers
            if each.current_transaction_start_offset >= 0
        )

    def compacted(self, topics: Sequence[str]) -> set[str]:
        """Those of the topics whose cleanup.policy lets the broker remove records in the middle.

        Raises ConfigurationError where the client may not know: kafka-python then has no entry, and no error.
        """
        from kafka.admin import ConfigResource, ConfigResourceType

        asked = [ConfigResource(ConfigResourceType.TOPIC, topic) for topic in topics]
        with admin_client(self._properties) as client:
            configs = client.describe_configs(asked, config_filter="all")
        policies = {
            topic: config.get("cleanup.policy", {}).get("value")
            for topic, config in configs.get("topic", {}).items()
        }
        for topic in topics:
            if policies.get(topic) is None:
                missing = denied(
                    "DescribeConfigs", "topic", topic, "asking whether Kafka compacts it (cleanup.policy)"
                )
                raise ConfigurationError(f"{missing} A replay with available_only does without.")
        return {topic for topic in topics if "compact" in policies[topic]}

    def commit_group(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets to a consumer group, for tools that show its lag. Nothing ever reads them back."""
        from kafka import TopicPartition as KafkaPartition
        from kafka.errors import NoError, TopicAuthorizationFailedError
        from kafka.structs import OffsetAndMetadata

        asked = {KafkaPartition(*each): OffsetAndMetadata(offset) for each, offset in offsets.items()}
        why = "showing the pipeline's lag"
        with admin_client(self._properties) as client, _needs("Read", "group", group, why):
            for partition, error in client.alter_group_offsets(group, asked).items():
                if issubclass(error, TopicAuthorizationFailedError):
                    raise denied("Read", "topic", partition.topic, why)
                if error is not NoError:
                    raise error(f"{partition.topic}[{partition.partition}]: {error.__name__}")

    def _settled(self, ask: Callable[[], Answer]) -> Answer:
        """An answer that is at odds with what was processed is not believed before it is given for a while."""
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type((StoredOffsetBeyondLog, TopicMissing)),
            wait=tenacity.wait_fixed(0.5),
            stop=tenacity.stop_after_delay(self._settle),
            reraise=True,
        )
        return retrying(ask)


def resolve_start(
    start: str | Mapping[str, Mapping[int, int]], log: KafkaBroker, topics: Sequence[str]
) -> Start:
    """Turn a pipeline's `start` into what the planner takes, asking the broker for a group's offsets."""
    if isinstance(start, str):
        if start == "earliest":
            return "earliest"
        if start == "latest":
            return "latest"
        return log.group_offsets(start.removeprefix("group:"), topics)
    return {(topic, partition): offset for topic, each in start.items() for partition, offset in each.items()}


@contextmanager
def _needs(operation: str, resource: str, name: str, why: str) -> Iterator[None]:
    """Raise ConfigurationError where an ACL denies this operation on a topic or group."""
    from kafka.errors import AuthorizationError

    try:
        yield
    except AuthorizationError as error:
        raise denied(operation, resource, name, why) from error


def _describe(client: Any, topics: Sequence[str], processed: Collection[str]) -> dict[str, Any]:
    from kafka.errors import NoError, TopicAuthorizationFailedError, UnknownTopicOrPartitionError, for_code

    described = {topic["name"]: topic for topic in client.describe_topics(list(topics))}
    for name in topics:
        error = for_code(described[name]["error_code"]) if name in described else UnknownTopicOrPartitionError
        if error is UnknownTopicOrPartitionError:
            remedy = (
                "It was there before: check bootstrap.servers. If it was deleted, a topic that "
                "is created again has another id, and needs a pipeline under a new name."
                if name in processed
                else "Check the pipeline's topics and bootstrap.servers, and create the topic; exactbatch never "
                "creates one."
            )
            raise TopicMissing(
                f"expected the topic {name!r}, found that the broker does not know it. {remedy}"
            )
        if error is TopicAuthorizationFailedError:
            raise denied("Describe", "topic", name, "planning")
        if error is not NoError:
            raise KafkaUnavailable(f"expected the broker to describe topic {name!r}, found {error.__name__}")
    return described


def _topic_id(described: Mapping[str, Any]) -> UUID:
    """The topic's id, which Metadata tells from version 10 on (KIP-516); a cluster that gives none says zero."""
    topic_id = UUID(str(described.get("topic_id") or _NO_TOPIC_ID))
    if topic_id == _NO_TOPIC_ID:
        raise ConfigurationError(
            f"topic {described['name']!r}: the broker gives no topic id, without which a topic that was deleted "
            f"and created again looks like the one that was processed. Use Kafka 2.8 or newer, and with ZooKeeper "
            f"an inter.broker.protocol.version of 2.8 or newer."
        )
    return topic_id
