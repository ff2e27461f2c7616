"""Preview a replay from the ledger and the log, where the pipeline's own module must not be imported."""

from dataclasses import replace
from typing import Literal

from exactbatch.errors import ConfigurationError
from exactbatch.formats import Text
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger
from exactbatch.ledger.definition import Definition
from exactbatch.pipeline import Pipeline
from exactbatch.planning.freeze_replay import Preview, count_retracted, plan_observed
from exactbatch.planning.replay_inputs import observe
from exactbatch.planning.request import ReplayRequest
from exactbatch.postgres.connection import Connection, transaction
from exactbatch.sinks import Append, Route, Sink, Upsert
from exactbatch.sinks.sink import KINDS, SinkKind
from exactbatch.sinks.table_name import TableName


def preview_registered(
    connection: Connection,
    broker: KafkaBroker,
    definition: Definition,
    request: ReplayRequest,
    *,
    replays_compacted: bool,
) -> Preview:
    """Return what a replay would retract, as preview_replay() does, for a pipeline that has a row in the ledger.

    `replays_compacted` is Pipeline.replays_compacted, which the ledger does not have. Whether the pipeline still is
    what was registered is only checked when the replay is planned. Writes and locks nothing.

    Raises ConfigurationError for a sink that this version does not have, and what preview_replay() raises.
    """
    pipeline = build_registered_pipeline(definition)
    if not definition.topics:
        with transaction(connection):
            stored = Ledger(connection).plans.read_stored_offsets(pipeline)
        topics = definition.known_topics(offset.topic for offset in stored)
        pipeline = replace(pipeline, topics=topics or pipeline.topic_names)
    inputs = observe(connection, broker, pipeline, request, is_registered=True)
    with transaction(connection) as cursor:
        planned = plan_observed(
            connection, pipeline, request, inputs, pin=False, replays_compacted=replays_compacted
        )
        return count_retracted(cursor, pipeline, planned)


def build_registered_pipeline(definition: Definition) -> Pipeline:
    """Return a pipeline with the name, the topics and the lineage table of a registered one; it decodes nothing.

    Raises ConfigurationError for a sink that this version does not have.
    """
    if definition.sink not in KINDS:
        raise ConfigurationError(
            f"pipeline {definition.name!r} is registered with the sink {definition.sink!r}, which is not a part of "
            f"exactbatch, so its tables are not known here. Run `exactbatch replay {definition.name} --dry-run` where "
            f"the pipeline's module can be imported."
        )
    kind = KINDS[definition.sink]
    lineage: Literal["record", "batch"] = "batch" if definition.lineage == "batch" else "record"
    value = Text("value text")
    (column,) = value.columns
    sinks: list[Sink] = [
        Append(_find_lineage_table(target, KINDS[name]), lineage=lineage)
        for target, name in (definition.sinks if definition.is_routed else definition.sinks[:1])
    ]
    if not kind.keeps_every_row:
        sinks = [Upsert(definition.target, key=(column.name,), history=False)]
    return Pipeline(
        name=definition.name,
        topics=tuple(definition.topics) or ("unknown",),
        value=value,
        sink=Route(by=column.name, to={sink.target: sink for sink in sinks})
        if definition.is_routed
        else sinks,
    )


def _find_lineage_table(target: str, kind: SinkKind) -> str:
    table = TableName(target)
    return (table.sibling(kind.companions[0]) if kind.is_derived else table).spec
