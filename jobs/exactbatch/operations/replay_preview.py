"""Preview a replay from the ledger and the log, where the pipeline's own module must not be imported."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from exactbatch.errors import ConfigurationError
from exactbatch.formats import Raw
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Ledger
from exactbatch.ledger.definition import Definition
from exactbatch.pipeline import Pipeline
from exactbatch.planning.freeze_replay import Preview, count_retracted, plan_observed
from exactbatch.planning.request import ReplayRequest
from exactbatch.planning.situation import observe
from exactbatch.postgres.connection import Connection, Cursor, transaction
from exactbatch.sinks import SINKS, Append
from exactbatch.sinks.tables.lineage_table import Part
from exactbatch.sinks.tables.target import TargetTable


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
    pipeline = stand_in(definition)
    ledger = Ledger(connection)
    if not definition.topics:
        with transaction(connection):
            stored = ledger.stored_offsets(pipeline)
        topics = definition.known_topics(offset.topic for offset in stored)
        pipeline = replace(pipeline, topics=topics or pipeline.topics)
    situation = observe(connection, broker, pipeline, request, is_registered=True)
    with transaction(connection) as cursor:
        planned = plan_observed(
            ledger, pipeline, request, situation, pin=False, replays_compacted=replays_compacted
        )
        return count_retracted(ledger, cursor, pipeline, planned)


def stand_in(definition: Definition) -> Pipeline:
    """Return a pipeline with the name, the topics and the lineage table of a registered one; it decodes nothing.

    Raises ConfigurationError for a sink that this version does not have.
    """
    if definition.sink not in SINKS:
        raise ConfigurationError(
            f"pipeline {definition.name!r} is registered with the sink {definition.sink!r}, which is not a part of "
            f"exactbatch, so its tables are not known here. Run `exactbatch replay {definition.name} --dry-run` where "
            f"the pipeline's module can be imported."
        )
    kind = SINKS[definition.sink]
    table = TargetTable(definition.target)
    # The first companion of a derived sink is the table whose rows carry lineage.
    if (suffixes := kind.companion_suffixes) and kind.keeps_every_row:
        table = table.sibling(suffixes[0])
    lineage: Literal["record", "batch"] = "batch" if definition.lineage == "batch" else "record"
    return Pipeline(
        name=definition.name,
        topics=tuple(definition.topics) or ("unknown",),
        value=Raw(),
        sink=(Append if kind.keeps_every_row else _Unretractable)(table.spec, lineage=lineage),
    )


class _Unretractable(Append):
    """A table from which a replay retracts nothing."""

    keeps_every_row: ClassVar[bool] = False

    def count_retracted_by_part(self, cursor: Cursor, parts: Sequence[Part]) -> list[int | None]:  # noqa: ARG002
        """Return 0 for each part."""
        return [0] * len(parts)
