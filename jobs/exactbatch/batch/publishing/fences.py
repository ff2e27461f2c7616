"""The checks that keep a batch from writing: it was superseded, its topic or its target is not what it was.

They run before anything is staged, and again while the batch is published.
"""

from collections.abc import Mapping, Sequence
from uuid import UUID

from exactbatch.errors import ConfigurationError, Fenced, TargetMismatch, TopicRecreated
from exactbatch.kafka.identity import may_be_same
from exactbatch.ledger import Batch, Ledger
from exactbatch.model import Covered
from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import Pipeline
from exactbatch.planning.replay import check_above_horizons
from exactbatch.postgres.catalog import Fact, check_kinds, check_unchanged
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.writer import SinkWriter
from exactbatch.sinks.writers import find_writer


def check_publishable(ledger: Ledger, pipeline: Pipeline, batch: Batch) -> None:
    """Check that a batch may be published, unless it is committed already, which its status says.

    Raises Fenced when it is superseded, ReplayRefused when it reaches below a horizon that has moved since it
    was planned, and ConfigurationError when it belongs to another pipeline.
    """
    if batch.pipeline != pipeline.name:
        raise ConfigurationError(
            f"batch {batch.batch_id} belongs to pipeline {batch.pipeline!r}, not to {pipeline.name!r}. Give the "
            f"batch_id that this pipeline's plan returned.",
            batch_id=batch.batch_id,
        )
    if batch.status == "superseded":
        committed = len(ledger.batches.read_committed_ranges([batch.batch_id])[batch.batch_id])
        written = (
            f"{committed} of its ranges were committed before and remain"
            if committed
            else "Nothing was written"
        )
        successor = ledger.batches.find_successor(batch)
        why = (
            f"was superseded by batch {successor}, which was planned later over the same offsets"
            if successor is not None
            else "was withdrawn, or later replays have processed all of its ranges"
        )
        raise Fenced(
            f"batch {batch.batch_id} of pipeline {batch.pipeline!r} {why}. {written}, and nothing is lost; this batch "
            f"needs no retry.",
            batch_id=batch.batch_id,
        )
    if batch.kind == "replay" and batch.status == "planned":
        _check_not_overtaken(batch, ledger.coverage.read_batch(batch))
        check_above_horizons(
            batch.batch_id,
            ledger.batches.read_ranges(batch.batch_id),
            ledger.coverage.read_horizons(pipeline),
        )


def _check_not_overtaken(batch: Batch, coverage: Sequence[Covered]) -> None:
    """An older program must not overwrite the corrected result of a later replay."""
    for covered in coverage:
        # Folded rows do not name their batches: a replay that was planned before the newest of them may be older.
        newest = covered.batch_id or covered.newest_batch_id
        if newest is not None and newest > batch.batch_id:
            raise Fenced(
                f"batch {batch.batch_id} of pipeline {batch.pipeline!r}: the results in {covered.topic}"
                f"[{covered.partition}] {covered.from_offset}..{covered.until_offset} are those of batch "
                f"{newest}, which was planned after this replay and has committed. Nothing was written, "
                f"and the later result stays. To replace it, plan the replay again.",
                batch_id=batch.batch_id,
                topic=covered.topic,
                partition=covered.partition,
                from_offset=covered.from_offset,
                until_offset=covered.until_offset,
            )


def check_topic_ids(ranges: Sequence[OffsetRange], topic_ids: Mapping[str, UUID]) -> None:
    """Raise TopicRecreated unless every range belongs to the topic that bears its name now.

    Topic IDs are never reused: the same ID after the read means that it was the same topic during the read. Of a topic
    that is known by its name only, they tell nothing.
    """
    for range_ in ranges:
        if not may_be_same(range_.topic, range_.topic_id, topic_ids[range_.topic]):
            raise TopicRecreated(
                f"{range_}: the topic was deleted and created again since the batch was planned: its ID was "
                f"{range_.topic_id} and is now {topic_ids[range_.topic]}. Nothing was written. Register a "
                f"pipeline under a new name to load the new topic.",
                **range_.place,
            )


def check_results_exist(cursor: Cursor, ledger: Ledger, pipeline: Pipeline, batch: Batch) -> None:
    """Raise TargetMismatch when a table is missing that earlier batches have committed into: a new one would lack
    their rows. A replay may create it again."""
    if batch.kind == "replay" or not ledger.coverage.has_results(pipeline):
        return
    for table in find_writer(pipeline.traits).tables:
        if not table.exists(cursor):
            raise TargetMismatch(
                f"target {pipeline.traits.target}: the table {table.spec} is missing, although batches of "
                f"pipeline {pipeline.name!r} have committed into it. Nothing was written. Restore the table, or "
                f"load it again from the log: `exactbatch replay {pipeline.name}` over all of its offsets creates "
                f"it.",
                batch_id=batch.batch_id,
            )


def read_sink_facts(cursor: Cursor, writer: SinkWriter) -> tuple[Fact, ...]:
    """Return the catalog's facts about the target and the sink's other tables."""
    return tuple(fact for table in writer.tables for fact in table.facts(cursor))


def lock_target(cursor: Cursor, writer: SinkWriter, seen: Sequence[Fact]) -> None:
    """Lock the sink's tables against changes from now on. Raises StagedRowsDiffer if they were changed before."""
    if writer.traits.is_derived or not writer.traits.keeps_every_row:
        # Its rows depend on what all pipelines that share it have committed. Before the tables, as in prepare(): a
        # batch that waits for the target must not hold what another one, which has the target, needs to create an
        # index or to add a column.
        writer.tables[-1].lock(cursor)
    for table in writer.tables:
        table.lock_definition(cursor)
    facts = read_sink_facts(cursor, writer)
    check_kinds(writer.traits.target, facts)
    check_unchanged(writer.traits.target, seen, facts)
