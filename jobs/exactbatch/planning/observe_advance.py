"""Observe what an advance is planned from: stored offsets, the logs, and where new topics start."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from exactbatch.errors import TopicMissing
from exactbatch.kafka.broker import KafkaBroker, resolve_start
from exactbatch.model import LogPartition, Plan, Start, StoredOffset
from exactbatch.pipeline import Pipeline
from exactbatch.planning.advance import plan_advance
from exactbatch.topic_pattern import TopicPattern


@dataclass(frozen=True, slots=True)
class Observed:
    """The inputs of an advance's plan, observed before the pipeline is locked.

    stored      all its stored offsets, also of topics that it no longer loads
    partitions  the logs of its topics, which reach the stored offsets
    start       where topics without any stored offset start
    started     what says so: "earliest", "latest", a time, "group:NAME" or "offsets"
    """

    stored: tuple[StoredOffset, ...]
    partitions: tuple[LogPartition, ...]
    start: Start
    started: str

    def plan(self, pipeline: Pipeline) -> Plan:
        """Plan the next advance. Raises what plan_advance() raises."""
        # A topic that was removed from the pipeline keeps its stored offsets, which are ignored.
        stored = tuple(offset for offset in self.stored if pipeline.loads(offset.topic))
        planned = plan_advance(
            stored, self.partitions, start=self.start, limits=pipeline.limits, on_loss=pipeline.on_loss
        )
        return replace(planned, started=self.started)


def observe_advance(
    broker: KafkaBroker,
    pipeline: Pipeline,
    stored: tuple[StoredOffset, ...],
    *,
    partitions: tuple[LogPartition, ...] | None = None,
) -> Observed:
    """Query Kafka, after the stored offsets were read: the logs then reach all of them.

    `partitions` are the logs of the pipeline's topics, if they are known. Raises TopicMissing, KafkaUnavailable,
    ConfigurationError, and what check_same_logs() raises.
    """
    if partitions is None:
        partitions = _partitions(broker, pipeline, stored)
    start, started = _start(pipeline, stored, broker, partitions)
    return Observed(stored, partitions, start, started)


def _partitions(
    broker: KafkaBroker, pipeline: Pipeline, stored: Sequence[StoredOffset]
) -> tuple[LogPartition, ...]:
    known = {offset.topic for offset in stored}
    topics = broker.loaded_topics(pipeline.topic_names, known)
    try:
        return broker.processed_partitions(topics, stored)
    except TopicMissing as error:
        if not isinstance(pipeline.topic_names, TopicPattern) or error.topic in known:
            raise
        # A topic was deleted after it was listed, before it joined.
        return broker.processed_partitions(broker.loaded_topics(pipeline.topic_names, known), stored)


def _start(
    pipeline: Pipeline,
    stored: Sequence[StoredOffset],
    broker: KafkaBroker,
    partitions: Sequence[LogPartition],
) -> tuple[Start, str]:
    """Resolve where topics without stored offsets start; query Kafka only if there are such topics.

    Topics that join by a pattern later than in the first plan were created while the pipeline was at work: they start
    at their earliest offset, so that their first records are not lost with start="latest".
    """
    known = {offset.topic for offset in stored}
    new = [each for each in partitions if each.topic not in known]
    by_pattern = isinstance(pipeline.topic_names, TopicPattern)
    if not new or (by_pattern and known and isinstance(pipeline.start, str)):
        return "earliest", "earliest"
    start = resolve_start(pipeline.start, broker, new, may_lack=by_pattern)
    return start, pipeline.start if isinstance(pipeline.start, str) else "offsets"
