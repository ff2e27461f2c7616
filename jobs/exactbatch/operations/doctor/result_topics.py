"""Checks of the topics to which pipelines forward their results."""

from collections.abc import Iterable, Iterator
from typing import Final

from exactbatch.errors import ConfigurationError, TopicMissing
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Stream, Streams
from exactbatch.operations.doctor.finding import Finding
from exactbatch.operations.forwarding import load_forwarding
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection, transaction

_NAME: Final = "forwarding"


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
    if stream.topic_id not in (None, topic_id):
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
