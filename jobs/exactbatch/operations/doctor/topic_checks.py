"""Checks of registered pipelines against Kafka: topics, retention, open transactions, and the topics of results."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Final

from exactbatch.errors import ConfigurationError, TopicMissing
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.kafka.identity import is_named, may_be_same
from exactbatch.ledger import Ledger, Stream, Streams
from exactbatch.operations.doctor.finding import Finding
from exactbatch.operations.lag import PartitionLag, PipelineLag, seconds_until
from exactbatch.operations.unprocessed import load_forwarding, overdue_text
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection, transaction

# Less time until retention overtakes a stored offset is a warning; at most a quarter of retention.ms.
HEADROOM: Final = timedelta(hours=24)
_NAME: Final = "forwarding"


def check_topics(lags: Sequence[PipelineLag]) -> Iterator[Finding]:
    """Look for topics that do not exist or are not those that were processed."""
    wrong = False
    for lag in lags:
        if lag.missing is not None:
            wrong = True
            yield Finding(
                "topics",
                "problem",
                f"pipeline {lag.pipeline!r}: {lag.missing}",
                "Create the topic, or correct bootstrap.servers or the topics of the pipeline.",
            )
        for partition in lag.partitions:
            if partition.contradiction is not None:
                wrong = True
                yield Finding(
                    "topics",
                    "problem",
                    f"pipeline {lag.pipeline!r}: {partition.contradiction}",
                    "Check bootstrap.servers, then read `exactbatch explain log` for this case.",
                )
    if not wrong:
        yield Finding(
            "topics",
            "ok",
            f"{sum(len(lag.partitions) for lag in lags)} partitions are those that were processed",
        )


def check_retention(lags: Sequence[PipelineLag]) -> Iterator[Finding]:
    """Look for stored offsets that retention is about to overtake."""
    found = False
    for lag in lags:
        near = [partition for partition in lag.partitions if _is_near(partition, lag)]
        if not near:
            continue
        found = True
        first = min(near, key=lambda each: each.removed_at or lag.at)
        left = seconds_until(first.removed_at, lag.at) or 0.0
        when = f"in {left / 3600:.1f} h" if left > 0 else "at any time"
        others = f" (and {len(near) - 1} more partitions)" if len(near) > 1 else ""
        yield Finding(
            "retention",
            "warning" if left > 0 else "problem",
            f"pipeline {lag.pipeline!r}: {first.log}{others}: retention may overtake the stored offset {when}",
            "Run the pipeline more often or with larger limits, or raise retention.ms of the topic.",
        )
    unknown = sorted(
        {each.log.topic for lag in lags for each in lag.partitions if each.oldest and each.retention is None}
    )
    if unknown:
        yield Finding(
            "retention",
            "warning",
            f"not checked for {', '.join(unknown)}: the ACL DescribeConfigs is missing",
            "Grant DescribeConfigs on these topics; `exactbatch explain security` has the command.",
        )
    elif not found:
        yield Finding("retention", "ok", "overtakes no stored offset soon")


def check_freshness(lags: Sequence[PipelineLag]) -> Iterator[Finding]:
    """Look for pipelines that are overdue, or may be."""
    on_time = True
    for lag in lags:
        if text := overdue_text(lag.freshness, lag.oldest, lag.at):
            on_time = False
            yield Finding(
                "freshness",
                "warning",
                f"pipeline {lag.pipeline!r} is {text}",
                f"Find out why: exactbatch batches {lag.pipeline}, and whether its DAG is paused.",
            )
        elif lag.freshness is not None and lag.overdue is None:
            on_time = False
            yield Finding(
                "freshness",
                "warning",
                f"pipeline {lag.pipeline!r} may be overdue: Kafka did not send the oldest unprocessed records of "
                f"{lag.unanswered} partitions in time",
                "Run exactbatch doctor again; if this persists, find out why fetches from Kafka are slow.",
            )
    if on_time:
        yield Finding("freshness", "ok", "no pipeline is overdue")


def check_open_transactions(broker: KafkaBroker, lags: Sequence[PipelineLag]) -> Iterator[Finding]:
    """Look for transactions that hold partitions back, and name their producers."""
    held = [(lag, partition) for lag in lags for partition in lag.partitions if partition.held_back]
    if not held:
        yield Finding("open transactions", "ok", "hold no partition back")
        return
    producers = broker.open_transactions([partition.log for _, partition in held])
    for lag, partition in held:
        names = ", ".join(str(producer) for producer, _ in producers.get(partition.log.topic_partition, ()))
        yield Finding(
            "open transactions",
            "warning",
            f"pipeline {lag.pipeline!r}: {partition.log}: an open transaction (producer {names or 'unknown'}) holds "
            f"back {partition.held_back} offsets from {partition.log.last_stable} on",
            "If it persists, end it with Kafka's kafka-transactions.sh --abort.",
        )


def check_known_records(
    connection: Connection, broker: KafkaBroker, lags: Sequence[PipelineLag]
) -> Iterator[Finding]:
    """Look for logs that have other records than those that were processed, and for topics that nothing identifies."""
    same, wrong = 0, False
    for lag in lags:
        with transaction(connection):
            known = Ledger(connection).fingerprints.read(lag.pipeline)
        partitions = [each.log for each in lag.partitions if each.stored and each.stored.next_offset]
        compared = broker.compare_fingerprints(known, partitions)
        same += len(partitions) - len(compared.errors) - len(compared.unknown)
        for error in compared.errors.values():
            wrong = True
            yield Finding(
                "known records",
                "problem",
                f"pipeline {lag.pipeline!r}: {error}",
                "Check bootstrap.servers, then read `exactbatch explain log` for this case.",
            )
        named = {each.topic_partition for each in partitions if is_named(each.topic, each.topic_id)}
        if unknown := sorted(named.intersection(compared.unknown)):
            wrong = True
            yield Finding(
                "known records",
                "warning",
                f"pipeline {lag.pipeline!r}: the brokers send no topic IDs, and {len(unknown)} partitions have no "
                f"record left that was processed ({unknown[0][0]}[{unknown[0][1]}] is one): nothing would tell a topic "
                f"that was deleted and created again",
                "Run the pipeline before retention or compaction removes all that it has processed.",
            )
    if not wrong:
        yield Finding("known records", "ok", f"{same} partitions have records that were processed")


def _is_near(partition: PartitionLag, lag: PipelineLag) -> bool:
    age = partition.retention.age if partition.retention else None
    if partition.removed_at is None or age is None:
        return False
    return partition.removed_at - lag.at < min(HEADROOM, age / 4)


def check_forwarding(
    connection: Connection, broker: KafkaBroker, pipelines: Iterable[Pipeline]
) -> Iterator[Finding]:
    """Look for topics of results that are missing, were created again, or may lose results, and for what waits.

    Pipelines that are not registered to forward are left to the check of the registrations.
    """
    topics, wrong = 0, False
    for pipeline in pipelines:
        with transaction(connection):
            streams = Streams(connection)
            stream, forwarding = streams.read(pipeline.name), load_forwarding(streams, pipeline.name)
        if pipeline.forward is None or stream is None or forwarding is None:
            continue
        topics += 1
        findings = list(_of_topic(broker, pipeline, stream))
        if forwarding.unsent:
            findings.append(
                Finding(
                    _NAME,
                    "warning",
                    f"pipeline {pipeline.name!r}: {forwarding}",
                    f"Unless a forwarder is at work, send them: exactbatch forward {pipeline.name}",
                )
            )
        wrong = wrong or bool(findings)
        yield from findings
    if not wrong:
        yield Finding(_NAME, "ok", f"{topics} topics have all results")


def _of_topic(broker: KafkaBroker, pipeline: Pipeline, stream: Stream) -> Iterator[Finding]:
    where = f"pipeline {pipeline.name!r}, topic {stream.topic!r} of its results"
    try:
        topic_id = broker.partitions([stream.topic])[0].topic_id
        compacted = broker.compacted([stream.topic])
    except TopicMissing:
        yield Finding(
            _NAME,
            "problem",
            f"{where}: it does not exist",
            "Create it; exactbatch never creates a topic.",
        )
        return
    except ConfigurationError as error:
        yield Finding(
            _NAME,
            "warning",
            f"{where}: {error}",
            "Grant what `exactbatch explain security` lists for forwarding.",
        )
        return
    if stream.topic_id is not None and not may_be_same(stream.topic, stream.topic_id, topic_id):
        yield Finding(
            _NAME,
            "problem",
            f"{where}: it was deleted and created again, or is that of another cluster",
            "Check bootstrap.servers, then read `exactbatch explain forward` for this case.",
        )
    if compacted and not pipeline.traits.is_derived:
        yield Finding(
            _NAME,
            "warning",
            f"{where}: Kafka compacts it, and removes rows of an Append whose key a later one has",
            "Set cleanup.policy=delete for the topic.",
        )
