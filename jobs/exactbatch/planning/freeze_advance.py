"""Plan an advance: query Kafka, lock the pipeline, plan, and freeze the plan in the ledger."""

import logging
import time
from typing import Final

from exactbatch.errors import StoredOffsetsMoved
from exactbatch.failpoints import failpoint
from exactbatch.kafka.broker import KafkaBroker, resolve_start
from exactbatch.ledger import Ledger, Origin, Run
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
    """Return the plan of the next advance and the state of the log. Writes and locks nothing.

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
    """Plan the next advance and freeze it in the ledger; return its batch_id, None if there is nothing to process.

    A run that already has a batch keeps it: an automatic retry keeps its plan. A new plan supersedes an earlier
    advance that never committed.

    Raises what plan_advance() raises, NotRegistered, IdentityChanged, TopicMissing, KafkaUnavailable,
    PostgresUnavailable, and StoredOffsetsMoved if other batches keep committing while this one is planned.
    """
    ledger, began = Ledger(connection), time.monotonic()
    for _ in range(_TRIES):
        with transaction(connection):
            ledger.check_registered(pipeline)
            seen = ledger.stored_offsets(pipeline)
        # Kafka is queried before the lock is taken: a slow broker must not hold up a publish.
        partitions = broker.processed_partitions(pipeline.topics, seen)
        start = _start(pipeline, seen, broker)
        with transaction(connection):
            ledger.lock(pipeline)
            if run is not None and (batch_id := ledger.batch_of_run(pipeline, run)) is not None:
                return batch_id
            ledger.lock_planned_advance(pipeline)
            if ledger.stored_offsets(pipeline) != seen:
                continue  # another batch committed after Kafka was queried, so the answer may be out of date
            planned = _plan(pipeline, seen, partitions, start)
            batch_id = ledger.write_advance(
                pipeline, planned, origin=origin, run=run, seconds=time.monotonic() - began
            )
            failpoint("plan.before_commit")
        failpoint("plan.after_commit")
        if planned.unnamed:
            logger.warning(
                "%s partitions start at their earliest offset, because start=%r does not name them: %s",
                len(planned.unnamed),
                pipeline.start,
                ", ".join(f"{topic}[{partition}]" for topic, partition in planned.unnamed[:_SHOWN]),
            )
        return batch_id
    raise StoredOffsetsMoved(
        f"pipeline {pipeline.name!r}: its stored offsets moved during each of {_TRIES} attempts to plan a batch, "
        f"because other batches of it keep committing. Run one at a time."
    )


def _start(pipeline: Pipeline, stored: tuple[StoredOffset, ...], broker: KafkaBroker) -> Start:
    """Resolve where topics without stored offsets start; query a consumer group only if there are such topics."""
    known_topics = {offset.topic for offset in stored}
    topics = tuple(topic for topic in pipeline.topics if topic not in known_topics)
    return resolve_start(pipeline.start, broker, topics) if topics else "earliest"


def _plan(
    pipeline: Pipeline,
    stored: tuple[StoredOffset, ...],
    partitions: tuple[LogPartition, ...],
    start: Start,
) -> Plan:
    # A topic that was removed from the pipeline keeps its stored offsets, which are ignored.
    stored = tuple(offset for offset in stored if offset.topic in pipeline.topics)
    return plan_advance(stored, partitions, start=start, limits=pipeline.limits, on_loss=pipeline.on_loss)
