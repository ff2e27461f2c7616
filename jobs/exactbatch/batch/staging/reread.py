"""Reject staged rows that lack a value which the sink does not know, and read records from the log again that are noted
to be rejected: a reject keeps the whole record.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from psycopg2 import sql

from exactbatch.batch.rows.rejected import Rejected, note_attempt
from exactbatch.batch.staging.staging_tables import StagingTables, identifier
from exactbatch.batch.staging.task import StagedBatch
from exactbatch.columns import Column
from exactbatch.errors import LogEndedEarly
from exactbatch.kafka.reader import read_range
from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Cursor
from exactbatch.settings import Settings
from exactbatch.sinks.capabilities import FindsUnavailable
from exactbatch.sinks.staged_rows import StagedRows
from exactbatch.sinks.writer import SinkWriter

# Offsets: records that are no farther apart are read in one go.
_NEAR: Final = 1_000
_LARGEST_GROUP: Final = 50_000  # records that the driver looks for at a time


@dataclass(frozen=True, slots=True)
class NotedRecord:
    """A record that is noted to be rejected."""

    attempt: int
    topic: str
    partition: int
    offset: int
    reason: str


def read_noted(
    noted: Iterable[NotedRecord],
    ranges: Sequence[OffsetRange],
    pipeline: Pipeline,
    settings: Settings,
    cluster_id: str | None,
) -> Iterator[Rejected]:
    """Read noted records, which come by topic, partition and offset, from the log again.

    Raises the errors of read_range(), and LogEndedEarly for a record that is missing now.
    """
    for partition, of_partition in groupby(noted, key=lambda record: (record.topic, record.partition)):
        any_range = next(range_ for range_ in ranges if range_.topic_partition == partition)
        for group in _near(of_partition):
            wanted = {record.offset: record for record in group}
            range_ = replace(any_range, from_offset=group[0].offset, until_offset=group[-1].offset + 1)
            for read in read_range(
                range_,
                settings.kafka,
                leader_epoch=None,
                timeout=pipeline.tuning.read_seconds,
                cluster_id=cluster_id,
            ):
                for index, offset in enumerate(read.offset_array.tolist()):
                    if (record := wanted.pop(offset, None)) is not None:
                        yield Rejected(*partition, read.record(index), record.reason, record.attempt)
            if wanted:
                missing = min(wanted)
                raise LogEndedEarly(
                    f"{range_.topic}[{range_.partition}] offset {missing}: the record was read once, but is "
                    f"missing on the second read, which keeps it as a reject. Nothing was written; try again.",
                    topic=range_.topic,
                    partition=range_.partition,
                    from_offset=missing,
                    until_offset=missing + 1,
                )


def _near(noted: Iterable[NotedRecord]) -> Iterator[list[NotedRecord]]:
    """Yield records of one partition, by offset, in groups in which each record is near the one before it."""
    group: list[NotedRecord] = []
    for record in noted:
        if group and (record.offset - group[-1].offset > _NEAR or len(group) == _LARGEST_GROUP):
            yield group
            group = []
        group.append(record)
    if group:
        yield group


def note_unavailable(
    cursor: Cursor,
    writer: SinkWriter,
    tables: StagingTables,
    staged: StagedBatch,
    columns: Sequence[Column],
    *,
    limit: int,
) -> None:
    """Note the records whose rows have unavailable values that the sink does not have.

    A row that becomes a reject does not supply its values to others, so that the search goes on until it finds none.
    """
    if not isinstance(writer, FindsUnavailable) or not writer.traits.keeps_unavailable:
        return
    noted = sql.SQL('select topic, partition, "offset" from {} where task_attempt = any({})').format(
        identifier(tables.rejects), sql.Literal([note_attempt(attempt) for attempt in staged.attempts])
    )
    rows = StagedRows(identifier(tables.rows), tables.batch_id, staged.rows, tables.checked)
    while (found := writer.find_unavailable(cursor, rows, columns, without=noted)) is not None:
        cursor.execute(
            sql.SQL(
                'insert into {} (task_attempt, topic, partition, "offset", reason) '
                "select ~ task_attempt, topic, partition, o, reason from ({}) u (task_attempt, topic, partition, o, "
                "reason) order by 2, 3, 4 limit {}"
            ).format(identifier(tables.rejects), found, sql.Literal(limit + 1))
        )
        if cursor.rowcount in (0, limit + 1):
            return
