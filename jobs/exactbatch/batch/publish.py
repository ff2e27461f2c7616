"""Publish: results, rejects, coverage and the new offsets, in one short transaction."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import psycopg2.errors
from psycopg2 import sql

from exactbatch.batch.staging import Staged, StagedBatch, StagingTables, identifier
from exactbatch.columns import Column
from exactbatch.coverage import covered_parts
from exactbatch.errors import (
    ConfigurationError,
    Fenced,
    StagedRowsDiffer,
    TargetMismatch,
    TopicRecreated,
)
from exactbatch.failpoints import failpoint
from exactbatch.ledger import Batch, Ledger
from exactbatch.model import Covered
from exactbatch.offsets import OffsetRange, merge
from exactbatch.pipeline import Pipeline
from exactbatch.planning.replay import check_above_horizons
from exactbatch.postgres.catalog import Fact, check_kinds, check_unchanged
from exactbatch.postgres.connection import Connection, Cursor, transaction
from exactbatch.sinks import Sink, Upsert


@dataclass(frozen=True, slots=True)
class Published:
    """How a publish ended. `wrote` is False when the batch had been committed before."""

    batch: Batch
    wrote: bool

    def __str__(self) -> str:
        if not self.wrote:
            return f"batch {self.batch.batch_id} was committed before: nothing written"
        return (
            f"batch {self.batch.batch_id} committed: {self.batch.records} records, {self.batch.rows} rows, "
            f"{self.batch.rejected} rejected, {self.batch.tombstones} tombstones, {self.batch.dropped} dropped"
        )


def publish(
    connection: Connection,
    pipeline: Pipeline,
    *,
    plan_id: UUID,
    tables: StagingTables,
    columns: Sequence[Column],
    staged: StagedBatch,
    topic_ids: Mapping[str, UUID],
    seen: Sequence[Fact],
) -> Published:
    """Commit a staged batch, all of it or nothing.

    `plan_id` is the plan whose ranges were staged. `columns` are those of a row, beside its lineage. `staged` is
    what the task attempts that Spark accepted have staged. `topic_ids` are the topics' ids as the broker told them
    after the last record was read. `seen` is what facts_of() gave before rows were checked against the target.

    Raises Fenced when another batch took this one's place, BatchLost when the ledger went back to before its
    plan, ReplayRefused below a horizon, TopicRecreated,
    StagedRowsDiffer, TargetMismatch when the target refuses rows, and PostgresUnavailable, after which the
    outcome is unknown and the ledger knows it.
    """
    ledger = Ledger(connection)
    with transaction(connection) as cursor:
        ledger.lock(pipeline)
        batch = ledger.batch(tables.batch_id, plan_id, lock=True)
        if check_publishable(ledger, pipeline, batch):
            return Published(batch, wrote=False)
        ranges = ledger.ranges(batch.batch_id)
        check_topic_ids(ranges, topic_ids)
        _check_complete(ranges, staged.pieces)
        _hold(cursor, pipeline.sink, seen)
        if batch.kind == "advance":
            _advance(ledger, pipeline, batch, ranges)
            failpoint("publish.after_advance")
        else:
            _take_back(cursor, ledger, pipeline, batch, ranges)
            failpoint("publish.after_take_back")
        _check_staged(cursor, tables.rows, staged.rows)
        _check_staged(cursor, tables.rejects, staged.rejects)
        rows = pipeline.sink.insert_staged(
            cursor,
            staging=identifier(tables.rows),
            columns=columns,
            batch_id=batch.batch_id,
            attempts=staged.attempts,
        )
        rejected = _insert_rejects(cursor, pipeline, tables, staged.attempts)
        _check_inserted(pipeline, staged, rows=rows, rejected=rejected)
        failpoint("publish.after_insert")
        ledger.cover(batch)
        _check_covered(ledger, batch, ranges)
        ledger.commit(
            batch,
            rows=rows,
            rejected=rejected,
            tombstones=staged.tombstones,
            dropped=staged.dropped,
            records=_records_of(ranges, staged.pieces),
        )
        failpoint("publish.before_commit")
    failpoint("publish.after_commit")
    with transaction(connection):
        return Published(ledger.batch(tables.batch_id, plan_id), wrote=True)


def check_shared(
    cursor: Cursor, pipeline: Pipeline, columns: Sequence[Column], others: Sequence[str]
) -> None:
    """Raise TargetMismatch when others share an Upsert's target, and its changes have more columns than these."""
    if others and isinstance(pipeline.sink, Upsert):
        pipeline.sink.check_shared(cursor, columns, others)


def facts_of(cursor: Cursor, sink: Sink) -> tuple[Fact, ...]:
    """What the database says of the target and the tables beside it."""
    return tuple(fact for table in sink.tables for fact in table.facts(cursor))


def _hold(cursor: Cursor, sink: Sink, seen: Sequence[Fact]) -> None:
    """Let nobody change the target or the tables beside it from now on, unless somebody has."""
    if sink.kind != "append":
        # Its rows are computed from what all pipelines have committed that share it.
        sink.tables[-1].lock(cursor)
    for table in sink.tables:
        table.lock_writers(cursor)
    found = facts_of(cursor, sink)
    check_kinds(sink.target, found)
    check_unchanged(sink.target, seen, found)


def check_publishable(ledger: Ledger, pipeline: Pipeline, batch: Batch) -> bool:
    """Return whether the batch is committed already.

    Raises Fenced when it is superseded, ReplayRefused when it reaches below a horizon that has moved since it
    was planned, and ConfigurationError when it is another pipeline's.
    """
    if batch.pipeline != pipeline.name:
        raise ConfigurationError(
            f"batch {batch.batch_id}: expected a batch of pipeline {pipeline.name!r}, found one of "
            f"{batch.pipeline!r}. Give the batch_id that this pipeline's plan returned."
        )
    if batch.status == "superseded":
        kept = len(ledger.committed_ranges(batch.batch_id))
        written = f"{kept} of its ranges were committed before and stay" if kept else "Nothing was written"
        raise Fenced(
            f"batch {batch.batch_id} of pipeline {batch.pipeline!r}: expected it to be planned, found it "
            f"superseded by batch {ledger.successor(batch)}, which was planned later over the same offsets. "
            f"{written} and nothing is lost; this batch needs no retry."
        )
    if batch.kind == "replay" and batch.status == "planned":
        _check_not_overtaken(batch, ledger.covering(batch))
        check_above_horizons(batch.batch_id, ledger.ranges(batch.batch_id), ledger.horizons(pipeline))
    return batch.status == "committed"


def _check_not_overtaken(batch: Batch, covered: Sequence[Covered]) -> None:
    """An old program must not overwrite the corrected result of a later replay."""
    for each in covered:
        if each.batch_id is not None and each.batch_id > batch.batch_id:
            raise Fenced(
                f"batch {batch.batch_id} of pipeline {batch.pipeline!r}: expected results in "
                f"{each.topic}[{each.partition}] {each.from_offset}..{each.until_offset} that are older than this "
                f"replay, found those of batch {each.batch_id}, which was planned later and has committed. "
                f"Nothing was written, and the later result stays. To replace it, plan the replay again."
            )


def check_topic_ids(ranges: Sequence[OffsetRange], topic_ids: Mapping[str, UUID]) -> None:
    """Raise TopicRecreated unless every range is of the topic that bears its name now.

    Ids are never used again: the same id after the read means that it was the same topic during the read.
    """
    for each in ranges:
        if topic_ids[each.topic] != each.topic_id:
            raise TopicRecreated(
                f"{each}: expected topic id {each.topic_id}, as planned, found {topic_ids[each.topic]}: the "
                f"topic was deleted and created again since. Nothing was written. Register a pipeline under a "
                f"new name to load the new topic."
            )


def _advance(ledger: Ledger, pipeline: Pipeline, batch: Batch, ranges: Sequence[OffsetRange]) -> None:
    moved = ledger.advance_stored_offsets(batch)
    stored = {(each.topic, each.partition): each.next_offset for each in ledger.stored_offsets(pipeline)}
    for each in ranges:
        if (each.topic, each.partition) not in moved:
            raise Fenced(
                f"batch {batch.batch_id}, {each}: expected the stored offset {each.from_offset}, found "
                f"{stored.get((each.topic, each.partition))}: another batch has moved it since this one was "
                f"planned. Nothing was written; plan again."
            )


def _take_back(
    cursor: Cursor, ledger: Ledger, pipeline: Pipeline, batch: Batch, ranges: Sequence[OffsetRange]
) -> None:
    """Take back what the ranges had produced: rows, rejects and coverage."""
    covered = ledger.covering(batch)
    parts = covered_parts(ranges, covered)
    pipeline.sink.check_replay(cursor)
    pipeline.sink.take_back(cursor, parts)
    ledger.delete_rejects(pipeline, parts)
    ledger.uncover(batch)
    if pipeline.sink.lineage == "batch":
        replaced = sorted({each.batch_id for each in covered if each.batch_id is not None})
        if cut := ledger.still_covering(pipeline, replaced):
            raise Fenced(
                f"batch {batch.batch_id} of pipeline {batch.pipeline!r}: expected to replace whole batches, as "
                f"planned, found that batch {cut[0]} has results beyond this replay's ranges: another replay "
                f"has committed since this one was planned. Nothing was written; plan the replay again."
            )


def _check_covered(ledger: Ledger, batch: Batch, ranges: Sequence[OffsetRange]) -> None:
    """The ledger's own tables are in the database as well: a trigger or a policy of theirs may alter a row."""
    covered = {
        (each.topic, each.partition, each.from_offset, each.until_offset, each.batch_id)
        for each in ledger.covering(batch)
    }
    wanted = {
        (each.topic, each.partition, each.from_offset, each.until_offset, batch.batch_id) for each in ranges
    }
    if covered != wanted:
        raise TargetMismatch(
            f"batch {batch.batch_id}: exactbatch.coverage does not hold what was written into it: a trigger, a "
            f"rule or a policy of the ledger's tables alters it. Nothing was written. Drop it."
        )


def _check_staged(cursor: Cursor, table: str, expected: Mapping[int, int]) -> None:
    """The rows of each accepted attempt are all there, and no more.

    This catches an unlogged table that a crash has emptied, and a COPY that was never committed.
    """
    query = sql.SQL(
        "select task_attempt, count(*) from {} where task_attempt = any(%s) group by task_attempt"
    )
    try:
        cursor.execute(query.format(identifier(table)), (list(expected),))
    except psycopg2.errors.UndefinedTable:
        raise StagedRowsDiffer(
            f"expected the staging table {table}, found none: this launch lost its connection, and another one "
            f"dropped the table as a leftover. Nothing was written; the retry reads the same ranges again."
        ) from None
    found = dict(cursor.fetchall())
    for attempt, rows in expected.items():
        if found.get(attempt, 0) != rows:
            raise StagedRowsDiffer(
                f"staging table {table}, task attempt {attempt}: expected the {rows} rows that the task "
                f"reported, found {found.get(attempt, 0)}. Postgres was restarted after a crash or failed "
                f"over, which empties unlogged tables, or a COPY was not committed. Nothing was written; the "
                f"retry reads the same ranges again."
            )


def _check_inserted(pipeline: Pipeline, staged: StagedBatch, *, rows: int, rejected: int) -> None:
    """As many rows arrived as were staged: a trigger or rule of the target may swallow some."""
    expected = sum(staged.rows.values()), staged.rejected
    if (rows, rejected) != expected:
        raise TargetMismatch(
            f"target {pipeline.sink.target}: expected to insert {expected[0]} rows and {expected[1]} rejected "
            f"records, found that {rows} and {rejected} arrived. Nothing was written. Does a trigger or a rule "
            f"drop rows? Remove it: what is not in the target cannot be accounted for."
        )


def _insert_rejects(
    cursor: Cursor, pipeline: Pipeline, tables: StagingTables, attempts: Sequence[int]
) -> int:
    cursor.execute(
        sql.SQL(
            "insert into exactbatch.rejected_record "
            '(pipeline, topic_id, partition, "offset", topic, key, value, headers, reason, batch_id) '
            'select %s, r.topic_id, s.partition, s."offset", s.topic, s.key, s.value, s.headers::jsonb, '
            "s.reason, r.batch_id from {} s join exactbatch.batch_range r "
            'on r.topic = s.topic and r.partition = s.partition and r.from_offset <= s."offset" '
            'and s."offset" < r.until_offset where r.batch_id = %s and s.task_attempt = any(%s)'
        ).format(identifier(tables.rejects)),
        (pipeline.name, tables.batch_id, list(attempts)),
    )
    return int(cursor.rowcount)


def _check_complete(ranges: Sequence[OffsetRange], staged: Sequence[Staged]) -> None:
    """The pieces that the tasks read, put together again, are the ranges of the batch."""
    pieces = merge(each.range for each in staged)
    if pieces != merge(ranges):
        raise StagedRowsDiffer(
            f"expected the tasks to have read {', '.join(map(str, ranges))}, found "
            f"{', '.join(map(str, pieces)) or 'nothing'}. Nothing was written; try again."
        )


def _records_of(ranges: Sequence[OffsetRange], staged: Sequence[Staged]) -> list[tuple[OffsetRange, int]]:
    """How many records the pieces of each range had."""
    in_order = sorted(ranges, key=_place)
    places = [_place(each) for each in in_order]
    records = [0] * len(in_order)
    for piece in staged:
        records[bisect_right(places, _place(piece.range)) - 1] += piece.records
    return list(zip(in_order, records, strict=True))


def _place(range_: OffsetRange) -> tuple[str, int, int]:
    return range_.topic, range_.partition, range_.from_offset
