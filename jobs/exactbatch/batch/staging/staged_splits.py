"""The future partition of a target that is partitioned by batch, and the splits whose rows are in it.

Rows of a partition have no place for a task attempt. So an attempt enters its split in a table of splits, in the
transaction of its COPY. The first attempt to enter a split wins; another rolls its rows back, and reports to Spark
what the winner did. Whatever Spark runs twice, the table holds each split once, and the table of splits says what it
holds. Both tables are logged: a crash of the server, or a failover, keeps or loses a split and its rows together.
"""

import time
from typing import Final

import psycopg2
from psycopg2 import sql

from exactbatch.batch.staging.staging_tables import StagingTables, identifier
from exactbatch.batch.staging.task import Staged, StagedBatch
from exactbatch.errors import StagedRowsDiffer
from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection, Cursor, transaction
from exactbatch.sinks.capabilities import PartitionStaging

# Takes the fields of a split in their order.
_ENTER: Final = "insert into {} values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s) on conflict do nothing"
_ENTERED: Final = (
    "select task_attempt, records, rows, rejects, tombstones, 0 as dropped, replaced from {} "
    "where topic = %s and partition = %s and from_offset = %s"
)
_SPLITS: Final = (
    "select topic, partition, from_offset, until_offset, task_attempt, records, rows, rejects, tombstones, "
    "replaced from {}"
)
# Attempts that Spark has not accepted; none of them can enter its split any more.
_END_ATTEMPTS: Final = """
select pg_terminate_backend(a.pid) from pg_locks l join pg_stat_activity a using (pid)
where l.relation = to_regclass(%s) and l.locktype = 'relation' and l.granted and a.pid <> pg_backend_pid()
  and a.usesysid = (select oid from pg_roles where rolname = current_user) and a.application_name = 'exactbatch task'
"""
_LOCK_WAIT: Final = "1s"


def create_partition(cursor: Cursor, tables: StagingTables, staging: PartitionStaging) -> None:
    """Create the future partition and the table of splits."""
    staging.create(cursor, identifier(tables.rows))
    cursor.execute(
        sql.SQL(
            "create table {} (topic text, partition bigint, from_offset bigint, until_offset bigint, "
            "task_attempt bigint, records bigint, rows bigint, rejects bigint, tombstones bigint, "
            "replaced bigint, primary key (topic, partition, from_offset))"
        ).format(identifier(tables.splits))
    )


def enter_split(cursor: Cursor, tables: StagingTables, split: Staged) -> bool:
    """Enter a split in the transaction of its rows; return False if another attempt has entered it.

    Waits for an attempt that is about to commit.
    """
    range_ = split.range
    cursor.execute(
        sql.SQL(_ENTER).format(identifier(tables.splits)),
        (
            range_.topic,
            range_.partition,
            range_.from_offset,
            range_.until_offset,
            split.attempt,
            split.records,
            split.rows,
            split.rejects,
            split.tombstones,
            split.replaced,
        ),
    )
    return cursor.rowcount == 1


def entered_split(cursor: Cursor, tables: StagingTables, range_: OffsetRange) -> Staged | None:
    """Return what the attempt did that entered a split; None if none has."""
    place = range_.topic, range_.partition, range_.from_offset
    cursor.execute(sql.SQL(_ENTERED).format(identifier(tables.splits)), place)
    row = cursor.fetchone()
    return None if row is None else Staged(range_, *row)


def close_partition(connection: Connection, pipeline: Pipeline, tables: StagingTables) -> None:
    """Let no attempt write into the future partition any more: end those that still do, and give it another name.

    All splits have been entered. What still writes is an attempt that Spark has given up, and it would keep the
    table from being attached for as long as it runs.
    """
    rows = identifier(tables.rows)
    deadline = time.monotonic() + pipeline.tuning.lock_seconds
    while True:
        with transaction(connection) as cursor:
            cursor.execute("savepoint close")
            cursor.execute("select set_config('lock_timeout', %s, true)", (_LOCK_WAIT,))
            try:
                cursor.execute(
                    sql.SQL("alter table {} rename to {}").format(rows, sql.Identifier(tables.partition))
                )
            except psycopg2.errors.LockNotAvailable:
                if time.monotonic() > deadline:
                    raise
                cursor.execute("rollback to savepoint close")
                cursor.execute(_END_ATTEMPTS, (rows.as_string(cursor),))
                continue
            except psycopg2.errors.UndefinedTable:
                raise _missing(tables) from None
        return


def check_splits(cursor: Cursor, tables: StagingTables, staged: StagedBatch) -> None:
    """Raise StagedRowsDiffer unless the future partition holds exactly the splits that the tasks reported.

    This detects a failover to a replica that has not received all of them.
    """
    try:
        cursor.execute(sql.SQL(_SPLITS).format(identifier(tables.splits)))
    except psycopg2.errors.UndefinedTable:
        raise _missing(tables) from None
    found = {tuple(row) for row in cursor.fetchall()}
    expected = {
        (
            *(split.range.topic, split.range.partition, split.range.from_offset, split.range.until_offset),
            *(split.attempt, split.records, split.rows, split.rejects, split.tombstones, split.replaced),
        )
        for split in staged.splits
    }
    if found != expected:
        raise StagedRowsDiffer(
            f"staging table {tables.splits}: expected {len(expected)} splits as the tasks reported them, found "
            f"{len(found)}, of which {len(found & expected)} are equal. Postgres failed over, or lost commits that it "
            f"had acknowledged. Nothing was written; the retry reads the same ranges again.",
            batch_id=tables.batch_id,
        )


def publish_partition(
    cursor: Cursor, tables: StagingTables, staging: PartitionStaging, staged: StagedBatch
) -> int:
    """Make the future partition a part of the target; return how many rows it has."""
    check_splits(cursor, tables, staged)
    try:
        staging.publish(cursor, identifier(tables.partition))
    except psycopg2.errors.UndefinedTable:
        raise _missing(tables) from None
    return sum(staged.rows.values())


def _missing(tables: StagingTables) -> StagedRowsDiffer:
    return StagedRowsDiffer(
        f"the staging table {tables.partition} is missing: this launch lost its connection, and another launch "
        f"dropped the table as a leftover. Nothing was written; the retry reads the same ranges again.",
        batch_id=tables.batch_id,
    )
