"""Reject staged rows that lack a value which the sink does not know."""

from collections.abc import Sequence

from psycopg2 import sql

from exactbatch.batch.rows.rejected import note_attempt
from exactbatch.batch.staging.staging_tables import StagingTables, identifier
from exactbatch.batch.staging.task import StagedBatch
from exactbatch.columns import Column
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.capabilities import FindsUnknown
from exactbatch.sinks.staged_rows import StagedRows
from exactbatch.sinks.writer import SinkWriter


def note_unknown(
    cursor: Cursor,
    writer: SinkWriter,
    tables: StagingTables,
    staged: StagedBatch,
    columns: Sequence[Column],
    *,
    limit: int,
) -> None:
    """Note the records whose rows lack values that the sink does not know.

    A row that becomes a reject does not supply its values to others, so that the search goes on until it finds none.
    """
    if not isinstance(writer, FindsUnknown) or not writer.traits.keeps_unchanged:
        return
    noted = sql.SQL('select topic, partition, "offset" from {} where task_attempt = any({})').format(
        identifier(tables.rejects), sql.Literal([note_attempt(attempt) for attempt in staged.attempts])
    )
    rows = StagedRows(identifier(tables.rows), tables.batch_id, staged.rows, tables.checked)
    while (unknown := writer.find_unknown(cursor, rows, columns, without=noted)) is not None:
        cursor.execute(
            sql.SQL(
                'insert into {} (task_attempt, topic, partition, "offset", reason) '
                "select ~ task_attempt, topic, partition, o, reason from ({}) u (task_attempt, topic, partition, o, "
                "reason) order by 2, 3, 4 limit {}"
            ).format(identifier(tables.rejects), unknown, sql.Literal(limit + 1))
        )
        if cursor.rowcount in (0, limit + 1):
            return
