"""Preview a replay from the ledger alone, where the pipeline's own module must not be imported."""

from collections.abc import Sequence
from typing import Literal

from exactbatch.formats import Raw
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger
from exactbatch.ledger.definition import Definition
from exactbatch.model import StoredOffset
from exactbatch.pipeline import Pipeline
from exactbatch.planning.freeze_replay import Preview, count_retracted, touched
from exactbatch.planning.refused_windows import check_reached
from exactbatch.planning.replay import plan_replay
from exactbatch.planning.request import ReplayRequest
from exactbatch.planning.situation import ranges_of_batches
from exactbatch.postgres.connection import Connection, transaction
from exactbatch.sinks import SINKS, Append
from exactbatch.sinks.tables.target import TargetTable


def preview_registered(
    connection: Connection, broker: KafkaBroker, definition: Definition, request: ReplayRequest
) -> Preview:
    """Return what a replay of ranges or batches would take back, as far as the registration tells.

    What only the pipeline's own module tells is checked when the replay is planned: whether it still is what was
    registered, and whether it may replay a compacted topic.

    Raises ReplayRefused, OffsetsLost, KafkaUnavailable, PostgresUnavailable, and what check_same_logs() raises.
    """
    pipeline = stand_in(definition)
    ledger = Ledger(connection)
    with transaction(connection):
        named = request.ranges or ranges_of_batches(ledger, pipeline, request.batch_ids)
        stored: Sequence[StoredOffset] = ledger.stored_offsets(pipeline)
    topics = sorted({range_.topic for range_ in named} & {offset.topic for offset in stored})
    logs = broker.processed_partitions(topics, stored) if topics else ()
    with transaction(connection) as cursor:
        planned = plan_replay(
            named,
            stored,
            logs,
            coverage=touched(ledger, pipeline, named, stored) if definition.lineage == "batch" else (),
            horizons=ledger.horizons(pipeline),
            lineage=pipeline.sink.lineage,
            available_only=request.available_only,
        )
        check_reached(planned)
        return count_retracted(ledger, cursor, pipeline, planned)


def stand_in(definition: Definition) -> Pipeline:
    """Return a pipeline with the name, the topics and the lineage table of a registered one; it decodes nothing."""
    table = TargetTable(definition.target)
    # The first companion of a derived sink is the table whose rows carry lineage.
    if suffixes := SINKS[definition.sink].companion_suffixes:
        table = table.sibling(suffixes[0])
    lineage: Literal["record", "batch"] = "batch" if definition.lineage == "batch" else "record"
    return Pipeline(
        name=definition.name,
        topics=tuple(definition.topics) or ("unknown",),
        value=Raw(),
        sink=Append(table.spec, lineage=lineage),
    )
