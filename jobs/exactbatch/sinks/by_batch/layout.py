"""Store the batches of an Append as partitions: which batch gets one to itself, and what a replay drops."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.postgres.connection import Cursor
from exactbatch.postgres.sql_text import bigint_array
from exactbatch.sinks.by_batch.parent import attach_obstacle, publications
from exactbatch.sinks.by_batch.partitions import (
    MOST_DROPPED,
    Partition,
    change_alone,
    covering,
    detach_and_drop,
    end_before,
    range_from,
    read_partitions,
)
from exactbatch.sinks.by_batch.staged_partition import StagedPartition, create_partition
from exactbatch.sinks.staged_rows import StagedRows
from exactbatch.sinks.tables.counted_writes import delete_rows
from exactbatch.sinks.tables.target import TargetTable

logger = logging.getLogger(__name__)

# How many batch IDs an open partition covers. All pipelines of the ledger share the IDs.
OPEN_PARTITION: Final = 100
_DROP_TRIES: Final = 2
# Bytes of an open partition that may be scanned while nobody else uses the target: some 20 ms.
_LARGEST_SCAN: Final = 64 * 1024 * 1024


@dataclass(frozen=True)
class ByBatch:
    """A target that is partitioned by ranges of batch IDs.

    A batch of at least `min_offsets` offsets, or rows, gets a partition to itself. A smaller one opens a
    partition for the batch IDs that follow, in which later batches find a place.
    """

    target: TargetTable
    min_offsets: int

    def partition_staging(
        self, cursor: Cursor, columns: tuple[Column, ...], *, batch_id: int, offsets: int
    ) -> StagedPartition | None:
        """Return the future partition of a batch; None if its rows are inserted. `columns` include the lineage."""
        if offsets < self.min_offsets:
            return None
        other = covering(read_partitions(cursor, self.target), batch_id)
        if other is not None and self._end_before(cursor, other, batch_id):
            other = None
        obstacle = (
            attach_obstacle(cursor, self.target, columns)
            if other is None
            else f"the partition {other.schema}.{other.name} covers the batch already"
        )
        if obstacle is not None:
            logger.info(
                "batch %s, target %s: its rows are staged and inserted, not attached, because %s",
                batch_id,
                self.target.spec,
                obstacle,
            )
            return None
        return StagedPartition(self.target, batch_id, columns)

    def _end_before(self, cursor: Cursor, partition: Partition, batch_id: int) -> bool:
        """Let an open partition end before a large batch; return False if others use it, or it has later rows."""
        if partition.lower is None or partition.lower >= batch_id:
            return False
        cursor.execute("select pg_table_size(%s::oid)", (partition.oid,))
        if cursor.fetchone()[0] > _LARGEST_SCAN or self._is_referenced(cursor):
            return False

        def end() -> bool:
            cursor.execute(
                sql.SQL("select exists (select from {} where batch_id >= {})").format(
                    partition.identifier, sql.Literal(batch_id)
                )
            )
            if cursor.fetchone()[0]:
                return False
            end_before(cursor, self.target, partition, batch_id)
            return True

        return change_alone(cursor, self.target, [partition], end, tries=1)

    def ensure_partition(self, cursor: Cursor, staged: StagedRows) -> None:
        """Create a partition for staged rows that are about to be inserted, unless there is one.

        The caller has locked the definition of the target.
        """
        partitions = read_partitions(cursor, self.target)
        if covering(partitions, staged.batch_id) is None:
            batches = 1 if self._is_large(cursor, staged) else OPEN_PARTITION
            create_partition(cursor, self.target, *range_from(partitions, staged.batch_id, batches))

    def _is_large(self, cursor: Cursor, staged: StagedRows) -> bool:
        cursor.execute(
            sql.SQL("select count(*) >= {limit} from (select from {} where {} limit {limit}) staged").format(
                staged.table, staged.accepted, limit=sql.Literal(self.min_offsets)
            )
        )
        return bool(cursor.fetchone()[0])

    def drop_batches(self, cursor: Cursor, batch_ids: Sequence[int]) -> None:
        """Drop the partitions of batches, as many as one transaction may; delete the rows of the others."""
        retracted = {*batch_ids}
        partitions = [each for each in read_partitions(cursor, self.target) if each.only_batch in retracted]
        partitions = partitions[:MOST_DROPPED]

        def drop() -> bool:
            for partition in partitions:
                detach_and_drop(cursor, self.target, partition)
            return True

        if (
            partitions
            and self._may_drop(cursor)
            and change_alone(cursor, self.target, partitions, drop, tries=_DROP_TRIES)
        ):
            batch_ids = sorted(retracted - {partition.only_batch for partition in partitions})
        if batch_ids:
            delete_rows(cursor, self.target, sql.SQL("t.batch_id = any({})").format(bigint_array(batch_ids)))

    def _may_drop(self, cursor: Cursor) -> bool:
        """False if something must see each row that is deleted: triggers, foreign keys, or subscribers."""
        return not (
            self.target.row_changers(cursor)
            or self._is_referenced(cursor)
            or publications(cursor, self.target)
        )

    def _is_referenced(self, cursor: Cursor) -> bool:
        """True if foreign keys of other tables refer to the target: Postgres then detaches none with rows."""
        return any(fact.what == "foreign key from elsewhere" for fact in self.target.facts(cursor))
