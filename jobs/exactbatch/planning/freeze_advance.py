"""Planning an advance: ask Kafka, lock the pipeline, plan, and freeze the plan in the ledger."""

import logging
from typing import Final

from exactbatch.errors import StoredOffsetsMoved
from exactbatch.failpoints import failpoint
from exactbatch.kafka.broker import KafkaBroker, resolve_start
from exactbatch.ledger import Ledger
from exactbatch.ledger.ledger import Origin, Run
from exactbatch.model import LogPartition, Plan, Start, StoredOffset
from exactbatch.pipeline import Pipeline
from exactbatch.planning.advance import plan_advance
from exactbatch.postgres.connection import Connection, transaction

logger = logging.getLogger(__name__)

_TRIES: Final = 5
_SHOWN: Final = 10


def preview_advance(
    connection: Connection, broker: KafkaBroker, pipeline: Pipeline
) -> tuple[Plan, tuple[LogPartition, ...]]:
    """What the next advance would do, and what the log holds; nothing is written or locked.

    Raises what freeze_advance() raises.
    """
    ledger = Ledger(connection)
    with transaction(connection):
        ledger.check_registered(pipeline)
        stored = ledger.stored_offsets(pipeline)
    partitions = broker.processed_partitions(pipeline.topics, stored)
    return _plan(pipeline, stored, partitions, _start(pipeline, stored, broker)), partitions


def freeze_advance(
    connection: Connection, broker: KafkaBroker, pipeline: Pipeline, *, origin: Origin, run: Run | None = None
) -> int | None:
    """Plan the next advance and freeze it; return its batch_id, or None when there is nothing new.

    A run that was planned before gets the batch that it got then: an automatic retry keeps its plan. A new
    plan supersedes an advance that was planned earlier and never committed.

    Raises the planner's errors, NotRegistered, IdentityChanged, TopicMissing, KafkaUnavailable,
    PostgresUnavailable, and StoredOffsetsMoved when other batches kept committing meanwhile.
    """
    ledger = Ledger(connection)
    for _ in range(_TRIES):
        with transaction(connection):
            ledger.check_registered(pipeline)
            seen = ledger.stored_offsets(pipeline)
        # Kafka is asked before the lock is taken: a slow broker must not hold up a publish.
        partitions = broker.processed_partitions(pipeline.topics, seen)
        start = _start(pipeline, seen, broker)
        with transaction(connection):
            ledger.lock(pipeline)
            if run is not None and (batch_id := ledger.batch_of_run(pipeline, run)) is not None:
                return batch_id
            ledger.hold_planned_advance(pipeline)
            if ledger.stored_offsets(pipeline) != seen:
                continue  # another batch has committed since Kafka was asked: its answer may be older
            planned = _plan(pipeline, seen, partitions, start)
            batch_id = ledger.write_advance(pipeline, planned, origin=origin, run=run)
            failpoint("plan.before_commit")
        failpoint("plan.after_commit")
        if planned.unnamed:
            shown = ", ".join(f"{topic}[{partition}]" for topic, partition in planned.unnamed[:_SHOWN])
            logger.warning(
                "%s partitions begin at their earliest offset, because start=%r has none for them: %s",
                len(planned.unnamed),
                pipeline.start,
                shown,
            )
        return batch_id
    raise StoredOffsetsMoved(
        f"pipeline {pipeline.name!r}: expected its stored offsets to rest while a batch is planned, found that "
        f"they moved in each of {_TRIES} tries: other batches of it keep committing. Run one at a time."
    )


def _start(pipeline: Pipeline, stored: tuple[StoredOffset, ...], broker: KafkaBroker) -> Start:
    """Where topics on their first run begin; a group is only asked for when one is."""
    topics = tuple(topic for topic in pipeline.topics if topic not in {each.topic for each in stored})
    return resolve_start(pipeline.start, broker, topics) if topics else "earliest"


def _plan(
    pipeline: Pipeline,
    stored: tuple[StoredOffset, ...],
    partitions: tuple[LogPartition, ...],
    start: Start,
) -> Plan:
    # A topic that was taken out of the pipeline keeps its stored offsets and is left alone.
    stored = tuple(each for each in stored if each.topic in pipeline.topics)
    return plan_advance(stored, partitions, start=start, limits=pipeline.limits, on_loss=pipeline.on_loss)
