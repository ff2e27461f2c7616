"""Query the brokers: topics and their IDs, the offsets of their logs, consumer groups and transactions.

All requests other than reads are in one class, so that they share clients, retries and errors.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from datetime import UTC, datetime
from typing import Any, Final, Self, TypeVar
from uuid import UUID

import tenacity
from kafka import TopicPartition as KafkaPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import NoError, TopicAuthorizationFailedError, UnknownTopicOrPartitionError, for_code
from kafka.protocol.consumer import IsolationLevel, OffsetSpec
from kafka.structs import OffsetAndMetadata

from exactbatch.errors import ConfigurationError, KafkaUnavailable, StoredOffsetBeyondLog, TopicMissing
from exactbatch.kafka.admin import admin_client, describe_cluster, needs_acl
from exactbatch.kafka.client_errors import acl_missing
from exactbatch.kafka.identity import check_same_logs, known_as, named_id
from exactbatch.kafka.record_digests import ComparedRecords, compare_fingerprints, take_fingerprints
from exactbatch.kafka.timestamps import first_before, first_timestamps
from exactbatch.model import Fingerprint, FoundRecord, LogPartition, Retention, Start, StoredOffset
from exactbatch.offsets import OffsetRange, TopicPartition
from exactbatch.time_text import read_time
from exactbatch.topic_pattern import TopicPattern, Topics, known_topics

_SETTLE: Final = 15.0  # seconds
_HALVINGS: Final = 12
_NO_TOPIC_ID: Final = UUID(int=0)

Answer = TypeVar("Answer")


def no_topic_matches(pattern: TopicPattern) -> TopicMissing:
    """Return the error for a pattern that matches no topic."""
    return TopicMissing(
        f"no topic matches {pattern.regex!r}. Check the pattern, which has to match whole names, and "
        f"bootstrap.servers. Topics that an ACL does not let this client describe are invisible to it: "
        f"`exactbatch explain security` lists the ACLs that a pipeline needs."
    )


class KafkaBroker:
    """Queries brokers through kafka-python's admin client, which joins no group and creates no topic.

    Each call opens a client and closes it. All raise KafkaUnavailable if the broker does not answer, and
    ConfigurationError for client properties that are not allowed and for a missing ACL, which it names.

    `settle`, in seconds, is how long to retry an answer that contradicts what was processed.
    """

    def __init__(self, properties: Mapping[str, Any], *, settle: float | None = None) -> None:
        self._properties = properties
        self._settle = _SETTLE if settle is None else settle

    def without_settling(self) -> Self:
        """Return a broker that raises an answer which contradicts what was processed at once."""
        broker = copy(self)
        broker._settle = 0
        return broker

    def partitions(self, topics: Sequence[str], processed: Collection[str] = ()) -> tuple[LogPartition, ...]:
        """Return the current state of every partition of the topics; some may have been `processed` before.

        The offsets are read in three requests, earliest first, so that the result satisfies earliest <= last_stable <=
        high_watermark although the log moves meanwhile.

        Raises TopicMissing.
        """
        with admin_client(self._properties) as client:
            described = _describe(client, topics, processed)
            partitions = [
                KafkaPartition(name, partition["partition_index"])
                for name, topic in described.items()
                for partition in topic["partitions"]
            ]
            earliest = client.list_partition_offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST))
            latest = dict.fromkeys(partitions, OffsetSpec.LATEST)
            stable = client.list_partition_offsets(latest, isolation_level=IsolationLevel.READ_COMMITTED)
            high = client.list_partition_offsets(latest)
        return tuple(
            LogPartition(
                topic=partition.topic,
                partition=partition.partition,
                topic_id=_topic_id(described[partition.topic]),
                leader_epoch=stable[partition].leader_epoch,
                earliest=earliest[partition].offset,
                last_stable=stable[partition].offset,
                high_watermark=high[partition].offset,
            )
            for partition in sorted(partitions)
        )

    def list_topics(self) -> list[str]:
        """Return the names of all topics that are not Kafka's own and that an ACL lets this client describe.

        No other topic can be told from one that does not exist.
        """
        with admin_client(self._properties) as client:
            return [topic["name"] for topic in client.describe_topics(None) if not topic["is_internal"]]

    def matching_topics(self, pattern: TopicPattern, known: Collection[str] = ()) -> tuple[str, ...]:
        """Return the names of all topics that match, in order; some may be `known` from before.

        A known topic is among the result even if list_topics() does not have it.

        Raises TopicMissing if there is none at all.
        """
        listed = set(filter(pattern.matches, self.list_topics()))
        if not listed and not known:
            raise no_topic_matches(pattern)
        return tuple(sorted({*listed, *known}))

    def loaded_topics(self, topics: Topics, stored: Collection[str]) -> tuple[str, ...]:
        """Return the named topics; for a pattern, those of the topics with stored offsets that match it, and all that
        exist now.

        Raises TopicMissing for a pattern that matches nothing.
        """
        known = known_topics(topics, stored)
        return self.matching_topics(topics, known) if isinstance(topics, TopicPattern) else known

    def known_partitions(self, topics: Sequence[str]) -> tuple[LogPartition, ...]:
        """Like partitions(), for topics that existed before: retries a broker that has just started.

        Raises TopicMissing.
        """
        return self._settled(lambda: self.partitions(topics, topics))

    def processed_partitions(
        self, topics: Sequence[str], stored: Sequence[StoredOffset]
    ) -> tuple[LogPartition, ...]:
        """Like partitions(), for logs that must be those that were processed up to the stored offsets of these topics.

        Stored offsets of other topics, which were removed from the pipeline, are ignored.

        A broker that has just started does not know its topics for a moment, and a new leader can report an end
        that is behind: such answers are retried.

        Raises TopicMissing, and what check_same_logs() raises.
        """
        processed = [offset for offset in stored if offset.topic in topics]

        def query() -> tuple[LogPartition, ...]:
            partitions = self.partitions(topics, {offset.topic for offset in processed})
            check_same_logs(processed, partitions)
            return known_as(processed, partitions)

        return self._settled(query) if processed else query()

    def offsets_at(self, partitions: Sequence[LogPartition], at: datetime) -> dict[TopicPartition, int]:
        """Like records_at(), but return offsets only."""
        return {partition: record.offset for partition, record in self.records_at(partitions, at).items()}

    def records_at(
        self, partitions: Sequence[LogPartition], at: datetime
    ) -> dict[TopicPartition, FoundRecord]:
        """Return the first committed record with a timestamp at or after a time: the first in the log, not in time.

        Partitions without such a record are left out. (Kafka's ListOffsets by timestamp, in milliseconds.)
        """
        # No timestamp is before 1970; negative numbers mean earliest, latest and the like in the protocol.
        milliseconds = max(0, math.ceil(at.timestamp() * 1000))
        times = {KafkaPartition(*partition.topic_partition): milliseconds for partition in partitions}
        with admin_client(self._properties) as client:
            answers = client.list_partition_offsets(times, isolation_level=IsolationLevel.READ_COMMITTED)
        return {
            (partition.topic, partition.partition): FoundRecord(answer.offset, answer.timestamp)
            for partition, answer in answers.items()
            if answer.offset >= 0
        }

    def ends_at(self, partitions: Sequence[LogPartition], times: Sequence[datetime]) -> list[int]:
        """Return for each time how many offsets all logs together had before it, counted from offset 0.

        A time after the last record gives the ends of the logs.
        """
        high = {each.topic_partition: each.high_watermark for each in partitions}
        ends = []
        with admin_client(self._properties) as client:
            for at in times:
                milliseconds = round(at.timestamp() * 1000)
                wanted = {KafkaPartition(*each): milliseconds for each in high}
                answers = client.list_partition_offsets(wanted)
                found = {(each.topic, each.partition): answer.offset for each, answer in answers.items()}
                ends.append(sum(end if found[each] < 0 else found[each] for each, end in high.items()))
        return ends

    def first_before(
        self, partition: LogPartition, from_offset: int, until_offset: int, at: datetime
    ) -> FoundRecord | None:
        """Return the first committed record in [from_offset, until_offset) with a timestamp before `at`.

        Looks only at the first few thousand records; returns None if there is no such record among
        them.
        """
        return first_before(self._properties, partition.range(from_offset, until_offset), at)

    def first_timestamps(
        self, positions: Mapping[TopicPartition, int], *, uncommitted: bool = False
    ) -> dict[TopicPartition, int | None]:
        """Return the timestamps of records: see kafka/timestamps.py."""
        return first_timestamps(self._properties, positions, uncommitted=uncommitted) if positions else {}

    def take_fingerprints(
        self, ranges: Sequence[OffsetRange], *, of_first: bool = False
    ) -> list[Fingerprint]:
        """Return fingerprints of the ranges: see kafka/record_digests.py."""
        return take_fingerprints(self._properties, ranges, of_first=of_first)

    def compare_fingerprints(
        self, known: Sequence[Fingerprint], partitions: Sequence[LogPartition]
    ) -> ComparedRecords:
        """Compare known records with the log: see kafka/record_digests.py."""
        return compare_fingerprints(self._properties, known, partitions)

    def topic_ids(self, topics: Sequence[str]) -> dict[str, UUID]:
        """Return the current IDs of topics that existed before. Raises TopicMissing."""

        def query() -> dict[str, UUID]:
            with admin_client(self._properties) as client:
                return {name: _topic_id(topic) for name, topic in _describe(client, topics, topics).items()}

        return self._settled(query)

    def cluster(self, topics: Sequence[str]) -> tuple[dict[str, UUID], str | None]:
        """Like topic_ids(), with the ID of the cluster, None if it has none."""

        def query() -> tuple[dict[str, UUID], str | None]:
            with admin_client(self._properties) as client:
                described = _describe(client, topics, topics)
                ids = {name: _topic_id(topic) for name, topic in described.items()}
                return ids, describe_cluster(client).cluster_id

        return self._settled(query)

    def group_offsets(
        self, group: str, topics: Sequence[str], *, may_lack: bool = False
    ) -> dict[TopicPartition, int]:
        """Return the offsets that a consumer group has committed for the topics.

        Raises ConfigurationError for a topic without any; if topics `may_lack` offsets, only if all do.
        """
        with (
            admin_client(self._properties) as client,
            needs_acl("Describe", "group", group, f"start='group:{group}'"),
        ):
            committed = client.list_group_offsets(group)[group]
        offsets = {
            (partition.topic, partition.partition): value.offset
            for partition, value in committed.items()
            if partition.topic in topics and value.offset >= 0
        }
        missing = sorted(set(topics) - {topic for topic, _ in offsets})
        if missing and not (may_lack and offsets):
            others = sorted({partition.topic for partition, value in committed.items() if value.offset >= 0})
            raise ConfigurationError(
                f"start='group:{group}': the consumer group {group!r} has committed no offset for "
                f"{', '.join(missing)}; it has for {', '.join(others) or 'no topic at all'}. Check the names "
                f"of the group and the topics. For a topic that the group never read, change start: it only "
                f"affects topics that the pipeline has not processed yet."
            )
        return offsets

    def open_transactions(
        self, partitions: Sequence[LogPartition]
    ) -> dict[TopicPartition, list[tuple[int, int]]]:
        """Return the transactions that hold back last stable offsets, as (producer ID, first offset), by partition."""
        if not partitions:
            return {}
        states = {}
        with admin_client(self._properties) as client:
            for topic in sorted({partition.topic for partition in partitions}):
                wanted = [KafkaPartition(topic, each.partition) for each in partitions if each.topic == topic]
                with needs_acl("Read", "topic", topic, "naming the producers of open transactions"):
                    states.update(client.describe_producers(wanted))
        return {
            (partition.topic, partition.partition): sorted(
                (producer.producer_id, producer.current_transaction_start_offset)
                for producer in state.active_producers
                if producer.current_transaction_start_offset >= 0
            )
            for partition, state in states.items()
        }

    def compacted(self, topics: Sequence[str]) -> set[str]:
        """Return the topics whose cleanup.policy lets the broker remove records in the middle of the log.

        Raises ConfigurationError if an ACL denies it: kafka-python then returns no entry, and no error.
        """
        policies = self._topic_settings(topics, "cleanup.policy")
        for topic in topics:
            if topic not in policies:
                purpose = "checking whether Kafka compacts it (cleanup.policy)"
                raise acl_missing("DescribeConfigs", "topic", topic, purpose)
        return {topic for topic in topics if "compact" in policies[topic][0]}

    def retention(self, topics: Sequence[str]) -> dict[str, Retention]:
        """Return when the broker removes old records of the topics, without those whose settings an ACL hides."""
        settings = self._topic_settings(topics, "cleanup.policy", "retention.ms", "retention.bytes")
        return {
            topic: Retention(_limit(milliseconds), _limit(size))
            if "delete" in policy
            else Retention(None, None)
            for topic, (policy, milliseconds, size) in settings.items()
        }

    def max_message_bytes(self, topic: str) -> int | None:
        """Return the topic's max.message.bytes; None if an ACL hides it."""
        settings = self._topic_settings([topic], "max.message.bytes")
        return int(settings[topic][0]) if topic in settings else None

    def _topic_settings(self, topics: Sequence[str], *names: str) -> dict[str, tuple[str, ...]]:
        """Return these settings of the topics, without topics whose settings an ACL hides."""
        resources = [ConfigResource(ConfigResourceType.TOPIC, topic) for topic in topics]
        with admin_client(self._properties) as client:
            configs = client.describe_configs(resources, config_filter="all").get("topic", {})
        found = {
            topic: tuple(config.get(name, {}).get("value") for name in names)
            for topic, config in configs.items()
        }
        return {topic: values for topic, values in found.items() if None not in values}

    def written_at(
        self, offsets: Mapping[TopicPartition, int], since: Mapping[TopicPartition, datetime]
    ) -> dict[TopicPartition, datetime]:
        """Return a time at or shortly before the timestamp of the first record at or after each offset.

        Halves the time from a partition's `since` until now a dozen times, for all partitions in one request each, so
        the result is exact to 1/4096 of that time if timestamps ascend.
        """
        now = datetime.now(UTC)
        before = {each: since[each] for each in offsets}
        after = dict.fromkeys(offsets, now)
        with admin_client(self._properties) as client:
            for _ in range(_HALVINGS if offsets else 0):
                middle = {each: before[each] + (after[each] - before[each]) / 2 for each in offsets}
                times = {KafkaPartition(*each): round(at.timestamp() * 1000) for each, at in middle.items()}
                for partition, answer in client.list_partition_offsets(times).items():
                    each = (partition.topic, partition.partition)
                    is_before = 0 <= answer.offset <= offsets[each]
                    (before if is_before else after)[each] = middle[each]
        return before

    def commit_group(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets to a consumer group, for tools that show its lag. exactbatch never reads them."""
        commits = {KafkaPartition(*key): OffsetAndMetadata(offset) for key, offset in offsets.items()}
        purpose = "showing the pipeline's lag"
        with admin_client(self._properties) as client, needs_acl("Read", "group", group, purpose):
            for partition, error in client.alter_group_offsets(group, commits).items():
                if issubclass(error, TopicAuthorizationFailedError):
                    raise acl_missing("Read", "topic", partition.topic, purpose)
                if error is not NoError:
                    raise error(f"{partition.topic}[{partition.partition}]: {error.__name__}")

    def _settled(self, query: Callable[[], Answer]) -> Answer:
        """Retry answers that contradict what was processed until they persist for `settle` seconds."""
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type((StoredOffsetBeyondLog, TopicMissing)),
            wait=tenacity.wait_fixed(0.5),
            stop=tenacity.stop_after_delay(self._settle),
            reraise=True,
        )
        return retrying(query)


def resolve_start(
    start: str | Mapping[str, Mapping[int, int]],
    broker: KafkaBroker,
    partitions: Sequence[LogPartition],
    *,
    may_lack: bool = False,
) -> Start:
    """Resolve a pipeline's `start` in these partitions, for plan_advance().

    "group:NAME" asks the broker for the group's offsets; topics found by a pattern `may_lack` some. A time asks it for
    the first record with this timestamp or a later one; a partition without one starts at its last stable offset.
    Raises ConfigurationError for a time in the future.
    """
    if isinstance(start, str):
        if start == "earliest":
            return "earliest"
        if start == "latest":
            return "latest"
        if start.startswith("group:"):
            topics = sorted({each.topic for each in partitions})
            return broker.group_offsets(start.removeprefix("group:"), topics, may_lack=may_lack)
        at = read_time(start)
        if at > datetime.now(UTC):
            raise ConfigurationError(
                f"start={start!r} is in the future, and no record tells which offset that will be. Use start='latest', "
                f"or plan for the first time when it has come."
            )
        found = broker.records_at(partitions, at)
        # A record that has come since the partitions were observed is behind their ends.
        return {
            each.topic_partition: min(found[each.topic_partition].offset, each.last_stable)
            if each.topic_partition in found
            else each.last_stable
            for each in partitions
        }
    return {
        (topic, partition): offset
        for topic, offsets in start.items()
        for partition, offset in offsets.items()
    }


def _limit(value: str) -> int | None:
    return None if value == "-1" else int(value)


def _describe(client: Any, topics: Sequence[str], processed: Collection[str]) -> dict[str, Any]:
    described = {topic["name"]: topic for topic in client.describe_topics(list(topics))}
    for name in topics:
        error = for_code(described[name]["error_code"]) if name in described else UnknownTopicOrPartitionError
        if error is UnknownTopicOrPartitionError:
            remedy = (
                "It existed before: check bootstrap.servers. If it was deleted, a topic that is created again has "
                "another ID, and needs a pipeline under a new name."
                if name in processed
                else "Check the pipeline's topics and bootstrap.servers, and create the topic; exactbatch never "
                "creates one."
            )
            raise TopicMissing(f"the broker does not know the topic {name!r}. {remedy}", topic=name)
        if error is TopicAuthorizationFailedError:
            raise acl_missing("Describe", "topic", name, "planning")
        if error is not NoError:
            raise KafkaUnavailable(
                f"the broker did not describe the topic {name!r}: {error.__name__}. Try again.", topic=name
            )
        for partition in described[name]["partitions"]:
            if partition["leader_id"] < 0:
                index = partition["partition_index"]
                raise KafkaUnavailable(
                    f"{name}[{index}] has no leader: the brokers that hold its in-sync replicas are down, or an "
                    f"election is in progress. Start those brokers: kafka-topics.sh --describe --topic {name} lists "
                    f"them.",
                    topic=name,
                    partition=index,
                )
    return described


def _topic_id(described: Mapping[str, Any]) -> UUID:
    """Return the topic's ID, which Metadata contains from version 10 on (KIP-516); clusters without IDs send zero."""
    topic_id = UUID(str(described.get("topic_id") or _NO_TOPIC_ID))
    return named_id(described["name"]) if topic_id == _NO_TOPIC_ID else topic_id
