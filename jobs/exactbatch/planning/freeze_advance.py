"""Plan an advance: query Kafka, lock the pipeline, plan, and freeze the plan in the ledger.

A plan follows from stored offsets, the logs, and where new topics start.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from exactbatch.errors import StoredOffsetsMoved, TopicMissing
from exactbatch.failpoints import failpoint
from exactbatch.kafka.broker import KafkaBroker, resolve_start
from exactbatch.kafka.identity import is_named
from exactbatch.ledger import DagRun, Ledger, Origin
from exactbatch.model import Fingerprint, LogPartition, Plan, Start, StoredOffset
from exactbatch.pipeline import Pipeline
from exactbatch.planning.advance import plan_advance
from exactbatch.planning.known_records import check_records, known_logs, worth_comparing
from exactbatch.postgres.connection import Connection, transaction
from exactbatch.topic_pattern import TopicPattern

logger = logging.getLogger(__name__)
_TRIES: Final = 5
_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class Observed:
    """The inputs of an advance's plan, observed before the pipeline is locked.

    stored      all its stored offsets, also of topics that it no longer loads
    partitions  the logs of its topics, which reach the stored offsets
    start       where topics without any stored offset start
    started     what says so: "earliest", "latest", a time, "group:NAME" or "offsets"
    first       first records of what is planned, in partitions without a known ID or record
    """

    stored: tuple[StoredOffset, ...]
    partitions: tuple[LogPartition, ...]
    start: Start
    started: str
    first: Sequence[Fingerprint] = ()

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
    known: Sequence[Fingerprint],
    *,
    partitions: tuple[LogPartition, ...] | None = None,
) -> Observed:
    """Query Kafka, after the stored offsets and the known records were read: the logs then reach all of them.

    `partitions` are the logs of the pipeline's topics, if they are known to be those that were processed. Raises
    TopicMissing, KafkaUnavailable, ConfigurationError, and what check_same_logs(), check_records() and plan_advance()
    raise.
    """
    if partitions is None:
        partitions = _partitions(broker, pipeline, stored, known)
        check_records(broker, known, worth_comparing(stored, partitions))
    start, started = _start(pipeline, stored, broker, partitions)
    observed = Observed(stored, partitions, start, started)
    places = {fingerprint.topic_partition for fingerprint in known}
    unknown = {
        each.topic_partition
        for each in partitions
        if is_named(each.topic, each.topic_id) and each.topic_partition not in places
    }
    if not unknown:
        return observed
    # Until the batch has committed, too, another topic of the same name is noticed.
    ranges = [each for each in observed.plan(pipeline).ranges if each.topic_partition in unknown]
    return replace(observed, first=broker.take_fingerprints(ranges, of_first=True))


def _partitions(
    broker: KafkaBroker,
    pipeline: Pipeline,
    stored: Sequence[StoredOffset],
    known: Sequence[Fingerprint],
) -> tuple[LogPartition, ...]:
    begun = {offset.topic for offset in stored}
    topics = broker.loaded_topics(pipeline.topic_names, begun)
    try:
        return known_logs(broker, topics, stored, known)
    except TopicMissing as error:
        if not isinstance(pipeline.topic_names, TopicPattern) or error.topic in begun:
            raise
        # A topic was deleted after it was listed, before it joined.
        return known_logs(broker, broker.loaded_topics(pipeline.topic_names, begun), stored, known)


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


def preview_advance(
    connection: Connection, broker: KafkaBroker, pipeline: Pipeline
) -> tuple[Plan, tuple[LogPartition, ...]]:
    """Return the plan of the next advance and the state of the log. Writes and locks nothing.

    Raises what freeze_advance() raises.
    """
    ledger = Ledger(connection)
    with transaction(connection):
        ledger.registry.check(pipeline)
        stored = ledger.plans.read_stored_offsets(pipeline)
        known = ledger.fingerprints.read(pipeline.name)
    observed = observe_advance(broker, pipeline, stored, known)
    return observed.plan(pipeline), observed.partitions


def freeze_advance(
    connection: Connection,
    broker: KafkaBroker,
    pipeline: Pipeline,
    *,
    origin: Origin,
    run: DagRun | None = None,
    observed: Observed | None = None,
) -> int | None:
    """Plan the next advance and freeze it in the ledger; return its batch_id, None if there is nothing to process.

    A run that already has a batch keeps it: an automatic retry keeps its plan. A new plan supersedes an earlier
    advance that never committed.

    `observed` is what was observed before, for many pipelines at once. It is used if no stored offset has moved.

    Raises what plan_advance() raises, NotRegistered, IdentityChanged, TopicMissing, KafkaUnavailable,
    PostgresUnavailable, and StoredOffsetsMoved if other batches keep committing while this one is planned.
    """
    ledger, began = Ledger(connection), time.monotonic()
    for _ in range(_TRIES):
        with transaction(connection):
            ledger.registry.check(pipeline)
            seen = ledger.plans.read_stored_offsets(pipeline)
            known = ledger.fingerprints.read(pipeline.name)
        # Kafka is queried before the lock is taken: a slow broker must not hold up a publish.
        if observed is None or observed.stored != seen:
            observed = observe_advance(broker, pipeline, seen, known)
        with transaction(connection):
            ledger.registry.lock(pipeline)
            if run is not None and (batch_id := ledger.plans.find_batch(pipeline, run)) is not None:
                return batch_id
            ledger.plans.lock_planned_advance(pipeline)
            if ledger.plans.read_stored_offsets(pipeline) != seen:
                observed = None
                continue  # another batch committed after Kafka was queried, so the answer may be out of date
            planned = observed.plan(pipeline)
            batch_id = ledger.plans.write_advance(
                pipeline, planned, origin=origin, run=run, seconds=time.monotonic() - began
            )
            ledger.fingerprints.add(pipeline.name, observed.first)
            if planned.seeds:
                ledger.registry.check_one_log(pipeline)
            failpoint("plan.before_commit")
        failpoint("plan.after_commit")
        if planned.joining and isinstance(pipeline.topic_names, TopicPattern):
            logger.info(
                "%s topics that match %r join: %s",
                len(planned.joining),
                pipeline.topic_names.regex,
                ", ".join(topic for topic, _ in planned.joining[:_SHOWN]),
            )
        if planned.unnamed:
            logger.warning(
                "%s partitions start at their earliest offset, because start=%r does not name them: %s",
                len(planned.unnamed),
                pipeline.start,
                ", ".join(f"{topic}[{partition}]" for topic, partition in planned.unnamed[:_SHOWN]),
            )
        if planned.left:
            logger.info(
                "the batch has %s offsets, and %s leaves %s to later runs",
                f"{sum(map(len, planned.ranges)):,}",
                pipeline.limits,
                f"{planned.left:,}",
            )
        return batch_id
    raise StoredOffsetsMoved(
        f"pipeline {pipeline.name!r}: its stored offsets moved during each of {_TRIES} attempts to plan a batch, "
        f"because other batches of it keep committing. Run one at a time."
    )
